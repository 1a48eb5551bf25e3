"""Servers of `tests.server.apps` as processes, ended by their ids."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.server.raw import Raw
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


class Process:
    """A server, or the parent of several, and what it says."""

    def __init__(self, **asked: Any) -> None:
        command = [sys.executable, "-m", "tests.server.apps", json.dumps(asked)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: list[str] = []
        self.complained: list[str] = []
        self._listeners = [
            threading.Thread(target=self._listen, args=(self._process.stdout, self.said)),
            threading.Thread(target=self._listen, args=(self._process.stderr, self.complained)),
        ]
        for listener in self._listeners:
            listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self.line("port ").split()[1])

    @property
    def ready(self) -> list[int]:
        """The ids of the workers that have got ready, in that order."""
        return [int(line.split()[1]) for line in self.said if line.startswith("ready ")]

    def line(self, start: str) -> str:
        """Wait for a line that begins so; return it."""
        wait_until(lambda: any(line.startswith(start) for line in self.said) or self.has_ended)
        found = [line for line in self.said if line.startswith(start)]
        assert found, f"it ended, and said {self.said}, {self.complained}"
        return found[0]

    def start(self, workers: int = 1) -> Process:
        """Wait until so many workers are ready."""
        wait_until(lambda: len(self.ready) >= workers or self.has_ended)
        assert len(self.ready) >= workers, self.complained
        return self

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def code(self, seconds: float = 15) -> int:
        """Wait for the end; return the exit code, when all has been said."""
        code = self._process.wait(seconds)
        for listener in self._listeners:
            listener.join(10)
        return code

    def raw(self) -> Raw:
        return Raw(self.port)

    def end(self) -> None:
        """Kill it, and the workers it has left behind."""
        if not self.has_ended:
            self._process.kill()
            self._process.wait(10)
        for pid in self.ready:
            if is_worker(pid):
                os.kill(pid, signal.SIGKILL)
        for listener in self._listeners:
            listener.join(10)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _listen(self, stream: Any, lines: list[str]) -> None:
        lines.extend(line.rstrip("\n") for line in stream)


def is_worker(pid: int) -> bool:
    """Say whether a process of ours runs under this id."""
    found = subprocess.run(
        ["ps", "-o", "stat=,args=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return "tests.server.apps" in found.stdout and not found.stdout.startswith("Z")


@contextmanager
def process(**asked: Any) -> Iterator[Process]:
    made = Process(**asked)
    try:
        yield made
    finally:
        made.end()
