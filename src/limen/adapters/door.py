"""`Door` and `AsyncDoor`: decide requests for adapters, in threads and on asyncio.

An adapter makes a visit of each request, enters, and leaves when the response is sent. What both
do is a generator of `DoorFlows`; see `limen.flow`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Unpack

from limen._internal.functions import call_async, call_sync
from limen.adapters.deciders import DECIDERS, AsyncSource, Source, kind_of, release, validate
from limen.adapters.limit import AnyLimit, Item, RateLimit, rate_limits
from limen.adapters.manner import Manner, Options, manner_of
from limen.adapters.plan import apart, item_of, unasked
from limen.adapters.request import Request
from limen.adapters.visit import Passage, Visit
from limen.ending import to_the_end
from limen.errors import ConfigurationError, LimenError, StoreError
from limen.flow import Flow, run, run_async
from limen.limiter import AsyncLimiter

_logger = logging.getLogger("limen")


class DoorFlows:
    """The source that decides, the limits for all requests, and how clients are told."""

    _is_async: ClassVar[bool]
    _call: ClassVar[Callable[..., Any]]
    """Calls a function of the user's."""

    def __init__(
        self, source: Source | AsyncSource, *limits: AnyLimit, **options: Unpack[Options]
    ) -> None:
        self._kind = kind_of(source, is_async=self._is_async)
        self._decider = DECIDERS[self._kind](source, is_async=self._is_async)
        self.manner: Manner = manner_of(options)
        """How clients are told."""
        self.limits: tuple[RateLimit, ...] = self.take(*limits)
        """What holds for every request."""
        apart(self.limits)

    def take(self, *limits: AnyLimit) -> tuple[RateLimit, ...]:
        """Return limits that can be asked about here, or raise `ConfigurationError`."""
        valid = rate_limits(limits)
        for limit in valid:
            validate(self._kind, limit)
            if limit.is_async and not self._is_async:
                raise ConfigurationError(
                    "this adapter runs in threads and cannot await; "
                    "use functions that are not async"
                )
        return valid

    def give_back(self, visit: Visit) -> Any:
        """Refund the charges of a request that was refused by a later limit."""
        raise NotImplementedError

    def _enter(
        self, visit: Visit, limits: Iterable[RateLimit], request: Request | None, again: bool
    ) -> Flow[bool]:
        request = request or visit.request
        items: list[Item] = []
        for limit in limits:
            item = yield from item_of(limit, request, self._call)
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
            earlier = [] if again else passages
            asked = [(each.asker.store, item) for each in earlier for item in each.items]
            items = unasked(items, self._decider.store, asked)
        if not items:
            return True
        try:
            yield from self._decider.ask(items, passages)
            delay = _delay_of(passages[before:])
            if delay:
                visit.request.check_delay(delay)
                clock = self._decider.clock
                sleep: Callable[[float], Any] = clock.sleep_async if self._is_async else clock.sleep
                yield sleep(delay)
        except BaseException:
            yield self.give_back(visit)
            raise
        if delay is None:
            yield self.give_back(visit)
        return delay is not None

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
        """Correct what a passage was charged, and release its slot. Errors are logged."""
        passage.is_over = True
        steps = list(corrections)
        if passage.slot is not None:
            # First, since the slot is renewed until then.
            steps.insert(0, partial(release, passage.slot, self._is_async))
            passage.slot = None
        for step in steps:
            try:
                yield step()
            except LimenError as error:
                # The request is over: only the log can tell.
                _logger.warning("what a request cost in the end was not settled: %s", error)


class Door(DoorFlows):
    """Decides requests in threads."""

    _is_async = False
    _call = staticmethod(call_sync)

    def enter(
        self,
        visit: Visit,
        limits: Iterable[RateLimit],
        request: Request | None = None,
        *,
        again: bool = False,
    ) -> bool:
        """Ask about a request; False when it is refused, and then it is charged nothing.

        `request` is the request as it is known by now, if that is more than when the visit began.
        What was asked already is not asked once more, unless `again` says that it is to be charged
        twice. A leaky bucket delays the caller here.
        """
        return run(self._enter(visit, limits, request, again))

    def leave(self, visit: Visit, response: Any) -> None:
        """Settle what the response says, and let go of what was held."""
        run(self._leave(visit, response))

    def give_back(self, visit: Visit) -> None:
        """Refund the charges of a request that was refused by a later limit."""
        run(self._give_back(visit))


class AsyncDoor(DoorFlows):
    """Decides requests on asyncio. The methods mean the same as those of `Door`."""

    _is_async = True
    _call = staticmethod(call_async)

    async def connect(self) -> None:
        """Connect to the store, at start-up; if that fails, log it: decisions will try again."""
        store = self._decider.store
        if isinstance(store, AsyncLimiter):
            try:
                await store.ping()
            except StoreError as error:
                _logger.warning("cannot connect to the store at start-up: %s", error)

    async def enter(
        self,
        visit: Visit,
        limits: Iterable[RateLimit],
        request: Request | None = None,
        *,
        again: bool = False,
    ) -> bool:
        """Ask about a request; False when it is refused, and then it is charged nothing."""
        return await run_async(self._enter(visit, limits, request, again))

    async def leave(self, visit: Visit, response: Any) -> None:
        """Settle what the response says, and let go of what was held, also when cancelled."""
        if visit.is_due:
            await to_the_end(run_async(self._leave(visit, response)))

    async def give_back(self, visit: Visit) -> None:
        """Refund the charges of a request that was refused by a later limit."""
        if any(visit.passages):
            await to_the_end(run_async(self._give_back(visit)))


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
