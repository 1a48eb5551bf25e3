"""What a call is told, and what is known of its answer. Pure; the contexts of gRPC are elsewhere.

The headers of a limit are metadata here. A call that succeeds gets them in front, with the initial
metadata; one that fails before its first message gets them with its status: who gets anything
earlier than that is told that the call has begun to answer, and may not try it again by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import grpc

from limen.adapters.grpc.call import CallResponse
from limen.adapters.visit import Visit
from limen.errors import ConfigurationError

Metadata = tuple[tuple[str, str | bytes], ...]
OK: grpc.StatusCode = grpc.StatusCode.OK
UNKNOWN: grpc.StatusCode = grpc.StatusCode.UNKNOWN
CANCELLED: grpc.StatusCode = grpc.StatusCode.CANCELLED

_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


class Telling:
    """What a call has been told so far, and how it is going."""

    __slots__ = ("_end", "_response", "code", "is_told", "message", "messages_sent", "visit")

    def __init__(self, visit: Visit) -> None:
        self.visit: Visit = visit
        self.code: Any = None
        """What the handler set; None when it set nothing."""
        self.messages_sent: int = 0
        self.message: Any = None
        self.is_told: bool = False
        """Whether the client has the headers."""
        self._end = threading.Lock()
        self._response: CallResponse | None = None

    def headers(self) -> Metadata:
        """Return what the client is yet to be told; nothing the second time."""
        if self.is_told:
            return ()
        self.is_told = True
        return metadata_of(self.visit.headers())

    def sends(self, message: Any) -> None:
        """Note a message of the handler's."""
        self.messages_sent += 1
        self.message = message

    def ends(self) -> bool:
        """Say that the call is over; True for who says it first, and has to see to the rest."""
        return self._end.acquire(blocking=False)

    def responded(self, fallback: grpc.StatusCode) -> CallResponse:
        """Return how the call ended, and let limits look at it. `fallback` is its code if the
        handler set none.
        """
        if self._response is None:
            self._response = CallResponse(
                code_of(self.code, fallback), self.messages_sent, self.message
            )
            self.visit.responded(self._response)
        return self._response


def visit_of(context: object) -> Visit:
    """Return what limits said to a call, in its handler: `visit_of(context).costs(7)`."""
    telling = telling_of(context)
    if telling is None:
        raise ConfigurationError(
            "no limit looked at this call: its method is exempt, or the server has no "
            "RateLimitInterceptor"
        )
    return telling.visit


def telling_of(context: object) -> Telling | None:
    """Return what an interceptor further out tells the call; None when there is none."""
    found = getattr(context, "limen", None)
    return found if isinstance(found, Telling) else None


def metadata_of(headers: Iterable[tuple[str, str]]) -> Metadata:
    """Return headers as metadata has them: names in lower case."""
    return tuple([(name.lower(), value) for name, value in headers])


def code_of(code: Any, fallback: grpc.StatusCode) -> grpc.StatusCode:
    """Return the code that a client sees, where a handler set this one. Some set numbers.

    Who fails does not get away with OK, and who is gone sees nothing any more.
    """
    if code is None or fallback is CANCELLED:
        return fallback
    if not isinstance(code, grpc.StatusCode):
        code = _BY_NUMBER.get(code, UNKNOWN)
    return fallback if code is OK else code
