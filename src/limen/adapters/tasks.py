"""`AsyncDoor`: asks about requests, for adapters on asyncio. The twin for threads is `threads`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from limen.adapters.limit import Item, RateLimit, rate_limits
from limen.adapters.manner import Manner, Options, manner_of
from limen.adapters.plan import apart, has_slots, item_of, item_of_async, joined, unasked
from limen.adapters.request import Request
from limen.adapters.sources import kind_of, one_number, own_of, valid_for
from limen.adapters.visit import Actual, Passage, Visit, log_not_settled
from limen.client import AsyncClient, ServiceRefused
from limen.ending import to_the_end
from limen.errors import LimenError, RateLimitExceeded, StoreError
from limen.limiter import AsyncLimiter
from limen.model import Concurrency, Decision, Limit, Receipt

if TYPE_CHECKING:
    from limen.adapters.sources import AsyncSource
    from limen.engine import AsyncEngine


_logger = logging.getLogger("limen")


class AsyncAsker(Protocol):
    """One who can be asked."""

    store: object
    """Where it counts: who have the same count together."""

    async def ask(self, items: list[Item], found: list[Passage]) -> None:
        """Ask about all of them, or up to the first that refuses, and add what was said."""

    async def settle(self, what: Any, actual: Actual) -> bool:
        """Correct what was charged."""

    async def refund(self, said: Any) -> bool:
        """Give back what was charged."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class AsyncDoor:
    """Where requests come through: whom to ask, about what, and how to tell the client.

    An adapter makes a visit of each request, enters, and leaves when the response is sent.
    """

    def __init__(
        self,
        source: AsyncSource,
        *limits: str | Limit | Concurrency | RateLimit,
        **options: Unpack[Options],
    ) -> None:
        self._kind = kind_of(source, is_async=True)
        self._asker: AsyncAsker = _asker(self._kind, source)
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

    async def connect(self) -> None:
        """Connect to the store, at start-up; if that fails, log it: decisions will try again."""
        store = self._asker.store
        if isinstance(store, AsyncLimiter):
            try:
                await store.ping()
            except StoreError as error:
                _logger.warning("cannot connect to the store at start-up: %s", error)

    def visit(self, request: Request) -> Visit:
        """Begin with a request."""
        return Visit(request, self.manner)

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
            asked = [] if again else [(p.asker.store, item) for p in passages for item in p.items]
            items = unasked(items, self._asker.store, asked)
        if not items:
            return True
        try:
            await self._asker.ask(items, passages)
        except BaseException:
            await self.give_back(visit)
            raise
        delay = 0.0
        for passage in passages[before:]:
            if not passage.allowed:
                await self.give_back(visit)
                return False
            if passage.slot is None and passage.said.delay:
                delay = max(delay, passage.said.delay)
        if delay:
            await self.sit_out(visit, delay)
        return True

    async def leave(self, visit: Visit, response: Any) -> None:
        """Settle what the response says, and let go of what was held, also when cancelled."""
        if visit.is_due:
            await to_the_end(self._leave(visit, response))

    async def _leave(self, visit: Visit, response: Any) -> None:
        for passage in visit.passages:
            if not passage.is_due:
                continue
            passage.is_over = True
            slot, passage.slot = passage.slot, None
            try:
                for what, actual in passage.due(response):
                    await passage.asker.settle(what, actual)
            except LimenError as error:
                log_not_settled(error)
            finally:
                await _let_go(slot)

    async def give_back(self, visit: Visit) -> None:
        """Give back what those charged who let a request pass that was refused after all."""
        if any(visit.passages):
            await to_the_end(self._give_back(visit))

    async def _give_back(self, visit: Visit) -> None:
        for passage in visit.passages:
            if not passage.allowed or passage.is_over:
                continue
            passage.is_over = True
            slot, passage.slot = passage.slot, None
            try:
                await passage.asker.refund(passage.said)
            except LimenError as error:
                log_not_settled(error)
            finally:
                await _let_go(slot)

    async def sit_out(self, visit: Visit, delay: float) -> None:
        """Wait as long as a leaky bucket says. Who knows a deadline overrides it."""
        try:
            await self._asker.sleep(delay)
        except BaseException:
            await self.give_back(visit)
            raise


