"""The server of limen with an app that reads a request and always answers the same.

What `POST /v1/check` is measured against: HTTP costs this much, whatever is decided. Run as
`python -m bench.constant PORT`; with `--short`, by the short way that limen takes itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from limen.server.access import Access
from limen.server.exchange import (
    JSON,
    NO_STORE,
    Receive,
    Reply,
    Scope,
    Send,
    Tell,
    read_body,
    respond,
)
from limen.server.quick import Quick
from limen.server.serve import bind, serve

_ANSWER = b'{"allowed":true}'
_MAX_BODY = 2**20
_MAX_HEADER = 16_384


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer, or live through start and end."""
    if scope["type"] == "lifespan":
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})
        return
    await read_body(scope, receive, _MAX_BODY)
    await respond(send, 200, [JSON, NO_STORE], _ANSWER)


class _Same:
    """Decides nothing, in the place of who decides."""

    def __init__(self) -> None:
        self.questions = SimpleNamespace(one=lambda body: SimpleNamespace(asked=body))

    def answer_soon(self, asking: Any, id_: str, start: float, tell: Tell) -> bool:
        tell(*Reply(_ANSWER, []).sent(id_))
        return True


def short() -> Any:
    """Return the app with a short way."""
    decisions: Any = _Same()
    access = Access({}, Path())
    app.quick = Quick(  # type: ignore[attr-defined]  # as the app of limen has it
        decisions,
        access,
        lambda: "id",
        lambda: True,
        is_open=True,
        max_body=_MAX_BODY,
        max_header=_MAX_HEADER,
    )
    return app


if __name__ == "__main__":
    made = short if "--short" in sys.argv else lambda: app
    sys.exit(serve(made, [bind("127.0.0.1", int(sys.argv[1]))]))
