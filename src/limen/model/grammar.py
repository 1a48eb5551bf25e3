"""The language of limits: `"100/minute"` to plain values and back. Does not know `Limit`.

    limits  = limit { ";" limit }
    limit   = quota ( "/" | "per" ) period { option }
    period  = [ number ] unit  |  "month"  |  "calendar day"
    option  = algorithm  |  "burst" number  |  "min_interval" duration  |  "count_denied"
            | "max_delay" duration

Every character has to be understood: `10/month-ish` is an error, not ten a month.
"""

from __future__ import annotations

import re
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

from limen.errors import InvalidLimit, did_you_mean, shown
from limen.model.algorithm import ALGORITHMS

CALENDAR_PERIODS = ("month", "calendar day")

_SECOND_US = 1_000_000
_UNITS_US = {
    "week": 604_800 * _SECOND_US,
    "day": 86_400 * _SECOND_US,
    "hour": 3_600 * _SECOND_US,
    "minute": 60 * _SECOND_US,
    "second": _SECOND_US,
    "ms": 1_000,
}
_SHORT_UNITS = {
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}
_OTHER_SPELLINGS = {
    spelling: unit
    for unit, spellings in {
        "ms": "msec msecs milli millis millisecond milliseconds",
        "minute": "mn mns",
        "hour": "hr hrs",
        "day": "dy dys daily",
        "week": "wk wks",
        "month": "mo mos mon mons mth mths mnth mnths months",
        "year": "y yr yrs year years yearly annum",
        "microsecond": "us usec usecs micro micros microsecond microseconds",
    }.items()
    for spelling in spellings.split()
}
"""Spellings that are not read, and the unit that each means."""
_WITHOUT_UNIT = {
    "year": "a year has no unit; write '365 days'",
    "microsecond": "write microseconds as a fraction of 'ms', such as '0.5ms'",
}
_FULL_NAMES = ("second", "minute", "hour", "day", "week", "month")
_ALIKE = 0.75
_OPTIONS = ("burst", "min_interval", "count_denied", "max_delay", "from_first")
_SPACE = re.compile(r"\s*", re.ASCII)
_TOKEN = re.compile(r"(\d+(?:\.\d+)?)|([a-z_]+)|([/;])|(\Z)", re.ASCII | re.IGNORECASE)
_MAX_LENGTH = 1_000
_LIMITS = "'100/minute', '5 per 10s' or '10/s burst 20'"


class Terms(NamedTuple):
    """What the text of one limit says. None is "not said"."""

    text: str
    quota: int
    period: int | str
    """Microseconds, or one of `CALENDAR_PERIODS`."""
    algorithm: str | None
    burst: int | None
    min_interval_us: int | None
    count_denied: bool
    max_delay_us: int | None
    from_first: bool


def parse(text: str) -> list[Terms]:
    """Read one or several limits joined by `;`. Raises `InvalidLimit` with the place."""
    if not isinstance(text, str):
        raise InvalidLimit(f"a limit must be text such as '100/minute', got {shown(text)}")
    if len(text) > _MAX_LENGTH:
        raise InvalidLimit(f"a limit has at most {_MAX_LENGTH} characters, got {len(text)}")
    reader = _Reader(text)
    terms = [_limit(reader)]
    while reader.accept(";"):
        terms.append(_limit(reader))
    if not reader.at_end:
        reader.fail("'burst', 'min_interval', 'count_denied', 'max_delay', an algorithm or ';'")
    return terms


def read_duration(text: str) -> int:
    """Read a duration such as `"50ms"` or `"2 hours"`, in microseconds."""
    reader = _Reader(text[:_MAX_LENGTH], "duration", "'50ms' or '2 hours'")
    us = _duration(reader)
    if not reader.at_end:
        reader.fail("one duration")
    return us


def duration(us: int) -> str:
    """Write microseconds in the largest unit that holds them whole: `2 hours`, `50ms`."""
    if us == 0:
        return "0s"
    for unit, unit_us in _UNITS_US.items():
        if us % unit_us == 0:
            count = us // unit_us
            if unit == "ms":
                return f"{count}ms"
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{Decimal(us).scaleb(-6).normalize():f}s"


def period(us: int | str) -> str:
    """Write what follows the quota: `/minute`, `/50ms`, ` per 2 hours`, `/month`."""
    if isinstance(us, str):
        return f"/{us}"
    words = duration(us)
    if words.startswith("1 "):
        return f"/{words[2:]}"
    return f" per {words}" if " " in words else f"/{words}"


