"""What a response says of when to come back: its headers, as seconds to wait. Pure.

Whatever a server writes is read without harm: what is malformed says nothing. Nothing is bounded
here but the length of what is read; how long anybody really waits is for `pace` to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from limen.adapters.outgoing.fields import Item, read_dictionary, read_list

_BUSY = frozenset((403, 429, 503))
"""Where `Retry-After` tells of a limit. With 403, GitHub does so; with a redirect, nobody does."""
_COUNTED = ("ratelimit", "x-ratelimit", "x-rate-limit")
"""What stands before `-remaining` and `-reset`."""

# An hour is a usual reset and 30 years are none, so a number tells by itself what it is.
_EPOCH_S, _EPOCH_MS = 10**9, 10**11

_SECONDS = re.compile(r"[0-9]{1,15}")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})"
# A server writes the first; the other two are older than most servers (RFC 9110, 5.6.7).
_DATES = (
    re.compile(rf"[A-Z][a-z]{{2}}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(rf"[A-Z][a-z]+day, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(rf"[A-Z][a-z]{{2}} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)


def pause_asked(status: int, headers: Mapping[str, str], now: float) -> float | None:
    """Return how many seconds nothing should be sent; None when the response asks for no pause.

    The names of `headers` are in lower case, or case does not matter; several of one name are
    joined by commas. `now` is in seconds since 1970. Where a time of day is meant, it is compared
    with the response's own `Date`, if it has one: then the two clocks need not agree.
    """
    if _is_stored(headers):
        return None
    date = _date(headers.get("date", ""), now)
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
    date = _date(text, now)
    return None if date is None else date - now


def _rate_limit(text: str) -> float | None:
    """Read `RateLimit`: a list since draft-08, a dictionary before."""
    items = read_list(text)
    if items is not None:
        return max([seconds for item in items if (seconds := _exhausted(item))], default=None)
    members = read_dictionary(text)
    if members is None:
        return None
    left, reset = members.get("remaining"), members.get("reset")
    if left is None or reset is None or left.value != 0 or not isinstance(reset.value, int):
        return None
    return float(reset.value)


def _exhausted(item: Item) -> float | None:
    """Return the window of a policy of which nothing is left: `"burst";r=0;t=30`.

    The draft that follows the eleventh calls these `a` and `w`.
    """
    if not isinstance(item.value, str) or not re.match(r'["A-Za-z*]', item.value):
        return None
    for left, window in (("r", "t"), ("a", "w")):
        seconds = item.parameters.get(window)
        if item.parameters.get(left) == 0 and isinstance(seconds, int):
            return float(seconds)
    return None


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


def _date(text: str, now: float) -> float | None:
    """Return an HTTP-date in seconds since 1970; None when it is none."""
    if len(text) > 40:
        return None
    match = next(filter(None, (pattern.fullmatch(text) for pattern in _DATES)), None)
    if match is None:
        return None
    year = int(match["year"])
    if len(match["year"]) == 2:
        year = _full_year(year, now)
    month = _MONTHS.index(match["month"]) + 1
    # `int` bears the blank before a day of one digit.
    day, hour, minute, second = (int(match[part]) for part in ("day", "hour", "minute", "second"))
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _full_year(of_century: int, now: float) -> int:
    """Return which year two digits mean: the nearest."""
    this = datetime.fromtimestamp(now, UTC).year
    near = [this // 100 * 100 + shift + of_century for shift in (-100, 0, 100)]
    return min(near, key=lambda year: abs(year - this))
