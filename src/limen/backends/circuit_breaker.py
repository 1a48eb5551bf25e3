"""`CircuitBreaker`: whether to send requests to a server. Pure: no I/O, no clock.

It opens after some failures in a row, or when within a second half of the calls failed or were
slow. While it is open, requests are not sent. A store is then probed in the background; for a
service, a request is sent as a probe from time to time. A probe that succeeds closes it.
"""

from __future__ import annotations

import threading
from typing import Literal

from msgspec import structs

from limen.backends import Fault, Shard
from limen.backends.histogram import BATCH, TRIP_S, Histogram
from limen.chance import CHANCE

FAILURES = 5
"""How many calls in a row have to fail."""
_WINDOW_S = 1.0
_MANY = 20
_SLOW = 0.9
"""Which part of the deadline an answer may take before it is as bad as none."""
_REST_S = 0.3
_PROBE_SLACK_S = 0.1
"""After a deadline and this time, a probe without an outcome is given up."""
_LONG_REST_S = 1.0
_LOST_S = 5.0
"""After which, and some deadlines, one who tends it is taken for lost with its loop or thread."""
_MISSED_S = 30.0
"""For how long somebody tries after the last who would have asked."""
PASSING = frozenset({"poisoned", "script", "internal", "cluster"})
"""Faults of one request or one slot: the server itself is well."""
_LASTING = frozenset({"rights", "tls"})
"""Faults that somebody has to mend: to try all the time would only fill the server's log."""


class CircuitBreaker:
    """The health of one server. Safe to share between threads and loops."""

    def __init__(self, where: str, deadline: float, *, probe_after_s: float | None = None) -> None:
        self._where = where
        self._probe_after_s = probe_after_s
        """After how many seconds a request is sent as a probe; None if others probe."""
        self._deadline = deadline
        self._lost_s = _LOST_S + 4 * deadline
        self.slow_s: float = _SLOW * deadline
        """An answer that takes longer is as bad as none."""
        self.is_open: bool = False
        """Whether the server is left alone."""
        self.is_alert: bool = False
        """Whether good answers count too, because something was bad not long ago."""
        self.refusal: Fault = Fault("connection", where)
        """What is told to who would ask while it is open."""
        self._tender = 0
        self.begin()

    def begin(self) -> None:
        """Begin anew, in the child of a fork: the lock is the other process's."""
        self._lock = threading.Lock()
        self._opened = 0
        self._faults: dict[str, int] = {}
        self.trips: Histogram = Histogram(TRIP_S)
        """How long the server took to answer, in seconds."""
        self.batches: Histogram = Histogram(BATCH)
        """How many decisions were sent together."""
        self.close()

    def close(self) -> None:
        """Let everybody ask again."""
        with self._lock:
            self._in_row = self._calls = self._bad = 0
            self._window_ends = self._tended_until = self._asked_at = float("-inf")
            self._try_at: float | None = None
            self._last = ""
            self.is_open = self.is_alert = False

    @property
    def shard(self) -> Shard:
        """What there is to tell of it."""
        state: Literal["closed", "open"] = "open" if self.is_open else "closed"
        return Shard(
            self._where,
            state,
            self._opened,
            self._last,
            dict(self._faults),
            self.trips.spread,
            self.batches.spread,
        )

    def answered(self, now: float, is_slow: bool) -> bool:
        """Take note of an answer; return whether that opened it.

        Need not be told while all is well, and it was quick: that would change nothing.
        """
        with self._lock:
            self._in_row = 0
            if not self._is_too_much(now, is_slow):
                return False
            late = f"answers take longer than {self.slow_s * 1_000:.0f} ms"
            return self._open(now, Fault("timeout", f"{self._where}: {late}"))

    def failed(self, now: float, fault: Fault) -> bool:
        """Take note of a call, or of a try to connect, that failed; return whether it opened."""
        with self._lock:
            self._faults[fault.kind] = self._faults.get(fault.kind, 0) + 1
            if fault.kind in PASSING:
                return False
            self._last = fault.kind
            self._in_row += 1
            is_sick = self._is_too_much(now, True) or self._in_row >= FAILURES
            return is_sick and self._open(now, fault)

    def should_tend(self, now: float) -> int:
        """Return the caller's number, if it is to see to it in the background that this closes.

        Else 0. Whoever would have asked has to call it: what nobody misses is not tended for ever.
        """
        self._asked_at = now
        with self._lock:
            if not self.is_open or now < self._tended_until:
                return 0
            self._tended_until = now + self._lost_s
            self._tender += 1
            return self._tender

    def rest(self, now: float, tender: int) -> float | None:
        """Return for how long to leave the server alone before the next try; None ends it.

        Not always the same: the instances should not all come back at the same moment.
        """
        with self._lock:
            if not self.is_open or tender != self._tender:
                return None
            if now > self._asked_at + _MISSED_S:
                self._tended_until = float("-inf")
                return None
            self._tended_until = now + self._lost_s
        usual = _LONG_REST_S if self._last in _LASTING else _REST_S
        return usual * CHANCE.uniform(0.5, 1.5)

    def abandon(self, now: float, tender: int) -> None:
        """Take note that one who tended it had to end, as with its loop.

        Loops may be short-lived, one for each call: then callers have to try, now and then.
        """
        with self._lock:
            if self.is_open and tender == self._tender:
                self._tended_until = float("-inf")
                if self._try_at is None:
                    self._try_at = now

    def may_try(self, now: float) -> bool:
        """Return whether a request is sent as a probe although it is open: one at a time."""
        if self._try_at is None:
            return False
        with self._lock:
            if self._try_at is None or now < self._try_at:
                return False
            self._try_at = now + max(
                self._probe_after_s or _REST_S, self._deadline + _PROBE_SLACK_S
            )
            return True

    def _is_too_much(self, now: float, is_bad: bool) -> bool:
        """Count a call; return whether too many were bad within a second."""
        if now >= self._window_ends:
            self._window_ends = now + _WINDOW_S
            self._calls = self._bad = 0
            self.is_alert = False
        self.is_alert = self.is_alert or is_bad
        self._calls += 1
        self._bad += is_bad
        return self._calls >= _MANY and self._bad * 2 >= self._calls

    def _open(self, now: float, fault: Fault) -> bool:
        if self._probe_after_s is not None:
            self._try_at = now + self._probe_after_s
        # Also while it is open: what is wrong may change, from silence to loading.
        self._last = fault.kind
        self.refusal = structs.replace(
            fault, message=f"{fault.message}; left alone until it answers", unsent=True
        )
        if self.is_open:
            return False
        self.is_open = True
        self._opened += 1
        return True
