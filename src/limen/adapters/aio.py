"""`AsyncDoor`: decides requests for adapters on asyncio. The twin for threads is `sync`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Unpack

from limen.adapters.deciders import Driver, LimiterDecider, decider_of, kind_of
from limen.adapters.flows import DoorFlows, delay_of
from limen.adapters.limit import Item, RateLimit
from limen.adapters.manner import Options
from limen.adapters.plan import has_slots, item_of, item_of_async, joined
from limen.adapters.request import Request
from limen.adapters.visit import Passage, Visit
from limen.ending import to_the_end
from limen.errors import StoreError
from limen.flow import run_async
from limen.limiter import AsyncLimiter
from limen.model import Concurrency, Limit

if TYPE_CHECKING:
    from limen.adapters.deciders import AsyncSource

_logger = logging.getLogger("limen")


class AsyncDoor(DoorFlows):
    """Where requests come through: whom to ask, about what, and how to tell the client.

    An adapter makes a visit of each request, enters, and leaves when the response is sent.
    """

    def __init__(
        self,
        source: AsyncSource,
        *limits: str | Limit | Concurrency | RateLimit,
        **options: Unpack[Options],
    ) -> None:
        kind = kind_of(source, is_async=True)
        super().__init__(kind, decider_of(kind, source, _LimiterDecider, _DRIVER), limits, options)

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
        """Ask about a request; False when it is refused, and then it is charged nothing.

        `request` is the request as it is known by now, if that is more than when the visit began.
        What was asked already is not asked once more, unless `again` says that it is to be charged
        twice. A leaky bucket delays the caller here.
        """
        request = request or visit.request
        items: list[Item] = []
        for limit in limits:
            if limit.has_functions:
                item = await item_of_async(limit, request)
            else:
                item = item_of(limit, request)
            if item is None:
                continue
            if item.lacks:
                visit.lacks(item.lacks)
                await self.give_back(visit)
                return False
            items.append(item)
        passages = visit.passages
        before = len(passages)
        if before or len(items) > 1:
            items = self._unasked(items, [] if again else passages)
        if not items:
            return True
        try:
            await self._decider.ask(items, passages)
            delay = delay_of(passages[before:])
            if delay:
                await self.sit_out(visit, delay)
        except BaseException:
            await self.give_back(visit)
            raise
        if delay is None:
            await self.give_back(visit)
        return delay is not None

    async def leave(self, visit: Visit, response: Any) -> None:
        """Settle what the response says, and let go of what was held, also when cancelled."""
        if visit.is_due:
            await to_the_end(run_async(self._leave(visit, response)))

    async def give_back(self, visit: Visit) -> None:
        """Give back what those charged who let a request pass that was refused after all."""
        if any(visit.passages):
            await to_the_end(run_async(self._give_back(visit)))

    async def sit_out(self, visit: Visit, delay: float) -> None:
        """Wait as long as a leaky bucket says. Who knows a deadline overrides it."""
        await self._decider.sleep(delay)


class _LimiterDecider(LimiterDecider):
    async def ask(self, items: list[Item], passages: list[Passage]) -> None:
        """Decide items, and append the passage."""
        if has_slots(items):
            passages.append(await run_async(self.hold(items)))
            return
        checks, places = joined(items)
        decision = await self._limiter.run(self._limiter.prepare(checks))
        passages.append(Passage(tuple(items), decision, self, places))


_DRIVER = Driver(
    run=run_async,
    enter=methodcaller("__aenter__"),
    leave=methodcaller("__aexit__", None, None, None),
    sleep=lambda clock, seconds: clock.sleep_async(seconds),
)
