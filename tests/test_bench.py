"""The bench measures what it says, and says what it measured. Runs without the peers."""

from __future__ import annotations

import asyncio
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bench import __main__ as command
from bench import (
    footprint,
    framework_apps,
    frameworks,
    gateways,
    memory,
    observing,
    redis_bytes,
    redis_libraries,
    redis_rates,
    redis_store,
    redis_time,
    report,
    rules,
    server,
    service,
)
from bench.harness import _TRIES, BenchError, Contestant, Target, measure, ratio, rotated
from bench.libraries import LIMEN, LIMITS, PEERS, PYRATE, THROTTLED, Instance, Quota, build, limen
from bench.redis_libraries import HIT, HIT_AND_STATS, ONE, THREE, TOKENS

from limen import Limit, model
from limen.observe.metrics import Metrics
from limen.rules import parse
from limen.server.api.response_templates import TemplateCache
from limen.server.envoy.question import decoded, understood
from limen.testing import ManualClock

ALGORITHMS = [algorithm for group in memory.GROUPS for name, algorithm in group if name == LIMEN]
KEYS = [f"user:{number}" for number in range(5)]
MARKED = f"# limen\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n"


class Track:
    """Contestants that take as long as they are told, on a clock of their own."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[str] = []

    def contestant(self, name: str, *nanoseconds: int, expected: int = 1) -> Contestant:
        durations: Iterator[int] = iter(nanoseconds)

        def block() -> int:
            self.log.append(name)
            self.now += next(durations)
            return 1

        return Contestant(name, block, expected, self.wait, self.wait)

    def wait(self) -> None:
        self.now += 1_000_000

    def clock(self) -> int:
        return self.now


# harness


def test_gives_nanoseconds_per_call_of_each_round_and_forgets_the_first() -> None:
    track = Track()
    a, b = track.contestant("a", 999, 10, 30, 20), track.contestant("b", 999, 40, 60, 50)
    times = measure([a, b], calls=10, rounds=3, clock=track.clock)
    assert times == {"a": [1.0, 3.0, 2.0], "b": [4.0, 6.0, 5.0]}


def test_contestants_alternate_and_the_first_changes_each_round() -> None:
    track = Track()
    contestants = [track.contestant(name, *[1] * 4) for name in "abc"]
    measure(contestants, calls=1, rounds=3, clock=track.clock)
    assert "".join(track.log) == "abcbcacababc"


def test_rotation_keeps_everybody() -> None:
    assert rotated("abc", 4) == ["b", "c", "a"]


def test_ratio_is_of_medians_with_the_spread_of_single_rounds() -> None:
    found = ratio([1.0, 2.0, 4.0], [6.0, 6.0, 8.0])
    assert (found.of_medians, found.low, found.high) == (3.0, 2.0, 6.0)


def test_a_block_that_did_something_else_is_measured_again() -> None:
    answers = iter([3, 0, 1, 0])
    contestant = Contestant("a", lambda: next(answers), expected=0)
    assert len(measure([contestant], calls=1, rounds=1)["a"]) == 1
    assert next(answers, None) is None


def test_a_contestant_that_never_does_what_it_claims_is_an_error() -> None:
    with pytest.raises(BenchError, match="liar: 7 calls of a block were admitted, expected 0"):
        measure([Contestant("liar", lambda: 7, expected=0)], calls=1, rounds=1)


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (Target(4, 6), 6.0, "met goal"),
        (Target(4, 6), 5.999, "met minimum"),
        (Target(4, 6), 4.0, "met minimum"),
        (Target(4, 6), 3.999, "MISSED"),
        (Target(4), 100.0, "met minimum"),
        (Target(7.5, 5, less_is_better=True), 5.0, "met goal"),
        (Target(7.5, 5, less_is_better=True), 5.01, "met minimum"),
        (Target(7.5, 5, less_is_better=True), 7.51, "MISSED"),
        (Target(7.5, less_is_better=True), 1.0, "met minimum"),
    ],
)
def test_verdict(target: Target, value: float, verdict: str) -> None:
    assert target.verdict(value) == verdict


# memory


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_admitted_blocks_of_limen_admit_every_call(algorithm: str) -> None:
    instance = limen(algorithm, memory.ROOMY, ManualClock())
    contestant = memory.admitted_phase(instance, "admitted", KEYS * 4)
    assert contestant.expected == 20
    times = measure([contestant], calls=20, rounds=5)
    assert len(times["admitted"]) == 5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_refused_blocks_of_limen_refuse_every_call(algorithm: str) -> None:
    instance = limen(algorithm, memory.TIGHT, ManualClock())
    contestant = memory.refused_phase(instance, "refused", KEYS, KEYS * 4)
    assert contestant.expected == 0
    times = measure([contestant], calls=20, rounds=5)
    assert len(times["refused"]) == 5


def test_admitted_blocks_fill_a_window_as_far_as_a_spent_one_and_not_to_its_quota() -> None:
    asked = memory._PASSES * (memory._ROUNDS + 1)
    assert asked == memory.TIGHT.units
    assert asked * 10 < memory.ROOMY.units


def test_the_keys_fit_into_the_default_store_of_throttled() -> None:
    assert memory._KEYS <= 1_024


def test_spending_fails_where_nobody_is_ever_refused() -> None:
    generous = Instance(loop=lambda keys: len(list(keys)))
    contestant = memory.refused_phase(generous, "generous", KEYS, KEYS)
    with pytest.raises(BenchError, match="generous: still admits after 100 calls of each key"):
        contestant.before()


def test_every_algorithm_is_set_beside_a_peer() -> None:
    assert set(ALGORITHMS) == set(model.ALGORITHMS)
    for group in memory.GROUPS:
        assert {library for library, _ in group} & set(PEERS)


def test_misses_are_shown_and_counted() -> None:
    times = {
        (LIMEN, "token_bucket"): memory.Times([10.0, 10.0], [10.0, 10.0]),
        (LIMITS, "slow"): memory.Times([30.0, 30.0], [40.0, 40.0]),
        (THROTTLED, "slower"): memory.Times([60.0, 60.0], [40.0, 40.0]),
        (PYRATE, "other"): memory.Times([10.0, 10.0], [10.0, 10.0]),
    }
    shown = memory.ratios_table(memory.compare(times))
    assert "| limits, slow | 3.00x | 4.00x | **3.50x** | 3.50 to 3.50 | MISSED |" in shown
    assert "| throttled-py, slower | 6.00x | 4.00x | **5.00x** | 5.00 to 5.00 | met goal |" in shown
    assert (
        "| pyrate-limiter, other | 1.00x | 1.00x | **1.00x** | 1.00 to 1.00 | no target |" in shown
    )
    assert "Of 2 ratios: 1 met goal, 0 met minimum, 1 MISSED." in shown


def test_both_phases_weigh_the_same_in_each_round() -> None:
    assert memory.Times([10.0, 20.0], [30.0, 60.0]).both == [20.0, 40.0]


def test_a_missing_peer_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "limits.storage", None)
    with pytest.raises(BenchError, match=r"limits is not installed .*; run: make bench"):
        build(LIMITS, "moving window", Quota(1, 1))


# footprint


def test_fills_a_store_and_reports_its_growth() -> None:
    case = footprint.Case(LIMEN, "packed_window", 86_400, keys=20_000, requests=1, quota=5)
    # In a process of its own, as the bench does: one that has lived has room it can fill again.
    found = footprint._measure([case], lambda text: None)
    assert found[case] > 100 * case.keys


def test_a_store_that_is_fuller_than_it_may_be_is_an_error() -> None:
    case = footprint.Case(LIMEN, "packed_window", 86_400, keys=3, requests=2, quota=1)
    with pytest.raises(BenchError, match="packed_window: 0 of 3 keys were admitted"):
        footprint.grown(case)


def test_bytes_are_divided_among_the_requests() -> None:
    case = footprint.Case(LIMEN, "packed_window", 60, 10, 100, 100)
    assert footprint.requests_table([case], {case: 5_000}).endswith("| 100 | 10 | 5.0 |")


# redis

NOBODY = "redis://127.0.0.1:1"


def test_a_decision_that_the_store_did_not_make_is_not_counted() -> None:
    with redis_libraries.open_limiter(NOBODY) as limiter:
        assert limiter.check("user:1", "10/hour").allowed
        assert redis_libraries.limen_loop(limiter, "10/hour")(KEYS) == 0


def test_a_missing_peer_of_redis_names_the_command_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "limits.storage", None)
    with pytest.raises(BenchError, match=r"limits is not installed .*; run: make bench"):
        redis_libraries.build(HIT, NOBODY)


def test_counts_what_a_script_did_and_not_what_the_bench_asks() -> None:
    stats = {
        "cmdstat_evalsha": {"calls": 2, "usec": 50},
        "cmdstat_time": {"calls": 2, "usec": 1},
        "cmdstat_getrange": {"calls": 3, "usec": 4},
        "cmdstat_config|resetstat": {"calls": 1, "usec": 70},
        "cmdstat_info": {"calls": 1, "usec": 90},
    }
    found = server.spent(stats)
    assert (found.calls, found.commands, found.script_us) == (2, 5, 50)
    assert found.each_us["getrange"] == 4


def test_the_calls_of_a_block_are_dealt_out_evenly() -> None:
    dealt = redis_rates.shares(["a", "b", "c"], 8, 4)
    assert dealt == [["a", "b"], ["b", "c"], ["c", "a"], ["a", "b"]]


@pytest.mark.parametrize("way", redis_rates.ways(quick=False), ids=lambda way: way.name)
def test_windows_on_redis_are_never_filled(way: redis_rates.Way) -> None:
    asked = -(-way.calls // len(redis_rates.KEYS)) * (way.rounds + 1) * _TRIES
    smallest = min(Limit.parse(text).quota for text in redis_libraries._LIMITS[THREE])
    assert asked < smallest
    assert way.calls % way.askers == 0


def test_every_target_is_of_a_pair_that_is_measured() -> None:
    measured = {
        (way.name, name) for way in redis_rates.ways(quick=False) for name in way.contestants
    }
    assert set(redis_rates.TARGETS) <= measured


def test_misses_on_redis_are_shown_and_counted() -> None:
    times: dict[str, redis_rates.Times] = {
        "one thread": {ONE: [10.0], HIT: [12.0], HIT_AND_STATS: [15.0], THREE: [16.0]},
        "64 tasks": {ONE: [4.0], HIT: [32.0], THREE: [10.0]},
    }
    shown = redis_rates.ratios_table(redis_rates.compare(times))
    assert "| **1.20x** | 1.20 to 1.20 | 1.3x, goal 1.5x | MISSED |" in shown
    assert "| **1.50x** | 1.50 to 1.50 | 1.3x, goal 1.5x | met goal |" in shown
    assert "| **8.00x** | 8.00 to 8.00 | 5x, goal 10x | met minimum |" in shown
    assert "Of 3 ratios: 1 met goal, 1 met minimum, 1 MISSED." in shown
    three = redis_rates.three_table(times)
    assert "| **1.60x** the time | 1.60 to 1.60 | at most 1.5x | MISSED |" in three
    assert "| **0.40x** the rate | 0.40 to 0.40 | at least 0.4x | met minimum |" in three


def test_what_has_no_target_says_so() -> None:
    times: dict[str, redis_rates.Times] = {
        "one thread": {TOKENS: [10.0], (THROTTLED, "token_bucket"): [5.0]}
    }
    [comparison] = redis_rates.compare(times)
    assert (comparison.found.of_medians, comparison.verdict) == (0.5, "no target")


@pytest.mark.parametrize(
    ("seconds", "length", "bytes_", "verdict"),
    [
        (60, 100, 5.0, "met goal"),
        (60, 10_000, 5.1, "met minimum"),
        (86_400, 100, 4.0, "met minimum"),
        (86_400, 1_000, 6.0, "met goal"),
        (86_400, 1_000, 7.6, "MISSED"),
    ],
)
def test_target_of_bytes_per_request(
    seconds: int, length: int, bytes_: float, verdict: str
) -> None:
    assert redis_bytes.request_target(seconds, length).verdict(bytes_) == verdict


def test_windows_stand_side_by_side_and_beside_the_paper() -> None:
    found = {(60, 100, "packed_window"): 4.96, (60, 100, "rolling_window"): 23.7}
    shown = redis_bytes.requests_table(found)
    assert shown.endswith("| a minute | 100 | **4.96** | 23.7 | 8 | 7.5, goal 5 | met goal |")


def test_the_paper_is_quoted_for_what_it_speaks_of() -> None:
    found = dict.fromkeys(redis_bytes.cases(users=10, full_users=5), 150.0)
    lines = redis_bytes.users_table(found).splitlines()
    assert "| `token_bucket` | 10 | 150 | 150 MB | 16 | 16 MB |" in lines
    assert "| `rolling_window` | 10 | 150 | 150 MB |  |  |" in lines
    assert "| `rolling_window`, 100 of 100 used | 5 | 150 | 150 MB | 800 | 800 MB |" in lines
    assert "| `Concurrency`, 50 of 50 held | 5 | 150 | 150 MB | 800 | 800 MB |" in lines
    assert all(f"`{algorithm}`" in "".join(lines) for algorithm in model.ALGORITHMS)


def test_windows_that_expire_were_full() -> None:
    assert {each.first + each.later for each in redis_time.expiries(101)} == {101}


def test_the_verdict_on_the_worst_call_is_of_the_worst() -> None:
    shown = redis_time.worst_table(10, {"half of it": [90, 90, 101]}, [9_000, 9_000, 9_001])
    assert "| `packed_window` | half of it | 90 | **101** | met minimum |" in shown
    assert "| bare sorted set | all of it | 9,000 | **9,001** |  |" in shown


def test_server_time_is_divided_among_the_decisions() -> None:
    alone, batched = server.Spent(10, 50, 250, {}), server.Spent(2, 42, 80, {})
    figures = redis_time.Figures((alone, batched), (alone, batched))
    shown = redis_time.decisions_table({"packed_window": figures}, alone, decisions=10)
    assert "| `packed_window` | admitted | 5.0 | 25.0 | 4.2 | 8.0 |" in shown
    assert "5 decisions to a call of the script" in shown


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (b"EVALSHA \xff: rps=1.0\rEVALSHA: 20000.00 requests per second\n", "20,000 a second"),
        (b"ERR wrong number", "did not run the script: 'ERR wrong number'"),
    ],
)
def test_says_what_redis_benchmark_found(output: bytes, sentence: str) -> None:
    assert sentence in redis_time.benchmark_sentence(output, 10)


def test_measures_everything_on_a_real_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The peers are not installed for tests, so limen plays them; redis-benchmark is a stand-in.
    def ours(name: redis_libraries.Name) -> redis_libraries.Name:
        return name if name[0] == LIMEN else ONE

    for module, verb in [
        (redis_rates, "build"),
        (redis_rates, "build_async"),
        (redis_time, "build"),
    ]:
        original = getattr(redis_libraries, verb)
        monkeypatch.setattr(module, verb, lambda name, url, it=original: it(ours(name), url))
    program = tmp_path / "redis-benchmark"
    program.write_text("#!/bin/sh\ncat > /dev/null\necho 'EVALSHA: 7.00 requests per second'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    ways = [replace(way, calls=2 * way.askers, rounds=1) for way in redis_rates.ways(quick=True)]
    sizes = redis_store.Sizes(ways, (100,), 100, 2, 40, 2.0, 1, 64)
    said: list[str] = []
    tables = redis_store.measure_all(sizes, said.append)
    assert tables.startswith("### On Redis\n\nValkey ")
    assert len(re.findall(r"^\| (?:one thread|16 threads|64 tasks) \|", tables, re.M)) == 22
    assert "Python: 7 a second with 64 connections (640 calls on one key)" in tables
    # The bytes do not depend on the machine.
    assert re.search(r"\| a minute \| 100 \| \*\*4\.\d\d\*\* \| .* \| met goal \|", tables)
    assert all(line.startswith("redis, ") for line in said)


# rules


@pytest.mark.parametrize("size", rules.SIZES[:3])
def test_ten_rules_match_the_busy_request_and_none_the_idle_one(size: int) -> None:
    found = parse(rules.document(size))
    assert len(found.rules) == size
    for facts, matching in ((rules.BUSY, rules.MATCHING), (rules.IDLE, 0)):
        assert rules.one_by_one(found, facts) == matching
        assert len(found.resolve(facts, 1, 0.0).checks) == matching


@pytest.mark.parametrize(
    ("microseconds", "verdict"),
    [(19.9, "19.9 µs**, at most 20 are promised: met minimum."), (20.04, "20.0 µs**, at most 20")],
)
def test_says_whether_resolving_keeps_its_promise(microseconds: float, verdict: str) -> None:
    figures = dict.fromkeys(rules.SIZES, microseconds * 1_000)
    table = rules.rules_table(figures, figures, figures)
    assert verdict in table
    assert table.endswith("MISSED." if microseconds > 20 else "met minimum.")
    assert "| 10,000 | " in table


def test_measures_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "SIZES", (10, 1_000))
    assert re.search(r"^\| 1,000 \| [\d.]+ \| [\d.]+ \| [\d,.]+ \|$", rules.run(True, print), re.M)


# report and command line


def test_table_is_github_markdown() -> None:
    assert report.table(["name", "ns"], [["a", "1,000"], ["b", "**2**"]]) == (
        "| name | ns |\n| --- | --: |\n| a | 1,000 |\n| b | **2** |"
    )


def test_a_number_stands_right_also_below_zero() -> None:
    assert "| --- | --: |" in report.table(["name", "cost"], [["a", "1 %"], ["b", "**-2 %**"]])


def test_tables_replace_what_stood_between_the_markers(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(MARKED)
    for tables in ("first\nrun", "second"):
        report.write_marked(readme, tables)
        assert readme.read_text() == MARKED.replace("old", tables)


@pytest.mark.parametrize("text", ["", report.BEGIN, report.END, f"{report.END}\n{report.BEGIN}"])
def test_missing_markers_are_an_error_and_the_file_stays(tmp_path: Path, text: str) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(BenchError, match=r"needs a line <!-- bench:begin --> and, below it"):
        report.write_marked(readme, "tables")
    assert readme.read_text() == text


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Return the command with sections that take no time, and a README.md of its own."""
    readme = tmp_path / "README.md"
    readme.write_text(MARKED)
    monkeypatch.setattr(report, "machine", lambda: "a machine")
    sections = {name: lambda quick, say, name=name: name for name in ("memory", "footprint")}
    monkeypatch.setattr(command, "_SECTIONS", sections)

    def run(*arguments: str) -> tuple[int, str]:
        return command.main(arguments, readme), readme.read_text()

    return run


