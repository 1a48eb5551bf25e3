"""What people write in a field, and how it is read: text, names, limits, shares, times.

Each type says what would have been right when a value is wrong, and what an editor should know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from limen.errors import shown
from limen.model import MAX_COST, grammar
from limen.rules.match import MAX_PATTERN

UNLIMITED = "unlimited"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_MAX_TEXT = 1_000
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")


def _text(value: Any) -> str:
    """Return a value as the text that a request would bring."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {_kind(value)}")
    if not value:
        raise ValueError("expected text, got nothing; an empty value counts as absent")
    if len(value) > MAX_PATTERN:
        raise ValueError(f"expected at most {MAX_PATTERN} characters, got {len(value)}")
    return _encodable(value)


def _prose(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {_kind(value)}")
    if len(value) > _MAX_TEXT:
        raise ValueError(f"expected at most {_MAX_TEXT} characters, got {len(value)}")
    return _encodable(value)


def _encodable(text: str) -> str:
    if _SURROGATE.search(text):
        raise ValueError(f"half a character cannot be kept: {shown(text)}")
    return text


def _name(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(
            f"a name has 1 to 64 letters, digits, '.', '_' or '-', and begins with a letter or "
            f"digit; got {shown(value)}"
        )
    return value


def _attribute(value: Any) -> str:
    if not isinstance(value, str) or not _ATTRIBUTE.fullmatch(value):
        raise ValueError(
            "an attribute's name has 1 to 64 letters, digits, '_', '.' or '-', and begins with a "
            f"letter; got {shown(value)}"
        )
    return value


def _as_list(value: Any) -> Any:
    """Return a single value as a list of it."""
    if isinstance(value, Mapping) or value is None:
        raise ValueError(f"expected text or a list, got {_kind(value)}")
    if isinstance(value, list) and not value:
        raise ValueError("expected at least one, got an empty list")
    return value if isinstance(value, list) else [value]


def _keys(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _limit(value: Any) -> str:
    if value == UNLIMITED:
        raise ValueError("'unlimited' is for tiers, variants and overrides, and stands alone there")
    # For its errors; what algorithm a limit is read with is not known yet.
    grammar.parse(value)
    return str(value)


def _limits_or_none(value: Any) -> Any:
    return [] if value in (UNLIMITED, [UNLIMITED]) else _as_list(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {shown(value)}")
    return value


def _percent(value: Any) -> float:
    """Read a number, also one written as text: YAML's `12.5` is text here."""
    number = value if type(value) in (int, float) else math.nan
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        number = float(value)
    if not 0 <= number <= 100:  # what is not a number is neither
        raise ValueError(f"expected a number from 0 to 100, got {shown(value)}")
    return float(number)


def _cost(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= MAX_COST:
            raise ValueError(f"expected 0 to {MAX_COST:,}, or an attribute, got {shown(value)}")
        return value
    if not isinstance(value, str) or not _ATTRIBUTE.fullmatch(value):
        raise ValueError(
            f"expected a whole number, or the name of an attribute that holds one, "
            f"got {shown(value)}"
        )
    return value


def _slots(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected a whole number, got {shown(value)}")
    return value


def _duration(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{value}s"
    if not isinstance(value, str):
        raise ValueError(f"expected a duration such as '60s', got {shown(value)}")
    return grammar.read_duration(value)


def _moment(value: Any) -> datetime:
    """Read a date or a time; without an offset it is UTC, and a date is its first moment."""
    found = value
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
    if isinstance(found, datetime):
        try:
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
        except OverflowError:
            pass  # a moment before the first year, or after the last
    elif isinstance(found, date):
        return datetime.combine(found, time(), UTC)
    raise ValueError(
        f"expected a date such as 2026-12-24 or a time such as 2026-12-24T18:00Z, "
        f"got {shown(value)}"
    )


def _kind(value: Any) -> str:
    """Name what was got, for a reader of YAML."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return "a list"
    return "a mapping" if isinstance(value, Mapping) else shown(value)


def _field(read: Callable[[Any], Any], **schema: Any) -> tuple[BeforeValidator, WithJsonSchema]:
    return BeforeValidator(read), WithJsonSchema(schema)


def _one_or_more(item: Mapping[str, Any], **schema: Any) -> dict[str, Any]:
    return {**schema, "anyOf": [item, {"type": "array", "items": item, "minItems": 1}]}


_NAME_PATTERN = f"^{_NAME.pattern}$"
_ATTRIBUTE_PATTERN = f"^{_ATTRIBUTE.pattern}$"
# A number with a point is text to `limen.rules.text`.
_PERCENT_PATTERN = r"^[0-9]+(\.[0-9]+)?$"
_MOMENT_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+(Z|[+-][0-9:]+)?)?$"
_SCALAR = {"type": ["string", "integer", "boolean"], "minLength": 1, "maxLength": MAX_PATTERN}
_ATTRIBUTES = {"type": "string", "pattern": _ATTRIBUTE_PATTERN}
_KEYS = [_ATTRIBUTES, {"type": "array", "items": _ATTRIBUTES}]
_PERCENTS = {"type": ["number", "string"], "minimum": 0, "maximum": 100}
_COSTS = {"type": ["integer", "string"], "minimum": 0, "maximum": MAX_COST}
_LIMITS = _one_or_more({"type": "string"}, examples=["100/minute", ["10/s burst 20", "1000/day"]])
_OR_NONE = _one_or_more({"type": "string"}, examples=["600/minute", "20000/month", UNLIMITED])
_DURATIONS = {"type": ["string", "integer"], "examples": ["60s", "5m"]}
_MOMENTS = {"type": "string", "examples": ["2026-12-24", "2026-12-24T18:00Z"]}

Text = Annotated[str, *_field(_text, **_SCALAR)]
Prose = Annotated[str, *_field(_prose, type="string", maxLength=_MAX_TEXT)]
Name = Annotated[str, *_field(_name, type=["string", "integer"], pattern=_NAME_PATTERN)]
Attribute = Annotated[str, *_field(_attribute, **_ATTRIBUTES)]
Texts = Annotated[list[Text], *_field(_as_list, **_one_or_more(_SCALAR))]
Limits = Annotated[list[Annotated[str, BeforeValidator(_limit)]], *_field(_as_list, **_LIMITS)]
LimitsOrNone = Annotated[
    list[Annotated[str, BeforeValidator(_limit)]], *_field(_limits_or_none, **_OR_NONE)
]
Percent = Annotated[float, *_field(_percent, **_PERCENTS, pattern=_PERCENT_PATTERN)]
Duration = Annotated[int, *_field(_duration, **_DURATIONS)]
Moment = Annotated[datetime, *_field(_moment, **_MOMENTS, pattern=_MOMENT_PATTERN)]
Flag = Annotated[bool, *_field(_flag, type="boolean")]
Slots = Annotated[int, *_field(_slots, type="integer", minimum=1)]
Key = Annotated[list[Attribute], *_field(_keys, anyOf=_KEYS)]
Cost = Annotated[int | str, *_field(_cost, **_COSTS, pattern=_ATTRIBUTE_PATTERN)]
