"""A real service in a process of its own, which can be killed, frozen and started again."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
RULES = """
rules:
  - name: search-per-user
    match: {path: /search}
    key: [user]
    limits: 10/minute
  - name: two-limits
    match: {path: /two}
    key: [user]
    limits: [8/minute, 20/day]
  - name: watched
    match: {path: [/search, /two]}
    key: [user]
    limits: 1/day
    mode: shadow
  - name: tokens-per-user
    match: {path: /llm}
    key: [user]
    cost: tokens
    limits: 1000/minute
  - name: asked-per-user
    match: {path: /llm}
    key: [user]
    limits: 500/hour
  - name: exports-at-once
    match: {path: /export}
    key: [user]
    concurrency: {slots: 2, lease: 1s}
  - name: exports-per-user
    match: {path: /export}
    key: [user]
    limits: 5/minute
  - name: nobody
    match: {path: /blocked}
    mode: block
"""


class Served:
    """A service."""

    def __init__(
        self, folder: Path, *settings: str, rules: str = RULES, scheme: str = "http"
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._scheme = scheme
        self.port = free_port()
        self._rules = folder / "rules.yaml"
        self._rules.write_text(rules)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self._scheme}://localhost:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        arguments = [str(self.port), str(self._rules), str(self._folder / "data")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.client.serve", *arguments, *self._settings],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        wait_until(lambda: self.calls() >= 0, 60, ignoring=(OSError, http.client.HTTPException))

    def calls(self) -> int:
        """Return how many calls it was asked, without this one."""
        connection: http.client.HTTPConnection
        if self._scheme == "https":
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection("localhost", self.port, context=context)
        else:
            connection = http.client.HTTPConnection("localhost", self.port, timeout=5)
        try:
            connection.request("GET", "/healthz")
            response = connection.getresponse()
            response.read()
            return int(response.headers["x-calls"]) - 1
        finally:
            connection.close()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@contextmanager
def served(
    folder: Path, *settings: str, rules: str = RULES, scheme: str = "http"
) -> Iterator[Served]:
    """Run a service until the end."""
    service = Served(folder, *settings, rules=rules, scheme=scheme)
    try:
        service.start()
        yield service
    finally:
        service.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
