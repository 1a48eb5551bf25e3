"""Wait for a condition that another thread, process or server makes true."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

FULL = os.environ.get("LIMEN_FAULTS") == "1"
"""Whether tests run at full length, as by `make faults`."""

T = TypeVar("T")
_NONE: tuple[type[Exception], ...] = ()


def generous(expected_s: float) -> float:
    """Return an upper bound for something that takes `expected_s` on an idle machine.

    It fails for what hangs, and not for a busy machine. `make faults` measures, so it uses the
    expected time itself.
    """
    return expected_s if FULL else max(10 * expected_s, 5.0)


def wait_until(
    condition: Callable[[], T],
    timeout_s: float = 20.0,
    interval_s: float = 0.01,
    *,
    ignoring: type[Exception] | tuple[type[Exception], ...] = _NONE,
    details: Callable[[], object] | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> T:
    """Call the condition until its result is true, and return this result.

    Exceptions in `ignoring` count as false. After `timeout_s`, raise an AssertionError that names
    the condition and shows what `details` returns, for example a log.
    """
    end = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            if last := condition():
                return last
        except ignoring as error:
            last = error
        if time.monotonic() > end:
            raise AssertionError(_message(condition, timeout_s, last, details))
        sleep(interval_s)


@overload
async def wait_until_async(
    condition: Callable[[], Awaitable[T]],
    timeout_s: float = ...,
    interval_s: float = ...,
    *,
    details: Callable[[], object] | None = ...,
) -> T: ...


@overload
async def wait_until_async(
    condition: Callable[[], T],
    timeout_s: float = ...,
    interval_s: float = ...,
    *,
    details: Callable[[], object] | None = ...,
) -> T: ...


async def wait_until_async(
    condition: Callable[[], Any],
    timeout_s: float = 20.0,
    interval_s: float = 0.01,
    *,
    details: Callable[[], object] | None = None,
) -> Any:
    """Do the same without blocking the event loop; the condition may be a coroutine function."""
    end = time.monotonic() + timeout_s
    while True:
        result = condition()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(_message(condition, timeout_s, result, details))
        await asyncio.sleep(interval_s)


def _message(
    condition: Callable[[], object],
    timeout_s: float,
    result: object,
    details: Callable[[], object] | None,
) -> str:
    lines = [f"after {timeout_s} s still {result!r}: {_name(condition)}"]
    if details is not None:
        lines.append(str(details()))
    return "\n".join(lines)


def _name(condition: Callable[[], object]) -> str:
    """Return the name of a function, or the source line of a lambda."""
    name: str = getattr(condition, "__qualname__", repr(condition))
    if not name.endswith("<lambda>"):
        return name
    try:
        return inspect.getsource(condition).strip()
    except OSError:
        return name
