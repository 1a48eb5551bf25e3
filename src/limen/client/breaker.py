"""`Breaker`: whether to ask the service now, or to let it rest. Knows neither I/O nor time itself.

After some failures in a row nobody asks for a while; then one caller tries, and the others go on
without until he is back.
"""

from __future__ import annotations

import threading

FAILURES = 3
"""How many calls in a row have to fail."""
REST_S = 1.0
"""How long the service is left alone then."""


class Breaker:
    """Counts failures in a row. Safe to share between threads and loops."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        """After how long somebody who tried, and was not heard of again, is given up."""
        self._failures = 0
        self._until: float | None = None
        """When the next may try; None when everybody may."""
        self.begin()

    def begin(self) -> None:
        """Make the lock anew, in the child of a fork."""
        self._lock = threading.Lock()

    def admits(self, now: float) -> bool:
        """Return whether this caller is to ask. Of those who come after a rest, one is."""
        if self._until is None:
            return True
        with self._lock:
            if self._until is None:
                return True
            if now < self._until:
                return False
            self._until = now + self._patience_s
            return True

    def succeeded(self) -> None:
        """Take note that the service answers."""
        if self._failures or self._until is not None:
            with self._lock:
                self._failures, self._until = 0, None

    def failed(self, now: float) -> None:
        """Take note that a call failed."""
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES:
                self._until = now + REST_S
