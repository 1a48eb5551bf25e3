"""A call as limits see it, as the functions of a user see it, how it ended, what it was told. Pure.

The headers of a limit are metadata here. A call that succeeds gets them in front, with the initial
metadata; one that fails before its first message gets them with its status: who gets anything
earlier than that is told that the call has begun to answer, and may not try it again by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from msgspec import Struct

from limen.adapters.request import Request
from limen.http import OPTIONAL_WHITESPACE

Metadata = tuple[tuple[str, str | bytes], ...]
OK: grpc.StatusCode = grpc.StatusCode.OK
UNKNOWN: grpc.StatusCode = grpc.StatusCode.UNKNOWN
CANCELLED: grpc.StatusCode = grpc.StatusCode.CANCELLED

_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


class Call:
    """A call, before its handler gets it: what key functions and the like are called with.

    The message is not in it: a stream has none yet.
    """

    __slots__ = ("_metadata", "context", "method")

    def __init__(self, method: str, context: Any) -> None:
        self.method: str = method
        """The full name: `"/shop.Orders/Place"`."""
        self.context: Any = context
        """The context that gRPC has for the call: `grpc.ServicerContext`, or that of asyncio."""
        self._metadata: dict[str, str | bytes] | None = None

    @property
    def metadata(self) -> Mapping[str, str | bytes]:
        """What the client sent along, names in lower case; of several of one name, the last.

        Bytes where the name ends in `-bin`.
        """
        if self._metadata is None:
            self._metadata = dict(self.context.invocation_metadata() or ())
        return self._metadata

    @property
    def peer(self) -> str:
        """Who connected, as gRPC writes it: `"ipv4:192.0.2.7:50123"`, `"unix:"`."""
        return str(self.context.peer())

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None without one."""
        found: float | None = self.context.time_remaining()
        return found

    def __repr__(self) -> str:
        # No metadata: a token may be in it.
        return f"<Call {self.method}>"


class CallResponse(Struct, frozen=True):
    """How a call ended: what `deduct_when` and `settle` get."""

    code: grpc.StatusCode
    """The status. `CANCELLED` when the client went away before the handler was done."""
    messages_sent: int = 0
    """How many messages the handler gave: one, or those of its stream."""
    message: Any = None
    """The last of them, None without one: `settle=lambda response: response.message.tokens`."""


class TooLate(Exception):
    """A call is let in, but would begin after its deadline."""

    def __init__(self, delay: float, remaining: float) -> None:
        super().__init__(delay, remaining)
        self.delay: float = delay
        """In how many seconds it would begin."""
        self.remaining: float = remaining
        """In how many seconds its deadline is."""


class CallRequest(Request):
    """A call, as limits see it."""

    __slots__ = ()

    @property
    def method(self) -> str:
        """The method of HTTP, which is the same for all calls."""
        return "POST"

    @property
    def path(self) -> str:
        """The full name of the method, which is the path on the wire, too."""
        return str(self.native.method)

    @property
    def route(self) -> str:
        """The same: there is nothing in it that varies."""
        return self.path

    @property
    def peer(self) -> str | None:
        """The address of who connected; None for a socket in the file system."""
        return address_of(self.native.peer)

    def header(self, name: str) -> Sequence[str]:
        """Return the values of an entry of the metadata."""
        return [
            value.strip(OPTIONAL_WHITESPACE) if isinstance(value, str) else value.decode("latin-1")
            for each, value in self.native.context.invocation_metadata() or ()
            if each == name
        ]

    @property
    def user(self) -> str | None:
        """Who the certificate of the client names, where TLS asks for one: the first name in it."""
        identities = self.native.context.peer_identities()
        first: bytes | None = next(iter(identities or ()), None)
        return first.decode("utf-8", "surrogateescape") if first else None

    def check_delay(self, delay: float) -> None:
        """Raise `TooLate` for a call that would begin after its deadline."""
        remaining = self.native.time_remaining()
        if remaining is not None and delay >= remaining:
            raise TooLate(delay, remaining)

    def passes(self, error: Exception) -> bool:
        """Return whether the function has ended the call by `call.context.abort`.

        In threads, gRPC raises a plain `Exception` for that, and only the context has the code.
        """
        if isinstance(error, grpc.aio.AbortError):
            return True
        code = getattr(self.native.context, "code", lambda: None)()
        return type(error) is Exception and code not in (None, 0, grpc.StatusCode.OK)


def address_of(peer: str) -> str | None:
    """Return the address in what gRPC says of who connected; None when it has none.

    It writes `ipv4:192.0.2.7:50123` and `ipv6:%5B2001:db8::7%5D:50123`.
    """
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return unquote(rest).rpartition(":")[0].strip("[]")


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
