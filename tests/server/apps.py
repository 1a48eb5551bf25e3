"""A tiny handler and its program, and a process: `python -m tests.server.apps '{"workers": 2}'`.

`Asked` lists the options of the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from limen.errors import ConfigurationError, LimenError
from limen.server.http import HttpConnections, HttpLimits, Request, Response
from limen.server.process.listen import Tls, bind
from limen.server.process.server import Server, Site, serve
from limen.server.process.supervisor import parent, supervise


class Asked(msgspec.Struct):
    limits: HttpLimits = HttpLimits(drain_timeout=5.0)
    tls: list[str] = []
    workers: int = 0
    """0 is one process, without a parent."""
    ready_timeout: float = 10.0
    stop_timeout: float = 10.0
    start: str = ""
    """The fault at the start: `refused`, `start`, `bug`, `hang`."""
    start_file: str = ""
    """A file that contains the fault instead, if it exists."""
    stop: str = ""
    """The fault at the end: `bug`, `hang`."""


class App:
    """A handler that responds by the path, and records its calls."""

    def __init__(self, begun: Callable[[], None] = lambda: None) -> None:
        self.seen: list[str] = []
        self.go_on = asyncio.Event()
        self._begun = begun
        """Called when a request begins that takes a while."""

    def begin(self, request: Request) -> Response | None:
        request.route, _, argument = request.path[1:].partition("/")
        request.id = argument
        if request.route == "refused":
            return Response(403, [], b"refused")
        if request.route == "begin_bug":
            raise RuntimeError("hidden")
        request.route = getattr(self, f"do_{request.route or 'hello'}", None)
        return Response(404, []) if request.route is None else None

    def too_large(self, request: Request) -> Response:
        return Response(413, [], b"too large")

    async def respond(self, request: Request) -> Response:
        response: Response = await request.route(request)
        return response

    async def do_hello(self, request: Request) -> Response:
        return Response(200, [], str(os.getpid()).encode())

    async def do_echo(self, request: Request) -> Response:
        self.seen.append("echo")
        names = b",".join([name for name, _ in request.headers])
        return Response(200, [(b"x-names", names)], request.body)

    async def do_sleep(self, request: Request) -> Response:
        self.seen.append("sleeps")
        self._begun()
        await asyncio.sleep(float(request.id))
        self.seen.append("slept")
        return Response(200, [], b"slept")

    async def do_until(self, request: Request) -> Response:
        """Respond when a file exists."""
        self._begun()
        while not Path("/", request.id).exists():  # noqa: ASYNC110, ASYNC240  # another process
            await asyncio.sleep(0.02)
        return Response(200, [], b"slept")

    async def do_late(self, request: Request) -> Response:
        """Respond when the test says so."""
        self.seen.append("waits")
        await self.go_on.wait()
        return Response(200, [], b"late")

    async def do_big(self, request: Request) -> Response:
        """Respond with so many KiB."""
        self.seen.append("big")
        return Response(200, [], bytes(1_024 * int(request.id)))

    async def do_bug(self, request: Request) -> Response:
        raise RuntimeError("hidden")

    async def do_cancelled(self, request: Request) -> Response:
        raise asyncio.CancelledError


class TinyProgram:
    """A program with faults at its start and its end."""

    def __init__(self, asked: Asked, listeners: Sequence[socket.socket]) -> None:
        self._asked = asked
        self._listeners = listeners

    async def start(self) -> list[Server]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, _print, "usr1")
        match self._asked.start:
            case "refused":
                raise ConfigurationError("no such store")
            case "start":
                raise ConfigurationError("the store at redis://ann:s3cret@host is away")
            case "bug":
                raise RuntimeError("a thing\nof two lines")
            case "hang":
                _print("hangs")
                await asyncio.Event().wait()
            case "linger":  # a thread outlives the failed start
                threading.Thread(target=time.sleep, args=(60,)).start()
                raise ConfigurationError("no such store")
        limits = self._asked.limits
        tls = Tls(*self._asked.tls) if self._asked.tls else None
        connections = HttpConnections(App(lambda: _print("begun")), limits)
        return [Site(listener, connections, limits, tls) for listener in self._listeners]

    async def close(self) -> None:
        if self._asked.stop == "bug":
            raise RuntimeError("no end")
        if self._asked.stop == "hang":
            _print("hangs")
            await asyncio.Event().wait()
        _print("ended")


def main(told: str) -> int:
    asked = msgspec.json.decode(told, type=Asked)
    file = Path(asked.start_file)
    if asked.start_file and file.exists():
        asked.start = file.read_text()
    above = parent()
    listeners = above.listeners if above is not None else {"data": bind("127.0.0.1", 0)}
    if above is None:
        _print(f"port {listeners['data'].getsockname()[1]}")
    if asked.workers and above is None:
        return supervise(
            [sys.executable, "-m", "tests.server.apps", told],
            listeners,
            asked.workers,
            ready_timeout=asked.ready_timeout,
            stop_timeout=asked.stop_timeout,
        )
    _print_information()
    program = TinyProgram(asked, list(listeners.values()))
    return serve(program, parent=above, on_ready=lambda: _print(f"ready {os.getpid()}"))


def _print_information() -> None:
    """Let information that is logged go to stdout; warnings and errors go to stderr."""
    information, errors = logging.StreamHandler(sys.stdout), logging.StreamHandler(sys.stderr)
    information.addFilter(lambda record: record.levelno < logging.WARNING)
    errors.setLevel(logging.WARNING)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[information, errors])


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except LimenError as error:
        sys.exit(f"limen: {error}")
