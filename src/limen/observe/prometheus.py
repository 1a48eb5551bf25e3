"""Figures as Prometheus reads them: names, types, units and labels. Nobody else knows of it.

Every label is of a small set that the operator has chosen: rules, servers, outcomes. What a caller
sends is never one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import Protocol, get_args

from limen.backends import FaultKind
from limen.backends.histogram import BATCH, TRIP_S, Spread
from limen.observe.figures import Figures, ServerFigures

try:
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
    )
except ImportError as _missing:
    raise ImportError(
        f"limen.observe.prometheus needs the package {_missing.name}; "
        "run: pip install 'limen[prometheus]'",
        name=_missing.name,
    ) from None

__all__ = ["HasFigures", "LimenCollector", "exposition", "families"]

_OUTCOMES = ("allowed", "denied", "shadow_denied", "degraded")
_GATEWAYS = ("auth", "envoy")
_PAIR = _OUTCOMES[:2]
_SOURCES = ("local", "open", "closed")
_KINDS: tuple[str, ...] = get_args(FaultKind)


class HasFigures(Protocol):
    """Something that counts, such as `limen.observe.metrics.Metrics`."""

    def figures(self) -> Figures:
        """Return what was counted so far."""
        ...


class LimenCollector:
    """Puts what a program's own limiters count into its registry.

    ```python
    prometheus_client.REGISTRY.register(LimenCollector(metrics))
    ```
    """

    def __init__(self, metrics: HasFigures) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now; the registry calls it at each scrape."""
        return families(self._metrics.figures(), 0)

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without numbers: a registry takes no name twice."""
        return families(Figures("", 0.0), 0)


def exposition(figures: Figures, workers: int, accept: str) -> tuple[bytes, str]:
    """Return what a scrape is answered, and its content type.

    `accept` is the header of the scrape: who asks for OpenMetrics gets it, everybody else the text
    format 0.0.4.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is none
        encode, content_type = choose_encoder("")
    return encode(_Once(families(figures, workers))), content_type


