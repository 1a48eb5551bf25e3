"""Deadlines that do not count time during which this process was paused.

A blocking handler, a full garbage collection, CPU starvation or SIGSTOP can stop a process for
longer than a deadline. That is not a fault of the store: its reply may already be in the socket
buffer, or the request was never sent. Counting such time would turn every pause into a fallback.
"""

from __future__ import annotations

import time

_TICKS = 10
_MAX_STEP_TICKS = 2


class ActiveClock:
    """A monotonic clock that stops while the process is paused.

    It advances by at most two ticks between two readings, so a driver must read it at least once
    per tick while a request waits. The tick is a tenth of the deadline: a pause of a fifth of the
    deadline is noticed. Not safe to share between threads.
    """

    __slots__ = ("_last_s", "_max_step_s", "_now_s", "tick_s")

    def __init__(self, deadline_s: float) -> None:
        self.tick_s: float = deadline_s / _TICKS
        """The longest time to wait between two readings, in seconds."""
        self._max_step_s = self.tick_s * _MAX_STEP_TICKS
        self._now_s = 0.0
        self._last_s = time.monotonic()

    def now(self) -> float:
        """Return the seconds for which the process has run, from an arbitrary start."""
        read_s = time.monotonic()
        step_s = read_s - self._last_s
        self._last_s = read_s
        self._now_s += step_s if step_s < self._max_step_s else self._max_step_s
        return self._now_s


class Deadline:
    """The time that one caller has, on a clock of its own. For one thread."""

    __slots__ = ("_clock", "_ends_s", "tick_s")

    def __init__(self, seconds: float) -> None:
        self._clock = clock = ActiveClock(seconds)
        self.tick_s: float = clock.tick_s
        """The longest time to wait before `left` is called again, in seconds."""
        self._ends_s = clock.now() + seconds

    def left(self) -> float:
        """Return the seconds left; zero or less when the deadline has passed."""
        return self._ends_s - self._clock.now()

    def next_wait(self) -> float:
        """Return how long to wait now, in seconds: a tick, or less when less is left."""
        return max(min(self.left(), self.tick_s), 0.0)
