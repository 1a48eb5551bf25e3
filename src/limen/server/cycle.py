"""One request and its response: uvicorn's cycle, where what goes wrong is a problem document.

Knows an app by its ASGI face, and nothing of the connection it came by.
"""

from __future__ import annotations

import asyncio

from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    HTTPResponseStartEvent,
    Scope,
)
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from limen.http.problem import CONTENT_TYPE, Problem, phrase

_RARE = frozenset({b"connection", b"transfer-encoding"})
_BUG = "The server made a mistake, and has logged it."


class Refused(Exception):
    """A request that is not read to its end: the status and the words of the answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of the answer."""
        length = str(len(self.body())).encode()
        return [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"content-length", length),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]

    def body(self) -> bytes:
        """Return the problem document."""
        title = phrase(self.status)
        return Problem(title=title, status=self.status, detail=self.detail).encode()

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        """Answer as an app does, where the answer has to wait for those before it."""
        await send(
            {"type": "http.response.start", "status": self.status, "headers": self.headers()}
        )
        await send({"type": "http.response.body", "body": self.body(), "more_body": False})


class Cycle(RequestResponseCycle):
    """One request and its response, which is a problem document when the app makes a mistake.

    A response that is whole goes out as one packet. uvicorn sends the head by itself, which costs
    another call of the kernel, and wakes the client for half an answer.
    """

    _start: HTTPResponseStartEvent | None = None
    """The head, until there is a body to send with it."""

    async def send(self, message: ASGISendEvent) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start" and not self.response_started:
            # Another before it has not gone out: what went wrong behind that is told instead.
            self._start = message
            return
        start, self._start = self._start, None
        if start is None:
            await super().send(message)
            return
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            body = message.get("body", b"")
            head = self._head(start, len(body))
            if head is not None:
                await self._send_whole(head, b"" if self.scope["method"] == "HEAD" else body)
                return
        await super().send(start)
        await super().send(message)

    def _head(self, start: HTTPResponseStartEvent, length: int) -> bytes | None:
        """Return a head as it is sent; None for what is not as usual, and left to uvicorn."""
        lines, has_length = [], False
        for name, value in (*self.default_headers, *start.get("headers", ())):
            if name == b"connection" and value == b"close":
                self.keep_alive = False  # and is said below
                continue
            if name in _RARE:
                return None
            has_length = has_length or (name == b"content-length" and int(value) == length)
            lines.append(name + b": " + value + b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join([STATUS_LINE[start["status"]], *lines, b"\r\n"])
        # More ends of lines than lines: somebody has put one into a header.
        is_sound = head.count(b"\n") == head.count(b"\r") == len(lines) + 2
        return head if has_length and is_sound else None

    async def _send_whole(self, head: bytes, body: bytes) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.transport.write(head + body)
        self.message_event.set()
        # The connection closes itself where it is to end: it may know that something still comes.
        self.on_response()

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Let the app answer; where it does not, answer for it."""
        try:
            await self._answer(app)
        finally:
            # It holds the connection, which holds this.
            self.on_response = _nothing

    async def _answer(self, app: ASGI3Application) -> None:
        try:
            await app(self.scope, self.receive, self.send)
            if self.response_complete or self.disconnected:
                return
            self.logger.error("an app returned before its answer was complete")
        except asyncio.CancelledError:
            self.transport.close()
            raise
        except Exception as error:
            self.logger.error("a mistake in an app", exc_info=error)
        if self.response_started:
            self.transport.close()
        else:
            await Refused(500, _BUG)(self.scope, self.receive, self.send)


def _nothing() -> None:
    pass
