"""How callers of `acquire` wait: in a line for each key, and for no longer than they said. Pure."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from msgspec import structs

from limen.errors import InvalidInput, RateLimitExceeded, shown
from limen.model import UNCHARGED, Check, Decision, Limit

Ticket = TypeVar("Ticket")


class Lines(Generic[Ticket]):
    """One line for each key that somebody waits for. The first in a line has its turn.

    Not safe by itself: the caller lets one thread at a time into the same line.
    """

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[Ticket]] = {}

    def join(self, key: Hashable, ticket: Ticket) -> bool:
        """Stand in line; return whether it is this ticket's turn at once."""
        line = self._lines.setdefault(key, deque())
        line.append(ticket)
        return len(line) == 1

    def leave(self, key: Hashable, ticket: Ticket) -> Ticket | None:
        """Leave from whatever place; return the ticket whose turn has come by that, if any."""
        line = self._lines.get(key)
        if line is None or ticket not in line:
            return None
        had_turn = line[0] is ticket
        line.remove(ticket)
        if not line:
            del self._lines[key]
            return None
        return line[0] if had_turn else None


class Patience:
    """How long a caller may go on waiting."""

    def __init__(self, now: float, timeout: float | None) -> None:
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0
        ):
            raise InvalidInput(f"timeout must be seconds from 0, or None, got {shown(timeout)}")
        # Beyond what a lock can be told is without end, as far as anybody will notice.
        endless = timeout is None or timeout > threading.TIMEOUT_MAX
        self._ends = math.inf if endless else now + float(timeout or 0)

    def left(self, now: float) -> float | None:
        """Return the seconds left, never below zero; None is without end."""
        return None if self._ends == math.inf else max(self._ends - now, 0.0)

    def wait_for(self, decision: Decision, now: float) -> float:
        """Return for how long a decision says to wait; raise when there is not that much time."""
        pause = decision.delay if decision.allowed else decision.retry_after
        if pause is None or now + pause > self._ends:
            raise RateLimitExceeded(as_refusal(decision))
        return pause


def as_refusal(decision: Decision) -> Decision:
    """Return a decision that came too late, or whose delay is too long, as a refusal."""
    if not decision.allowed:
        return decision
    return structs.replace(
        decision,
        allowed=False,
        retry_after=decision.delay,
        delay=0.0,
        stamp_us=UNCHARGED,
        several=(),
    )


def counts_denied(checks: Iterable[Check]) -> bool:
    """Return whether a refusal would be counted by any of the limits."""
    return any(isinstance(check.limit, Limit) and check.limit.count_denied for check in checks)
