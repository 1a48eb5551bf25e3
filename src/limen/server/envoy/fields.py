"""Fields of a response as protobuf writes them, and the field that names a limit. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

from limen.model import Concurrency, Limit
from limen.rules.rule import Applied
from limen.server.envoy import schema

_CURRENT_LIMIT = b"\x12"
"""How the field begins: the number of the field, and what kind it is."""
_SECOND_US, _DAY_US = 1_000_000, 86_400_000_000
_UNITS = {
    _SECOND_US: schema.SECOND,
    60 * _SECOND_US: schema.MINUTE,
    3_600 * _SECOND_US: schema.HOUR,
    _DAY_US: schema.DAY,
    7 * _DAY_US: schema.WEEK,
    30 * _DAY_US: schema.MONTH,
    365 * _DAY_US: schema.YEAR,
}
_CALENDAR = {"month": schema.MONTH, "calendar day": schema.DAY}
_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,64}")


def current_limit(applied: Applied, limit: Limit | Concurrency) -> bytes:
    """Return the field of a status that names a limit, whatever is decided."""
    # Those that were imported have their name there; a sentence is none.
    name = applied.rule.description
    return _limit(limit, name if _NAME.fullmatch(name) else "")


@lru_cache(maxsize=4_096)
def _limit(limit: Limit | Concurrency, name: str) -> bytes:
    if isinstance(limit, Concurrency):
        return b""  # not asked for here: nobody would give a slot back
    unit = _CALENDAR.get(str(limit.period), schema.UNKNOWN)
    if limit.period_us:
        # A window that Envoy has no word for is not called by another one.
        unit = _UNITS.get(limit.period_us, schema.UNKNOWN)
    message = schema.RateLimit(requests_per_unit=limit.quota, unit=unit, name=name)
    return _CURRENT_LIMIT + sized(message.SerializeToString())


def sized(content: bytes) -> bytes:
    """Return a text, bytes or a message with its length before it."""
    return varint(len(content)) + content


def varint(number: int) -> bytes:
    """Return a whole number, and 0 for less: seven bits a byte, the low ones first."""
    if 0 <= number < _TWO_BYTES:
        return _SHORT[number]
    if 0 <= number < _FOUR_BYTES:
        return _LOW[number % _TWO_BYTES] + _SHORT[number >> 14]
    return _long(number)


def _long(number: int) -> bytes:
    number = max(number, 0)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


# Most numbers are small, and looked up.
_TWO_BYTES, _FOUR_BYTES = 1 << 14, 1 << 28
_SHORT = tuple([_long(number) for number in range(_TWO_BYTES)])
_LOW = tuple([bytes((low & 0x7F | 0x80, low >> 7 | 0x80)) for low in range(_TWO_BYTES)])
