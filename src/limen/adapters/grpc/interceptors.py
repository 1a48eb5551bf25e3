"""`RateLimitInterceptor` for `grpc.server`, and `AsyncRateLimitInterceptor` for `grpc.aio.server`.

Only the context that a handler gets knows the client. So the decision is made in front of the
handler, in the thread or the task that will run it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from limen.adapters.deciders import AsyncSource, Source
from limen.adapters.door import AsyncDoor, Door
from limen.adapters.grpc.call import CANCELLED, OK, UNKNOWN, Metadata
from limen.adapters.grpc.gate import (
    Behavior,
    GateFlows,
    Interceptor,
    ToldContextFlows,
    behavior_of,
    code_of_error,
    replaced,
)
from limen.adapters.limit import RateLimit
from limen.adapters.manner import Manner
from limen.adapters.visit import Visit
from limen.flow import run, run_async


class RateLimitInterceptor(Interceptor[Source], grpc.ServerInterceptor):
    """Limits the calls of a server.

    ```python
    RateLimitInterceptor(
        limiter,
        "1000/minute",
        limits_by_method={
            "/shop.Orders/Place": RateLimit("10/minute", key=header("x-api-key")),
            "/shop.Reports/*": Concurrency(5, lease=60),
        },
    )
    ```

    Plain limits count by address, over the whole server. `limits_by_method` adds limits for a
    method, or for all methods of a service together. `exempt` names methods and services that are
    not limited; health checks and reflection are not, unless `limit_infrastructure` is set.
    """

    _door = Door

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Put the limits of a method in front of its handler."""
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        limits = self._methods.limits_of(method)
        if handler is None or limits is None:
            return handler
        return _limited(handler, GateFlows(self.door, method, limits))


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
            return _limited_async(handler, GateFlows(self.door, method, limits))
        door = _DoorFromThread(self.door, asyncio.get_running_loop())
        return _limited(handler, GateFlows(door, method, limits))


@grpc.ServicerContext.register
class _ToldContext(ToldContextFlows):
    """The context for handlers in threads."""

    def abort(self, code: Any, details: str) -> None:
        """End the call."""
        run(self.end(code, details))

    def abort_with_status(self, status: Any) -> None:
        """End the call with all that a status says."""
        self.set_trailing_metadata(status.trailing_metadata or ())
        self.abort(status.code, status.details)


def _limited(handler: Any, gate: GateFlows) -> Any:
    """Return a handler behind a gate."""
    behavior = behavior_of(handler)
    if getattr(behavior, "experimental_non_blocking", False):
        return replaced(handler, _calling_back(behavior, gate))
    if handler.response_streaming:
        return replaced(handler, _stream(behavior, gate))

    def call(request: Any, context: Any) -> Any:
        return run(gate.serve(_ToldContext, behavior, request, context))

    return replaced(handler, call)


def _stream(behavior: Behavior, gate: GateFlows) -> Behavior:
    # A generator does nothing before it is asked for the first message, and grpc drops it when the
    # client goes away. So all of it is inside, from the first question to the last release.
    def call(request: Any, context: Any) -> Iterator[Any]:
        told = run(gate.enter(_ToldContext, context))
        if told is None:
            yield from behavior(request, context)
            return
        try:
            messages = behavior(request, told)
            try:
                for message in messages:
                    run(told.tell(OK))
                    told.sends(message)
                    yield message
            finally:
                if isinstance(messages, Generator):
                    messages.close()
        except BaseException as error:
            run(told.leave(code_of_error(error)))
            raise
        run(told.leave(OK))

    return call


def _calling_back(behavior: Behavior, gate: GateFlows) -> Behavior:
    """Return the same for a behavior that holds no thread, and is given a function to send by."""

    def call(request: Any, context: Any, send: Callable[[Any], None]) -> None:
        told = run(gate.enter(_ToldContext, context))
        if told is None:
            behavior(request, context, send)
            return

        def sent(message: Any) -> None:
            if message is None:
                run(told.leave(OK))
            else:
                run(told.tell(OK))
                told.sends(message)
            send(message)

        try:
            if not context.add_callback(lambda: run(told.leave(CANCELLED))):
                run(told.leave(CANCELLED))
            behavior(request, told, sent)
        except BaseException:
            run(told.leave(UNKNOWN))
            raise

    return call


class _AsyncToldContext(ToldContextFlows):
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


def _limited_async(handler: Any, gate: GateFlows) -> Any:
    behavior = behavior_of(handler)
    if handler.response_streaming:
        behavior = _writing(behavior)

    # Not a generator for streams either: a coroutine is cancelled when the client goes away, while
    # a generator would only be forgotten, and end at some time.
    async def call(request: Any, context: Any) -> Any:
        return await run_async(gate.serve(_AsyncToldContext, behavior, request, context))

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
