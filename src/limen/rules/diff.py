"""What changed between two documents of rules. Pure; takes any plain data, and never fails on it.

Rules and exemptions are matched by their names, so that a rule which only moved is not a new one.
Whether a document is a good one is not asked here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from limen.errors import shown
from limen.model.text import printable

Kind = Literal["added", "removed", "changed"]

_NAMED = ("rules", "exemptions")
_SIGNS: dict[Kind, str] = {"added": "+", "changed": "~", "removed": "-"}
# What lies deeper is compared whole: no rule is so deep, and nobody's nesting ends our stack.
_DEPTH = 20
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

    Rules in another order are one change at `rules`, with `{"order": [names]}` before and after.
    """
    old = before if isinstance(before, dict) else {}
    new = after if isinstance(after, dict) else {}
    found: list[Change] = []
    for key in _keys(old, new):
        lists = old.get(key, []), new.get(key, [])
        if key in _NAMED and all(isinstance(each, list) for each in lists):
            found += _items(str(key), *lists)
        else:
            found += _entry(str(key), key, old, new, _DEPTH)
    return found


def summary(found: Sequence[Change]) -> str:
    """Return how many values were added, changed and removed, such as `+1 ~2 -0`."""
    kinds = [change.kind for change in found]
    return " ".join(f"{sign}{kinds.count(kind)}" for kind, sign in _SIGNS.items())


def lines(found: Sequence[Change]) -> list[str]:
    """Return one line for each change, such as `~ rules.x.limits: 100/minute -> 200/minute`."""
    return [printable(f"{_SIGNS[change.kind]} {change.path}{_values(change)}") for change in found]


def _items(path: str, old: list[Any], new: list[Any]) -> Iterator[Change]:
    old_names, new_names = _names(old), _names(new)
    if old_names is None or new_names is None:
        places = range(max(len(old), len(new)))
        by_place = dict(enumerate(old)), dict(enumerate(new))
        for place in places:
            yield from _entry(f"{path}[{place}]", place, *by_place, _DEPTH)
        return
    olds, news = dict(zip(old_names, old, strict=True)), dict(zip(new_names, new, strict=True))
    stayed = [name for name in old_names if name in news]
    now = [name for name in new_names if name in olds]
    if stayed != now:
        yield Change("changed", path, {"order": stayed}, {"order": now})
    for name in _keys(olds, news):
        yield from _entry(f"{path}.{name}", name, olds, news, _DEPTH)


def _names(items: list[Any]) -> list[str] | None:
    """Return the names of all items, or None when they do not tell the items apart."""
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    texts = [name for name in names if isinstance(name, str) and name]
    return texts if len(set(texts)) == len(items) else None


def _keys(old: dict[Any, Any], new: dict[Any, Any]) -> list[Any]:
    """Return every key of both, in the order of the newer; what is gone comes last."""
    return [*new, *(key for key in old if key not in new)]


def _entry(
    path: str, key: Any, old: dict[Any, Any], new: dict[Any, Any], depth: int
) -> Iterator[Change]:
    if key not in old:
        yield Change("added", path, None, new[key])
    elif key not in new:
        yield Change("removed", path, old[key], None)
    else:
        yield from _value(path, old[key], new[key], depth)


def _value(path: str, old: Any, new: Any, depth: int) -> Iterator[Change]:
    if depth and isinstance(old, dict) and isinstance(new, dict):
        for key in _keys(old, new):
            yield from _entry(f"{path}.{key}", key, old, new, depth - 1)
    elif not _same(old, new, _DEPTH):
        yield Change("changed", path, old, new)


def _same(old: Any, new: Any, depth: int) -> bool:
    """Say whether two values are written alike: to Python, 1 is True and 1.0 as well."""
    if type(old) is not type(new):
        return False
    if depth and isinstance(old, list):
        return len(old) == len(new) and all(
            _same(*pair, depth - 1) for pair in zip(old, new, strict=True)
        )
    if depth and isinstance(old, dict):
        return old.keys() == new.keys() and all(_same(old[key], new[key], depth - 1) for key in old)
    try:
        return bool(old == new)
    except RecursionError:
        return False


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
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return shown(value)
