"""`Door`: decides requests for adapters that run in threads. The asyncio twin is `aio`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from limen._internal.functions import call_sync
from limen.adapters.flows import DoorFlows
from limen.adapters.limit import RateLimit
from limen.adapters.manner import Options
from limen.adapters.request import Request
from limen.adapters.visit import Visit
from limen.flow import run
from limen.model import Concurrency, Limit

if TYPE_CHECKING:
    from limen.adapters.deciders import Source


class Door(DoorFlows):
    """Decides requests in threads. See `DoorFlows`."""

    _is_async = False
    _call = staticmethod(call_sync)

    def __init__(
        self,
        source: Source,
        *limits: str | Limit | Concurrency | RateLimit,
        adapter: str,
        **options: Unpack[Options],
    ) -> None:
        self._adapter = adapter
        super().__init__(source, limits, options)

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
        return run(self._enter(visit, limits, request or visit.request, again))

    def leave(self, visit: Visit, response: Any) -> None:
        """Settle what the response says, and let go of what was held."""
        run(self._leave(visit, response))

    def give_back(self, visit: Visit) -> None:
        """Give back what those charged who let a request pass that was refused after all."""
        run(self._give_back(visit))
