"""The application behind a gateway, and a client before it, each at an address of its own.

The application says what has reached it. It stands for the user's, and knows nothing of limen.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

from tests.servers import HOST


class Answer(NamedTuple):
    """What a client gets."""

    status: int
    headers: dict[str, str]
    """By their names in lower case."""
    body: bytes
    seconds: float

    @property
    def reached(self) -> dict[str, Any]:
        """What the application saw of the request; an error when it was not asked."""
        document: dict[str, Any] = json.loads(self.body)["reached"]
        return document

    @property
    def problem(self) -> dict[str, Any]:
        """The body of a refusal, which says the same status."""
        assert self.headers["content-type"] == "application/problem+json", self
        document: dict[str, Any] = json.loads(self.body)
        assert document["status"] == self.status
        return document


def ask(
    port: int,
    path: str = "/",
    *headers: tuple[str, str],
    of: str,
    method: str = "GET",
    body: bytes = b"",
) -> Answer:
    """Send one request from the address `of`, by a connection of its own."""
    connection = _Connection(HOST, port, timeout=40, source_address=(of, 0))
    try:
        start = time.monotonic()
        connection.putrequest(method, path)
        for name, value in headers:
            connection.putheader(name, value)
        if body or method not in ("GET", "HEAD"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        got = connection.getresponse()
        content = got.read()
        seconds = time.monotonic() - start
        return Answer(got.status, _by_name(got.getheaders()), content, seconds)
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """Sends any bytes for a path; http.client is too polite."""

    def _validate_path(self, url: str) -> None:
        """Take it."""

    def _encode_request(self, request: str) -> bytes:
        return request.encode("latin-1")


def _by_name(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in headers:
        assert name.lower() not in found, f"{name} was sent twice"
        found[name.lower()] = value
    return found


class _App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        reached = {
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "lines": [[name.lower(), value] for name, value in self.headers.items()],
            "body": body.hex(),
        }
        content = json.dumps({"reached": reached}).encode()
        self.send_response(int(self.headers.get("X-Answer-With") or 200))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-App", "was asked")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815  # its names

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    # A gateway keeps its connections, and so their threads, for longer than a test.
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of gateways that hang up as they end."""


@contextmanager
def app() -> Iterator[int]:
    """Start the application; yield its port."""
    server = _Server((HOST, 0), _App)
    thread = Thread(target=server.serve_forever, name="app", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
