"""A file system of one megabyte that a test can fill."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.clocks import lacking


class Disk:
    """A small tmpfs. Writes to a full one fail with ENOSPC, also for root."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave no room for a single byte."""
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4_096))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink()


@contextmanager
def mounted(path: Path) -> Iterator[Disk]:
    """Mount an empty disk; skip the test where that is not possible."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    ran = subprocess.run(mount, capture_output=True, text=True, check=False)
    if ran.returncode:
        lacking(f"no tmpfs can be mounted here: {ran.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