class _OfLimiter:
    """Asks a limiter: all limits in one call, all or nothing."""

    def __init__(self, limiter: AsyncLimiter) -> None:
        self._limiter = limiter
        self.store: object = limiter
        self.refund = limiter.refund

    async def sleep(self, seconds: float) -> None:
        await self._limiter.clock.sleep_async(seconds)

    async def settle(self, what: Decision | Receipt, actual: Actual) -> bool:
        return await self._limiter.settle(what, one_number(actual))

    async def ask(self, items: list[Item], found: list[Passage]) -> None:
        places = None
        if len(items) == 1:
            checks = items[0].checks
        else:
            checks, places = joined(items)
        if not has_slots(items):
            said = await self._limiter.ask(checks)
            found.append(Passage(tuple(items), said, self, places))
            return
        slot = self._limiter.hold(*checks)
        try:
            await slot.__aenter__()
        except RateLimitExceeded as error:
            found.append(Passage(tuple(items), error.decision, self, places))
        else:
            found.append(Passage(tuple(items), slot.decision, self, places, slot))


class _OfEngine:
    """Asks the rules of an engine; limits of one's own, its limiter."""

    def __init__(self, engine: AsyncEngine) -> None:
        from limen.engine import RequestRefused

        self._refused = RequestRefused
        self._engine = engine
        self.store: object = engine.limiter
        self._own = _OfLimiter(engine.limiter)
        self.settle = engine.settle
        self.refund = engine.refund
        self.sleep = self._own.sleep

    async def ask(self, items: list[Item], found: list[Passage]) -> None:
        own = [item for item in items if item.attributes is None]
        if own:
            await self._own.ask(own, found)
        for item in items:
            if item.attributes is not None and all(found):
                found.append(await self._by_rules(item, item.attributes))

    async def _by_rules(self, item: Item, attributes: Any) -> Passage:
        engine = self._engine
        asked = engine.ask(attributes, item.cost, slots=True)
        checks = tuple(asked.checks)
        if not any(isinstance(check.limit, Concurrency) for check in checks):
            said = asked.verdict(await engine.limiter.ask(checks) if checks else None)
            return Passage((item,), said, self)
        slot = engine.slot(attributes, item.cost)
        try:
            await slot.__aenter__()
        except self._refused as error:
            return Passage((item,), error.verdict, self)
        return Passage((item,), slot.verdict, self, slot=slot)


class _OfClient:
    """Asks a service: its rules, or limits of one's own, each in a call of its own."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.store: object = client
        self.settle = client.settle
        self.refund = client.refund
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def ask(self, items: list[Item], found: list[Passage]) -> None:
        for item in items:
            if all(found):
                found.append(await self._ask(item))

    async def _ask(self, item: Item) -> Passage:
        client = self._client
        if item.attributes is not None:
            said = await client.decide(item.attributes, item.cost)
            if not said.not_applicable:
                return Passage((item,), said, self)
            # One of the rules grants places, which is asked for in another way.
            await client.refund(said)
            return await self._held(item, client.slot(item.attributes, item.cost))
        key, place, limits = own_of(item)
        if place is not None:
            return await self._held(item, client.hold(key, place, *limits, cost=item.cost))
        return Passage((item,), await client.check(key, *limits, cost=item.cost), self)

    async def _held(self, item: Item, slot: Any) -> Passage:
        try:
            await slot.__aenter__()
        except ServiceRefused as error:
            return Passage((item,), error.verdict, self)
        return Passage((item,), slot.verdict, self, slot=slot)


async def _let_go(slot: Any) -> None:
    """Let go of a slot, if there is one. That it fails keeps no other from being let go."""
    if slot is not None:
        try:
            await slot.__aexit__(None, None, None)
        except LimenError as error:
            log_not_settled(error)


def _asker(kind: str, source: Any) -> Any:
    if kind == "limiter":
        return _OfLimiter(source)
    return _OfEngine(source) if kind == "engine" else _OfClient(source)
