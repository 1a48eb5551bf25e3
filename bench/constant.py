"""The HTTP server of the data plane with a handler that always returns the same response.

`POST /v1/check` is compared with it: the difference is the cost of a decision. Run as
`python -m bench.constant PORT`.
"""

from __future__ import annotations

import socket
import sys

from limen.server.http import HttpConnections, HttpLimits, Request, Response
from limen.server.http.exchange import JSON, NO_STORE
from limen.server.process.listen import bind
from limen.server.process.server import Site, serve

_BODY = b'{"allowed":true}'


class Constant:
    """A `Handler` that decides nothing."""

    def begin(self, request: Request) -> Response | None:
        """Accept every request."""
        return None

    def too_large(self, request: Request) -> Response:
        """Return an empty response."""
        return Response(413, [])

    async def respond(self, request: Request) -> Response:
        """Return the same response for every request."""
        return Response(200, [JSON, NO_STORE], _BODY)


class Program:
    """A server of one listener, for `limen.server.process.server.serve`."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener

    async def start(self) -> list[Site]:
        """Return the server of the listener."""
        limits = HttpLimits()
        return [Site(self._listener, HttpConnections(Constant(), limits), limits)]

    async def close(self) -> None:
        """Do nothing."""


if __name__ == "__main__":
    sys.exit(serve(Program(bind("127.0.0.1", int(sys.argv[1])))))
