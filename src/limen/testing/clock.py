"""`ManualClock`: a clock that a test moves. Knows nothing of limiters."""

from __future__ import annotations

import asyncio

from limen.errors import InvalidInput


class ManualClock:
    """A clock that moves only when told to, so that a test of a daily limit takes no day.

    ```python
    clock = ManualClock()
    limiter = Limiter(clock=clock)
    limiter.check("user:42", "1/day")
    clock.advance(86_400)
    assert limiter.check("user:42", "1/day").allowed
    ```

    Waiting (`acquire`, a delay) advances the clock instead of sleeping.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now_us = _microseconds(start)

    def advance(self, seconds: float) -> None:
        """Move by `seconds`. A negative number is a clock that steps back."""
        self._now_us += _microseconds(seconds)

    def time_ns(self) -> int:
        """Return the time as nanoseconds, always whole microseconds."""
        return self._now_us * 1_000

    def monotonic(self) -> float:
        """Return the time as seconds."""
        return self._now_us / 1_000_000

    def sleep(self, seconds: float) -> None:
        """Advance at once instead of waiting."""
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Advance at once, and let the other tasks run."""
        self.advance(seconds)
        await asyncio.sleep(0)


def _microseconds(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidInput(f"seconds must be a number, got {seconds!r}")
    if not abs(seconds) < 2**53 / 1e6:
        raise InvalidInput(f"seconds must be between -9e9 and 9e9, got {seconds!r}")
    return round(seconds * 1_000_000)