class _Once:
    """What an encoder takes for a registry."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def families(figures: Figures, workers: int) -> Iterator[Metric]:
    """Yield every metric.

    `workers` is the number of processes that the figures are of; 0 says that they are no service's,
    and leaves out what only a service has: requests, rules, workers.
    """
    yield from _decisions(figures)
    if workers:
        yield from _requests(figures)
    yield from _store(figures.servers)
    yield _counter("limen_lost_refunds", _LOST, figures.lost_refunds)
    tables = GaugeMetricFamily("limen_table_entries", _TABLES, labels=["table"])
    for name, entries in sorted(figures.tables.items()):
        tables.add_metric([name], entries)
    yield tables
    if workers:
        yield from _rules(figures)
        yield from _workers(figures, workers)
    yield InfoMetricFamily("limen_build", "The version of limen.", {"version": _version()})


_LOST = "Reservations that could not be given back, and stay charged for their period."
_TABLES = (
    "Entries in the memory of the processes: keys counted while the store is away (local), "
    "corrections that it is owed (owed), its last readings (readings), keys of the memory store "
    "(memory)."
)


def _decisions(figures: Figures) -> Iterator[Metric]:
    decisions = CounterMetricFamily(
        "limen_decisions",
        "Decisions by rule. Degraded ones were made without the store, whichever way.",
        labels=["rule", "outcome"],
    )
    for rule, counts in figures.decisions.items():
        _add_counts(decisions, [rule], _OUTCOMES, counts)
    yield decisions
    fallback = CounterMetricFamily(
        "limen_fallback_decisions",
        "Requests decided without the store, by who did: this process (local), or a fixed answer.",
        labels=["source", "outcome"],
    )
    # All of them from the start: of a series that begins above 0, Prometheus misses the beginning.
    for source in _SOURCES:
        _add_counts(fallback, [source], _PAIR, figures.fallback.get(source, (0, 0)))
    yield fallback


def _requests(figures: Figures) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "limen_requests", "Requests that were decided, by all rules together.", labels=["outcome"]
    )
    _add_counts(requests, [], _PAIR, figures.requests)
    yield requests
    undelivered = CounterMetricFamily(
        "limen_undelivered_decisions",
        "Decisions for gateways that had closed the connection or the call before the response was "
        "written. They are in limen_requests_total too; the gateway decided by itself.",
        labels=["surface", "outcome"],
    )
    for surface in _GATEWAYS:
        counts = figures.undelivered.get(surface, (0, 0))
        _add_counts(undelivered, [surface], _PAIR, counts)
    yield undelivered
    durations = _histogram(
        "limen_request_duration", "How long it took to answer a request.", "surface", "seconds"
    )
    for surface, spread in sorted(figures.durations.items()):
        _add_spread(durations, surface, spread, TRIP_S)
    yield durations


def _store(servers: dict[str, ServerFigures]) -> Iterator[Metric]:
    trips = _histogram(
        "limen_store_duration",
        "How long a server of the store took to answer.",
        "server",
        "seconds",
    )
    batches = _histogram(
        "limen_store_batch_size", "How many decisions shared a call to a server.", "server", ""
    )
    errors = CounterMetricFamily(
        "limen_store_errors",
        "Calls that a server of the store did not answer as it should, by kind.",
        labels=["server", "kind"],
    )
    is_open = _gauge("limen_breaker_open", "1 while a server is left alone until it answers again.")
    opened = CounterMetricFamily(
        "limen_breaker_opened", "How often a server began to be left alone.", labels=["server"]
    )
    memory = _gauge("limen_redis_memory_bytes", "The memory that a server says it uses.", "bytes")
    operations = _gauge(
        "limen_redis_operations_per_second", "The commands that a server says it carries out."
    )
    ping = _gauge("limen_redis_ping_seconds", "How long a server took to say so.", "seconds")
    for where, server in sorted(servers.items()):
        _add_spread(trips, where, server.trips, TRIP_S)
        _add_spread(batches, where, server.batches, BATCH)
        for kind in dict.fromkeys([*_KINDS, *server.faults]):
            errors.add_metric([where, kind], server.faults.get(kind, 0))
        is_open.add_metric([where], int(server.is_open))
        opened.add_metric([where], server.opened)
        told = ((memory, server.memory), (operations, server.ops), (ping, server.ping_s))
        for family, value in told:
            if value is not None:
                family.add_metric([where], value)
    yield from (trips, batches, errors, is_open, opened, memory, operations, ping)
    yield _counter(
        "limen_fallback_activations",
        "How often decisions began to be made without a server of the store: the sum of "
        "limen_breaker_opened_total.",
        sum(server.opened for server in servers.values()),
    )


def _rules(figures: Figures) -> Iterator[Metric]:
    yield GaugeMetricFamily("limen_rules", "How many rules are in force.", figures.rules)
    # No family of the type info, whose name would be that of the number of rules.
    info = GaugeMetricFamily(
        "limen_rules_info",
        "The version of the rules in force, and where it was taken from.",
        labels=["version", "source"],
    )
    info.add_metric([figures.rules_version, figures.rules_source], 1)
    yield info
    yield GaugeMetricFamily(
        "limen_rules_age_seconds",
        "For how long these rules have been in force.",
        figures.rules_age,
        unit="seconds",
    )
    yield GaugeMetricFamily(
        "limen_rules_trouble",
        "How many of the ways by which rules come do not work.",
        figures.rules_trouble,
    )
    yield GaugeMetricFamily(
        "limen_kill_switch", "1 while the kill switch is on.", int(figures.kill_switch)
    )
    yield GaugeMetricFamily(
        "limen_instances", "Processes that enforce rules, on all hosts.", figures.instances
    )
    yield GaugeMetricFamily(
        "limen_alerts_open", "Alerts of limen itself that have not ended.", figures.alerts
    )


def _workers(figures: Figures, workers: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("limen_workers", "Processes that serve on this host.", workers)
    yield CounterMetricFamily(
        "limen_worker_cpu_seconds",
        "How long the workers were on the CPU, together.",
        figures.cpu_s,
        unit="seconds",
    )
    yield GaugeMetricFamily(
        "limen_worker_busy_ratio",
        "The share of the last second that the busiest worker was on the CPU; 1 is all it can do.",
        figures.busy,
        unit="ratio",
    )


def _counter(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_, value)


def _gauge(name: str, help_: str, unit: str = "") -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_, labels=["server"], unit=unit)


def _histogram(name: str, help_: str, label: str, unit: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, help_, labels=[label], unit=unit)


def _add_counts(
    family: CounterMetricFamily,
    labels: list[str],
    outcomes: Sequence[str],
    counts: Sequence[int],
) -> None:
    for outcome, count in zip(outcomes, counts, strict=True):
        family.add_metric([*labels, outcome], count)


def _add_spread(
    family: HistogramMetricFamily, label: str, spread: Spread, bounds: Sequence[float]
) -> None:
    counts = spread.counts or (0,) * (len(bounds) + 1)
    buckets, so_far = [], 0
    for bound, count in zip([*map(_bound, bounds), "+Inf"], counts, strict=True):
        so_far += count
        buckets.append((bound, float(so_far)))
    family.add_metric([label], buckets, spread.total)


def _bound(value: float) -> str:
    """Return a bound as OpenMetrics wants it: `1.0`, not `1`."""
    return repr(float(value))


def _version() -> str:
    return metadata.version("limen")
