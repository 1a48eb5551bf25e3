"""Tiny apps, and a process that serves them: `python -m tests.server.apps '{"workers": 2}'`.

What the process is told, and what it prints, is in `Asked`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from limen.errors import ConfigurationError, LimenError
from limen.server.protocol import Limits
from limen.server.serve import Hooks, Tls, bind, serve
from limen.server.supervise import parent, supervise

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Asked(msgspec.Struct):
    limits: Limits = Limits(drain_timeout=5.0)
    tls: list[str] = []
    workers: int = 0
    """0 is one process, without a parent."""
    ready_timeout: float = 10.0
    stop_timeout: float = 10.0
    start: str = ""
    """What goes wrong at the start: `factory`, `lifespan`, `said`, `bug`, `hang`, `returns`."""
    start_file: str = ""
    """A file that says so instead, if it is there."""
    stop: str = ""
    """What goes wrong at the end: `bug`, `hang`."""


class App:
    """Answers by the path; remembers what it was told."""

    def __init__(self, asked: Asked | None = None) -> None:
        self.asked = asked or Asked()
        self.seen: list[str] = []
        self.go_on = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        name, _, rest = scope["path"][1:].partition("/")
        await getattr(self, f"do_{name or 'hello'}")(scope, rest, receive, send)

    async def do_hello(self, scope: dict[str, Any], _: str, receive: Receive, send: Send) -> None:
        await _answer(send, str(os.getpid()).encode())

    async def do_echo(self, scope: dict[str, Any], _: str, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            self.seen.append(message["type"])
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        names = b",".join(name for name, _ in scope["headers"])
        await _answer(send, body, headers=[(b"x-names", names)])

    async def do_sleep(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        self.seen.append("sleeps")
        await asyncio.sleep(float(rest))
        await _answer(send, b"slept")

    async def do_until(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        """Answer when there is a file."""
        while not Path("/", rest).exists():  # noqa: ASYNC110, ASYNC240  # another process makes it
            await asyncio.sleep(0.02)
        await _answer(send, b"slept")

    async def do_late(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        """Read the body only when told to."""
        self.seen.append("waits")
        await self.go_on.wait()
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message["body"]), message["more_body"]
        await _answer(send, str(size).encode())

    async def do_early(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        await _answer(send, b"too much", 413)

    async def do_begin(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        """Begin to answer; then wait until told to go on, or the body is there."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        if rest == "body":
            message = await receive()
            self.seen.append(message["type"])
        if rest == "bug":
            raise RuntimeError("hidden")
        await self.go_on.wait()
        await send({"type": "http.response.body", "body": b", done"})

    async def do_big(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(int(rest)):
            await send({"type": "http.response.body", "body": bytes(65_536), "more_body": True})
        await send({"type": "http.response.body"})
        message = await receive()
        self.seen.append(message["type"])

    async def do_watch(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        """Never answer; see when the client goes."""
        while (await receive())["type"] != "http.disconnect":
            self.seen.append("watches")
        self.seen.append("gone")

    async def do_bug(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        raise RuntimeError("hidden")

    async def do_headed(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        """Say that all is well, and then do something else."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if rest:
            raise RuntimeError("hidden")

    async def do_nothing(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        pass

    async def do_cancelled(self, _: object, rest: str, receive: Receive, send: Send) -> None:
        raise asyncio.CancelledError

    async def _live(self, receive: Receive, send: Send) -> None:
        asked = self.asked
        await receive()
        if asked.start == "lifespan":
            raise ConfigurationError("the store at redis://ann:s3cret@host is away")
        if asked.start == "bug":
            raise RuntimeError("a thing\nof two lines")
        if asked.start == "said":
            await send({"type": "lifespan.startup.failed", "message": "said so"})
            return
        if asked.start == "returns":
            return
        if asked.start == "hang":
            sys.stdout.write("hangs\n")
            sys.stdout.flush()
            await asyncio.Event().wait()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if asked.stop == "bug":
            raise RuntimeError("no end")
        if asked.stop == "hang":
            sys.stdout.write("hangs\n")
            sys.stdout.flush()
            await asyncio.Event().wait()
        sys.stdout.write("ended\n")
        sys.stdout.flush()
        await send({"type": "lifespan.shutdown.complete"})


async def _answer(
    send: Send, body: bytes, status: int = 200, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    found = [(b"content-length", str(len(body)).encode()), *(headers or [])]
    await send({"type": "http.response.start", "status": status, "headers": found})
    await send({"type": "http.response.body", "body": body})


def main(told: str) -> int:
    asked = msgspec.json.decode(told, type=Asked)
    file = Path(asked.start_file)
    if asked.start_file and file.exists():
        asked.start = file.read_text()
    above = parent()
    listeners = above.listeners if above is not None else [bind("127.0.0.1", 0)]
    if above is None:
        _print(f"port {listeners[0].getsockname()[1]}")
    if asked.workers and above is None:
        return supervise(
            [sys.executable, "-m", "tests.server.apps", told],
            listeners,
            asked.workers,
            ready_timeout=asked.ready_timeout,
            stop_timeout=asked.stop_timeout,
        )
    hooks = Hooks(
        ready=lambda: _print(f"ready {os.getpid()}"),
        signals={signal.SIGHUP: lambda: _print("hup"), signal.SIGUSR1: lambda: _print("usr1")},
    )

    def make() -> App:
        if asked.start == "factory":
            raise ConfigurationError("no such store")
        return App(asked)

    tls = Tls(*asked.tls) if asked.tls else None
    return serve(make, listeners, asked.limits, tls=tls, parent=above, hooks=hooks)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except LimenError as error:
        sys.exit(f"limen: {error}")
