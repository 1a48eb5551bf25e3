"""`AsyncRateLimitInterceptor`, for `grpc.aio.server`. The twin for threads is `sync`.

A handler may be a coroutine, an async generator, or one of those that grpc runs in threads: those
ask from their thread, and are otherwise what they are in `sync`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from limen.adapters.deciders import AsyncSource
from limen.adapters.door import AsyncDoor
from limen.adapters.grpc import sync
from limen.adapters.grpc.call import OK, Metadata
from limen.adapters.grpc.gate import (
    Behavior,
    GateFlows,
    Interceptor,
    ToldContextFlows,
    behavior_of,
    replaced,
)
from limen.adapters.limit import RateLimit
from limen.adapters.manner import Manner
from limen.adapters.visit import Visit
from limen.flow import run_async


class AsyncRateLimitInterceptor(Interceptor[AsyncSource], grpc.aio.ServerInterceptor):
    """Limits the calls of a server on asyncio: `RateLimitInterceptor` tells how.

    ```python
    limited = AsyncRateLimitInterceptor(AsyncLimiter("redis://localhost:6379"), "100/minute")
    server = grpc.aio.server(interceptors=[limited])
    ```
    """

    _door = AsyncDoor

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Put the limits of a method in front of its handler."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        limits = self._methods.limits_of(method)
        if handler is None or limits is None:
            return handler
        behavior = behavior_of(handler)
        if inspect.iscoroutinefunction(behavior) or inspect.isasyncgenfunction(behavior):
            return _limited(handler, GateFlows(self.door, method, limits))
        door = _DoorFromThread(self.door, asyncio.get_running_loop())
        return sync.limited(handler, GateFlows(door, method, limits))


class _ToldContext(ToldContextFlows):
    """The context for handlers on asyncio."""

    async def write(self, message: Any) -> None:
        await run_async(self.tell(OK))
        await self._context.write(message)
        self.sends(message)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Metadata = ()) -> None:
        if trailing_metadata:
            self.set_trailing_metadata(trailing_metadata)
        await run_async(self.end(code, details))

    async def abort_with_status(self, status: Any) -> None:
        await self.abort(status.code, status.details, status.trailing_metadata or ())


def _limited(handler: Any, gate: GateFlows) -> Any:
    behavior = behavior_of(handler)
    if handler.response_streaming:
        behavior = _writing(behavior)

    # Not a generator for streams either: a coroutine is cancelled when the client goes away, while
    # a generator would only be forgotten, and end at some time.
    async def call(request: Any, context: Any) -> Any:
        return await run_async(gate.serve(_ToldContext, behavior, request, context))

    return replaced(handler, call)


def _writing(behavior: Behavior) -> Behavior:
    """Return a generator's behavior as one that writes its messages by itself."""
    if inspect.iscoroutinefunction(behavior):
        return behavior

    async def write(request: Any, context: Any) -> None:
        messages: AsyncIterator[Any]
        async with aclosing(behavior(request, context)) as messages:
            async for message in messages:
                await context.write(message)

    return write


class _DoorFromThread:
    """The door of a loop, for handlers that grpc runs in threads beside it."""

    def __init__(self, door: AsyncDoor, loop: asyncio.AbstractEventLoop) -> None:
        self._door = door
        self._loop = loop
        self.manner: Manner = door.manner

    def enter(self, visit: Visit, limits: Iterable[RateLimit]) -> bool:
        return asyncio.run_coroutine_threadsafe(
            self._door.enter(visit, limits), self._loop
        ).result()

    def leave(self, visit: Visit, response: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._door.leave(visit, response), self._loop).result()
