"""Runs a data plane in a process of its own: `python -m tests.client.serve 8080 rules.yaml DIR`.

More arguments are settings: `auth.checks=token`. Each response has the number of requests so far
in a header, `x-calls`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from limen.server.http import Handler, HttpConnections, HttpLimits, Request, Response
from limen.server.process.data_plane import DataPlane
from limen.server.process.listen import Tls
from limen.server.settings import Settings, load
from limen.server.worker.container import Service
from limen.server.worker.data_dir import Place


class Counting:
    """A handler that counts its requests."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._calls = 0

    def begin(self, request: Request) -> Response | None:
        self._calls += 1
        refusal = self._handler.begin(request)
        return None if refusal is None else self._counted(refusal, self._calls)

    def too_large(self, request: Request) -> Response:
        return self._counted(self._handler.too_large(request), self._calls)

    async def respond(self, request: Request) -> Response:
        calls = self._calls
        return self._counted(await self._handler.respond(request), calls)

    def _counted(self, response: Response, calls: int) -> Response:
        response.headers.append((b"x-calls", b"%d" % calls))
        return response


async def serve(settings: Settings) -> None:
    """Serve until the process is killed."""
    await Place(settings).prepare()
    service = Service(settings)
    await service.start()
    connections = HttpConnections(
        Counting(DataPlane(service)), HttpLimits(max_body=settings.http.max_body)
    )
    tls = settings.tls
    context = Tls(tls.certificate, tls.key).context if tls.is_on else None
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        connections.make, "127.0.0.1", settings.bind.port, ssl=context
    )
    await listener.serve_forever()


def main() -> None:
    port, rules, folder, *more = sys.argv[1:]
    flags: dict[str, Any] = {"rules": rules, "data_dir": folder, "bind": f"127.0.0.1:{port}"}
    flags |= dict(each.split("=", 1) for each in more)
    settings = load({name: int(text) if text.isdigit() else text for name, text in flags.items()})
    logging.disable(logging.WARNING)
    asyncio.run(serve(settings))


if __name__ == "__main__":
    main()
