"""Requests and responses of the data plane, and the interface of their handler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from msgspec import Struct

from limen.http.problem import CONTENT_TYPE, Problem, phrase
from limen.server.http.peer import Peer

Headers = list[tuple[bytes, bytes]]
PROBLEM = (b"content-type", CONTENT_TYPE.encode())
# A verdict holds for one moment and one client.
NO_STORE = (b"cache-control", b"no-store")
_STATUS_LINES = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, phrase(status).encode()) for status in range(200, 600)
}
_CLOSE = b"connection: close\r\n"


class Request(Struct, eq=False):
    """A request: the head, and the body once all of it has arrived."""

    method: str
    raw_path: bytes
    """The path as it was sent; `path` is percent-decoded."""
    path: str
    query: bytes
    headers: Headers
    """Names are in lower case, in the order in which they were sent."""
    peer: Peer
    named: dict[bytes, bytes] = {}
    """The first value of each header."""
    body: bytes = b""
    keep_alive: bool = True
    """Whether the connection stays open after the response."""
    refusal: Response | None = None
    """The response, if it was decided before the body arrived."""
    id: str = ""
    """The request id; set by the handler."""
    route: Any = None
    """The handler's own note about the request, from `begin` to `respond`."""

    def __post_init__(self) -> None:
        named = dict(self.headers)
        if len(named) < len(self.headers):
            named = dict(reversed(self.headers))
        self.named = named

    def __repr__(self) -> str:
        # Without path, headers and body: they may contain secrets.
        return f"<Request {self.id}: {self.method}>"

    def repeats(self, name: bytes) -> bool:
        """Return whether the header with this name, in lower case, was sent more than once."""
        if len(self.named) == len(self.headers):
            return False
        return [key for key, _ in self.headers].count(name) > 1


class Response(Struct, gc=False):
    """The response to a request."""

    status: int
    headers: Headers
    body: bytes = b""

    def encode(self, date: bytes, *, close: bool, is_head: bool = False) -> bytes:
        """Return the bytes on the wire; `date` is a whole header line."""
        lines = [_STATUS_LINES[self.status], date]
        for name, value in self.headers:
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"content-length: %d\r\n" % len(self.body))
        if close:
            lines.append(_CLOSE)
        lines.append(b"\r\n")
        if not is_head:
            lines.append(self.body)
        return b"".join(lines)


class Handler(Protocol):
    """The application behind the connections."""

    def begin(self, request: Request) -> Response | None:
        """Check the head of a request. A response refuses the request; its body is dropped."""

    def too_large(self, request: Request) -> Response:
        """Return the response to a request whose body is longer than `HttpLimits.max_body`."""

    async def respond(self, request: Request) -> Response:
        """Return the response to a request that has arrived. Must not raise."""


class Rejected(Exception):
    """Say that a request is not answered, and why. Nothing was charged or changed."""

    def __init__(self, status: int, detail: str, headers: Headers | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers: Headers = headers or []

    def response(self, id_: str = "") -> Response:
        """Return the problem document for the request with this id; without one, it has no id."""
        return problem_response(self.status, self.detail, id_, self.headers)


class InvalidValue(Struct, frozen=True):
    """A value in the body of a request that is not valid."""

    path: str
    """The place in the body: `rules[2].limits`; empty for the whole body."""
    message: str


class ProblemDocument(Problem, frozen=True, kw_only=True, omit_defaults=True):
    """An error (RFC 9457)."""

    problems: tuple[InvalidValue, ...] = ()
    """All that is wrong with a body or with rules."""


def problem_response(
    status: int,
    detail: str,
    id_: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
    problems: tuple[InvalidValue, ...] = (),
) -> Response:
    """Return a problem document for the request with this id."""
    document = ProblemDocument(
        title=phrase(status),
        status=status,
        detail=detail,
        instance=f"urn:limen:{id_}" if id_ else "",
        problems=problems,
    )
    return Response(status, [PROBLEM, NO_STORE, *headers], document.encode())
