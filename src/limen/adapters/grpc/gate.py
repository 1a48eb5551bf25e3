"""`GateFlows`: the limits in front of a handler, as threads and asyncio share them."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import grpc

from limen.adapters.grpc.call import (
    CANCELLED,
    OK,
    UNKNOWN,
    Metadata,
    Telling,
    TooLate,
    request_of,
    telling_of,
)
from limen.adapters.grpc.denial import denial_of, denial_of_late
from limen.adapters.limit import RateLimit
from limen.flow import Flow

Behavior = Callable[..., Any]
"""The function of a servicer: a message, or an iterator of them, and a context."""

_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def behavior_of(handler: Any) -> Behavior:
    """Return what a handler calls, whichever of the four kinds it is."""
    takes = "stream" if handler.request_streaming else "unary"
    gives = "stream" if handler.response_streaming else "unary"
    found: Behavior = getattr(handler, f"{takes}_{gives}")
    return found


def replaced(handler: Any, behavior: Behavior) -> Any:
    """Return a handler of the same kind, which reads and writes the same, and does something else.

    What was set on the old behavior is on the new one: a pool of threads of its own, say.
    """
    make = _MAKERS[bool(handler.request_streaming), bool(handler.response_streaming)]
    return make(
        wraps(behavior_of(handler))(behavior),
        handler.request_deserializer,
        handler.response_serializer,
    )


class GateFlows:
    """The limits in front of one method."""

    def __init__(self, door: Any, method: str, limits: tuple[RateLimit, ...]) -> None:
        self._door = door
        self._method = method
        self._limits = limits

    def serve(self, told: Any, behavior: Behavior, request: Any, context: Any) -> Flow[Any]:
        """Decide a call, and let its behavior answer.

        `told` is the class of the context that the behavior gets. An interceptor further out that
        began with the call tells the client, and settles; then it gets the context as it is.
        """
        own = yield from self.enter(told, context)
        if own is None:
            return (yield behavior(request, context))
        try:
            message = yield behavior(request, own)
            if message is not None:
                own.limen.sends(message)
        except BaseException as error:
            yield from self.leave(own, code_of_error(error))
            raise
        yield from self.leave(own, OK)
        return message

    def enter(self, told: Any, context: Any) -> Flow[Any]:
        """Let a call in and return the context for its handler; or end the call, by raising.

        None when an interceptor further out began with the call.
        """
        around = telling_of(context)
        door = self._door
        telling = around or Telling(
            door.visit(request_of(self._method, context, door.manner.addresses))
        )
        visit = telling.visit
        try:
            if (yield door.enter(visit, self._limits)):
                return None if around else told(context, telling, self)
            denial = denial_of(visit)
        except TooLate as late:
            denial = denial_of_late(visit, late)
        # An interceptor further out has nothing left to do: all is given back.
        telling.ends()
        telling.is_told = True
        context.set_trailing_metadata(denial.metadata)
        yield context.abort(denial.code, denial.detail)
        raise AssertionError("abort raises")

    def leave(self, context: ToldContextFlows, fallback: grpc.StatusCode) -> Flow[None]:
        """Tell the client what is left to tell, settle, and let go of what was held; once."""
        telling = context.limen
        if not telling.ends():
            return
        response = telling.responded(fallback)
        try:
            yield from context.tell(response.code)
        finally:
            if telling.visit.is_due:
                yield self._door.leave(telling.visit, response)


class ToldContextFlows:
    """The context of a call that adds what limits say to what its handler says."""

    def __init__(self, context: Any, telling: Telling, gate: GateFlows) -> None:
        self.limen: Telling = telling
        self._context = context
        self._gate = gate
        self._trailing: Metadata = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def send_initial_metadata(self, initial_metadata: Metadata) -> Any:
        """Send the handler's, and ours."""
        return self._context.send_initial_metadata((*initial_metadata, *self.limen.headers()))

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        """Keep the handler's in mind, in case that ours go along."""
        self._trailing = tuple(trailing_metadata)
        self._context.set_trailing_metadata(self._trailing)

    def set_code(self, code: Any) -> None:
        """Set the code, and keep it in mind."""
        self.limen.code = code
        self._context.set_code(code)

    def tell(self, code: grpc.StatusCode) -> Flow[None]:
        """Send the headers, if they are not sent yet: in front, or with the status of a failure."""
        headers = () if code is CANCELLED else self.limen.headers()
        if not headers:
            return
        if code is not OK:
            self.set_trailing_metadata((*self._trailing, *headers))
            return
        with suppress(grpc.RpcError):  # the client is gone; so grpc says it
            yield self._context.send_initial_metadata(headers)

    def end(self, code: Any, details: str) -> Flow[None]:
        """Leave the call, and abort it: on asyncio, the client gets its status at once."""
        self.limen.code = code
        yield from self._gate.leave(self, UNKNOWN)
        yield self._context.abort(code, details)


def code_of_error(error: BaseException) -> grpc.StatusCode:
    """Return the code of a call whose handler raised an error."""
    return CANCELLED if isinstance(error, GeneratorExit | CancelledError) else UNKNOWN
