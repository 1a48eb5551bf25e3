"""How the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from limen.cli import output
from tests.cli.acts import Run, write

LONG = """\
rules:
  - name: searches-of-everybody-who-has-not-paid-yet-and-of-some-who-have
    match: {path: /search/*, method: [GET, POST], region: {not: [eu-west-1, eu-central-1]}}
    key: [organisation, user]
    limits: [100/minute, 1000/day]
    tiers: {by: plan, limits: {pro: 600/minute, enterprise: unlimited}, default: 60/minute}
    ends: 2099-01-01
  - {name: all, limits: 1000/minute}
exemptions:
  - {name: internal, match: {ip: [10.0.0.0/8, "2001:db8:1234:5678:9abc:def0:1234:5678"]}}
"""


def screen(limen: Run, monkeypatch: pytest.MonkeyPatch, width: int, *command: str) -> list[str]:
    """Return the lines that a command prints on a terminal, without their colours."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    out = limen(*command).out
    monkeypatch.delenv("TTY_COMPATIBLE")
    assert "\x1b" in out
    return re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()


def test_a_table_that_does_not_fit_a_narrow_terminal_is_told_row_by_row(
    limen: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = screen(limen, monkeypatch, 72, "rules", "show", "--rules", write(tmp_path, LONG))
    assert [line.rstrip() for line in shown] == [
        "rules.yaml: 2 rules, 1 exemption",
        "searches-of-everybody-who-has-not-paid-yet-and-of-some-who-have",
        "  match: path is /search/*; method is GET or POST; region is not",
        "  eu-central-1 or eu-west-1",
        "  key: organisation, user",
        "  limits: 100/minute, 1000/day; pro: 600/minute; enterprise: unlimited;",
        "  other: 60/minute",
        "  mode: enforce",
        "  time (utc): until 2099-01-01",
        "all",
        "  match: everything",
        "  key: -",
        "  limits: 1000/minute",
        "  mode: enforce",
        "",
        "internal",
        "  match: ip is 10.0.0.0/8 or 2001:db8:1234:5678:9abc:def0:1234:5678",
        "  from: all rules",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 99, 100, 120, 140, 200, 300])
@pytest.mark.parametrize("command", ["show", "history", "audit"])
def test_no_table_is_wider_than_the_terminal_and_none_breaks_a_word(
    limen: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, width: int
) -> None:
    limen("rules", "apply", write(tmp_path, LONG), "--comment", "why " * 40, "--author", "a" * 30)
    lines = screen(limen, monkeypatch, width, "rules", command)
    # A title, and a sentence at the end, are for the terminal to fold.
    table = lines[command == "show" : -1 if command == "audit" else None]
    assert max(len(line.rstrip()) for line in table) <= width
    words = set(" ".join(lines).split())
    if width >= 80:
        expected = {"show": "searches-of-everybody-who-has-not-paid-yet-and-of-some-who-have"}
        assert expected.get(command, "a" * 30) in words


def test_a_table_that_fits_a_narrow_terminal_stays_a_table(
    limen: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limen("rules", "apply", write(tmp_path, LONG))
    heading, row = screen(limen, monkeypatch, 80, "rules", "history")
    assert heading.split() == ["VERSION", "TIME", "(UTC)", "AUTHOR", "CHANGES"]
    assert row.split()[:2] == ["1", "active"]


def test_a_table_in_a_pipe_has_a_line_for_each_row(limen: Run, tmp_path: Path) -> None:
    lines = limen("rules", "show", "--rules", write(tmp_path, LONG)).out.splitlines()
    assert len(lines) == 1 + 3 + 1 + 2
    first = lines[2]
    assert first.startswith("searches-of-everybody-who-has-not-paid-yet-and-of-some-who-have  ")
    assert first.endswith("until 2099-01-01")


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [(1, "rule", "1 rule"), (0, "rule", "0 rules"), (2, "process", "2 processes")],
)
def test_nouns_are_counted(number: int, noun: str, said: str) -> None:
    assert output.pluralize(number, noun) == said


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0 s"),
        (0.25, "0.25 s"),
        (59.94, "59.9 s"),
        (60.0, "1 min"),
        (200.4, "3 min 20 s"),
        (3_600.0, "1 h"),
        (7_261.0, "2 h 1 min"),
        (187_200.0, "2 d 4 h"),
    ],
)
def test_durations_are_written_as_one_would_say_them(number: float, text: str) -> None:
    assert output.format_duration(number) == text
