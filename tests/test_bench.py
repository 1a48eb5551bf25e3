"""The bench measures what it says, and says what it measured. Runs without the peers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench import __main__ as command
from bench import footprint, memory, report
from bench.harness import BenchError, Contestant, Target, measure, ratio, rotated
from bench.libraries import LIMEN, LIMITS, PEERS, PYRATE, THROTTLED, Instance, Quota, build, limen

from limen import model
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
    case = footprint.Case(LIMEN, "packed_window", 86_400, keys=20, requests=5, quota=5)
    assert footprint.grown(case) >= 0


def test_a_store_that_is_fuller_than_it_may_be_is_an_error() -> None:
    case = footprint.Case(LIMEN, "packed_window", 86_400, keys=3, requests=2, quota=1)
    with pytest.raises(BenchError, match="packed_window: 0 of 3 keys were admitted"):
        footprint.grown(case)


def test_bytes_are_divided_among_the_requests() -> None:
    case = footprint.Case(LIMEN, "packed_window", 60, 10, 100, 100)
    assert footprint.requests_table([case], {case: 5_000}).endswith("| 100 | 10 | 5.0 |")


# report and command line


def test_table_is_github_markdown() -> None:
    assert report.table(["name", "ns"], [["a", "1,000"], ["b", "**2**"]]) == (
        "| name | ns |\n| --- | --: |\n| a | 1,000 |\n| b | **2** |"
    )


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
