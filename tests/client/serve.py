"""Runs a real service in a process of its own: `python -m tests.client.serve 8080 rules.yaml DIR`.

More arguments are settings: `auth.checks=token`. It counts the calls that it gets, and tells them
in a header, `x-calls`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import uvicorn

from limen.server.app import App
from limen.server.place import Place
from limen.server.service import Service
from limen.server.settings import load


async def _no_admin(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks for that here")


class Counting:
    """An app that tells how many times it was asked."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self._calls += 1
        calls = self._calls

        async def tell(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-calls", b"%d" % calls))
            await send(message)

        await self._app(scope, receive, tell)


def main() -> None:
    port, rules, folder, *more = sys.argv[1:]
    flags: dict[str, Any] = {"rules": rules, "data_dir": folder, "bind": f"127.0.0.1:{port}"}
    flags |= dict(each.split("=", 1) for each in more)
    settings = load({name: int(text) if text.isdigit() else text for name, text in flags.items()})
    logging.disable(logging.WARNING)
    asyncio.run(Place(settings).prepare())
    service = Service(settings)
    tls = settings.tls
    uvicorn.run(
        Counting(App(service, _no_admin)),
        host="127.0.0.1",
        port=int(port),
        log_level="error",
        ssl_certfile=tls.certificate or None,
        ssl_keyfile=tls.key or None,
    )


if __name__ == "__main__":
    main()
