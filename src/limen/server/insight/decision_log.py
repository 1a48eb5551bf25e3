"""The sampled decision log: one JSON object in a line for each decision, to a file or to stdout.

Several workers may write to one file, and somebody may move it away. Knows not which decisions are
worth a line. Never raises: a disk that is full must not stop a limiter.
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
from limen.observe.recent import Seen

PATIENCE_S = 1.0
"""How long a reader of a pipe, or another writer of the file, may keep us waiting."""

_STDOUT = 1
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
_MODE = 0o600
_WARN_S = 60.0
_ENDS = (b"", b"\n")
"""What a log may end with, for a line to begin there."""


class DecisionLog:
    """Writes decisions to `path`, or for `-` to stdout; keys as `hide` tells them.

    Blocks as long as the disk takes. For one thread at a time.
    """

    def __init__(self, path: str, hide: Hider = plain) -> None:
        self._path = path
        self._hide = hide
        self._fd: int | None = None
        self._is_torn = False
        self._log = SampledLog(_WARN_S)

    def write(self, seen: Sequence[Seen]) -> None:
        """Append decisions, all in one write. What cannot be written is lost, and that is logged.

        Whatever happens, no line is glued to half of another.
        """
        if not seen:
            return
        lines = [self._line(one) for one in seen]
        try:
            fd = self._opened()
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                self._tell(fd, lines)
            elif fd == _STDOUT:
                self._put(fd, b"".join(lines))
            else:
                self._append(fd, b"".join(lines))
        except OSError as error:
            self.close()
            why = error.strerror or type(error).__name__
            self._log.warn(why, f"the decision log {self._shown} cannot be written: {why}")

    def close(self) -> None:
        """Let go of the file. The next write opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):  # of a write before, on some network file systems
                os.close(fd)

    @property
    def _shown(self) -> str:
        return "to stdout" if self._path == "-" else self._path

    def _line(self, seen: Seen) -> bytes:
        at = datetime.fromtimestamp(seen.at, UTC).isoformat(timespec="milliseconds")
        key = None if seen.key is None else self._hide(seen.key)
        # A line break in a text is escaped in JSON.
        return msgspec.json.encode({**msgspec.structs.asdict(seen), "at": at, "key": key}) + b"\n"

    def _opened(self) -> int:
        """Return the file that has the path now: whoever rotates logs moves or deletes it."""
        if self._path == "-":
            return _STDOUT
        if self._fd is not None and not _is_at(self._fd, self._path):
            self.close()
        if self._fd is None:
            self._fd = os.open(self._path, _FLAGS, _MODE)
        return self._fd

    def _append(self, fd: int, written: bytes) -> None:
        # In one call: then the lines of other processes come before or after, not between. The
        # lock is not for that, but to see what the file ends with: without it, a line that
        # another process is about to write would look as if it had been left half.
        with _locked(fd):
            # Who was killed while it wrote, or had no room for all of it, left half a line: this
            # process or another one. It stays, and ends here.
            self._is_torn = _last_byte(fd) not in _ENDS
            self._put(fd, written)

    def _tell(self, fd: int, lines: list[bytes]) -> None:
        """Write to a pipe or a terminal, as long as somebody reads there.

        In pieces that a pipe takes as a whole: several processes may have it.
        """
        end = time.monotonic() + PATIENCE_S
        ready = select.poll()
        ready.register(fd, select.POLLOUT)
        for piece in _pieces(lines, select.PIPE_BUF):
            if not ready.poll(max(end - time.monotonic(), 0.0) * 1_000):
                raise TimeoutError(0, "nobody reads it")
            self._put(fd, piece)

    def _put(self, fd: int, written: bytes) -> None:
        if self._is_torn:
            written = b"\n" + written
        taken = os.write(fd, written)
        if taken:
            self._is_torn = written[taken - 1 : taken] not in _ENDS
        if taken == len(written):
            return
        if self._is_torn:
            # Fails most often, as there is no room: then the next write begins with it.
            os.write(fd, b"\n")
            self._is_torn = False
        raise OSError(0, "only a part of it was taken")


def _is_at(fd: int, path: str) -> bool:
    try:
        there, ours = Path(path).stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _last_byte(fd: int) -> bytes:
    """Return what a file ends with; nothing when it is empty."""
    size = os.fstat(fd).st_size
    return os.pread(fd, 1, size - 1) if size else b""


@contextmanager
def _locked(fd: int) -> Iterator[None]:
    """Have a file for oneself; or not, when who has it is hung, or locks are not to be had."""
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


def _pieces(lines: list[bytes], room: int) -> Iterator[bytes]:
    """Join lines as long as there is room; one that has none by itself comes alone."""
    piece: list[bytes] = []
    length = 0
    for line in lines:
        if piece and length + len(line) > room:
            yield b"".join(piece)
            piece, length = [], 0
        piece.append(line)
        length += len(line)
    if piece:
        yield b"".join(piece)
