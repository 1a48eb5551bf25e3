"""One request and its response: uvicorn's cycle, where what goes wrong is a problem document.

Knows an app by its ASGI face, and nothing of the connection it came by.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from limen.http.problem import CONTENT_TYPE, Problem

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
        title = HTTPStatus(self.status).phrase
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
    """One request and its response, which is a problem document when the app makes a mistake."""

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Let the app answer; where it does not, answer for it."""
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
        finally:
            # It holds the connection, which holds this.
            self.on_response = _nothing
        if self.response_started:
            self.transport.close()
        else:
            await Refused(500, _BUG)(self.scope, self.receive, self.send)


def _nothing() -> None:
    pass
