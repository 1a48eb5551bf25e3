"""WSGI applications on real sockets: under waitress, or the server that Flask brings along."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
from waitress import wasyncore  # type: ignore[import-untyped]  # it has no types
from waitress.server import create_server  # type: ignore[import-untyped]  # it has no types
from werkzeug.serving import WSGIRequestHandler, make_server

from tests.client.services import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
Serve = Callable[[Any], AbstractContextManager[httpx2.Client]]


@contextmanager
def under_waitress(app: Any) -> Iterator[httpx2.Client]:
    """Serve an application; yield a client of it, which follows no redirects."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        opened: dict[int, Any] = {}
        server: Any = create_server(app, map=opened, sockets=[listening], threads=8)
        is_over = threading.Event()

        def run() -> None:
            # Not `server.run()`, which only an exception ends.
            while not is_over.is_set():
                wasyncore.loop(timeout=0.02, map=opened, count=1)
            server.task_dispatcher.shutdown()
            wasyncore.close_all(opened)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            with _client(listening.getsockname()[1]) as client:
                yield client
        finally:
            is_over.set()
            thread.join(20)


class _Silent(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *args: object, **kwargs: object) -> None:
        pass


@contextmanager
def under_werkzeug(app: Any) -> Iterator[httpx2.Client]:
    """Serve an application as `flask run` does, in threads; yield a client of it."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Silent)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        with _client(server.server_port) as client:
            yield client
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()


@contextmanager
def under_command(*command: str) -> Iterator[httpx2.Client]:
    """Run a server in a process of its own until the end; `{port}` is where it shall listen."""
    port = free_port()
    words = [word.format(port=port) for word in command]
    process = subprocess.Popen([sys.executable, "-W", "error", "-m", *words], cwd=ROOT)
    try:
        with _client(port) as client:
            wait_until(lambda: _answers(port) or process.poll() is not None, 60)
            assert process.poll() is None
            yield client
    finally:
        process.kill()
        process.wait(10)


def statuses(client: httpx2.Client, count: int, path: str = "/", **more: Any) -> list[int]:
    return [client.get(path, **more).status_code for _ in range(count)]


def _client(port: int) -> httpx2.Client:
    return httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
