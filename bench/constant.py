"""The server of limen with an app that reads a request and always answers the same.

What `POST /v1/check` is measured against: HTTP costs this much, whatever is decided. Run as
`python -m bench.constant PORT`.
"""

from __future__ import annotations

import sys

from limen.server.exchange import JSON, NO_STORE, Receive, Scope, Send, read_body, respond
from limen.server.serve import bind, serve

_ANSWER = b'{"allowed":true}'


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer, or live through start and end."""
    if scope["type"] == "lifespan":
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})
        return
    await read_body(scope, receive, 2**20)
    await respond(send, 200, [JSON, NO_STORE], _ANSWER)


if __name__ == "__main__":
    sys.exit(serve(lambda: app, [bind("127.0.0.1", int(sys.argv[1]))]))
