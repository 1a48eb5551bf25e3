"""What Envoy is told of a limit, whatever is decided. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

from limen.model import Concurrency, Limit
from limen.rules.rule import Applied
from limen.server.envoy import schema
from limen.server.envoy.fields import sized

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
