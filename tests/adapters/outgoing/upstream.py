"""Somebody else's API: a real server on a socket, with limits of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from limen import Limit, Limiter
from limen.http import HeaderStyle, answer_of, headers

CHUNKS = [b"one ", b"two ", b"three"]


class Call(NamedTuple):
    """A request that came in."""

    path: str
    at: float
    """When, by `time.monotonic`."""
    body: bytes


class Reply(NamedTuple):
    """A response that was told in advance."""

    status: int
    headers: Mapping[str, str]


class Upstream:
    """What the server does, and what was asked of it."""

    def __init__(self, limit: Limit | None, style: HeaderStyle) -> None:
        self.calls: list[Call] = []
        self.refused = 0
        self.url = ""
        self._limit = limit
        self._style: HeaderStyle = style
        self._limiter = Limiter()
        self._next: deque[Reply] = deque()

    @property
    def paths(self) -> list[str]:
        return [call.path for call in self.calls]

    def reply(self, status: int, **fields: str) -> None:
        """Answer the next request that way: `retry_after` is the header `Retry-After`."""
        self._next.append(Reply(status, {name.replace("_", "-"): fields[name] for name in fields}))

    def reply_to(self, call: Call) -> Reply:
        self.calls.append(call)
        if self._next:
            return self._next.popleft()
        if self._limit is None:
            return Reply(200, {})
        decision = self._limiter.check("everyone", self._limit)
        self.refused += not decision.allowed
        told = headers(answer_of(decision), [self._style], now=time.time())
        return Reply(200 if decision.allowed else 429, dict(told))


class _Server(ThreadingHTTPServer):
    upstream: Upstream
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10
    # Of head and body in two packets, the second would wait for the first to be acknowledged.
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        body = self._body()
        reply = self.server.upstream.reply_to(Call(self.path, time.monotonic(), body))
        self.send_response_only(reply.status)
        if "date" not in reply.headers:
            self.send_header("date", self.date_time_string())
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if self.path != "/stream":
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in [*CHUNKS, b""]:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))

    def do_POST(self) -> None:
        self.do_GET()

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(limit: Limit | None = None, style: HeaderStyle = "draft-11") -> Iterator[Upstream]:
    """Run a server until the end. Whoever called it has closed his connections by then."""
    upstream = Upstream(limit, style)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.upstream = upstream
        upstream.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.002})
        thread.start()
        try:
            yield upstream
        finally:
            server.shutdown()
            thread.join()
