"""Clocks that can be set, for a server or for a process of Python; the machine's own is left alone.

A small library is built by the C compiler and preloaded: see `clock_shim.c`. Only the time of day
is another; what is measured by a monotonic clock is not touched. Where there is no compiler, the
test is skipped and says so; in CI, where the environment has CI, it fails instead. Works with
Valkey's wheel and with every Redis in `servers`.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import NoReturn

import pytest

_SOURCE = Path(__file__).with_name("clock_shim.c")
VARIABLE = "LIMEN_CLOCK"
"""The variable that names the clock of a process."""


def lacking(reason: str) -> NoReturn:
    """Skip the test, for what it needs is not here; in CI fail it: nothing is left out there."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; in CI it has to be there")
    pytest.skip(reason)


class Clock:
    """The clock of those that are started under it. Each reads it in a file, at every look."""

    def __init__(self, folder: Path, name: str = "clock") -> None:
        """Make a clock that tells the true time, with its files in `folder`."""
        self._library = _build(folder)
        self.path = folder / name
        self.path.write_bytes(bytes(8))

    @property
    def environ(self) -> dict[str, str]:
        """What the environment of a process under this clock has more than others'."""
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(self.path)}

    def under(self, binary: Path) -> Path:
        """Return a program that starts `binary` under this clock, with the same arguments."""
        script = self.path.with_name(f"{self.path.name}-{binary.name}")
        words = [f"{name}='{value}'" for name, value in self.environ.items()]
        script.write_text(f'#!/bin/sh\nexec env {" ".join(words)} "{binary}" "$@"\n')
        script.chmod(0o700)
        return script

    @property
    def ahead(self) -> float:
        """By how many seconds it is ahead of the true time. Set it, and it jumps."""
        return _seconds(self.path.read_bytes())

    @ahead.setter
    def ahead(self, seconds: float) -> None:
        set_clock(self.path, seconds)


def set_clock(path: Path, seconds: float) -> None:
    """Let the clock at `path` be so far ahead; return when nobody goes by the old time any more."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as mapped:
        mapped[:] = struct.pack("=q", round(seconds * 1e6))
    # Valkey looks at the clock once a millisecond, and counts on from there.
    time.sleep(0.01)


def _seconds(data: bytes) -> float:
    (ahead_us,) = struct.unpack("=q", data)
    return float(ahead_us / 1e6)


def _build(folder: Path) -> Path:
    """Compile the library, unless another clock in the same folder has done so."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        lacking("a clock that can be set needs a C compiler (cc)")
    library = folder / "clock_shim.so"
    if not library.exists():
        options = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([compiler, *options, "-o", library, _SOURCE], check=True)
    return library