class _Reader:
    """Reads one token after the other, and knows the place when one is not as expected."""

    def __init__(self, text: str, what: str = "limit", example: str = _LIMITS) -> None:
        self._text = text
        self._what = what
        self._example = example
        self._next = 0
        self.advance()

    def advance(self) -> None:
        self.start = _SPACE.match(self._text, self._next).end()  # type: ignore[union-attr]  # matches anything
        found = _TOKEN.match(self._text, self.start)
        if found is None:
            self.fail(f"a {self._what} such as {self._example}")
        self._next = found.end()
        self.number = found[1] or ""
        self.word = (found[2] or "").lower()
        self._mark = found[3] or ""
        self.at_end = found[4] is not None

    def accept(self, token: str) -> bool:
        if token not in (self.word, self._mark) or self.at_end:
            return False
        self.advance()
        return True

    def whole_number(self, expected: str) -> int:
        if not self.number or "." in self.number or len(self.number) > 18:
            self.fail(expected)
        value = int(self.number)
        self.advance()
        return value

    def text_since(self, start: int) -> str:
        return self._text[start : self.start].strip()

    def fail(self, expected: str) -> NoReturn:
        rest = self._text[self.start :]
        got = "nothing more" if not rest else f"{rest[:24]!r}"
        raise InvalidLimit(
            f"cannot read {self._what} {self._text[:200]!r}: at position {self.start + 1} "
            f"expected {expected}, got {got}"
        )


def _limit(reader: _Reader) -> Terms:
    start = reader.start
    quota = reader.whole_number("a whole number of requests")
    if not (reader.accept("/") or reader.accept("per")):
        reader.fail("'/' or 'per' and a period")
    period = _period(reader)
    said: dict[str, Any] = {}
    while reader.word:
        option = "algorithm" if reader.word in ALGORITHMS else reader.word
        if option in said:
            reader.fail(f"'{option}' only once")
        said[option] = _option(reader)
    return Terms(
        text=reader.text_since(start),
        quota=quota,
        period=period,
        algorithm=said.get("algorithm"),
        burst=said.get("burst"),
        min_interval_us=said.get("min_interval"),
        count_denied="count_denied" in said,
        max_delay_us=said.get("max_delay"),
        from_first="from_first" in said,
    )


def _period(reader: _Reader) -> int | str:
    if reader.accept("calendar"):
        if not (reader.accept("day") or reader.accept("days")):
            reader.fail("'day' after 'calendar'")
        return "calendar day"
    if reader.accept("month") or reader.accept("months"):
        return "month"
    if reader.number:
        return _duration(reader)
    return _unit(reader, has_number=False)


def _option(reader: _Reader) -> int | str | bool:
    name = reader.word
    if name in ALGORITHMS:
        reader.advance()
        return name
    if name not in _OPTIONS:
        hint = did_you_mean(name, (*_OPTIONS, *ALGORITHMS))
        reader.fail(f"an algorithm or option{hint}")
    reader.advance()
    if name in ("count_denied", "from_first"):
        return True
    if name == "burst":
        return reader.whole_number("a whole number after 'burst'")
    return _duration(reader)


def _duration(reader: _Reader) -> int:
    number = reader.number
    if not number or len(number) > 18:
        reader.fail("a number and a unit, such as '50ms' or '2 hours'")
    start = reader.start
    reader.advance()
    us = Decimal(number) * _unit(reader, has_number=True)
    if us != int(us):
        reader.start = start
        reader.fail("a whole number of microseconds")
    return int(us)


def _unit(reader: _Reader, *, has_number: bool) -> int:
    word = _SHORT_UNITS.get(reader.word) or reader.word
    unit_us = _UNITS_US.get(word) or _UNITS_US.get(_singular(word))
    if unit_us is None:
        reader.fail(
            "a unit: ms, s, sec, second, m, min, minute, h, hour, d, day, w, week, "
            f"or 'month' or 'calendar day' alone{_unit_hint(reader.word, has_number)}"
        )
    reader.advance()
    return unit_us


def _unit_hint(word: str, has_number: bool) -> str:
    """Return the unit that a word means; nothing if that is not certain.

    Likeness alone does not tell: `mo` is like `m`, and `msec` like `sec`. So abbreviations are
    looked up, and only a full name with a typing error is compared, with names that begin alike.
    """
    meant = _OTHER_SPELLINGS.get(word)
    if meant is None:
        names = [unit for unit in _FULL_NAMES if unit[0] == word[:1]]
        close = get_close_matches(word.removesuffix("s"), names, 2, _ALIKE)
        if len(close) != 1:
            return ""
        meant = close[0]
    if meant in _WITHOUT_UNIT:
        return f" ({_WITHOUT_UNIT[meant]})"
    if has_number and meant == "month":
        return " (months differ in length; write days, or 'month' without a number)"
    return f" (did you mean '{meant}'?)"


def _singular(word: str) -> str:
    if word == "mss" or not word.endswith("s"):
        return ""
    return {"sec": "second", "min": "minute"}.get(word[:-1], word[:-1])
