"""`limen serve` as a user starts it: a process of its own, on a free port, ended by its id."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.servers import free_port
from tests.waiting import wait_until

_PATIENCE_S = 20.0


class Running:
    """A service that runs in a folder of its own. What it prints is in `out` and `err` there."""

    def __init__(
        self, folder: Path, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.port, self.admin_port = free_port(), free_port()
        self._command = [
            *(sys.executable, "-m", "limen", "serve", "--bind", f"127.0.0.1:{self.port}"),
            *("--grpc-bind", "", "--admin-bind", f"127.0.0.1:{self.admin_port}"),
            *arguments,
        ]
        clean = {name: of for name, of in os.environ.items() if not name.startswith("LIMEN_")}
        self._environ = {**clean, **(environ or {})}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    @property
    def printed(self) -> str:
        """What it has said so far, on both streams."""
        return "".join((self.folder / name).read_text() for name in ("out", "err"))

    def __enter__(self) -> Self:
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                self._command, cwd=self.folder, env=self._environ, stdout=out, stderr=err
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(_PATIENCE_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()

    def _wait(self) -> None:
        assert self.process is not None
        process = self.process

        def is_ready() -> bool:
            assert process.poll() is None, self.printed
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5):
                return True

        wait_until(is_ready, _PATIENCE_S, ignoring=OSError, details=lambda: self.printed)
