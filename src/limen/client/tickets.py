"""Those who wait for a decision, and what they may be told. Pure.

How they wait is for the two lines to know: threads at a lock, tasks for a future.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, TypeVar

from limen.client.questions import Asked
from limen.errors import ConfigurationError, InvalidInput
from limen.wire import MAX_BATCH, Verdict

MAX_BYTES = 2**19
"""How long a list of questions may get; a service takes twice that, unless told otherwise."""
MAX_CALLS = 2
"""How many calls with decisions are under way at the same time."""
MAX_OTHERS = 16
"""How many calls of other verbs are, each for itself."""
MAX_IDLE = MAX_CALLS + MAX_OTHERS
"""How many connections are kept while nobody uses them."""


class Away(Exception):
    """Say that the service did not answer, or not as a service of limen would."""

    def __init__(self, kind: str, reason: str, *, proves: bool = True) -> None:
        super().__init__(reason)
        self.kind = kind
        self.proves = proves
        """Whether it tells something about the service; a call that had no time left does not."""


Answer = Verdict | InvalidInput | ConfigurationError | Away


def late() -> Away:
    """Return what is told to somebody whose time is over before anybody asked for him."""
    return Away("timeout", "no answer in time", proves=False)


class Ticket(Protocol):
    """Somebody who waits for the answer to a question."""

    asked: Asked

    @property
    def is_done(self) -> bool:
        """Whether nobody waits any more."""
        ...

    def tell(self, answer: Answer) -> None:
        """Give the answer to whoever still waits."""
        ...


Standing = TypeVar("Standing", bound=Ticket)


def take(line: deque[Standing], first: Standing | None = None) -> list[Standing]:
    """Take from the front of a line what fits into one call, behind `first`."""
    batch = [] if first is None else [first]
    size = sum([len(ticket.asked.body) for ticket in batch])
    while line and len(batch) < MAX_BATCH:
        ticket = line[0]
        if not ticket.is_done:
            size += len(ticket.asked.body) + 1
            if batch and size > MAX_BYTES:
                break
            batch.append(ticket)
        line.popleft()
    return batch
