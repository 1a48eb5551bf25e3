"""What a method does, taken out of its handler, and put back. Knows nothing of limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import grpc

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
