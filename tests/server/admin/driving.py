"""A whole service in this process, and a client that asks both planes without a socket.

The loop runs only while something is asked; the thread that follows the rules runs all the time.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from limen.rules.stores.tokens import Role, Token
from limen.server.admin import PREFIX
from limen.server.http import Request
from limen.server.process.control_plane import control_plane
from limen.server.process.data_plane import DataPlane
from limen.server.settings import Settings, load
from limen.server.worker.container import Service
from limen.server.worker.data_dir import Place
from tests.waiting import wait_until

ADMIN = "canary-admin-token-0123456789abcdef"
CHECK = "canary-check-token-0123456789abcdef"
RULES = {
    "rules": [
        {"name": "search-per-user", "match": {"path": "/search/*"}, "key": ["user"]}
        | {"limits": ["3/minute", "1000/day"]},
        {"name": "per-user", "key": "user", "limits": "100/minute"},
    ]
}


class Answer(msgspec.Struct):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        assert self.headers["content-type"] == "application/problem+json", self
        problem = self.json
        assert problem["status"] == self.status
        assert problem["instance"] == f"urn:limen:{self.headers['x-request-id']}"
        detail: str = problem["detail"]
        return detail


class StubPeer:
    """The other end of a connection that does not exist."""

    def __init__(self, address: str | None = "127.0.0.1") -> None:
        self.address = address

    def is_gone(self) -> bool:
        return False


async def ask_data_plane(plane: DataPlane, request: Request, body: bytes = b"") -> Answer:
    """Send a request to the data plane as a connection does."""
    response = plane.begin(request)
    if response is None and len(body) > plane.service.settings.http.max_body:
        response = plane.too_large(request)
    if response is None:
        request.body = body
        response = await plane.respond(request)
    headers = {name.decode(): value.decode() for name, value in response.headers}
    assert len(headers) == len(response.headers), "a header stands twice"
    return Answer(response.status, headers, response.body)


def is_of_data_plane(path: str) -> bool:
    """Return whether the data plane has a path, and the control plane does not."""
    return path.startswith("/v1/") or path == "/json"


class Driven:
    """A service that was started, and who asks it."""

    def __init__(self, settings: Settings, runner: asyncio.Runner) -> None:
        self.service = Service(settings)
        self.app = control_plane(self.service)
        self.data_plane = DataPlane(self.service)
        self._runner = runner
        self.tokens: dict[str, str] = {"admin": ADMIN, "check": CHECK}

    def run(self, work: Any) -> Any:
        """Let the loop run until some work is done."""
        return self._runner.run(work)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        role: str | None = "admin",
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask for something under `/admin/v1`, or for what begins with two slashes elsewhere."""
        path = path[1:] if path.startswith("//") else f"{PREFIX}{path}"
        sent = token if token is not None else self.tokens[role] if role else None
        more = {"authorization": f"Bearer {sent}"} if sent is not None else {}
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        found: Answer = self.run(self._ask(method, path, raw, {**more, **(headers or {})}))
        return found

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        split = urlsplit(path)
        raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        if is_of_data_plane(split.path):
            raw_path, query = split.path.encode(), split.query.encode()
            peer: Any = StubPeer()
            request = Request(method, raw_path, split.path, query, raw_headers, peer)
            return await ask_data_plane(self.data_plane, request, body)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": split.path,
            "raw_path": split.path.encode(),
            "query_string": split.query.encode(),
            "root_path": "",
            "headers": raw_headers,
            "server": ("127.0.0.1", 8082),
            "client": ("127.0.0.1", 1),
        }
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start = sent[0]
        found = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], found, b"".join(each.get("body", b"") for each in sent))

    def token(self, role: Role, expires_at: datetime | None = None) -> tuple[Token, str]:
        """Create a token past the API, as the command line does; it holds here at once."""
        books = self.service.books
        made: tuple[Token, str] = self.run(
            books.create_token(role, f"a {role}", "tests", expires_at)
        )
        self.run(self.service.access.refresh(books))
        return made

    def save(self, document: dict[str, Any], **more: Any) -> Any:
        """Save rules past the API."""
        stored = self.run(self.service.books.save(document, author="tests", base=None, **more))
        wait_until(lambda: self.service.engine.rules.version == str(stored.version))
        return stored


def settings_of(folder: Path, **flags: Any) -> Settings:
    """Return settings with canary secrets. What passes is not kept by chance."""
    given = {"auth.admin_token": ADMIN, "auth.check_token": CHECK, "insight.sample": "0"}
    return load({**given, "data_dir": str(folder / "data"), **flags}, {})


@contextmanager
def driven(
    settings: Settings, rules: dict[str, Any] | None = None, roles: tuple[Role, ...] = ()
) -> Iterator[Driven]:
    """Start a service; end it."""
    before = signal.getsignal(signal.SIGUSR1)
    try:
        with asyncio.Runner() as runner:
            runner.run(Place(settings).prepare())
            found = Driven(settings, runner)
            if rules is not None:
                books = found.service.books
                runner.run(books.save(rules, author="tests", comment="the first", base=None))
            runner.run(found.service.start())
            try:
                for role in roles:
                    found.tokens[role] = found.token(role)[1]
                yield found
            finally:
                runner.run(found.service.close())
    finally:
        signal.signal(signal.SIGUSR1, before)
