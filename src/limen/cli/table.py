"""Tables: columns on a terminal that is wide enough, otherwise a block of lines for each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from limen.cli.output import Cell, escape

_ANY_WIDTH = 100_000
_NARROW = 100
"""Below this many columns, a table that does not fit is printed as blocks instead of folded."""
_GAP = 2
"""The space that rich leaves between two columns."""


def draw(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table as wide as the terminal; otherwise one line for each row.

    The texts of a cell are lines on a terminal. Columns without content are left out. If the
    terminal is too narrow, each row is a block: its first cell, then a line for each other cell.
    """
    console = Console(highlight=False)
    used = [number for number in range(len(headings)) if any(row[number] for row in rows)]
    names = [headings[number] for number in used]
    separator = "\n" if console.is_terminal else "; "
    cells = [[_text(row[number], separator) for number in used] for row in rows]
    room = console.width if console.is_terminal else _ANY_WIDTH
    widths = _widths([Text(name) for name in names], cells, room)
    if widths is None:
        _draw_blocks(console, names, [[row[number] for number in used] for row in rows])
    elif console.is_terminal:
        _draw_columns(console, names, cells, widths)
    else:
        for texts in (names, *([cell.plain for cell in row] for row in cells)):
            padded = map(set_cell_size, texts, widths)
            print((" " * _GAP).join(padded).rstrip())


def _widths(headings: list[Text], cells: list[list[Text]], room: int) -> list[int] | None:
    """Return the width of each column, so that no word is broken; None if there is no room.

    rich would shorten the widest column first, and break its words.
    """
    columns = [_lengths(column) for column in zip(headings, *cells, strict=True)]
    # The first column names the row, and is copied as a whole.
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
    """Return the lengths of the longest word and of the longest line of a column."""
    lines = [line for cell in column for line in cell.plain.split("\n")]
    words = [cell_len(word) for line in lines for word in line.split()]
    return max(words, default=0), max(map(cell_len, lines))


def _draw_columns(
    console: Console, names: list[str], cells: list[list[Text]], widths: list[int]
) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(names, widths, strict=True):
        table.add_column(name, overflow="fold", width=width)
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _draw_blocks(console: Console, names: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    for first, *others in rows:
        console.print(_text(first, " "), style="bold", overflow="fold")
        for name, cell in zip(names[1:], others, strict=True):
            if cell:
                label = f"{name.lower()}: " if name else ""
                text = Text(label).append_text(_text(cell, "; "))
                console.print(Padding(text, (0, 0, 0, 2)), overflow="fold")


def _text(cell: Cell, separator: str) -> Text:
    texts = [cell] if isinstance(cell, str) else cell
    return Text(separator.join(map(escape, texts)))
