"""A crowd of HTTP clients in one process: as many requests as the other side answers.

Each client has a connection of its own, sends a request, waits for the whole answer, and sends the
next. Knows nothing of limen. Run as `python -m bench.load`, it prints what it saw as JSON: in a
process of its own, so that who asks and who answers do not share an interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import cast

import uvloop

_LENGTH = b"content-length: "
_DISTINCT = 20_000
"""How many different heads `--distinct` sends before it repeats them."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a crowd saw."""

    answers: int
    seconds: float
    p50_ms: float
    p99_ms: float
    failed: int
    """Answers that were not 200, and connections that broke."""
    allowed: int
    """Answers that say so."""

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds


class Client(asyncio.Protocol):
    """One connection that asks without a pause."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._buffer = b""
        self._asked_at = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first time."""
        # As they are with uvloop, whose transports are of no class of asyncio.
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Ask again once the answer is whole."""
        self._buffer = data = self._buffer + data if self._buffer else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        at = data.find(_LENGTH, 0, end)
        if at < 0:
            self._crowd.fail()
            return
        length = int(data[at + len(_LENGTH) : data.find(b"\r\n", at)])
        if len(data) < end + 4 + length:
            return
        self._buffer = b""
        self._crowd.answered(time.perf_counter() - self._asked_at, data)
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so, unless it is over."""
        self._crowd.lost()

    def _ask(self) -> None:
        request = self._crowd.next_request()
        assert self._transport is not None
        if request is None:
            self._transport.close()
            return
        self._asked_at = time.perf_counter()
        self._transport.write(request)


class Crowd:
    """All clients together: what they ask, until when, and what they saw."""

    def __init__(self, requests: Sequence[bytes], seconds: float) -> None:
        self._requests = requests
        self._seconds = seconds
        self._starts = self._ends = 0.0
        self._number = self._failed = self._allowed = 0
        self._waits: list[float] = []
        self._open = 0
        self._over = asyncio.Event()

    async def ask(self, host: str, port: int, clients: int) -> Seen:
        """Let the clients ask for a while."""
        loop = asyncio.get_running_loop()
        self._open = clients
        self._starts = time.perf_counter()
        self._ends = self._starts + self._seconds
        for _ in range(clients):
            await loop.create_connection(lambda: Client(self), host, port)
        await self._over.wait()
        waits = sorted(self._waits) or [0.0]
        return Seen(
            len(self._waits),
            time.perf_counter() - self._starts,
            1_000 * waits[len(waits) // 2],
            1_000 * waits[min(len(waits) - 1, len(waits) * 99 // 100)],
            self._failed,
            self._allowed,
        )

    def next_request(self) -> bytes | None:
        """Return what to ask; None when it is over."""
        if time.perf_counter() >= self._ends:
            return None
        self._number += 1
        return self._requests[self._number % len(self._requests)]

    def answered(self, seconds: float, answer: bytes) -> None:
        """Take note of an answer."""
        self._waits.append(seconds)
        if not answer.startswith(b"HTTP/1.1 200 "):
            self._failed += 1
        self._allowed += answer.count(b'"allowed":true,"rule"')

    def fail(self) -> None:
        """Take note of an answer that cannot be read."""
        self._failed += 1

    def lost(self) -> None:
        """Take note of a connection that ended."""
        self._open -= 1
        if time.perf_counter() < self._ends:
            self._failed += 1
        if self._open == 0:
            self._over.set()


def post(path: str, body: bytes, more: str = "") -> bytes:
    """Return a request, with more lines in its head."""
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def trace(number: int) -> str:
    """Return an id and a trace, as lines of a head."""
    parent = f"traceparent: 00-{number:032x}-{number:016x}-01"
    return f"x-request-id: {number:016x}\r\n{parent}\r\n"


def auth(path: str, user: int) -> bytes:
    """Return the request that nginx sends with examples/gateways/nginx.conf, for one address."""
    return (
        "GET /v1/auth?deny_status=403 HTTP/1.1\r\nHost: limen\r\nX-Forwarded-Method: GET\r\n"
        f"X-Forwarded-Uri: {path}\r\nX-Forwarded-Host: shop.example\r\n"
        f"X-Forwarded-For: 10.0.{user // 250}.{user % 250}\r\n\r\n"
    ).encode()


def main() -> None:
    """Ask as the arguments say; print what was seen."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=main.__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--list", type=int, default=0, help="how many questions in one request")
    parser.add_argument("--traced", action="store_true", help="an id and a trace in each request")
    parser.add_argument("--path", default="/api/search", help="the path in the attributes")
    parser.add_argument(
        "--distinct", action="store_true", help="a header with a new value in each request"
    )
    parser.add_argument("--auth", action="store_true", help="GET /v1/auth, as nginx sends it")
    options = parser.parse_args()
    # A later run must not repeat the values of an earlier one.
    first_value = time.time_ns()

    def question(number: int) -> str:
        user = number % options.users
        return f'{{"attributes":{{"user":"{user}","path":"{options.path}","method":"GET"}}}}'

    def request(number: int) -> bytes:
        if options.auth:
            return auth(options.path, number % options.users)
        if not options.list:
            more = trace(number) if options.traced else ""
            more += f"x-sequence: {first_value + number}\r\n" if options.distinct else ""
            return post("/v1/check", question(number).encode(), more)
        first = number * options.list
        questions = ",".join(question(first + each) for each in range(options.list))
        return post("/v1/check", f"[{questions}]".encode())

    # Before they are needed: this process shares the machine with those whom it measures.
    count = max(1, options.users // max(1, options.list))
    count = _DISTINCT if options.distinct else count
    requests = [request(number) for number in range(count)]

    async def run() -> Seen:
        crowd = Crowd(requests, options.seconds)
        return await crowd.ask("127.0.0.1", options.port, options.clients)

    seen = uvloop.run(run())
    json.dump(asdict(seen), sys.stdout)


if __name__ == "__main__":
    main()
