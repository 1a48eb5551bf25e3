"""The product itself: `limen serve` as a process, asked over its socket, ended by its id."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.server.raw import Raw, Response, request
from tests.waiting import wait_until

_ADDRESS = re.compile(r"serves at http://127\.0\.0\.1:(\d+)")
_ADMIN = re.compile(r"dashboard +http://127\.0\.0\.1:(\d+)/")
_GRPC = re.compile(r"gRPC +127\.0\.0\.1:(\d+)")
_CONTROL_PATHS = ("/admin", "/metrics", "/docs", "/openapi.json", "/session", "/ui")


class Product:
    """`limen serve`, what it says, and its workers."""

    def __init__(self, folder: Path, *flags: str, **settings: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.environment = environment(**settings)
        free = "127.0.0.1:0"
        anywhere = ("--bind", free, "--grpc-bind", free, "--admin-bind", free)
        command = [sys.executable, "-m", "limen", "serve", *anywhere, *flags]
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
        )
        self.said: list[str] = []
        self.complained: list[str] = []
        streams = ((self._process.stdout, self.said), (self._process.stderr, self.complained))
        self._listeners = [threading.Thread(target=_listen, args=each) for each in streams]
        for listener in self._listeners:
            listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        """The port of the data plane, from the start message."""
        return self._printed(_ADDRESS)

    @property
    def admin_port(self) -> int:
        """The port of the control plane, from the start message."""
        return self._printed(_ADMIN)

    @property
    def grpc_port(self) -> int:
        """The port of gRPC, from the start message."""
        return self._printed(_GRPC)

    def port_of(self, path: str) -> int:
        """Return the port of the plane that has a path."""
        return self.admin_port if is_control_path(path) else self.port

    def _printed(self, port: re.Pattern[str]) -> int:
        wait_until(lambda: bool(port.search("".join(self.said))) or self.has_ended)
        match = port.search("".join(self.said))
        assert match, f"it ended, and said {self.said}, {self.complained}"
        return int(match[1])

    @property
    def workers(self) -> list[int]:
        """The ids of its processes, but for its own."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(each) for each in children.read_text().split()] if children.exists() else []

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask(
        self,
        path: str,
        *headers: str,
        method: str = "GET",
        body: Any = None,
        port: int | None = None,
    ) -> Response:
        """Send a request on a new connection, by default to the plane that has the path."""
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        if port is None:
            port = self.port_of(path)
        with Raw(port, timeout=30) as connection:
            connection.send(request(path, *headers, method=method, body=raw))
            return connection.response(is_head=method == "HEAD")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def code(self, seconds: float = 30) -> int:
        """Wait for the end; return the exit code, when all has been said."""
        code = self._process.wait(seconds)
        for listener in self._listeners:
            listener.join(10)
        return code

    def end(self) -> None:
        """Kill it, if it still runs. Its workers end when their parent has gone."""
        workers = self.workers
        if not self.has_ended:
            self._process.kill()
            self._process.wait(10)
        wait_until(lambda: not any(map(_is_there, workers)))
        for listener in self._listeners:
            listener.join(10)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


@contextmanager
def product(folder: Path, *flags: str, **settings: str) -> Iterator[Product]:
    """Start it; kill it at the end, if it still runs."""
    made = Product(folder, *flags, **settings)
    try:
        yield made
    finally:
        made.end()


def is_control_path(path: str) -> bool:
    """Return whether the control plane has a path, and the data plane does not."""
    return path == "/" or path.startswith(_CONTROL_PATHS)


def environment(**settings: str) -> Mapping[str, str]:
    """Return the environment with these settings and no others."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("LIMEN_")}
    return own | {f"LIMEN_{name.upper()}": value for name, value in settings.items()}


def _is_there(pid: int) -> bool:
    try:
        return " limen " in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return False


def _listen(stream: Any, lines: list[str]) -> None:
    lines.extend(stream)  # each as it comes
