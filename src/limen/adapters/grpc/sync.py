"""`RateLimitInterceptor`, for `grpc.server`: calls in threads. The asyncio twin is `aio`.

Who calls is only known to the context that a handler gets. So the decision is made in front of the
handler, in the thread that will run it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import grpc

from limen.adapters.deciders import Source
from limen.adapters.door import Door
from limen.adapters.grpc.call import CANCELLED, OK, UNKNOWN
from limen.adapters.grpc.gate import (
    Behavior,
    GateFlows,
    Interceptor,
    ToldContextFlows,
    behavior_of,
    code_of_error,
    replaced,
)
from limen.flow import run


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
        return limited(handler, GateFlows(self.door, method, limits))


@grpc.ServicerContext.register
class ToldContext(ToldContextFlows):
    """The context for handlers in threads."""

    def abort(self, code: Any, details: str) -> None:
        """End the call."""
        run(self.end(code, details))

    def abort_with_status(self, status: Any) -> None:
        """End the call with all that a status says."""
        self.set_trailing_metadata(status.trailing_metadata or ())
        self.abort(status.code, status.details)


def limited(handler: Any, gate: GateFlows) -> Any:
    """Return a handler behind a gate."""
    behavior = behavior_of(handler)
    if getattr(behavior, "experimental_non_blocking", False):
        return replaced(handler, _calling_back(behavior, gate))
    if handler.response_streaming:
        return replaced(handler, _stream(behavior, gate))

    def call(request: Any, context: Any) -> Any:
        return run(gate.serve(ToldContext, behavior, request, context))

    return replaced(handler, call)


def _stream(behavior: Behavior, gate: GateFlows) -> Behavior:
    # A generator does nothing before it is asked for the first message, and grpc drops it when the
    # client goes away. So all of it is inside, from the first question to the last release.
    def call(request: Any, context: Any) -> Iterator[Any]:
        told = run(gate.enter(ToldContext, context))
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
        told = run(gate.enter(ToldContext, context))
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
