"""A whole service in this process, and whoever asks its decision API without a socket.

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

import msgspec

from limen import wire
from limen.server.admin import admin_app
from limen.server.app import App
from limen.server.place import Place
from limen.server.service import Service
from limen.server.settings import load
from tests.server.admin.driving import ADMIN, CHECK, Answer

T = TypeVar("T")
Headers = Sequence[tuple[bytes, bytes]]
JSON = "application/json"


class Asker:
    """A service that was started, and who asks it."""

    def __init__(self, service: Service, runner: asyncio.Runner) -> None:
        self.service = service
        self.app = App(service, admin_app(service))
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
        chunk: int = 0,
        client: str = "127.0.0.1",
        raw_path: bytes | None = None,
    ) -> Answer:
        """Ask for a path, which is decoded already; the body at once, or in chunks."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": raw_path or path.encode("utf-8", "replace"),
            "query_string": query,
            "root_path": "",
            "headers": list(headers),
            "server": ("127.0.0.1", 8080),
            "client": (client, 1),
        }
        size = chunk or len(body) or 1
        chunks = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        sent: list[Any] = []

        async def receive() -> Any:
            if not chunks:
                return {"type": "http.disconnect"}
            first = chunks.pop(0)
            return {"type": "http.request", "body": first, "more_body": bool(chunks)}

        async def tell(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, tell)
        found = {name.decode("ascii"): value.decode("ascii") for name, value in sent[0]["headers"]}
        assert len(found) == len(sent[0]["headers"]), "a header stands twice"
        body = b"".join(each.get("body", b"") for each in sent)
        assert found["content-length"] == str(len(body))
        return Answer(sent[0]["status"], found, body)

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
