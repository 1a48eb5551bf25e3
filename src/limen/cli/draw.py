"""How the commands about rules print: in colour on a terminal, else as plain lines.

Knows text and tables, and no rules. What it is given may be anybody's text: it neither breaks a
line nor commands the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

Cell = str | list[str]

_ANY_WIDTH = 100_000
_SIGNS = {"+": "green", "-": "red", "~": "yellow"}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def plain(text: str) -> str:
    """Return a text on one line, with what cannot be printed written out."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def line(text: str = "", style: str = "") -> None:
    """Print one line."""
    Console(highlight=False).print(Text(plain(text), style), soft_wrap=True)


def changes(texts: Iterable[str]) -> None:
    """Print the lines of a difference, in the colours of their signs."""
    console = Console(highlight=False)
    for text in texts:
        console.print(Text(plain(text), _SIGNS.get(text[:1], "")), soft_wrap=True)


def complain(text: str) -> None:
    """Print one line on stderr."""
    print(plain(text), file=sys.stderr)


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table: folded to a terminal's width, else a line for each row.

    A cell may be a list: lines on a terminal. A column with nothing in it is left out.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_ANY_WIDTH)
    between = "\n" if console.is_terminal else "; "
    used = [number for number in range(len(headings)) if any(row[number] for row in rows)]
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for number in used:
        # The first column names the row: it is read, and typed, as a whole.
        drawn.add_column(headings[number], overflow="fold", no_wrap=number == 0)
    for row in rows:
        drawn.add_row(*(_cell(row[number], between) for number in used))
    if console.is_terminal:
        console.print(drawn)
        return
    with console.capture() as captured:
        console.print(drawn)
    for text in captured.get().splitlines():
        print(text.rstrip())


def _cell(cell: Cell, between: str) -> Text:
    parts = [cell] if isinstance(cell, str) else cell
    return Text(between.join(map(plain, parts)))


def json(value: object) -> None:
    """Print a value as JSON."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def document(text: str) -> None:
    """Print a text that others will read again: in UTF-8, whatever the terminal is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def time(at: datetime) -> str:
    """Write a time in UTC to the second: `2026-12-24 18:00:00`."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def seconds(number: float) -> str:
    """Write a duration as one would say it: `0.25 s`, `3 min 20 s`, `2 d 4 h`."""
    if number < 60:
        return f"{number:.3g} s"
    left = round(number)
    words: list[tuple[int, str]] = []
    for size, unit in (*_UNITS, (1, "s")):
        count, left = divmod(left, size)
        if count or words:
            words.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in words[:2] if count)


def counted(number: int, noun: str) -> str:
    """Return `1 rule`, `2 rules`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
