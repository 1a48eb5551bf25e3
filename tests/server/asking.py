"""A whole service in this process, and a client that asks both planes without a socket.

The loop runs only while something is asked; the thread that follows the rules runs all the time.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from limen import wire
from limen.server.http import Request
from limen.server.process.control_plane import control_plane
from limen.server.process.data_plane import DataPlane
from limen.server.settings import load
from limen.server.worker.container import Service
from limen.server.worker.data_dir import Place
from tests.server.admin.driving import ADMIN, CHECK, Answer, StubPeer, ask_data_plane
from tests.server.product import is_control_path

T = TypeVar("T")
Headers = Sequence[tuple[bytes, bytes]]
JSON = "application/json"


class Asker:
    """A service that was started, and a client that asks it."""

    def __init__(self, service: Service, runner: asyncio.Runner) -> None:
        self.service = service
        self.plane = DataPlane(service)
        self._control_plane = control_plane(service)
        self._runner = runner

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the loop run until some work is done."""
        return self._runner.run(work)

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Headers = (),
        query: bytes = b"",
        client: str = "127.0.0.1",
        raw_path: bytes | None = None,
    ) -> Answer:
        """Send a request to the plane that has the path; `path` is percent-decoded."""
        raw_path = raw_path or path.encode("utf-8", "replace")
        if is_control_path(path):
            return await self._send_control(method, path, body, headers, query)
        peer: Any = StubPeer(client)
        request = Request(method, raw_path, path, query, list(headers), peer)
        return await ask_data_plane(self.plane, request, body)

    async def _send_control(
        self, method: str, path: str, body: bytes, headers: Headers, query: bytes
    ) -> Answer:
        given = [(b"content-length", b"%d" % len(body)), *headers]
        transport = httpx.ASGITransport(self._control_plane)
        async with httpx.AsyncClient(transport=transport, base_url="http://limen") as client:
            url = httpx.URL("/", path=path, query=query)
            response = await client.request(method, url, content=body, headers=given)
        return Answer(response.status_code, dict(response.headers), response.content)

    def ask(self, method: str, path: str, body: bytes = b"", **more: Any) -> Answer:
        return self.run(self.send(method, path, body, **more))

    def post(self, path: str, value: Any, **more: Any) -> Answer:
        """Ask with a value as JSON."""
        return self.ask("POST", path, json.dumps(value).encode(), **more)

    def check(self, attributes: Mapping[str, str] | None = None, /, **more: Any) -> wire.Verdict:
        """Ask for a decision; it has to be given."""
        asked = more if attributes is None else {"attributes": attributes, **more}
        return verdict(self.post("/v1/check", asked))

    def usage(self, **attributes: str) -> wire.Verdict:
        query = "&".join(f"{name}={value}" for name, value in attributes.items())
        return verdict(self.ask("GET", "/v1/usage", query=query.encode()))

    def changed(self, path: str, **value: Any) -> bool:
        """Refund or settle; say whether that changed anything."""
        return done(self.post(f"/v1/{path}", value))

    def acquire(self, **value: Any) -> wire.SlotVerdict:
        return granted(self.post("/v1/slots", value))

    def renew(self, slot: str) -> bool:
        return done(self.ask("POST", f"/v1/slots/{slot}"))

    def release(self, slot: str) -> bool:
        return done(self.ask("DELETE", f"/v1/slots/{slot}"))


def verdict(answer: Answer) -> wire.Verdict:
    """Return the verdict that an answer has to be."""
    return _message(answer, wire.Verdict)


def granted(answer: Answer) -> wire.SlotVerdict:
    return _message(answer, wire.SlotVerdict)


def done(answer: Answer) -> bool:
    return _message(answer, wire.Done).changed


def _message(answer: Answer, kind: type[T]) -> T:
    assert (answer.status, answer.headers["content-type"]) == (200, JSON), answer
    return msgspec.json.decode(answer.body, type=kind)


@contextmanager
def asking(
    folder: Path, rules: str, flags: Mapping[str, Any] | None = None, count: int = 1
) -> Iterator[list[Asker]]:
    """Start services that share what they are told, each under a folder of its own; end them."""
    before = signal.getsignal(signal.SIGUSR1)
    file = folder / "rules.yaml"
    file.write_text(rules)
    try:
        with asyncio.Runner() as runner, ExitStack() as stack:
            started = []
            for number in range(count):
                given = {
                    "auth.admin_token": ADMIN,
                    "auth.check_token": CHECK,
                    "data_dir": str(folder / f"data-{number}"),
                    "rules": str(file),
                }
                settings = load({**given, **(flags or {})}, {})
                runner.run(Place(settings).prepare())
                service = Service(settings)
                runner.run(service.start())
                stack.callback(lambda service: runner.run(service.close()), service)
                started.append(Asker(service, runner))
            yield started
    finally:
        signal.signal(signal.SIGUSR1, before)
