"""`GateFlows`: the limits in front of a handler, as threads and asyncio share them."""

from __future__ import annotations

import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

import grpc

from limen.adapters.grpc.call import (
    CANCELLED,
    OK,
    UNKNOWN,
    Call,
    CallRequest,
    CallResponse,
    Metadata,
    TooLate,
    code_of,
    metadata_of,
)
from limen.adapters.grpc.denial import denial_of, denial_of_late, refuse_options
from limen.adapters.grpc.methods import LimitsByMethod, Methods
from limen.adapters.limit import AnyLimit, RateLimit
from limen.adapters.manner import Options
from limen.adapters.visit import Visit
from limen.errors import ConfigurationError
from limen.flow import Flow

SourceT = TypeVar("SourceT")
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
    behavior: Behavior = getattr(handler, f"{takes}_{gives}")
    return behavior


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


class Interceptor(Generic[SourceT]):
    """What the interceptors of both kinds of servers are made with."""

    _door: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        limiter: SourceT,
        *limits: AnyLimit,
        limits_by_method: LimitsByMethod | None = None,
        exempt: Iterable[str] = (),
        limit_infrastructure: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self.door: Any = self._door(limiter, *limits, **options)
        refuse_options(options, self.door.manner)
        self._methods = Methods(
            self.door.take, self.door.limits, limits_by_method, exempt, limit_infrastructure
        )


class GateFlows:
    """The limits in front of one method."""

    def __init__(self, door: Any, method: str, limits: tuple[RateLimit, ...]) -> None:
        self.door: Any = door
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
                own.sends(message)
        except BaseException as error:
            yield from own.leave(code_of_error(error))
            raise
        yield from own.leave(OK)
        return message

    def enter(self, told: Any, context: Any) -> Flow[Any]:
        """Let a call in and return the context for its handler; or end the call, by raising.

        None when an interceptor further out began with the call.
        """
        around = _around(context)
        own = around or told(context, self)
        try:
            if (yield self.door.enter(own.visit, self._limits)):
                return None if around else own
            denial = denial_of(own.visit)
        except TooLate as late:
            denial = denial_of_late(own.visit, late)
        # An interceptor further out has nothing left to do: all is given back.
        own.ends()
        own.is_told = True
        context.set_trailing_metadata(denial.metadata)
        yield context.abort(denial.code, denial.detail)
        raise AssertionError("abort raises")

    def visit(self, context: Any) -> Visit:
        """Begin with a call."""
        return Visit(CallRequest(self.door.manner, Call(self._method, context)))


class ToldContextFlows:
    """The context of a call that adds what limits say to what its handler says."""

    def __init__(self, context: Any, gate: GateFlows) -> None:
        self.visit: Visit = gate.visit(context)
        self.is_told: bool = False
        """Whether the client has the headers."""
        self._context = context
        self._gate = gate
        self._code: Any = None
        self._messages_sent = 0
        self._message: Any = None
        self._trailing: Metadata = ()
        self._end = threading.Lock()

    @property
    def limen(self) -> Self:
        """This context, also where another interceptor has put its own around it."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def send_initial_metadata(self, initial_metadata: Metadata) -> Any:
        """Send the handler's, and ours."""
        return self._context.send_initial_metadata((*initial_metadata, *self._headers()))

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        """Keep the handler's in mind, in case that ours go along."""
        self._trailing = tuple(trailing_metadata)
        self._context.set_trailing_metadata(self._trailing)

    def set_code(self, code: Any) -> None:
        """Set the code, and keep it in mind."""
        self._code = code
        self._context.set_code(code)

    def tell(self, code: grpc.StatusCode) -> Flow[None]:
        """Send the headers, if they are not sent yet: in front, or with the status of a failure."""
        headers = () if code is CANCELLED else self._headers()
        if not headers:
            return
        if code is not OK:
            self.set_trailing_metadata((*self._trailing, *headers))
            return
        with suppress(grpc.RpcError):  # the client is gone; so grpc says it
            yield self._context.send_initial_metadata(headers)

    def end(self, code: Any, details: str) -> Flow[None]:
        """Leave the call, and abort it: on asyncio, the client gets its status at once."""
        self._code = code
        yield from self.leave(UNKNOWN)
        yield self._context.abort(code, details)

    def leave(self, fallback: grpc.StatusCode) -> Flow[None]:
        """Tell the client what is left to tell, settle, and let go of what was held; once.

        `fallback` is the code if the handler set none.
        """
        if not self.ends():
            return
        code = code_of(self._code, fallback)
        response = CallResponse(code, self._messages_sent, self._message)
        self.visit.responded(response)
        try:
            yield from self.tell(code)
        finally:
            if self.visit.is_due:
                yield self._gate.door.leave(self.visit, response)

    def sends(self, message: Any) -> None:
        """Note a message of the handler's."""
        self._messages_sent += 1
        self._message = message

    def ends(self) -> bool:
        """Say that the call is over; True for the first caller, which has to see to the rest."""
        return self._end.acquire(blocking=False)

    def _headers(self) -> Metadata:
        """Return what the client is yet to be told; nothing the second time."""
        if self.is_told:
            return ()
        self.is_told = True
        return metadata_of(self.visit.headers())


def _around(context: object) -> ToldContextFlows | None:
    """Return the context of an interceptor further out; None when there is none."""
    own = getattr(context, "limen", None)
    return own if isinstance(own, ToldContextFlows) else None


def visit_of(context: object) -> Visit:
    """Return what limits said to a call, in its handler: `visit_of(context).costs(7)`."""
    own = _around(context)
    if own is None:
        raise ConfigurationError(
            "no limit looked at this call: its method is exempt, or the server has no "
            "RateLimitInterceptor"
        )
    return own.visit


def code_of_error(error: BaseException) -> grpc.StatusCode:
    """Return the code of a call whose handler raised an error."""
    return CANCELLED if isinstance(error, GeneratorExit | CancelledError) else UNKNOWN
