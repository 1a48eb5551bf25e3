"""Deadlines that do not count time during which this process was paused.

A blocking handler, a full garbage collection, CPU starvation or SIGSTOP can stop a process for
longer than a deadline. That is not a fault of the store: its reply may already be in the socket
buffer, or the request was never sent. Counting such time would turn every pause into a fallback.
"""

from __future__ import annotations

import threading
import time

_TICKS = 10
_MIN_TICK_S, _MAX_TICK_S = 0.001, 0.002_5
_MAX_STEP_TICKS = 2
_WAIT_PIECES = 4
"""In how many pieces a thread waits for a lock."""


class ActiveClock:
    """A monotonic clock that stops while the process is paused.

    A driver ticks it at least every `tick_s` while a request waits, and lets the sockets be read
    between two ticks. From one tick to the next, the clock advances by at most twice that time:
    the rest is a pause. Not safe to share between threads.
    """

    __slots__ = ("_max_step_s", "_ticked_at_s", "_value_s", "tick_s")

    def __init__(self, deadline_s: float) -> None:
        # A tenth of the deadline; short enough for callers with a shorter deadline of their own.
        self.tick_s: float = min(max(deadline_s / _TICKS, _MIN_TICK_S), _MAX_TICK_S)
        """The longest time to wait between two ticks, in seconds."""
        self._max_step_s = self.tick_s * _MAX_STEP_TICKS
        self._value_s = 0.0
        self._ticked_at_s = time.monotonic()

    def now(self) -> float:
        """Return the seconds for which the process has run, from an arbitrary start."""
        step_s = time.monotonic() - self._ticked_at_s
        return self._value_s + (step_s if step_s < self._max_step_s else self._max_step_s)

    def tick(self) -> float:
        """Take the time since the last tick as run, up to the longest step; return the time."""
        self._value_s = self.now()
        self._ticked_at_s = time.monotonic()
        return self._value_s


class Deadline:
    """The time that one caller has, on a clock of its own. For one thread."""

    __slots__ = ("_clock", "_ends_s", "is_fixed", "seconds")

    def __init__(self, seconds: float, *, is_fixed: bool = False) -> None:
        self.seconds: float = seconds
        """The time that the caller had at the start."""
        self.is_fixed: bool = is_fixed
        """Whether the caller does not want it to be extended."""
        self._clock = ActiveClock(seconds)
        self._ends_s = self._clock.now() + seconds

    def left(self) -> float:
        """Return the seconds left; zero or less when the deadline has passed.

        Call it at least every `next_wait` seconds while waiting.
        """
        return self._ends_s - self._clock.tick()

    def wait(self, gate: threading.Lock) -> bool:
        """Wait for a lock until the deadline has passed; return whether it was acquired.

        Of a pause, half of the deadline counts at most. It is noticed less exactly than by `left`,
        because many threads can wait, and short ticks of all of them would cost too much.
        """
        piece_s = self.seconds / _WAIT_PIECES
        while True:
            before_s, start_s = self._clock.tick(), time.monotonic()
            is_acquired = gate.acquire(timeout=max(min(self._ends_s - before_s, piece_s), 0.0))
            took_s = min(time.monotonic() - start_s, _MAX_STEP_TICKS * piece_s)
            counted_s = self._clock.tick() - before_s
            self._ends_s -= max(took_s - counted_s, 0.0)
            if is_acquired or self.left() <= 0:
                return is_acquired

    def extend(self, seconds: float) -> None:
        """Have at least so many seconds left."""
        self._ends_s = max(self._ends_s, self._clock.now() + seconds)

    def next_wait(self) -> float:
        """Return how long to wait now, in seconds: a tick, or less when less is left."""
        return max(min(self.left(), self._clock.tick_s), 0.0)
