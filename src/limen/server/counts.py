"""What this process has decided so far. Numbers only: no key, no attribute."""

from __future__ import annotations

import time

from limen.engine import Verdict
from limen.model import Decision


class Counts:
    """Counters since the start of the process."""

    def __init__(self) -> None:
        self.since: float = time.time()
        """When counting began, in seconds since 1970."""
        self.allowed: int = 0
        self.refused: int = 0
        self.degraded: int = 0
        """Decisions that somebody else than the store made."""
        self.refused_by: dict[str, int] = {}
        """By rule."""

    def add(self, verdict: Verdict | Decision) -> None:
        """Count one answer."""
        if verdict.allowed:
            self.allowed += 1
        else:
            self.refused += 1
            rule = verdict.rule if isinstance(verdict, Verdict) else None
            if rule is not None:
                self.refused_by[rule] = self.refused_by.get(rule, 0) + 1
        if verdict.degraded:
            self.degraded += 1
