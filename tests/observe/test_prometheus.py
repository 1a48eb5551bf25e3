"""Figures as Prometheus reads them: names, types and numbers, to the letter."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

import limen
from limen.backends.histogram import BATCH, TRIP_S
from limen.observe.cells import MOST_NAMES
from limen.observe.figures import MOST_SERVERS, Figures, ServerFigures, counters
from limen.observe.prometheus import LimenCollector, exposition, families
from tests.observe.test_figures import busy_one, spread
from tests.prometheus import promtool

OPENMETRICS = "application/openmetrics-text"
OF_PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)


def text(figures: Figures, workers: int = 2, accept: str = "") -> str:
    return exposition(figures, workers, accept)[0].decode()


def lines(figures: Figures, name: str, workers: int = 2) -> list[str]:
    return [
        line.removeprefix(name)
        for line in text(figures, workers).splitlines()
        if re.match(rf"{name}[{{ ]", line)
    ]


def test_each_number_has_its_name_and_labels() -> None:
    figures = busy_one()
    assert lines(figures, "limen_decisions_total") == [
        '{outcome="allowed",rule="login"} 5.0',
        '{outcome="denied",rule="login"} 4.0',
        '{outcome="shadow_denied",rule="login"} 3.0',
        '{outcome="degraded",rule="login"} 2.0',
        '{outcome="allowed",rule="api"} 1.0',
        '{outcome="denied",rule="api"} 0.0',
        '{outcome="shadow_denied",rule="api"} 0.0',
        '{outcome="degraded",rule="api"} 0.0',
    ]
    assert lines(figures, "limen_requests_total") == [
        '{outcome="allowed"} 10.0',
        '{outcome="denied"} 6.0',
    ]
    assert lines(figures, "limen_fallback_decisions_total") == [
        '{outcome="allowed",source="local"} 1.0',
        '{outcome="denied",source="local"} 1.0',
        '{outcome="allowed",source="open"} 0.0',
        '{outcome="denied",source="open"} 0.0',
        '{outcome="allowed",source="closed"} 0.0',
        '{outcome="denied",source="closed"} 0.0',
    ]
    errors = lines(figures, "limen_store_errors_total")
    assert errors[0] == '{kind="timeout",server="valkey:6379"} 3.0'
    assert all(line.endswith(" 0.0") for line in errors[1:])
    server = '{server="valkey:6379"}'
    for name, expected in {
        "limen_breaker_open": f"{server} 1.0",
        "limen_breaker_opened_total": f"{server} 2.0",
        "limen_fallback_activations_total": " 2.0",
        "limen_redis_memory_bytes": f"{server} 1000.0",
        "limen_redis_operations_per_second": f"{server} 7.5",
        "limen_redis_ping_seconds": f"{server} 0.001",
        "limen_lost_refunds_total": " 1.0",
        "limen_table_entries": '{table="local"} 9.0',
        "limen_rules": " 2.0",
        "limen_rules_info": '{source="store",version="12"} 1.0',
        "limen_rules_age_seconds": " 60.0",
        "limen_rules_trouble": " 1.0",
        "limen_kill_switch": " 1.0",
        "limen_instances": " 4.0",
        "limen_alerts_open": " 2.0",
        "limen_workers": " 2.0",
        "limen_worker_cpu_seconds_total": " 1.5",
        "limen_worker_busy_ratio": " 0.25",
        "limen_build_info": f'{{version="{limen.__version__}"}} 1.0',
    }.items():
        assert lines(figures, name) == [expected]


def test_histograms_are_cumulative_with_their_sum() -> None:
    figures = Figures(
        "x",
        1.0,
        durations={"check": spread(0.0001, 0.0002, 0.0003, 0.25, 7.0)},
        servers={"a": ServerFigures(batches=spread(1, 3, 200, bounds=BATCH))},
    )
    found = [line for line in text(figures).splitlines() if "request_duration" in line][2:]
    counts = [2, 3, 3, 3, 3, 3, 3, 3, 3, 4, 4, 5]
    assert [line.rpartition(" ")[2] for line in found[:12]] == [f"{count}.0" for count in counts]
    bounds = [*map(str, TRIP_S), "+Inf"]
    for bound, line in zip(bounds, found, strict=False):
        assert f'_bucket{{le="{bound}",surface="check"}}' in line
    assert found[12:] == [
        'limen_request_duration_seconds_count{surface="check"} 5.0',
        'limen_request_duration_seconds_sum{surface="check"} 7.2506',
    ]
    assert lines(figures, "limen_store_batch_size_sum") == ['{server="a"} 204.0']
    assert lines(figures, "limen_store_batch_size_bucket") == [
        f'{{le="{bound}",server="a"}} {count}.0'
        for bound, count in zip(
            [*(f"{each}.0" for each in BATCH), "+Inf"], [1, 1, 2, 2, 2, 2, 2, 2, 3], strict=True
        )
    ]
    # What was never measured is there, and nothing.
    assert lines(figures, "limen_store_duration_seconds_count") == ['{server="a"} 0.0']


@pytest.mark.parametrize("workers", [0, 2])
def test_promtool_has_nothing_to_say(workers: int) -> None:
    for figures in (busy_one(), Figures("", 0.0)):
        assert promtool("check", "metrics", given=text(figures, workers)) == "exit 0"


def test_promtool_would_have_something_to_say() -> None:
    assert "exit 3" in promtool("check", "metrics", given="# TYPE a_ms counter\na_ms 1\n")


def test_who_asks_for_openmetrics_gets_it_with_the_same_numbers() -> None:
    body, content_type = exposition(busy_one(), 2, OF_PROMETHEUS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    samples = {
        (each.name, *sorted(each.labels.items())): each.value
        for family in openmetrics(body.decode())  # type: ignore[no-untyped-call]  # it has no types
        for each in family.samples
    }
    assert samples == {
        (each.name, *sorted(each.labels.items())): each.value
        for family in plain(text(busy_one()))
        for each in family.samples
    }


@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "text/html", ";;,,;=", "text/plain;version=x", f"{OPENMETRICS};version=abc,a"],
)
def test_everybody_else_gets_plain_text(accept: str) -> None:
    body, content_type = exposition(busy_one(), 2, accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert body.decode() == text(busy_one())


def test_any_text_can_be_a_label() -> None:
    strange = 'a"b\\c\nd{e="f"} 1\u2028é'
    figures = Figures("x", 1.0, {strange: [1, 0, 0, 0]}, servers={strange: ServerFigures()})
    for accept in ("", OPENMETRICS):
        body = exposition(figures, 1, accept)[0].decode()
        parse = openmetrics if accept else plain
        samples = [each for family in parse(body) for each in family.samples]
        assert {each.labels["rule"] for each in samples if "rule" in each.labels} == {strange}


def test_series_are_bounded_whatever_comes() -> None:
    def of(worker: int) -> Figures:
        return Figures(
            str(worker),
            1.0,
            {f"{worker}-{number}": [1, 1, 1, 1] for number in range(MOST_NAMES)},
            servers={f"{worker}-{number}": ServerFigures() for number in range(MOST_SERVERS)},
        )

    samples = [each for family in families(counters([of(1), of(2)]), 2) for each in family.samples]
    by_rule = [each for each in samples if "rule" in each.labels]
    assert len(by_rule) == 4 * (MOST_NAMES + 1)
    assert len({each.labels["server"] for each in samples if "server" in each.labels}) == 129
    labels = {name for each in samples for name in each.labels}
    assert labels == {
        *("rule", "outcome", "source", "surface", "server", "kind", "le", "version"),
    }


class Counted:
    def __init__(self) -> None:
        self.allowed = 0

    def figures(self) -> Figures:
        return Figures("", 1.0, {"100/minute": [self.allowed, 0, 0, 0]})


def test_a_program_has_it_in_its_own_registry() -> None:
    registry, counted = CollectorRegistry(auto_describe=True), Counted()
    Counter("of_the_program", "Its own.", registry=registry).inc()
    registry.register(LimenCollector(counted))
    labels = {"rule": "100/minute", "outcome": "allowed"}
    for allowed in (3, 5):
        counted.allowed = allowed
        assert registry.get_sample_value("limen_decisions_total", labels) == allowed
    shown = generate_latest(registry).decode()
    assert "of_the_program_total 1.0" in shown
    # What only a service has is left out.
    for absent in ("limen_rules", "limen_worker", "limen_request", "limen_kill_switch"):
        assert absent not in shown
    with pytest.raises(ValueError, match="limen_decisions"):
        registry.register(LimenCollector(Counted()))


def test_without_the_package_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; import limen.observe.prometheus"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "run: pip install 'limen[prometheus]'" in done.stderr.splitlines()[-1]
