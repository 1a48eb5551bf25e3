"""`AsyncGate`: lets requests out when their limits and their servers allow it, for asyncio.

The twin for threads is `limen.adapters.outgoing.sync`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from limen.adapters.outgoing.learn import pause_asked
from limen.adapters.outgoing.pace import Pauses, Turn
from limen.adapters.outgoing.refused import RateLimited
from limen.adapters.outgoing.settings import Settings, clock_of, failed, origin
from limen.client import AsyncClient, Client
from limen.ending import to_the_end
from limen.errors import ConfigurationError, RateLimitExceeded
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Decision
from limen.wire import Verdict


class AsyncGate:
    """Lets requests out when their limits and their servers allow it. Shared by all loops."""

    def __init__(
        self, limiter: AsyncLimiter | AsyncClient, settings: Settings, error: type[RateLimited]
    ) -> None:
        if isinstance(limiter, Limiter | Client):
            raise ConfigurationError(
                f"AsyncRateLimitTransport takes an AsyncLimiter or an AsyncClient; for a "
                f"{type(limiter).__name__} there is RateLimitTransport"
            )
        if not isinstance(limiter, AsyncLimiter | AsyncClient):
            # Not the value itself: it may be an address with a password.
            raise ConfigurationError(
                "AsyncRateLimitTransport takes an AsyncLimiter or an AsyncClient, such as "
                f"AsyncLimiter('redis://...'), got a {type(limiter).__name__}"
            )
        self._limiter = limiter
        self._refund: Callable[[Any], Coroutine[Any, Any, bool]] = limiter.refund
        self._settings = settings
        self._error = error
        self._clock = clock_of(limiter)
        self._pauses = Pauses(settings.max_pause)

    async def admit(self, request: Any) -> str | None:
        """Wait until a request may be sent; return its key, or None when it is exempt.

        Raises what it was made with as soon as it is clear that the wait would be too long.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigurationError(
                "AsyncRateLimitTransport runs on asyncio, and this is another event loop; run the "
                "client by asyncio, or use RateLimitTransport in a thread"
            ) from None
        settings = self._settings
        exempt_when, cost = settings.exempt_when, settings.cost
        if exempt_when is not None and await self._ask("exempt_when", exempt_when, request):
            return None
        if settings.key == "host":
            key = origin(request)
        else:
            key = settings.key_from(await self._ask("key", settings.key, request))
        if callable(cost):
            cost = settings.cost_from(await self._ask("cost", cost, request))
        await self._wait(key, cost)
        return key

    def learn(self, key: str | None, status: int, headers: Mapping[str, str]) -> None:
        """Listen to what a server says in its response to a request that was let out."""
        if key is None or not self._settings.learn:
            return
        seconds = pause_asked(status, headers, self._clock.time_ns() / 1e9)
        if seconds is not None:
            self._pauses.begin(key, seconds, self._clock.monotonic())

    async def _wait(self, key: str, cost: int) -> None:
        clock = self._clock
        wait = self._settings.wait
        turn = Turn(self._pauses, key, self._error, wait, clock.monotonic())
        while True:
            while pause := turn.pause(clock.monotonic()):
                await clock.sleep_async(pause)
            if not self._settings.limits:
                return
            answer = await self._acquire(turn, key, cost)
            if not turn.is_held(clock.monotonic()):
                return
            # Meanwhile the server has asked for a pause. What was counted before it must not be
            # sent after it, together with all that is counted then.
            await to_the_end(self._refund(answer))

    async def _acquire(self, turn: Turn, key: str, cost: int) -> Decision | Verdict:
        # Who never waits does not stand in line either: that it is somebody else's turn is no
        # reason to refuse what there is room for.
        if isinstance(self._limiter, AsyncClient) or not self._settings.waits:
            return await self._poll(turn, key, cost)
        left = turn.left(self._clock.monotonic())
        limits = self._settings.limits
        try:
            return await self._limiter.acquire(key, *limits, cost=cost, timeout=left)
        except RateLimitExceeded as error:
            raise turn.refusal(error.decision) from error

    async def _poll(self, turn: Turn, key: str, cost: int) -> Decision | Verdict:
        while True:
            answer = await self._limiter.check(key, *self._settings.limits, cost=cost)
            if answer.allowed and not answer.delay:
                return answer
            try:
                await self._clock.sleep_async(turn.delay(answer, self._clock.monotonic()))
            except BaseException:
                if answer.allowed:
                    await to_the_end(self._refund(answer))
                raise
            if answer.allowed:
                return answer

    async def _ask(self, name: str, function: Callable[[Any], object], request: Any) -> object:
        try:
            answer = function(request)
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            raise failed(name, function, error) from error
