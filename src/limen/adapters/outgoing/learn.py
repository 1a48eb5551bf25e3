"""What a response says of when to come back: its headers, as seconds to wait. Pure.

Whatever a server writes is read without harm: what is malformed says nothing. Nothing is bounded
here but the length of what is read; how long anybody really waits is for `pace` to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import http_sf

MAX_FIELD = 4_096
"""How many characters of `RateLimit` are read. A server chooses it, and must not make it costly."""
_MAX_DATE = 40
_BUSY = frozenset((403, 429, 503))
"""Where `Retry-After` tells of a limit. With 403, GitHub does so; with a redirect, nobody does."""
_COUNTED = ("ratelimit", "x-ratelimit", "x-rate-limit")
"""What stands before `-remaining` and `-reset`."""

# An hour is a usual reset and 30 years are none, so a number tells by itself what it is.
_EPOCH_S, _EPOCH_MS = 10**9, 10**11

_SECONDS = re.compile(r"[0-9]{1,15}")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")


def pause_asked(status: int, headers: Mapping[str, str], now: float) -> float | None:
    """Return how many seconds nothing should be sent; None when the response asks for no pause.

    The names of `headers` are in lower case, or case does not matter; several of one name are
    joined by commas. `now` is in seconds since 1970. Where a time of day is meant, it is compared
    with the response's own `Date`, if it has one: then the two clocks need not agree.
    """
    if _is_stored(headers):
        return None
    date = _date(headers.get("date", ""))
    here = now if date is None else date
    if status in _BUSY:
        seconds = _retry_after(headers.get("retry-after", ""), here)
        if seconds is not None:
            # It goes before all the others, also when it is shorter.
            return seconds if seconds > 0 else None
    told = [_rate_limit(headers.get("ratelimit", ""))]
    told += [_counted(name, headers, here) for name in _COUNTED]
    return max([seconds for seconds in told if seconds is not None and seconds > 0], default=None)


def _is_stored(headers: Mapping[str, str]) -> bool:
    """Return whether a cache kept the response for a while: then it tells of somebody else's past.

    Some caches write `Age: 0` on whatever comes through them; that is as good as none.
    """
    age = headers.get("age", "")
    return _SECONDS.fullmatch(age) is not None and int(age) > 0


def _retry_after(text: str, now: float) -> float | None:
    if _SECONDS.fullmatch(text):
        return float(text)
    date = _date(text)
    return None if date is None else date - now


def _rate_limit(text: str) -> float | None:
    """Read `RateLimit`: a list since draft-08, a dictionary before."""
    policies = _parsed(text, "list")
    if policies is not None:
        return max([window for policy in policies if (window := _exhausted(*policy))], default=None)
    members = _parsed(text, "dictionary")
    if members is None:
        return None
    values = {name: value for name, (value, _) in members.items()}
    return _integer(values.get("reset")) if _integer(values.get("remaining")) == 0 else None


def _parsed(text: str, kind: str) -> Any:
    """Return a structured field (RFC 9651); None when it is malformed or too long.

    Each value is in a tuple with its parameters.
    """
    if len(text) > MAX_FIELD:
        return None
    try:
        return http_sf.parse(text.encode("ascii"), tltype=kind)
    except ValueError:
        return None


def _exhausted(policy: object, parameters: Mapping[str, object]) -> int | None:
    """Return the window of a policy of which nothing is left: `"burst";r=0;t=30`.

    The draft that follows the eleventh calls these `a` and `w`.
    """
    if not isinstance(policy, str | http_sf.Token):
        return None
    for left, window in (("r", "t"), ("a", "w")):
        if _integer(parameters.get(left)) == 0:
            return _integer(parameters.get(window))
    return None


def _integer(value: object) -> int | None:
    """Return an Integer; None for anything else, also for a Boolean."""
    return value if type(value) is int else None


def _counted(name: str, headers: Mapping[str, str], now: float) -> float | None:
    """Read a pair such as `X-RateLimit-Remaining` and `-Reset`, where nothing remains.

    A reset is a number of seconds, or a time since 1970, in seconds or milliseconds.
    """
    remaining, reset = headers.get(f"{name}-remaining", ""), headers.get(f"{name}-reset", "")
    if not _NUMBER.fullmatch(remaining) or not _NUMBER.fullmatch(reset):
        return None
    # Some count in fractions, and half a request is none.
    if float(remaining) >= 1:
        return None
    number = float(reset)
    if number < _EPOCH_S:
        return number
    return (number if number < _EPOCH_MS else number / 1_000) - now


def _date(text: str) -> float | None:
    """Return an HTTP-date in seconds since 1970; None when it is none."""
    if len(text) > _MAX_DATE:
        return None
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:
            if not text[-1].isdigit():
                return None  # a zone with an unknown name
            date = date.replace(tzinfo=UTC)  # the form of asctime has no zone
        return date.timestamp()
    except (ValueError, OverflowError):
        return None
