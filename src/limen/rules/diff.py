"""The differences between two valid documents of rules. Pure.

Rules and exemptions are matched by their names, so that a rule which only moved is not a new one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from limen.model.text import printable

Kind = Literal["added", "removed", "changed"]

_NAMED = ("rules", "exemptions")
_SIGNS: dict[Kind, str] = {"added": "+", "changed": "~", "removed": "-"}
_WIDTH = 80


class Change(Struct, frozen=True):
    """One difference between two documents."""

    kind: Kind
    path: str
    """Where: `rules.search-per-user` for a whole rule, `rules.search-per-user.tiers.limits.pro`."""
    before: Any = None
    """The old value; null when it is new."""
    after: Any = None
    """The new value; null when it is gone."""


def changes(before: dict[str, Any] | None, after: dict[str, Any]) -> list[Change]:
    """Return what changed, in the order of the newer document. `before` None: all is new.

    Both documents are valid. Rules in another order are one change at `rules`, with
    `{"order": [names]}` before and after.
    """
    old = before or {}
    found: list[Change] = []
    for key in _keys(old, after):
        if key in _NAMED:
            found += _items(key, old.get(key, []), after.get(key, []))
        else:
            found += _entry(key, key, old, after)
    return found


def summary(found: Sequence[Change]) -> str:
    """Return how many values were added, changed and removed, such as `+1 ~2 -0`."""
    kinds = [change.kind for change in found]
    return " ".join(f"{sign}{kinds.count(kind)}" for kind, sign in _SIGNS.items())


def lines(found: Sequence[Change]) -> list[str]:
    """Return one line for each change, such as `~ rules.x.limits: 100/minute -> 200/minute`."""
    return [printable(f"{_SIGNS[change.kind]} {change.path}{_values(change)}") for change in found]


def _items(path: str, old: list[Any], new: list[Any]) -> Iterator[Change]:
    olds, news = _by_name(old), _by_name(new)
    before = [name for name in olds if name in news]
    after = [name for name in news if name in olds]
    if before != after:
        yield Change("changed", path, {"order": before}, {"order": after})
    for name in _keys(olds, news):
        yield from _entry(f"{path}.{name}", name, olds, news)


def _by_name(items: list[Any]) -> dict[str, Any]:
    return {str(item["name"]): item for item in items}


def _keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return every key of both, in the order of the newer; what is gone comes last."""
    return [*new, *(key for key in old if key not in new)]


def _entry(path: str, key: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    if key not in old:
        yield Change("added", path, None, new[key])
    elif key not in new:
        yield Change("removed", path, old[key], None)
    else:
        yield from _value(path, old[key], new[key])


def _value(path: str, old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in _keys(old, new):
            yield from _entry(f"{path}.{key}", key, old, new)
    elif _written(old) != _written(new):
        # As JSON, because to Python 1 is True, and 1.0 as well.
        yield Change("changed", path, old, new)


def _values(change: Change) -> str:
    if change.kind == "changed":
        if _is_order(change.before) and _is_order(change.after):
            return ": another order"
        old, new = _text(change.before), _text(change.after)
        if old == new:  # as 5 and "5" are, without quotes
            old, new = _written(change.before), _written(change.after)
        return f": {' -> '.join(_around(old, new))}"
    value = change.after if change.kind == "added" else change.before
    return "" if isinstance(value, dict) else f": {_shortened(_text(value))}"


def _is_order(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"order"}


def _around(old: str, new: str) -> tuple[str, str]:
    """Cut two texts that differ to a line that is never long, around the first difference."""
    if max(len(old), len(new)) <= _WIDTH:
        return old, new
    pairs = enumerate(zip(old, new, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), min(len(old), len(new)))
    start = max(0, same - _WIDTH // 4)
    begin = "..." if start else ""
    return begin + _shortened(old[start:]), begin + _shortened(new[start:])


def _shortened(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _text(value: Any) -> str:
    """Return a value as one would write it in a rule, on one line."""
    if isinstance(value, str) and value.isprintable() and value.strip() == value != "":
        return value
    return _written(value)


def _written(value: Any) -> str:
    """Return a value as JSON, which tells types apart."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
