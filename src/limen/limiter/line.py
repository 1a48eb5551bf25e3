"""How callers of `acquire` wait: in a line for each key, and for no longer than they said. Pure."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from msgspec import structs

from limen.errors import InvalidInput, shown
from limen.model import Decision

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
        line = self._lines[key]
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
        self._ends = math.inf if timeout is None else now + timeout

    def left(self, now: float) -> float | None:
        """Return the seconds left, never below zero; None is without end."""
        left = max(self._ends - now, 0.0)
        return None if left > threading.TIMEOUT_MAX else left

    def pause(self, decision: Decision, now: float) -> float | None:
        """Return for how long to sleep after a decision; None when that is too long."""
        pause = decision.delay if decision.allowed else decision.retry_after
        return pause if pause is not None and now + pause <= self._ends else None


def as_refusal(decision: Decision) -> Decision:
    """Return a decision that came too late, or whose delay is too long, as a refusal."""
    if not decision.allowed:
        return decision
    return structs.replace(decision, allowed=False, retry_after=decision.delay, delay=0.0)
