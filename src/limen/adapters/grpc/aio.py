"""`AsyncRateLimitInterceptor`, for `grpc.aio.server`. The twin for threads is `sync`.

A handler may be a coroutine, an async generator, or one of those that grpc runs in threads: those
ask from their thread, and are otherwise what they are in `sync`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

import grpc
import grpc.aio

from limen.adapters.aio import AsyncDoor
from limen.adapters.grpc import sync
from limen.adapters.grpc.call import request_of
from limen.adapters.grpc.denial import (
    TooLate,
    denial_of,
    denial_of_late,
    late_by,
    refuse_options,
)
from limen.adapters.grpc.handler import Behavior, behavior_of, replaced
from limen.adapters.grpc.methods import AnyLimit, LimitsByMethod, Methods
from limen.adapters.grpc.telling import CANCELLED, OK, UNKNOWN, Metadata, Telling, telling_of
from limen.adapters.limit import RateLimit
from limen.adapters.manner import Manner, Options
from limen.adapters.visit import Visit

if TYPE_CHECKING:
    from limen.adapters.deciders import AsyncSource


class AsyncRateLimitInterceptor(grpc.aio.ServerInterceptor):
    """Limits the calls of a server on asyncio: `RateLimitInterceptor` tells how.

    ```python
    limited = AsyncRateLimitInterceptor(AsyncLimiter("redis://localhost:6379"), "100/minute")
    server = grpc.aio.server(interceptors=[limited])
    ```
    """

    def __init__(
        self,
        limiter: AsyncSource,
        *limits: AnyLimit,
        limits_by_method: LimitsByMethod | None = None,
        exempt: Iterable[str] = (),
        limit_infrastructure: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self.door: AsyncDoor = _PunctualDoor(limiter, *limits, **options)
        refuse_options(options, self.door.manner)
        self._methods = Methods(
            self.door.take, self.door.limits, limits_by_method, exempt, limit_infrastructure
        )

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
            return _limited(handler, _Gate(self.door, method, limits))
        door = _DoorFromThread(self.door, asyncio.get_running_loop())
        return sync.limited(handler, sync.Gate(door, method, limits))


class _Gate:
    """The limits in front of one method."""

    def __init__(self, door: AsyncDoor, method: str, limits: tuple[RateLimit, ...]) -> None:
        self._door = door
        self._method = method
        self._limits = limits

    async def enter(self, context: Any) -> _ToldContext | None:
        """Let a call in and return the context for its handler; or end the call, by raising.

        None when an interceptor further out began with the call: that one tells, and settles.
        """
        around = telling_of(context)
        door = self._door
        telling = around or Telling(
            door.visit(request_of(self._method, context, door.manner.addresses))
        )
        visit = telling.visit
        try:
            if await door.enter(visit, self._limits):
                return None if around else _ToldContext(context, telling, self)
            denial = denial_of(visit)
        except TooLate as late:
            denial = denial_of_late(visit, late)
        # An interceptor further out has nothing left to do: all is given back.
        telling.ends()
        telling.is_told = True
        await context.abort(denial.code, denial.detail, denial.metadata)
        raise AssertionError("abort raises")

    async def leave(self, context: _ToldContext, fallback: grpc.StatusCode) -> None:
        """Tell the client what is left to tell, settle, and let go of what was held; once."""
        telling = context.limen
        if not telling.ends():
            return
        response = telling.responded(fallback)
        try:
            await context.tell(response.code)
        finally:
            if telling.visit.is_due:
                await self._door.leave(telling.visit, response)


class _ToldContext:
    """The context of a call that adds what limits say to what its handler says."""

    def __init__(self, context: Any, telling: Telling, gate: _Gate) -> None:
        self.limen = telling
        self._context = context
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def send_initial_metadata(self, initial_metadata: Metadata) -> None:
        await self._context.send_initial_metadata((*initial_metadata, *self.limen.headers()))

    async def write(self, message: Any) -> None:
        await self.tell(OK)
        await self._context.write(message)
        self.limen.sends(message)

    def set_code(self, code: Any) -> None:
        self.limen.code = code
        self._context.set_code(code)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Metadata = ()) -> None:
        # It sends the status at once, so the call is left first: who has its answer finds the slot
        # free that it held, and ours go along.
        self.limen.code = code
        if trailing_metadata:
            self._context.set_trailing_metadata(tuple(trailing_metadata))
        await self._gate.leave(self, UNKNOWN)
        await self._context.abort(code, details, tuple(self._context.trailing_metadata() or ()))

    async def abort_with_status(self, status: Any) -> None:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    async def tell(self, code: grpc.StatusCode) -> None:
        """Send the headers, if they are not sent yet: in front, or with the status of a failure."""
        headers = () if code is CANCELLED else self.limen.headers()
        if not headers:
            return
        if code is OK:
            await self._context.send_initial_metadata(headers)
            return
        own = self._context.trailing_metadata() or ()
        self._context.set_trailing_metadata((*own, *headers))


def _limited(handler: Any, gate: _Gate) -> Any:
    behavior = behavior_of(handler)
    if handler.response_streaming:
        return replaced(handler, _stream(_writing(behavior), gate))
    return replaced(handler, _unary(behavior, gate))


def _unary(behavior: Behavior, gate: _Gate) -> Behavior:
    async def call(request: Any, context: Any) -> Any:
        told = await gate.enter(context)
        if told is None:
            return await behavior(request, context)
        try:
            message = await behavior(request, told)
            told.limen.sends(message)
        except BaseException as error:
            await gate.leave(told, _code_of(error))
            raise
        await gate.leave(told, OK)
        return message

    return call


def _stream(behavior: Behavior, gate: _Gate) -> Behavior:
    # A coroutine, and no generator: it is cancelled when the client goes away, while a generator
    # would only be forgotten, and end at some time.
    async def call(request: Any, context: Any) -> None:
        told = await gate.enter(context)
        if told is None:
            await behavior(request, context)
            return
        try:
            await behavior(request, told)
        except BaseException as error:
            await gate.leave(told, _code_of(error))
            raise
        await gate.leave(told, OK)

    return call


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


def _code_of(error: BaseException) -> grpc.StatusCode:
    return CANCELLED if isinstance(error, asyncio.CancelledError) else UNKNOWN


class _PunctualDoor(AsyncDoor):
    """A door that keeps nobody waiting beyond a deadline."""

    async def sit_out(self, visit: Visit, delay: float) -> None:
        late = late_by(delay, visit.request.native.time_remaining())
        if late is not None:
            raise late
        await super().sit_out(visit, delay)


class _DoorFromThread:
    """The door of a loop, for handlers that grpc runs in threads beside it."""

    def __init__(self, door: AsyncDoor, loop: asyncio.AbstractEventLoop) -> None:
        self._door = door
        self._loop = loop
        self.manner: Manner = door.manner
        self.visit = door.visit

    def enter(self, visit: Visit, limits: Iterable[RateLimit]) -> bool:
        return asyncio.run_coroutine_threadsafe(
            self._door.enter(visit, limits), self._loop
        ).result()

    def leave(self, visit: Visit, response: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._door.leave(visit, response), self._loop).result()
