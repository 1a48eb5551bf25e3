"""`Door`: decides requests for adapters that run in threads. The asyncio twin is `aio`."""

from __future__ import annotations

from collections.abc import Iterable
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Unpack

from limen.adapters.deciders import Driver, LimiterDecider, decider_of, kind_of
from limen.adapters.flows import DoorFlows, delay_of
from limen.adapters.limit import Item, RateLimit
from limen.adapters.manner import Options
from limen.adapters.plan import has_slots, item_of, joined
from limen.adapters.request import Request
from limen.adapters.visit import Passage, Visit
from limen.flow import run
from limen.model import Concurrency, Limit

if TYPE_CHECKING:
    from limen.adapters.deciders import Source


class Door(DoorFlows):
    """Where requests come through: whom to ask, about what, and how to tell the client.

    An adapter makes a visit of each request, enters, and leaves when the response is sent.
    """

    def __init__(
        self,
        source: Source,
        *limits: str | Limit | Concurrency | RateLimit,
        adapter: str,
        **options: Unpack[Options],
    ) -> None:
        self._adapter = adapter
        kind = kind_of(source, is_async=False)
        super().__init__(kind, decider_of(kind, source, _LimiterDecider, _DRIVER), limits, options)

    def take(self, *limits: str | Limit | Concurrency | RateLimit) -> tuple[RateLimit, ...]:
        """Return limits that can be asked about here, or raise `ConfigurationError`."""
        found = super().take(*limits)
        for limit in found:
            limit.refuse_async(self._adapter)
        return found

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
        request = request or visit.request
        items: list[Item] = []
        for limit in limits:
            item = item_of(limit, request)
            if item is None:
                continue
            if item.lacks:
                visit.lacks(item.lacks)
                self.give_back(visit)
                return False
            items.append(item)
        passages = visit.passages
        before = len(passages)
        if before or len(items) > 1:
            items = self._unasked(items, [] if again else passages)
        if not items:
            return True
        try:
            self._decider.ask(items, passages)
            delay = delay_of(passages[before:])
            if delay:
                self.sit_out(visit, delay)
        except BaseException:
            self.give_back(visit)
            raise
        if delay is None:
            self.give_back(visit)
        return delay is not None

    def leave(self, visit: Visit, response: Any) -> None:
        """Settle what the response says, and let go of what was held."""
        run(self._leave(visit, response))

    def give_back(self, visit: Visit) -> None:
        """Give back what those charged who let a request pass that was refused after all."""
        run(self._give_back(visit))

    def sit_out(self, visit: Visit, delay: float) -> None:
        """Wait as long as a leaky bucket says. Who knows a deadline overrides it."""
        self._decider.sleep(delay)


class _LimiterDecider(LimiterDecider):
    def ask(self, items: list[Item], passages: list[Passage]) -> None:
        """Decide items, and append the passage."""
        if has_slots(items):
            passages.append(run(self.hold(items)))
            return
        checks, places = joined(items)
        decision = self._limiter.run(self._limiter.prepare(checks))
        passages.append(Passage(tuple(items), decision, self, places))


_DRIVER = Driver(
    run=run,
    enter=methodcaller("__enter__"),
    leave=methodcaller("__exit__", None, None, None),
    sleep=lambda clock, seconds: clock.sleep(seconds),
)
