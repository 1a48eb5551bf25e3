"""Where the time of an in-process limiter comes from. Knows nothing of limits.

Whoever asks cuts the nanoseconds to whole microseconds. With a shared store, time comes from there.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

_MINUTE_NS = 60 * 10**9


class Clock(Protocol):
    """Tell the time, and wait."""

    def time_ns(self) -> int:
        """Return nanoseconds since 1970. May step back: every algorithm bears that."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never step back, for time-outs."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        ...

    async def sleep_async(self, seconds: float) -> None:
        """Suspend the calling task."""
        ...


class SystemClock:
    """The machine's wall clock, because windows are aligned to UTC and calendars to dates."""

    __slots__ = ()

    def time_ns(self) -> int:
        """Return nanoseconds since 1970.

        `time.time_ns` is looked up at each call, because tests replace it, as freezegun does.
        """
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds that never step back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Suspend the calling task."""
        await asyncio.sleep(seconds)


class SteadyClock(SystemClock):
    """The wall clock, without the steps that it makes while somebody goes by this one.

    Whoever has not looked for a minute gets the time as it is now.
    """

    __slots__ = ("_ahead_ns", "_looked_ns")

    def __init__(self) -> None:
        self._ahead_ns = self._looked_ns = 0

    def time_ns(self) -> int:
        """Return nanoseconds since 1970, without a step since the last call."""
        now_ns = time.monotonic_ns()
        if not self._looked_ns or now_ns - self._looked_ns > _MINUTE_NS:
            self._ahead_ns = time.time_ns() - now_ns
        self._looked_ns = now_ns
        return now_ns + self._ahead_ns
