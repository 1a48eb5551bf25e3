"""`DoorFlows`: what `Door` and `AsyncDoor` share. No I/O of its own; see `limen.flow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from limen.adapters.deciders import decider_of, kind_of, release, valid_for
from limen.adapters.limit import Item, RateLimit, rate_limits
from limen.adapters.manner import Manner, Options, manner_of
from limen.adapters.plan import apart, asked_item, plain_item, unasked
from limen.adapters.request import Request
from limen.adapters.visit import Passage, Visit, log_not_settled
from limen.errors import LimenError
from limen.flow import Flow
from limen.model import Concurrency, Limit


class DoorFlows:
    """Where requests come through: whom to ask, about what, and how to tell the client.

    An adapter makes a visit of each request, enters, and leaves when the response is sent.
    """

    _is_async: ClassVar[bool]
    _call: ClassVar[Callable[..., Any]]
    """Calls a function of the user's."""

    def __init__(
        self,
        source: object,
        limits: tuple[str | Limit | Concurrency | RateLimit, ...],
        options: Options,
    ) -> None:
        self._kind = kind_of(source, is_async=self._is_async)
        self._decider = decider_of(self._kind, source, is_async=self._is_async)
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

    def give_back(self, visit: Visit) -> Any:
        """Give back what those charged who let a request pass that was refused after all."""
        raise NotImplementedError

    def _enter(
        self, visit: Visit, limits: Iterable[RateLimit], request: Request, again: bool
    ) -> Flow[bool]:
        items: list[Item] = []
        for limit in limits:
            if limit.has_functions:
                item = yield from asked_item(limit, request, self._call)
            else:
                item = plain_item(limit, request)
            if item is None:
                continue
            if item.lacks:
                visit.lacks(item.lacks)
                yield self.give_back(visit)
                return False
            items.append(item)
        passages = visit.passages
        before = len(passages)
        if before or len(items) > 1:
            items = self._unasked(items, [] if again else passages)
        if not items:
            return True
        try:
            yield from self._decider.ask(items, passages)
            delay = _delay_of(passages[before:])
            if delay:
                visit.request.check_delay(delay)
                yield self._decider.sleep(delay)
        except BaseException:
            yield self.give_back(visit)
            raise
        if delay is None:
            yield self.give_back(visit)
        return delay is not None

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
            yield release(slot, self._is_async)
        except LimenError as error:
            log_not_settled(error)


def _delay_of(passages: Iterable[Passage]) -> float | None:
    """Return how long leaky buckets delay a request, in seconds; None when it is refused."""
    delay = 0.0
    for passage in passages:
        if not passage.allowed:
            return None
        if passage.slot is None and passage.said.delay:
            # Entering a slot waits by itself.
            delay = max(delay, passage.said.delay)
    return delay
