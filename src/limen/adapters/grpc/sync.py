"""`RateLimitInterceptor`, for `grpc.server`: calls in threads. The asyncio twin is `aio`.

Who calls is only known to the context that a handler gets. So the decision is made in front of the
handler, in the thread that will run it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import grpc

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
from limen.adapters.request import Request
from limen.adapters.sync import Door
from limen.adapters.visit import Visit

if TYPE_CHECKING:
    from limen.adapters.deciders import Source


class RateLimitInterceptor(grpc.ServerInterceptor):
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

    def __init__(
        self,
        limiter: Source,
        *limits: AnyLimit,
        limits_by_method: LimitsByMethod | None = None,
        exempt: Iterable[str] = (),
        limit_infrastructure: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self.door: Door = _PunctualDoor(limiter, *limits, adapter="gRPC", **options)
        refuse_options(options, self.door.manner)
        self._methods = Methods(
            self.door.take, self.door.limits, limits_by_method, exempt, limit_infrastructure
        )

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
        return limited(handler, Gate(self.door, method, limits))


class DoorLike(Protocol):
    """What is needed of a door."""

    @property
    def manner(self) -> Manner:
        """How clients are told."""

    def visit(self, request: Request) -> Visit:
        """Begin with a request."""

    def enter(self, visit: Visit, limits: Iterable[RateLimit]) -> bool:
        """Ask about a request."""

    def leave(self, visit: Visit, response: Any) -> None:
        """Settle what the response says, and let go of what was held."""


class Gate:
    """The limits in front of one method."""

    def __init__(self, door: DoorLike, method: str, limits: tuple[RateLimit, ...]) -> None:
        self._door = door
        self._method = method
        self._limits = limits

    def enter(self, context: Any) -> ToldContext | None:
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
            if door.enter(visit, self._limits):
                return None if around else ToldContext(context, telling, self)
            denial = denial_of(visit)
        except TooLate as late:
            denial = denial_of_late(visit, late)
        # An interceptor further out has nothing left to do: all is given back.
        telling.ends()
        telling.is_told = True
        context.set_trailing_metadata(denial.metadata)
        context.abort(denial.code, denial.detail)
        raise AssertionError("abort raises")

    def leave(self, context: ToldContext, fallback: grpc.StatusCode) -> None:
        """Tell the client what is left to tell, settle, and let go of what was held; once."""
        telling = context.limen
        if not telling.ends():
            return
        response = telling.responded(fallback)
        try:
            context.tell(response.code)
        finally:
            if telling.visit.is_due:
                self._door.leave(telling.visit, response)


@grpc.ServicerContext.register
class ToldContext:
    """The context of a call that adds what limits say to what its handler says."""

    def __init__(self, context: Any, telling: Telling, gate: Gate) -> None:
        self.limen: Telling = telling
        self._context = context
        self._gate = gate
        self._trailing: Metadata = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def send_initial_metadata(self, initial_metadata: Metadata) -> None:
        """Send the handler's, and ours."""
        self._context.send_initial_metadata((*initial_metadata, *self.limen.headers()))

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        """Keep the handler's in mind, in case that ours go along."""
        self._trailing = tuple(trailing_metadata)
        self._context.set_trailing_metadata(trailing_metadata)

    def set_code(self, code: Any) -> None:
        """Set the code, and keep it in mind."""
        self.limen.code = code
        self._context.set_code(code)

    def abort(self, code: Any, details: str) -> None:
        """End the call. It is left first: on asyncio, the client gets its status at once."""
        self.limen.code = code
        self._gate.leave(self, UNKNOWN)
        self._context.abort(code, details)

    def abort_with_status(self, status: Any) -> None:
        """End the call with all that a status says."""
        self.set_trailing_metadata(status.trailing_metadata or ())
        self.abort(status.code, status.details)

    def tell(self, code: grpc.StatusCode) -> None:
        """Send the headers, if they are not sent yet: in front, or with the status of a failure."""
        headers = () if code is CANCELLED else self.limen.headers()
        if not headers:
            return
        if code is not OK:
            self.set_trailing_metadata((*self._trailing, *headers))
            return
        with suppress(grpc.RpcError):  # the client is gone; so grpc says it
            self._context.send_initial_metadata(headers)


def limited(handler: Any, gate: Gate) -> Any:
    """Return a handler behind a gate."""
    behavior = behavior_of(handler)
    if not handler.response_streaming:
        return replaced(handler, _unary(behavior, gate))
    if getattr(behavior, "experimental_non_blocking", False):
        return replaced(handler, _calling_back(behavior, gate))
    return replaced(handler, _stream(behavior, gate))


def _unary(behavior: Behavior, gate: Gate) -> Behavior:
    def call(request: Any, context: Any) -> Any:
        told = gate.enter(context)
        if told is None:
            return behavior(request, context)
        try:
            message = behavior(request, told)
            told.limen.sends(message)
        except BaseException:
            gate.leave(told, UNKNOWN)
            raise
        gate.leave(told, OK)
        return message

    return call


def _stream(behavior: Behavior, gate: Gate) -> Behavior:
    # A generator does nothing before it is asked for the first message, and grpc drops it when the
    # client goes away. So all of it is inside, from the first question to the last release.
    def call(request: Any, context: Any) -> Iterator[Any]:
        told = gate.enter(context)
        if told is None:
            yield from behavior(request, context)
            return
        try:
            messages = behavior(request, told)
            try:
                for message in messages:
                    told.tell(OK)
                    told.limen.sends(message)
                    yield message
            finally:
                if isinstance(messages, Generator):
                    messages.close()
        except GeneratorExit:
            gate.leave(told, CANCELLED)
            raise
        except BaseException:
            gate.leave(told, UNKNOWN)
            raise
        gate.leave(told, OK)

    return call


def _calling_back(behavior: Behavior, gate: Gate) -> Behavior:
    """Return the same for a behavior that holds no thread, and is given a function to send by."""

    def call(request: Any, context: Any, send: Callable[[Any], None]) -> None:
        told = gate.enter(context)
        if told is None:
            behavior(request, context, send)
            return

        def sent(message: Any) -> None:
            if message is None:
                gate.leave(told, OK)
            else:
                told.tell(OK)
                told.limen.sends(message)
            send(message)

        try:
            if not context.add_callback(lambda: gate.leave(told, CANCELLED)):
                gate.leave(told, CANCELLED)
            behavior(request, told, sent)
        except BaseException:
            gate.leave(told, UNKNOWN)
            raise

    return call


class _PunctualDoor(Door):
    """A door that keeps nobody waiting beyond a deadline."""

    def sit_out(self, visit: Visit, delay: float) -> None:
        late = late_by(delay, visit.request.native.time_remaining())
        if late is not None:
            raise late
        super().sit_out(visit, delay)
