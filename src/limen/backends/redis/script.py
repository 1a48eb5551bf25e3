"""The one script that decides, and what goes into it and comes out. Pure: no I/O.

The script is put together from the `.lua` files that stand beside the algorithms. It never changes
with a limit: numbers travel as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import cast

from limen.backends import Change, Correct, Release, Renew, Reset
from limen.keys import marker_key, redis_key
from limen.model import Check, Concurrency, Limit, Reading

_PARTS = (
    "token_bucket",
    "fixed_window",
    "sliding_counter",
    "exact_window",
    "rolling_window",
    "packed_window",
    "concurrency",
)
_CODES = {
    "fixed_window": 1,
    "sliding_counter": 2,
    "rolling_window": 3,
    "packed_window": 4,
    "token_bucket": 5,
    "leaky_bucket": 6,
}
_CONCURRENCY = 7
_DECIDE, _PEEK, _CORRECT, _RENEW, _RELEASE, _RESET = range(1, 7)
_ENFORCE, _COUNT_DENIED, _CALENDAR_DAY = 1, 2, 4

_SERVER_TIME = """\
local REQUESTS = #ARGV
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
"""
_TEST_TIME = """\
local REQUESTS = #ARGV - 1
local now_us = tonumber(ARGV[#ARGV])
"""

Packed = tuple[list[str], bytes]
"""The keys of a request, and the request itself."""


@cache
def text(*, test: bool = False) -> str:
    """Return the script. For tests, time is its last argument instead of the server's."""
    algorithms = files("limen.algorithms")
    prelude = algorithms.joinpath("prelude.lua").read_text("utf-8")
    parts = [
        f"local function {name}()\n{algorithms.joinpath(f'{name}.lua').read_text('utf-8')}end\n"
        for name in _PARTS
    ]
    driver = files("limen.backends.redis").joinpath("driver.lua").read_text("utf-8")
    return "\n".join([_TEST_TIME if test else _SERVER_TIME, prelude, *parts, driver])


def pack_checks(namespace: str, checks: Sequence[Check], charge: bool, holder: str = "") -> Packed:
    """Pack checks to be decided together."""
    keys = [redis_key(namespace, check) for check in checks]
    return keys, _head(_DECIDE if charge else _PEEK, checks, holder) + b"".join(map(_check, checks))


def pack_change(namespace: str, change: Change) -> Packed:
    """Pack a change."""
    if isinstance(change, Correct):
        checks = [check for check, _ in change.receipt.charges]
        keys, packed = [], [_head(_CORRECT, checks, "")]
        for check, stamp_us in change.receipt.charges:
            key = redis_key(namespace, check)
            keys += [key, marker_key(key, change.receipt.id)]
            packed += [_check(check), stamp_us.to_bytes(7), change.actual_cost.to_bytes(4)]
        return keys, b"".join(packed)
    if isinstance(change, Reset):
        return [redis_key(namespace, check) for check in change.checks], _head(
            _RESET, change.checks, ""
        ) + b"".join(map(_check, change.checks))
    op = _RENEW if isinstance(change, Renew) else _RELEASE
    assert isinstance(change, Renew | Release)
    head = _head(op, [change.check], change.holder)
    return [redis_key(namespace, change.check)], head + _check(change.check)


def readings(reply: Sequence[int]) -> tuple[Reading, ...]:
    """Return what a reply says of each check."""
    return tuple(
        cast("Reading", (reply[place] == 1, *reply[place + 1 : place + 6]))
        for place in range(1, len(reply), 6)
    )


def _head(op: int, checks: Sequence[Check], holder: str) -> bytes:
    name = holder.encode()
    return bytes((op, len(checks), len(name))) + name


def _check(check: Check) -> bytes:
    flags = bytes((_code(check.limit), _flags(check)))
    return flags + _numbers(check.limit) + check.cost.to_bytes(4)


def _code(limit: Limit | Concurrency) -> int:
    return _CONCURRENCY if isinstance(limit, Concurrency) else _CODES[limit.algorithm]


def _flags(check: Check) -> int:
    flags = _ENFORCE if check.enforce else 0
    if isinstance(check.limit, Limit):
        flags |= _COUNT_DENIED if check.limit.count_denied else 0
        flags |= _CALENDAR_DAY if check.limit.period == "calendar day" else 0
    return flags


@lru_cache(maxsize=4_096)
def _numbers(limit: Limit | Concurrency) -> bytes:
    """Pack the numbers of a limit, in the order and the widths that `driver.lua` reads."""
    if isinstance(limit, Concurrency):
        numbers = (limit.slots, limit.lease_us, limit.slots, 0, 0, 1)
    else:
        numbers = (
            limit.quota,
            limit.period_us,
            limit.capacity,
            limit.min_interval_us,
            limit.max_delay_us + 1,
            limit.tick_us,
        )
    widths = (4, 7, 4, 7, 7, 4)
    return b"".join(number.to_bytes(width) for number, width in zip(numbers, widths, strict=True))
