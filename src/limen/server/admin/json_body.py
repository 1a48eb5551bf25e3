"""The body of a request, from bytes to plain data that can be kept. Knows no field.

Stricter than Python's own reader: duplicate keys, NaN, lone surrogates and deep nesting are
refused, since a rule set could not keep them. Takes time in proportion to the length of the body.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

from limen.errors import shown
from limen.rules.text import duplicate_key
from limen.server.http.exchange import Rejected

MAX_DEPTH = 40
MAX_KEYS = 10_000
"""How many keys one object may have: as many as a rule set has rules."""


def decoded(body: bytes) -> Any:
    """Return what a body says.

    Raises `Rejected`: 400 for a body that is not JSON, 422 for an object with too many keys.
    """
    try:
        text = body.decode()
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except UnicodeDecodeError:
        raise _malformed("it is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        what = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise _malformed(f"{what}, in line {error.lineno}") from None
    except (RecursionError, ValueError):
        raise _malformed("it is nested too deep, or a number in it is too long") from None
    _check_depth(data)
    # Only an escape can bring half a letter into text that was UTF-8.
    if "\\ud" in text or "\\uD" in text:
        _check_letters(data)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise Rejected(
            422,
            f"an object in the body has {len(pairs):,} keys; the most that are allowed are "
            f"{MAX_KEYS:,}",
        )
    duplicate = duplicate_key(pairs)
    if duplicate is not None:
        raise _malformed(f"the key {shown(duplicate)} stands twice in one object")
    return dict(pairs)


def _no_number(word: str) -> NoReturn:
    raise _malformed(f"{word} is not a number that JSON knows")


def _check_depth(data: Any) -> None:
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return
    raise _malformed(f"it is nested deeper than {MAX_DEPTH} levels")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_letters(data: Any) -> None:
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _malformed(f"{shown(error.object[error.start])} is half a letter") from None


def _malformed(reason: str) -> Rejected:
    return Rejected(400, f"the body is not JSON: {reason}")
