"""Settings as TOML and JSON for people: the values with their sources, and an example file.

The TOML can be read again, except for secrets, which are hidden.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from functools import reduce
from itertools import groupby
from typing import Any

from limen.server.settings.fields import BY_NAME, FIELDS, Field
from limen.server.settings.loading import Loaded
from limen.server.settings.model import Settings

_WIDTH = 94


def as_data(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """Return the `value`, without secrets, and the `source` of each setting by its name."""
    values = {field.name: _shown(field, loaded.settings) for field in FIELDS}
    values["rules"] = str(loaded.settings.rules_place)
    return {name: {"value": values[name], "source": loaded.sources[name]} for name in values}


def as_toml(loaded: Loaded) -> str:
    """Return the settings as TOML; a comment behind each value names its source."""
    lines = {
        name: f"{_assigned(BY_NAME[name], entry['value'])}  # {entry['source']}\n"
        for name, entry in as_data(loaded).items()
    }
    return _document(lines)


def example() -> str:
    """Return a `limen.toml` with every setting, its default and its meaning."""
    settings = Settings()
    head = "# Every setting of `limen serve`, with its default."
    lines = {}
    for field in FIELDS:
        text = f"{field.sentence} ({field.variable})"
        comment = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
        assignment = _assigned(field, _shown(field, settings))
        lines[field.name] = "\n".join([*(f"# {line}" for line in comment), assignment, "\n"])
    return f"{head} The environment and flags are stronger.\n\n{_document(lines).rstrip()}\n"


def _document(parts: Mapping[str, str]) -> str:
    """Return the parts of all settings under the headings of their tables."""
    text = ""
    for group, fields in groupby(FIELDS, lambda field: field.group):
        heading = f"\n[{group}]\n" if group else ""
        text += heading + "".join(parts[field.name] for field in fields)
    return text


def _shown(field: Field, settings: Settings) -> str | float | list[str]:
    """Return a value as a text, a number or a list, without a secret; None is empty."""
    value = reduce(getattr, field.name.split("."), settings)
    if isinstance(value, tuple):
        return [str(each) for each in value]
    if value is None:
        return ""
    return value if isinstance(value, int | float) else str(value)


def _assigned(field: Field, value: object) -> str:
    # JSON texts, numbers and lists are TOML, except for one character.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{field.key} = {text}"