def test_writes_exactly_what_it_prints(
    bench: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = bench()
    printed = capsys.readouterr().out
    assert printed == "a machine\n\nmemory\n\nfootprint\n"
    assert (status, text) == (0, MARKED.replace("old\n", printed))


@pytest.mark.parametrize("arguments", [["--quick"], ["--no-write"], ["--only", "memory"]])
def test_a_partial_run_leaves_the_readme_alone(
    bench: Callable[..., tuple[int, str]], arguments: list[str]
) -> None:
    assert bench(*arguments) == (0, MARKED)


def test_prints_one_section_when_asked_for_one(
    bench: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    bench("--only", "footprint")
    assert capsys.readouterr().out == "a machine\n\nfootprint\n"


def test_says_in_one_line_that_markers_are_missing_before_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing")
    assert command.main([], readme) == 1
    error = capsys.readouterr().err
    assert error.startswith("bench: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("ten_us", "verdict"), [(58.0, "met goal"), (74.0, "met minimum"), (76.0, "MISSED")]
)
def test_gateways_are_judged_by_what_ten_descriptors_cost(ten_us: float, verdict: str) -> None:
    blocks = {
        0: [service.Block(5_000.0, 5.0, 9.0, 240.0)] * 3,
        1: [service.Block(30_000.0, 1.0, 2.0, 30.0)] * 3,
        10: [service.Block(10_000.0, 3.0, 6.0, ten_us)] * 3,
    }
    doors = {"through nginx": [service.Block(4_000.0, 1.0, 2.0, 90.0)] * 3}
    told = gateways.gateway_tables(blocks, doors, {1: 15.0, 10: 104.0})
    assert verdict in told
    assert "**8.0x** the CPU" in told
    assert "3.00 times lower" in told
    assert "| through nginx | 4,000 | 1.00 | 2.00 | 90 |" in told


@pytest.mark.parametrize("count", gateways.DESCRIPTORS)
def test_every_descriptor_of_the_bench_comes_under_one_rule(count: int) -> None:
    rules = parse(gateways.document())
    found = understood(decoded(gateways.question(count)), rules, TemplateCache())
    assert [len(each.parts) for each in found.descriptors] == [1] * count


@pytest.mark.parametrize(
    ("memory_us", "redis_us", "by_memory", "by_redis"),
    [
        (60.0, 90.0, "**2.00x** | at most 3x, goal 2x | met goal",
         "**3.00x** | at most 4x, goal 3x | met goal"),
        (61.5, 120.0, "**2.05x** | at most 3x, goal 2x | met minimum",
         "**4.00x** | at most 4x, goal 3x | met minimum"),
        (93.0, 123.0, "**3.10x** | at most 3x, goal 2x | MISSED",
         "**4.10x** | at most 4x, goal 3x | MISSED"),
    ],
)  # fmt: skip
def test_the_service_is_judged_by_its_cpu_beside_the_constant(
    memory_us: float, redis_us: float, by_memory: str, by_redis: str
) -> None:
    blocks = {
        service.CONSTANT: [service.Block(30_000.0, 1.0, 2.0, 30.0)] * 3,
        service.MEMORY: [service.Block(15_000.0, 1.0, 2.0, memory_us)] * 3,
        1: [service.Block(10_000.0, 1.0, 2.0, redis_us, 12.0)] * 3,
        service.TRACED: [service.Block(9_000.0, 1.0, 2.0, 150.0, 12.0)] * 3,
        3: [service.Block(8_000.0, 1.0, 2.0, 180.0, 20.0)] * 3,
        10: [service.Block(5_000.0, 1.0, 2.0, 300.0, 50.0)] * 3,
    }
    told = service.service_table(blocks, [service.Block(50_000.0, 1.0, 2.0, 20.0)])
    lines = {line.split(" |")[0]: line for line in told.splitlines()}
    assert f"|  | {by_memory}" in lines["| 1 matching rule, memory"]
    assert f"| 12 | {by_redis}" in lines["| 1 matching rule, Redis"]
    for name, shown in (
        ("the same, with request id and trace", "5.00"),
        ("3 matching rules, Redis", "6.00"),
        ("10 matching rules, Redis", "10.00"),
    ):
        assert lines[f"| {name}"].endswith(f"**{shown}x** |  | no target |")
    assert "**50,000** decisions a second" in told


def test_the_constant_is_served_by_the_same_http_server() -> None:
    with service._constant() as contender:
        block = contender.block(0.3)
    assert block.per_second > 0
    assert block.store_us == 0


@pytest.mark.parametrize("matching", service.MATCHING)
def test_the_crowd_comes_under_as_many_rules_as_are_told(matching: int) -> None:
    found = parse(service.document(matching)).resolve({"user": "1", "path": "/api/search"}, 1, 0.0)
    assert len(found.checks) == matching


def test_a_service_is_measured_as_it_is_started(tmp_path: Path) -> None:
    with service._service(tmp_path / "one", 1, "memory://") as contender:
        one, many = contender.block(0.3), contender.block(0.3, listed=10)
        traced = replace(contender, is_traced=True).block(0.3)
    assert one.per_second > 0
    assert traced.per_second > 0
    assert many.per_second > one.per_second
    assert 0 < one.cpu_us < 10_000


def test_frameworks_are_judged_beside_who_adds_least() -> None:
    added = [
        frameworks.Added("Flask", name, store, [us] * 3)
        for store in ("memory", "Redis")
        for name, us in ((LIMEN, 45.0), ("quick", 100.0), ("slow", 300.0))
    ]
    lines = frameworks.added_table(added).splitlines()
    assert "| Flask, memory | **limen** | 45.0 | 0.45x | met goal |" in lines
    # Half is what memory promises; on Redis both wait for the same store.
    assert "| Flask, Redis | **limen** | 45.0 | 0.45x | met minimum |" in lines
    worse = [replace(each, us=[120.0]) if each.library == LIMEN else each for each in added]
    assert frameworks.added_table(worse).count("1.20x | MISSED") == 2


def test_frameworks_are_measured_with_what_they_say() -> None:
    for framework in ("Starlette", "Flask"):
        with (
            framework_apps.FRAMEWORKS[framework](None) as each,
            asyncio.Runner() as runner,
        ):
            found = frameworks.added(framework, "memory", each, runner, 1, 20)
        assert found[0].library == LIMEN
        assert len(found) >= 2
        assert all(len(added.us) == 1 for added in found)


def test_an_application_that_does_not_tell_its_limits_is_an_error() -> None:
    with framework_apps.FRAMEWORKS["Flask"](None) as each, asyncio.Runner() as runner:
        silent = replace(each[0], tells=True)
        with pytest.raises(BenchError, match="did not answer as it should"):
            frameworks.added("Flask", "memory", [silent], runner, 1, 20)


# observing

SMALL = observing.Sizes(
    pairs=2, memory_rounds=1, redis_rounds=1, redis_calls=128, service_rounds=1, service_s=0.1
)


@pytest.mark.parametrize(
    ("watched_ns", "shown"),
    [
        (1_300.0, "**0.30 µs** | at most 0.3 µs | met minimum"),
        (1_301.0, "**0.30 µs** | at most 0.3 µs | MISSED"),
    ],
)
def test_observing_in_memory_is_judged_by_what_a_decision_costs_more(
    watched_ns: float, shown: str
) -> None:
    without, watched = [memory.Times([each], [each]) for each in (1_000.0, watched_ns)]
    row = observing.time_row("fixed_window", without, watched)
    assert " | ".join(row.cells) == (
        f"in memory, `fixed_window` | 1.00 µs | {watched_ns / 1e3:.2f} µs | {shown}"
    )


def test_what_observing_costs_is_the_median_of_differences_within_a_round() -> None:
    # The machine was slow in the second round. Between the medians lies 0.5 µs.
    without = memory.Times([1_000.0, 9_000.0, 1_600.0], [1_000.0, 9_000.0, 1_600.0])
    watched = memory.Times([1_200.0, 9_200.0, 2_100.0], [1_200.0, 9_200.0, 2_100.0])
    assert observing.time_row("fixed_window", without, watched).cost == "**0.20 µs**"
    rates = observing.rate_row("on Redis", [100.0, 10.0, 40.0], [95.0, 9.5, 20.0])
    assert rates.cost == "**5.0 %** (0.95x)"


@pytest.mark.parametrize(
    ("default", "shown"),
    [
        (91.0, "**9.0 %** (0.91x) | at most 10 % | met minimum"),
        (89.9, "**10.1 %** (0.90x) | at most 10 % | MISSED"),
        (102.0, "**-2.0 %** (1.02x) | at most 10 % | met minimum"),
    ],
)
def test_observing_in_the_service_is_judged_beside_nothing_at_all(
    default: float, shown: str
) -> None:
    blocks = {
        name: [service.Block(rate, 1.0, 2.0, 1e6 / rate)] * 3
        for name, rate in (
            (observing.UNWATCHED, 100.0),
            (observing.KEYLESS, 50.0),
            (observing.DEFAULT, default),
        )
    }
    judged, other = observing.service_rows(blocks)
    assert shown in " | ".join(judged.cells)
    assert other.verdict == "no target"
    told = observing.observing_table([judged, other], blocks, SMALL)
    assert "10000.0 µs of CPU on a request when nobody watches" in told


@pytest.mark.parametrize("sizes", [observing.FULL, observing.QUICK])
def test_windows_are_never_filled_by_observing(sizes: observing.Sizes) -> None:
    asked = -(-sizes.redis_calls // len(redis_rates.KEYS)) * (sizes.redis_rounds + 1) * _TRIES
    assert asked < redis_libraries.QUOTA.units
    assert sizes.redis_calls % observing.TASKS == 0
    assert (sizes.memory_rounds + 1) * _TRIES < memory.ROOMY.units


@pytest.mark.slow
def test_observing_is_measured_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    watching: list[Metrics] = []

    class Listed(Metrics):
        def __init__(self) -> None:
            super().__init__()
            watching.append(self)

    monkeypatch.setattr(observing, "Metrics", Listed)
    monkeypatch.setattr(observing, "_MEMORY_KEYS", KEYS)
    said: list[str] = []
    told = observing.measure_all(SMALL, said.append)
    assert told.startswith("### Observing\n")
    lines = [line for line in told.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + len(observing.ALGORITHMS) + 1 + 2
    assert all(line.startswith("observing: ") for line in said)
    counted = [each.figures().decisions for each in watching]
    # The blocks, and the one that warms up.
    assert {"10000/3600s": [256, 0, 0, 0]} in counted
    assert len(counted) == 4 * SMALL.pairs + 1
    assert all(counted)


@pytest.mark.slow
def test_a_service_that_nobody_watches_counts_nothing(tmp_path: Path) -> None:
    counted = {}
    for name in (observing.UNWATCHED, observing.DEFAULT):
        with observing._service(name, tmp_path, "memory://") as contender:
            assert contender.block(0.3).per_second > 0
            metrics = f"http://127.0.0.1:{contender.admin_port}/metrics"
            with urllib.request.urlopen(metrics) as answer:
                text = answer.read().decode()
        counted[name] = re.findall(
            r'^limen_decisions_total\{.*rule="rule-0".* ([1-9]\d*)', text, re.M
        )
    assert counted[observing.UNWATCHED] == []
    assert len(counted[observing.DEFAULT]) == 1
