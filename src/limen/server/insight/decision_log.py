"""The sampled decision log: one JSON object in a line for each decision, to a file or to stdout.

Several workers may write to one file, and a log rotation may move it away. Knows not which
decisions are worth a line. Never raises: a disk that is full must not stop a limiter.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from limen.backends.sampled import SampledLog
from limen.observe.hiding import Hider, plain
from limen.observe.recent import DecisionRecord

PATIENCE_S = 1.0
"""How long the reader of a pipe may keep us waiting."""

_STDOUT = 1
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
_MODE = 0o600
_WARN_S = 60.0


class DecisionLog:
    """Writes decisions to `path`, or for `-` to stdout; keys as `hide` tells them.

    Blocks as long as the disk takes. For one thread at a time.
    """

    def __init__(self, path: str, hide: Hider = plain) -> None:
        self._path = path
        self._hide = hide
        self._fd: int | None = None
        self._log = SampledLog(_WARN_S)

    def write(self, seen: Sequence[DecisionRecord]) -> None:
        """Append decisions. What cannot be written is lost, and that is logged."""
        if not seen:
            return
        try:
            self._write([self._line(one) for one in seen])
        except OSError as error:
            self.close()
            why = error.strerror or type(error).__name__
            shown = "to stdout" if self._path == "-" else self._path
            self._log.warn(why, f"the decision log {shown} cannot be written: {why}")

    def close(self) -> None:
        """Let go of the file. The next write opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):  # of a write before, on some network file systems
                os.close(fd)

    def _line(self, seen: DecisionRecord) -> bytes:
        at = datetime.fromtimestamp(seen.at, UTC).isoformat(timespec="milliseconds")
        key = None if seen.key is None else self._hide(seen.key)
        # A line break in a text is escaped in JSON.
        return msgspec.json.encode({**msgspec.structs.asdict(seen), "at": at, "key": key}) + b"\n"

    def _write(self, lines: list[bytes]) -> None:
        fd = self._opened()
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            self._write_to_reader(fd, lines)
            return
        # The lock is for the check: without it, a line that another process is about to write
        # looks like half a line.
        with _locked(fd):
            if _ends_in_half_a_line(fd):
                lines = [b"\n", *lines]
            _put(fd, b"".join(lines))

    def _write_to_reader(self, fd: int, lines: list[bytes]) -> None:
        """Write each line by itself: a pipe takes one as a whole from each process."""
        end = time.monotonic() + PATIENCE_S
        ready = select.poll()
        ready.register(fd, select.POLLOUT)
        for line in lines:
            if not ready.poll(max(end - time.monotonic(), 0.0) * 1_000):
                raise TimeoutError(0, "nobody reads it")
            _put(fd, line)

    def _opened(self) -> int:
        """Return the file that has the path now: a log rotation moves or deletes it."""
        if self._path == "-":
            return _STDOUT
        if self._fd is not None and not _is_at(self._fd, self._path):
            self.close()
        if self._fd is None:
            self._fd = os.open(self._path, _FLAGS, _MODE)
        return self._fd


def _put(fd: int, data: bytes) -> None:
    if os.write(fd, data) < len(data):
        raise OSError(0, "only a part of it was taken")


@contextmanager
def _locked(fd: int) -> Iterator[None]:
    """Lock a file; go on without the lock if another process keeps it, or there are no locks."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.002)
        except OSError:
            break
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), Path(path).stat())
    except FileNotFoundError:
        return False


def _ends_in_half_a_line(fd: int) -> bool:
    """Return whether a process left half a line: it was killed, or the disk was full."""
    size = os.fstat(fd).st_size
    try:
        return size > 0 and os.pread(fd, 1, size - 1) != b"\n"
    except OSError:  # stdout may be open for writing only
        return False
