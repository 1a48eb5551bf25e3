"""`DoorFlows`: what `Door` and `AsyncDoor` share. No I/O of its own; see `limen.flow`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from limen.adapters.deciders import Kind, valid_for
from limen.adapters.limit import Item, RateLimit, rate_limits
from limen.adapters.manner import Manner, Options, manner_of
from limen.adapters.plan import apart, unasked
from limen.adapters.request import Request
from limen.adapters.visit import Passage, Visit, log_not_settled
from limen.errors import LimenError
from limen.flow import Flow
from limen.model import Concurrency, Limit


class DoorFlows:
    """The limits of an adapter, its decider, and the end of each visit."""

    def __init__(
        self,
        kind: Kind,
        decider: Any,
        limits: tuple[str | Limit | Concurrency | RateLimit, ...],
        options: Options,
    ) -> None:
        self._kind = kind
        self._decider = decider
        self.manner: Manner = manner_of(options)
        """How clients are told."""
        self.limits: tuple[RateLimit, ...] = self.take(*limits)
        """What holds for every request."""
        apart(self.limits)

    def take(self, *limits: str | Limit | Concurrency | RateLimit) -> tuple[RateLimit, ...]:
        """Return limits that can be asked about here, or raise `ConfigurationError`."""
        found = rate_limits(limits)
        for limit in found:
            valid_for(self._kind, limit)
        return found

    def visit(self, request: Request) -> Visit:
        """Begin with a request."""
        return Visit(request, self.manner)

    def _unasked(self, items: list[Item], passages: list[Passage]) -> list[Item]:
        """Return the items that the passages did not ask about already."""
        asked = [(passage.asker.store, item) for passage in passages for item in passage.items]
        return unasked(items, self._decider.store, asked)

    def _leave(self, visit: Visit, response: Any) -> Flow[None]:
        for passage in visit.passages:
            if passage.is_due:
                settle = passage.asker.settle
                due = passage.due(response)
                yield from self._finish(passage, [partial(settle, *each) for each in due])

    def _give_back(self, visit: Visit) -> Flow[None]:
        for passage in visit.passages:
            if passage.allowed and not passage.is_over:
                yield from self._finish(passage, [partial(passage.asker.refund, passage.said)])

    def _finish(self, passage: Passage, corrections: Iterable[partial[Any]]) -> Flow[None]:
        """Correct what a passage was charged, and let go of its slot, even if that fails."""
        passage.is_over = True
        slot, passage.slot = passage.slot, None
        try:
            for correct in corrections:
                yield correct()
        except LimenError as error:
            log_not_settled(error)
        finally:
            if slot is not None:
                yield from self._let_go(slot)

    def _let_go(self, slot: Any) -> Flow[None]:
        """Let go of a slot. An error keeps no other slot from being let go."""
        try:
            yield self._decider.driver.leave(slot)
        except LimenError as error:
            log_not_settled(error)


def delay_of(passages: Iterable[Passage]) -> float | None:
    """Return how long leaky buckets delay a request, in seconds; None when it is refused."""
    delay = 0.0
    for passage in passages:
        if not passage.allowed:
            return None
        if passage.slot is None and passage.said.delay:
            # Entering a slot waits by itself.
            delay = max(delay, passage.said.delay)
    return delay
