"""The one script that decides, and what goes into it and comes out. Pure: no I/O.

The script is put together from the `.lua` files that stand beside the algorithms. It never changes
with a limit: numbers travel as arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from struct import Struct
from typing import Any, cast

from limen.backends import Change, Correct, Release, Renew, Reset
from limen.keys import marker_key, redis_key
from limen.model import ALGORITHMS, Check, Concurrency, Limit, Reading

_LUA = (*dict.fromkeys(algorithm.lua for algorithm in ALGORITHMS.values()), ("concurrency",))
"""The files of each algorithm in the script. Its code in a request is its place here, from 1."""
_CODES = {name: _LUA.index(algorithm.lua) + 1 for name, algorithm in ALGORITHMS.items()}
_CONCURRENCY = len(_LUA)

_DECIDE, _PEEK, _CORRECT, _RENEW, _RELEASE, _RESET = range(1, 7)
_ENFORCE, _COUNT_DENIED, _CALENDAR_DAY, _FROM_FIRST, _SLOTS = 1, 2, 4, 8, 16

SERVER_TIME = """\
local REQUESTS = #ARGV
local time = redis.call("TIME")
local now_us = time[1] * 1000000 + time[2]
local TTL_MARGIN_MS = 1
"""
_AT_REPLY = "  -- Here tests number the replies.\n"

Packed = tuple[list[str], bytes]
"""The keys of a request, and the request itself."""
Reply = bytes | list[Any]
"""What was replied to one request. Its first item is 1; 0 says that it is a fault.

An answer is bytes: to checks, what `readings` reads; to a change, its second item says whether
anything was changed. A fault is a list, and its second item the server's message.
"""

_READING = Struct(">?Iqqqq")
CHANGE_BYTES = 2
"""How long an answer to a change is."""


@cache
def text(header: str = SERVER_TIME, at_reply: str = "") -> str:
    """Return the script.

    It replies with a list, of one item for each request; but to a request that comes alone without
    a list around it, which saves the server a sixth of its time.

    Tests have a `header` that takes the time from an argument, and Lua to change `reply` with.
    """
    prelude, shared = _inlined(header + _lua("limen.algorithms", "prelude"), {})
    algorithms = "".join(
        f"if code == {code} then\n{_algorithm(names, shared)}end\n"
        for code, names in enumerate(_LUA, 1)
    )
    rare, _ = _inlined(_lua("limen.backends.redis", "rare"), shared)
    driver = _lua("limen.backends.redis", "driver").replace(_AT_REPLY, at_reply)
    driver, _ = _inlined(driver, shared)
    # In its final size: a table that grows is moved.
    loaded = ", ".join(["false"] * len(_LUA))
    return (
        f"{prelude}\nlocal algorithms = {{{loaded}}}\n"
        f"local function algorithm_of(code)\n{algorithms}end\n\n"
        f"local function rare(...)\n{rare}end\n\n{driver}"
    )


def _lua(package: str, name: str) -> str:
    return files(package).joinpath(f"{name}.lua").read_text("utf-8")


def _algorithm(names: Sequence[str], shared: Mapping[str, str]) -> str:
    return "".join(_inlined(_lua("limen.algorithms", name), shared)[0] for name in names)


def _inlined(lua: str, shared: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Put constants where they are used, and leave out comments; return the constants too.

    A local that functions take from around them is an object of its own, made at every call. With
    some dozens of constants, that took longer than to decide.
    """
    constants = dict(shared)

    def take(found: re.Match[str]) -> str:
        constants[found[1]] = found[2]
        return ""

    lua = re.sub(r"^( *--.*)?\n", "", lua, flags=re.MULTILINE)
    lua = re.sub(r'^local ([A-Z][A-Z_]*) = (-?\d+|"[^"]*")\n', take, lua, flags=re.MULTILINE)
    names = "|".join(constants)
    return re.sub(rf"\b({names})\b", lambda found: constants[found[1]], lua), constants


def pack_checks(namespace: str, checks: Sequence[Check], charge: bool, holder: str = "") -> Packed:
    """Pack checks to be decided together."""
    if len(checks) == 1 and not holder:
        # What most requests are, without a loop.
        check = checks[0]
        head = b"\1\1" if charge else b"\2\1"
        packed = head + _limit(check.limit, check.enforce) + check.cost.to_bytes(4)
        return [redis_key(namespace, check)], packed
    keys = [redis_key(namespace, check) for check in checks]
    return keys, _request(_DECIDE if charge else _PEEK, checks, holder)


def pack_change(namespace: str, change: Change) -> Packed:
    """Pack a change."""
    if isinstance(change, Correct):
        charges = change.receipt.charges
        keys, packed = [], [bytes((_CORRECT, len(charges)))]
        for check, stamp_us in charges:
            key = redis_key(namespace, check)
            keys += [key, marker_key(key, change.receipt.id)]
            packed += [_check(check), stamp_us.to_bytes(7), change.actual_cost.to_bytes(4)]
        return keys, b"".join(packed)
    if isinstance(change, Reset):
        keys = [redis_key(namespace, check) for check in change.checks]
        return keys, _request(_RESET, change.checks, "")
    op = _RENEW if isinstance(change, Renew) else _RELEASE
    assert isinstance(change, Renew | Release)
    return [redis_key(namespace, change.check)], _request(op, [change.check], change.holder)


def readings(reply: Reply) -> tuple[Reading, ...]:
    """Return what an answer says of each check."""
    answer = cast("bytes", reply)
    if len(answer) == 38:
        return (cast("Reading", _READING.unpack_from(answer, 1)),)
    return cast("tuple[Reading, ...]", tuple(_READING.iter_unpack(answer[1:])))


def answer_bytes(checks: int) -> int:
    """Return how long an answer to so many checks is."""
    return 1 + checks * _READING.size


def _request(op: int, checks: Sequence[Check], holder: str) -> bytes:
    return b"".join((bytes((op, len(checks))), *map(_check, checks), holder.encode()))


def _check(check: Check) -> bytes:
    return _limit(check.limit, check.enforce) + check.cost.to_bytes(4)


@lru_cache(maxsize=4_096)
def _limit(limit: Limit | Concurrency, enforce: bool) -> bytes:
    """Pack a limit, in the order and the widths that `driver.lua` reads."""
    flags = _ENFORCE if enforce else 0
    if isinstance(limit, Concurrency):
        code, flags = _CONCURRENCY, flags | _SLOTS
        numbers = (limit.slots, limit.lease_us, limit.slots, 0, 0, 1)
    else:
        code = _CODES[limit.algorithm]
        flags |= _COUNT_DENIED if limit.count_denied else 0
        flags |= _CALENDAR_DAY if limit.period == "calendar day" else 0
        flags |= _FROM_FIRST if limit.from_first else 0
        numbers = (
            limit.quota,
            limit.period_us,
            limit.capacity,
            limit.min_interval_us,
            limit.max_delay_us + 1,
            limit.tick_us,
        )
    widths = (4, 7, 4, 7, 7, 4)
    packed = (number.to_bytes(width) for number, width in zip(numbers, widths, strict=True))
    return b"".join((bytes((code, flags)), *packed))
