"""Settings as people read them: what holds and who said so, and an example with everything in it.

TOML that can be read again, but for secrets, which are hidden.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from limen.server.settings.fields import FIELDS, Field
from limen.server.settings.loading import Loaded

_WIDTH = 96


def as_data(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """Return each setting by its name with what people may see of its `value`, and its `source`."""
    return {
        field.name: {"value": _shown(field, loaded), "source": loaded.sources[field.name]}
        for field in FIELDS
    }


def as_toml(loaded: Loaded) -> str:
    """Return the settings as TOML; a comment behind each value says where it came from."""
    data = as_data(loaded)

    def line(field: Field) -> Iterator[str]:
        said = data[field.name]
        yield f"{_assigned(field, said['value'])}  # {_printable(said['source'])}"

    return _document(line)


def example() -> str:
    """Return a `limen.toml` with every setting, its default, and what it means."""

    def lines(field: Field) -> Iterator[str]:
        yield from textwrap.wrap(
            f"{field.sentence} ({field.variable})",
            _WIDTH,
            initial_indent="# ",
            subsequent_indent="# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        yield _assigned(field, field.kind.shown(field.default))
        yield ""

    head = "# Every setting of `limen serve`, with its default."
    return f"{head} The environment and flags are stronger.\n\n{_document(lines)}"


def _document(lines_of: Callable[[Field], Iterator[str]]) -> str:
    """Return the lines of all settings, under the headings of their tables."""
    lines: list[str] = []
    group = ""
    for field in FIELDS:
        if field.group != group:
            group = field.group
            if lines and lines[-1]:
                lines.append("")
            lines.append(f"[{group}]")
        lines += lines_of(field)
    return "\n".join(lines).rstrip("\n") + "\n"


def _shown(field: Field, loaded: Loaded) -> Any:
    if field.name == "rules":
        return str(loaded.settings.rules_place)
    value = reduce(getattr, field.name.split("."), loaded.settings)
    return field.kind.shown(value)


def _assigned(field: Field, value: str | float | list[str]) -> str:
    return f"{field.name.rpartition('.')[2]} = {_toml(value)}"


def _toml(value: str | float | list[str]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        # A string of JSON is one of TOML, but for this.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return json.dumps(value)
    return repr(value)


def _printable(text: str) -> str:
    """Return a text that does not end the comment it stands in."""
    return "".join(each if each.isprintable() else "?" for each in text)
