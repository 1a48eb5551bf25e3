"""`AsyncDoor`: decides requests for adapters on asyncio. The twin for threads is `sync`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from limen._internal.functions import call_async
from limen.adapters.flows import DoorFlows
from limen.adapters.limit import RateLimit
from limen.adapters.manner import Options
from limen.adapters.request import Request
from limen.adapters.visit import Visit
from limen.ending import to_the_end
from limen.errors import StoreError
from limen.flow import run_async
from limen.limiter import AsyncLimiter
from limen.model import Concurrency, Limit

if TYPE_CHECKING:
    from limen.adapters.deciders import AsyncSource

_logger = logging.getLogger("limen")


class AsyncDoor(DoorFlows):
    """Decides requests on asyncio. See `DoorFlows`."""

    _is_async = True
    _call = staticmethod(call_async)

    def __init__(
        self,
        source: AsyncSource,
        *limits: str | Limit | Concurrency | RateLimit,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(source, limits, options)

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
        """Ask about a request, as `Door.enter` does."""
        return await run_async(self._enter(visit, limits, request or visit.request, again))

    async def leave(self, visit: Visit, response: Any) -> None:
        """Settle what the response says, and let go of what was held, also when cancelled."""
        if visit.is_due:
            await to_the_end(run_async(self._leave(visit, response)))

    async def give_back(self, visit: Visit) -> None:
        """Give back what those charged who let a request pass that was refused after all."""
        if any(visit.passages):
            await to_the_end(run_async(self._give_back(visit)))
