"""Output of the commands: in colour on a terminal, otherwise as plain lines.

Texts may come from anybody: they are printed on one line, without control characters and passwords.
rich is imported when something is printed, because the workers of `limen serve` print nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import typer

from limen.masking import masked
from limen.model.text import printable

if TYPE_CHECKING:
    from limen.rules.diff import Change

Cell = str | list[str]
"""A cell of a table; a list has a line for each text on a terminal."""

_SIGNS = {"+": "green", "-": "red", "~": "yellow"}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def escape(text: str) -> str:
    """Return a text on one line, with control characters escaped and passwords masked."""
    return printable(masked(text))


def print_line(text: str = "", style: str = "") -> None:
    """Print one line."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text(escape(text), style), soft_wrap=True)


def print_changes(before: str, after: str, changes: Sequence[Change]) -> None:
    """Print the difference between two rule sets in the colours of its signs."""
    from limen.rules.diff import lines, summary

    print_line(f"{before} -> {after}: {summary(changes)}", "bold")
    for line in lines(changes):
        print_line(line, _SIGNS.get(line[:1], ""))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table; nothing if there are no rows. Columns without content are left out."""
    from limen.cli.table import draw

    if rows:
        draw(headings, rows)


def print_json(value: object) -> None:
    """Print a value as JSON."""
    print(format_json(value))


def print_document(text: str) -> None:
    """Print a text for other programs: in UTF-8, whatever the terminal is."""
    if sys.stdout is None:
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def print_error(text: str) -> None:
    """Print one line on stderr."""
    print(escape(text), file=sys.stderr)


def confirm(question: str) -> None:
    """Ask a question if there is a terminal. End the command after a no, and after Ctrl-C."""
    if sys.stdin is None or not sys.stdin.isatty():
        return
    exit_code = 1
    try:
        if typer.confirm(question, err=True):
            return
    except typer.Abort:
        print_error("")  # ends the line of the question
        exit_code = 130
    print_error("limen: nothing was changed")
    raise typer.Exit(exit_code)


def format_json(value: object) -> str:
    """Return a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def format_time(at: datetime | float) -> str:
    """Return a time in UTC to the second: `2026-12-24 18:00:00`."""
    if not isinstance(at, datetime):
        at = datetime.fromtimestamp(at, UTC)
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units: `0.25 s`, `3 min 20 s`, `2 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    left = round(seconds)
    words: list[tuple[int, str]] = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or words:
            words.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in words[:2] if count)


def pluralize(number: int, noun: str) -> str:
    """Return `1 rule`, `2 rules`, `3 running processes`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}" + ("" if number == 1 else ending)
