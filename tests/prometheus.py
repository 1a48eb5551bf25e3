"""A real Prometheus, and its promtool: from `make test`, or those of the system.

Knows nothing of limen. Where there is none, tests are skipped and say so; in CI they fail.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers import HOST, free_port
from tests.waiting import wait_until

_UNPACKED = Path(sys.prefix) / "opt" / "prometheus" / "usr" / "bin"
_PATIENCE_S = 30.0


def binary(name: str) -> Path:
    """Return where `prometheus` or `promtool` is; skip the test where there is none."""
    if (_UNPACKED / name).exists():
        return _UNPACKED / name
    if found := shutil.which(name):
        return Path(found)
    reason = f"there is no {name} here: `make test` fetches it where apt-get can"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def promtool(*arguments: str | Path, given: str = "") -> str:
    """Run promtool; return all that it says, of which the last line is how it ended."""
    done = subprocess.run(
        [binary("promtool"), *arguments],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return f"{done.stdout}exit {done.returncode}"


class Prometheus:
    """A server that scrapes, and judges alerts."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.port = port
        self._process = process
        self._log = log

    def ask(self, path: str, **query: str) -> Any:
        """Return the data of an answer of its API."""
        url = f"http://{HOST}:{self.port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer).get("data")

    def value(self, expression: str) -> float | None:
        """Return the value of an expression now; None when there is none."""
        found = self.ask("/api/v1/query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        alerts = self.ask("/api/v1/alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def wait(self) -> None:
        """Return when it is ready."""

        def is_ready() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/-/ready", timeout=5):
                return True

        wait_until(is_ready, _PATIENCE_S, ignoring=OSError, details=self._log.read_text)


@contextmanager
def prometheus(folder: Path, config: dict[str, Any]) -> Iterator[Prometheus]:
    """Start one with this configuration, in a folder; end it."""
    program, port, log = binary("prometheus"), free_port(), folder / "log"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        str(program),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={HOST}:{port}",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    try:
        started = Prometheus(port, process, log)
        started.wait()
        yield started
    finally:
        process.terminate()
        try:
            process.wait(10)
        finally:
            process.kill()
            process.wait()
