"""`Figures`: all numbers of one process at one moment, and those of several processes as one.

Counters only grow while a process lives; gauges say how it is now. Knows neither who writes these
numbers down nor how they are shown. Rules are named here, keys never.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from limen.backends import Shard, Vitals
from limen.backends.histogram import Spread
from limen.observe.cells import MOST_NAMES, OTHERS

FRESH_S = 5.0
"""For how many seconds the gauges of a process hold."""
MOST_SERVERS = 128
"""How many servers of a store have numbers of their own."""
_ENDED = 0.0

_V = TypeVar("_V")


class ServerFigures(Struct):
    """The numbers of one server of the store, as one process sees it."""

    is_open: bool = False
    """A gauge: whether its circuit breaker is open, so that it is left alone."""
    opened: int = 0
    """How often that has happened."""
    faults: dict[str, int] = {}
    """By kind, `timeout`: how often it did not answer as it should."""
    trips: Spread = Spread()
    """In seconds, by the bounds `TRIP_S`: how long it took to answer."""
    batches: Spread = Spread()
    """By the bounds `BATCH`: how many decisions travelled together."""
    memory: int | None = None
    """A gauge: the bytes it uses; None when it did not say."""
    ops: float | None = None
    """A gauge: the commands that it carries out in a second; None when it did not say."""
    ping_s: float | None = None
    """A gauge: in how many seconds it answered last; None when it did not."""


class Figures(Struct):
    """The numbers of one process. Counters are since its start; gauges are named as such."""

    instance: str
    at: float
    """When they were taken, in seconds since 1970; 0.0 when they are of processes that ended."""
    decisions: dict[str, list[int]] = {}
    """By rule: allowed, denied, shadow_denied, degraded."""
    requests: list[int] = field(default_factory=lambda: [0, 0])
    """Allowed, denied."""
    fallback: dict[str, list[int]] = {}
    """By who decided instead of the store (`local`, `open`, `closed`): allowed, denied."""
    undelivered: dict[str, list[int]] = {}
    """By surface (`auth`, `envoy`): allowed, denied, where the gateway did not wait for it."""
    durations: dict[str, Spread] = {}
    """By surface (`check`, `slots`, `auth`, `envoy`): seconds, by the bounds `TRIP_S`."""
    servers: dict[str, ServerFigures] = {}
    """By address, without a password."""
    lost_refunds: int = 0
    tables: dict[str, int] = {}
    """A gauge: the entries of each table in the memory of the process, `local`."""
    rules_version: str = ""
    """A gauge, as are all of the rules."""
    rules_source: str = ""
    rules_age: float = 0.0
    """For how many seconds the rules have been in force."""
    rules: int = 0
    """How many there are."""
    rules_trouble: int = 0
    """How many of the ways by which rules come do not work."""
    kill_switch: bool = False
    instances: int = 0
    """A gauge: how many processes enforce rules, on all hosts."""
    alerts: int = 0
    """A gauge: how many alerts are open."""
    cpu_s: float = 0.0
    """How many seconds the process was on the CPU."""
    busy: float = 0.0
    """A gauge: the share of the last second that it was on the CPU, 0.0 to 1.0."""


def servers_of(
    shards: Iterable[Shard], vitals: Mapping[str, Vitals] | None = None
) -> dict[str, ServerFigures]:
    """Return what is known of the servers of a store, and what they say of themselves."""
    found: dict[str, ServerFigures] = {}
    for shard in shards:
        said = (vitals or {}).get(shard.where)
        found[shard.where] = ServerFigures(
            shard.state == "open",
            shard.opened,
            dict(shard.faults),
            shard.trips,
            shard.batches,
            None if said is None else said.memory,
            None if said is None else said.operations,
            None if said is None else said.ping_s,
        )
    return found


def fresh(figures: Iterable[Figures], now: float) -> list[Figures]:
    """Return the figures of the processes that live: written in the last `FRESH_S` seconds."""
    return [each for each in figures if abs(now - each.at) <= FRESH_S]


def counters(figures: Sequence[Figures]) -> Figures:
    """Return what stays of processes that have ended: their counters, and no gauge.

    The first `MOST_NAMES` rules and `MOST_SERVERS` servers keep their names; the others are added
    up as `(others)`.
    """
    whole = merged(figures, math.inf)
    return replace(
        whole,
        at=_ENDED,
        decisions=_bounded(whole.decisions, MOST_NAMES, _added),
        servers=_bounded(whole.servers, MOST_SERVERS, _server_counters),
    )


def merged(figures: Sequence[Figures], now: float) -> Figures:
    """Return the figures of several processes as one.

    Counters are added up over all of them. Gauges are of the processes that wrote in the last
    `FRESH_S` seconds: a process that has ended has none.

    Of the rules and servers of running processes, `MOST_NAMES` and `MOST_SERVERS` keep their names:
    the first ones of the alphabet, so that every process names the same. Names of processes that
    have ended stay, because `counters` has bounded them.
    """
    living = sorted(fresh(figures, now), key=_at, reverse=True)
    newest = living[0] if living else Figures("", now)
    running = [each for each in figures if each.at != _ENDED]
    others = _beyond([each.decisions for each in running], MOST_NAMES)
    return Figures(
        instance="",
        at=now,
        decisions=_by_name((each.decisions for each in figures), _added, others),
        requests=_added([[0, 0], *[each.requests for each in figures]]),
        fallback=_by_name((each.fallback for each in figures), _added),
        undelivered=_by_name((each.undelivered for each in figures), _added),
        durations=_by_name((each.durations for each in figures), _spread),
        servers=_servers(figures, living),
        lost_refunds=sum(each.lost_refunds for each in figures),
        tables=_by_name((each.tables for each in living), sum),
        rules_version=newest.rules_version,
        rules_source=newest.rules_source,
        rules_age=max((each.rules_age for each in living), default=0.0),
        rules=newest.rules,
        rules_trouble=max((each.rules_trouble for each in living), default=0),
        kill_switch=any(each.kill_switch for each in living),
        instances=max((each.instances for each in living), default=0),
        alerts=max((each.alerts for each in living), default=0),
        cpu_s=math.fsum(each.cpu_s for each in figures),
        busy=max((each.busy for each in living), default=0.0),
    )


def _servers(figures: Sequence[Figures], living: Sequence[Figures]) -> dict[str, ServerFigures]:
    """Return each server as all processes see it; `living` has the newest figures first."""
    running = [each.servers for each in figures if each.at != _ENDED]
    others = _beyond(running, MOST_SERVERS)
    servers = _by_name((each.servers for each in figures), _server_counters, others)
    for where, server in servers.items():
        now = [each.servers[where] for each in living if where in each.servers]
        server.is_open = any(each.is_open for each in now)
        server.memory = _first(each.memory for each in now)
        server.ops = _first(each.ops for each in now)
        server.ping_s = _first(each.ping_s for each in now)
    return servers


def _server_counters(parts: Sequence[ServerFigures]) -> ServerFigures:
    """Add up the counters of servers; leave out the gauges."""
    return ServerFigures(
        opened=sum(part.opened for part in parts),
        faults=_by_name((part.faults for part in parts), sum),
        trips=_spread([part.trips for part in parts]),
        batches=_spread([part.batches for part in parts]),
    )


def _beyond(tables: Iterable[Iterable[str]], most: int) -> set[str]:
    """Return the names beyond the first `most` of the alphabet."""
    names = {name for table in tables for name in table} - {OTHERS}
    return set(sorted(names)[most:])


def _by_name(
    tables: Iterable[Mapping[str, _V]],
    add: Callable[[list[_V]], _V],
    others: Collection[str] = (),
) -> dict[str, _V]:
    """Add up the values of each name; those of `others` under one name."""
    values: dict[str, list[_V]] = {}
    for table in tables:
        for name, value in table.items():
            values.setdefault(OTHERS if name in others else name, []).append(value)
    return {name: add(each) for name, each in values.items()}


def _bounded(table: dict[str, _V], most: int, add: Callable[[list[_V]], _V]) -> dict[str, _V]:
    """Return a table with its first `most` names, and the others as `(others)`."""
    named = [name for name in table if name != OTHERS][:most]
    bounded = {name: table[name] for name in named}
    rest = {name: value for name, value in table.items() if name not in bounded}
    return {**bounded, OTHERS: add(list(rest.values()))} if rest else bounded


def _added(rows: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


def _spread(spreads: Iterable[Spread]) -> Spread:
    parts = list(spreads)
    counts = tuple(_added([part.counts for part in parts]))
    return Spread(counts, math.fsum(part.total for part in parts))


def _first(values: Iterable[_V | None]) -> _V | None:
    return next((value for value in values if value is not None), None)


def _at(figures: Figures) -> float:
    return figures.at
