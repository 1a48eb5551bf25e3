"""How the commands about rules print: in colour on a terminal, else as plain lines.

Knows text and tables, and no rules. What it is given may be anybody's text: it neither breaks a
line nor commands the terminal, and shows no password.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from limen.masking import masked

Cell = str | list[str]

_ANY_WIDTH = 100_000
_NARROW = 100
"""Below this many columns a table that does not fit is told row by row instead of folded."""
_GAP = 2
"""What rich leaves between two columns."""
_SIGNS = {"+": "green", "-": "red", "~": "yellow"}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def plain(text: str) -> str:
    """Return a text on one line, with what cannot be printed written out, and without a login."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in masked(text)
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


def agreed(question: str) -> bool:
    """Ask, if there is a terminal to ask at; return whether to go on. Complains when not.

    Raises `typer.Exit` when whoever is asked leaves instead.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        return True
    try:
        if typer.confirm(question, err=True):
            return True
    except typer.Abort:
        # The question stands there without an end of its line.
        complain("")
        complain("limen: nothing was changed")
        raise typer.Exit(130) from None
    complain("limen: nothing was changed")
    return False


def table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table: on a terminal as wide as that, else with a line for each row.

    A cell may be a list: lines on a terminal. A column with nothing in it is left out. Where a
    terminal is too narrow, each row is a block: its first cell, then a line for each other.
    """
    if not rows:
        return
    console = Console(highlight=False)
    used = [number for number in range(len(headings)) if any(row[number] for row in rows)]
    names = [headings[number] for number in used]
    between = "\n" if console.is_terminal else "; "
    cells = [[_cell(row[number], between) for number in used] for row in rows]
    room = console.width if console.is_terminal else _ANY_WIDTH
    widths = _widths([Text(name) for name in names], cells, room)
    if widths is None:
        _stack(console, names, [[row[number] for number in used] for row in rows])
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(names, widths, strict=True):
        drawn.add_column(name, overflow="fold", width=width)
    for row in cells:
        drawn.add_row(*row)
    if console.is_terminal:
        console.print(drawn)
        return
    wide = Console(highlight=False, width=_ANY_WIDTH)
    with wide.capture() as captured:
        wide.print(drawn)
    for text in captured.get().splitlines():
        print(text.rstrip())


def _widths(headings: list[Text], cells: list[list[Text]], room: int) -> list[int] | None:
    """Return how wide each column is drawn, so that no word is broken; None when it cannot be.

    rich would take from the widest column first, and break its words.
    """
    columns = [_lengths(column) for column in zip(headings, *cells, strict=True)]
    # The first column names the row: it is read, and typed, as a whole.
    least = [columns[0][1], *(word for word, _ in columns[1:])]
    whole = [longest for _, longest in columns]
    spare = room - _GAP * (len(columns) - 1) - sum(least)
    if spare >= sum(whole) - sum(least):
        return whole
    if room < _NARROW or spare < 0:
        return None
    widths = list(least)
    hungry = sorted(range(len(columns)), key=lambda number: whole[number] - least[number])
    for position, number in enumerate(hungry):
        given = min(whole[number] - least[number], spare // (len(hungry) - position))
        widths[number] += given
        spare -= given
    return widths


def _lengths(column: Iterable[Text]) -> tuple[int, int]:
    """Return how long the longest word and the longest line of a column are."""
    lines = [line for cell in column for line in cell.plain.split("\n")]
    words = [cell_len(word) for line in lines for word in line.split()]
    return max(words, default=0), max(map(cell_len, lines))


def _stack(console: Console, names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    for first, *others in rows:
        console.print(_cell(first, " "), style="bold", overflow="fold")
        for name, cell in zip(names[1:], others, strict=True):
            if cell:
                label = f"{name.lower()}: " if name else ""
                text = Text(label).append_text(_cell(cell, "; "))
                console.print(Padding(text, (0, 0, 0, 2)), overflow="fold")


def _cell(cell: Cell, between: str) -> Text:
    parts = [cell] if isinstance(cell, str) else cell
    return Text(between.join(map(plain, parts)))


def json(value: object) -> None:
    """Print a value as JSON."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def document(text: str) -> None:
    """Print a text that others will read again: in UTF-8, whatever the terminal is."""
    if sys.stdout is None:
        return
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
    """Return `1 rule`, `2 rules`, `3 running processes`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}" + ("" if number == 1 else ending)
