"""The command line: what a user types, sees and gets as exit code; and the numbers of the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, get_args

import pytest

from limen import __version__
from limen.cli import demo, main
from limen.model import AlgorithmName

TICKS = demo.trace()
FORCING_COLOUR = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


class Ran(NamedTuple):
    exit_code: int
    out: str
    err: str


@pytest.fixture
def limen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Run the command in this process, as wide as the narrowest terminal people use."""
    for name in FORCING_COLOUR:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["limen", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            main()
        code = exit_info.value.code
        assert code is None or isinstance(code, int)
        printed = capsys.readouterr()
        return Ran(code or 0, printed.out, printed.err)

    return run


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Collect how long the demo would have slept."""
    slept: list[float] = []
    monkeypatch.setattr("limen.cli.demo.time.sleep", slept.append)
    return slept


def passed_us(algorithm: str) -> list[int]:
    """Return when each request that passed went through."""
    return [
        tick.at_us + round(tick.decisions[algorithm].delay * 1e6)
        for tick in TICKS
        if tick.decisions[algorithm].allowed
    ]


def most_within(times_us: list[int], span_us: int) -> int:
    """Count the slow way, to check the quick one of the demo."""
    return max(sum(start <= other < start + span_us for other in times_us) for start in times_us)


def test_demo_ends_by_itself_and_prints_the_comparison(limen: Callable[..., Ran]) -> None:
    ran = limen("demo", "--no-animation")
    assert ran.exit_code == 0
    assert ran.err == ""
    assert "\x1b" not in ran.out
    rows = {line.split()[0]: line for line in ran.out.splitlines() if "10/10s  " in line}
    assert set(rows) == set(get_args(AlgorithmName))
    assert "20!" in rows["fixed_window"]
    assert "twice its limit" in rows["fixed_window"]
    assert "never above 10" in rows["packed_window"]
    assert "20 in 1.9 s" in ran.out
    assert "from limen import Limiter" in ran.out.splitlines()[-2]


def test_demo_plays_every_algorithm_and_slots() -> None:
    assert set(TICKS[0].decisions) == {*get_args(AlgorithmName), "concurrency"}


@pytest.mark.parametrize("algorithm", TICKS[0].decisions)
def test_demo_counts_what_its_trace_says(algorithm: str) -> None:
    result = demo.outcome(TICKS, algorithm)
    times_us = passed_us(algorithm)
    assert result.asked == len(TICKS)
    assert result.passed == len(times_us)
    assert result.most == len(result.crowd) == most_within(times_us, demo.WINDOW_US)


def test_demo_fixed_window_lets_twice_its_limit_through_within_two_seconds() -> None:
    result = demo.outcome(TICKS, "fixed_window")
    assert result.most == 2 * demo.QUOTA
    assert TICKS[result.crowd[-1]].at_us - TICKS[result.crowd[0]].at_us < 2 * demo.SECOND_US
    assert result.above
    assert result.verdict.startswith("twice its limit")


@pytest.mark.parametrize("algorithm", ["rolling_window", "packed_window"])
def test_demo_exact_windows_never_exceed_their_limit(algorithm: str) -> None:
    assert most_within(passed_us(algorithm), demo.WINDOW_US) == demo.QUOTA
    assert demo.outcome(TICKS, algorithm).verdict == "never above 10"


@pytest.mark.parametrize("algorithm", ["sliding_counter", "token_bucket"])
def test_demo_shows_who_is_above_the_limit_but_stays_below_twice(algorithm: str) -> None:
    result = demo.outcome(TICKS, algorithm)
    assert demo.QUOTA < result.most < 2 * demo.QUOTA
    assert f"{result.most / demo.QUOTA:.1f}x its limit" in result.verdict


def test_demo_leaky_bucket_delays_and_spaces_evenly() -> None:
    times_us = passed_us("leaky_bucket")
    gaps_us = [after - before for before, after in pairwise(times_us)]
    assert min(gaps_us) == demo.SECOND_US
    result = demo.outcome(TICKS, "leaky_bucket")
    assert result.longest_delay_us == 9 * demo.SECOND_US
    assert result.verdict == "never above 10, evenly spaced"


def test_demo_slots_are_held_by_ten_at_once_at_most() -> None:
    assert most_within(passed_us("concurrency"), demo.HOLD_US) == demo.SLOTS.slots
    assert demo.outcome(TICKS, "concurrency").verdict == "at most 10 at once"


@pytest.mark.parametrize(
    ("times_us", "span_us", "expected"),
    [
        ([], 10, range(0)),
        ([5], 10, range(1)),
        ([0, 10], 10, range(1)),  # what lies a whole span apart is not within it
        ([0, 9], 10, range(2)),
        ([0, 9, 15, 16, 18], 10, range(1, 5)),
        ([0, 1, 20, 21], 10, range(2)),  # the first of equals
    ],
)
def test_fullest_finds_the_most_within_a_span(
    times_us: list[int], span_us: int, expected: range
) -> None:
    assert demo.fullest(times_us, span_us) == expected


@pytest.mark.parametrize(("speed", "seconds"), [("1", 8.0), ("4", 2.0)])
def test_demo_moves_in_a_terminal_for_about_eight_seconds(
    limen: Callable[..., Ran],
    sleeps: list[float],
    monkeypatch: pytest.MonkeyPatch,
    speed: str,
    seconds: float,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    ran = limen("demo", "--speed", speed)
    assert ran.exit_code == 0
    assert sum(sleeps) == pytest.approx(seconds)
    assert "30.9 s  ten more in the first second" in ran.out
    assert "twice its limit" in ran.out


@pytest.mark.parametrize("arguments", [["demo", "--no-animation"], ["demo"]])
def test_demo_stands_still_when_told_to_or_where_there_is_no_terminal(
    limen: Callable[..., Ran],
    sleeps: list[float],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: "--no-animation" in arguments)
    assert limen(*arguments).exit_code == 0
    assert sleeps == []


@pytest.mark.parametrize("arguments", [["demo"], ["--help"], ["demo", "--help"]])
def test_nothing_is_wider_than_80_columns(limen: Callable[..., Ran], arguments: list[str]) -> None:
    ran = limen(*arguments)
    assert ran.exit_code == 0
    assert max(map(len, ran.out.splitlines())) <= 80


def test_demo_uses_ascii_where_the_terminal_has_no_more() -> None:
    plain = {name: value for name, value in os.environ.items() if name not in FORCING_COLOUR}
    ran = subprocess.run(
        [sys.executable, "-c", "from limen.cli import main; main()", "demo"],
        env={**plain, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"},
        capture_output=True,
        check=True,
    )
    lines = ran.stdout.decode("ascii").splitlines()
    assert "fixed_window     #####|##########|########## ............|##########.........." in lines


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_teaches_by_examples(limen: Callable[..., Ran], arguments: list[str]) -> None:
    ran = limen(*arguments)
    assert ran.exit_code == 0
    assert ran.err == ""
    assert 'Limiter().check("user:42", "100/minute")' in ran.out
    assert "limen serve" in ran.out


def test_version_is_printed(limen: Callable[..., Ran]) -> None:
    assert limen("--version") == Ran(0, f"limen {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["dmeo"], "'dmeo'"),
        (["--verbose"], "--verbose"),
        (["demo", "--fast"], "--fast"),
        (["demo", "--speed", "0"], "'--speed': expected 0.1 or more, got '0'"),
        (["demo", "--speed", "101"], "'--speed': expected 100.0 or less, got '101'"),
        (["demo", "--speed", "quick"], "'--speed': expected a number, got 'quick'"),
        (["demo", "more"], "more"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    limen: Callable[..., Ran], arguments: list[str], named: str
) -> None:
    ran = limen(*arguments)
    assert ran.exit_code == 2
    assert ran.out == ""
    assert ran.err.startswith("limen: ")
    command = "limen demo" if arguments[0] == "demo" else "limen"
    assert ran.err.endswith(f"(see {command} --help)\n")
    assert ran.err.count("\n") == 1
    assert named in ran.err


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_names_the_install_command(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from limen.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, "demo"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr == (
        "limen: the command line needs typer and rich: pip install 'limen[cli]' "
        "(from a clone: pip install '.[cli]')\n"
    )


def test_another_missing_module_is_not_blamed_on_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    monkeypatch.setattr("limen.cli.build_app", fail)
    with pytest.raises(ModuleNotFoundError, match="other"):
        main()
