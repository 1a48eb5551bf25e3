"""A service on a socket, in this process, which counts what takes the short way."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from limen.server.app import App
from limen.server.exchange import Tell
from limen.server.protocol import Connections, Limits
from limen.server.questions import Asking
from limen.server.serve import App as AsgiApp
from limen.server.serve import config_of
from tests.server.asking import Asker
from tests.server.raw import HOST

RULES = """
rules:
  - {name: one, match: {path: /a}, key: [user], limits: 4/hour}
  - {name: wide, match: {path: /w}, key: [user], limits: 1000/hour}
  - {name: both, match: {path: /w}, key: [path], limits: 5000000/day token_bucket}
  - {name: two, match: {path: /two}, key: [user], limits: [4/hour, 9/day]}
"""
TLS = Path(__file__).parent.parent / "tls"
END = b"\r\n\r\n"


class Said(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: Any

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


class Client:
    """One connection, which sends packets as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, packet: bytes) -> Said:
        self.writer.write(packet)
        return await self.response()

    async def meet(self, packet: bytes) -> Said:
        """Ask until the next one takes the short way; return what is said last by the long one."""
        await self.ask(packet)
        return await self.ask(packet)

    async def response(self) -> Said:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.rstrip().split("\r\n")
        headers = [(name, value) for name, _, value in (each.partition(": ") for each in lines)]
        body = await self.reader.readexactly(int(dict(headers)["content-length"]))
        return Said(int(status.split()[1]), headers, json.loads(body))


class Counting:
    """Counts what takes the short way."""

    def __init__(self, app: App) -> None:
        self._quick = app.quick
        self.taken = 0

    def learn(self, packet: bytes, scope: Any, *, is_whole: bool) -> None:
        self._quick.learn(packet, scope, is_whole=is_whole)

    def read(self, packet: bytes) -> Asking | None:
        found = self._quick.read(packet)
        self.taken += found is not None
        return found

    def awaits(self, packet: bytes) -> bool:
        return self._quick.awaits(packet)

    def answer(self, asking: Asking, tell: Tell) -> Any:
        return self._quick.answer(asking, tell)


class Site:
    """A service on a socket, in this process."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.quick = Counting(asker.app)
        self.limits = Limits(max_header=asker.service.settings.http.max_header)

    @property
    def taken(self) -> int:
        return self.quick.taken

    def tell(
        self,
        story: Callable[[Callable[[], Awaitable[Client]]], Awaitable[None]],
        *,
        tls: bool = False,
    ) -> None:
        """Let a story happen between clients and the service."""

        async def told() -> None:
            async with self._served(tls) as connect:
                await asyncio.wait_for(story(connect), 20)

        self.asker.run(told())

    @asynccontextmanager
    async def _served(self, tls: bool) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
        loop = asyncio.get_running_loop()
        config = config_of(cast(AsgiApp, self.asker.app))
        self.connections = Connections(config, self.limits, {}, self.quick)
        server = await loop.create_server(
            self.connections.make, HOST, 0, ssl=_certified() if tls else None
        )
        clients: list[Client] = []

        async def connect() -> Client:
            port = server.sockets[0].getsockname()[1]
            context = ssl.create_default_context(cafile=TLS / "one.crt") if tls else None
            if context is not None:
                context.check_hostname = False
            clients.append(Client(*await asyncio.open_connection(HOST, port, ssl=context)))
            return clients[-1]

        try:
            yield connect
        finally:
            server.close()
            for client in clients:
                client.writer.close()
            await self.connections.cut()
            self.connections.close()


def _certified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "one.crt", TLS / "one.key")
    return context


def packet(body: bytes | None = None, *headers: str, user: str = "ann", path: str = "/a") -> bytes:
    if body is None:
        body = b'{"attributes":{"user":"%b","path":"%b"}}' % (user.encode(), path.encode())
    lines = ["POST /v1/check HTTP/1.1", "Host: limen", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def steady(said: Said) -> Any:
    """What two answers have in common, of which one comes after the other."""
    changing = {"id", "receipt", "remaining", "retry_after", "reset_after", "parts"}
    parts = [
        {name: of for name, of in part.items() if name not in changing}
        for part in said.body["parts"]
    ]
    return {name: of for name, of in said.body.items() if name not in changing}, parts
