"""Files in the data folder: the last good rules, and the last known number of processes.

Each is for a start while the database or Redis is away, and is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import time
from pathlib import Path

from limen.errors import LimenError, StoreError, shown
from limen.rules.stores import Snapshot
from limen.rules.sync.entry import Entry, decode, encode

RULES = "rules.last-good.json"
INSTANCES = "instances"
# Longer than a rolling restart or the drain of a whole fleet takes: the processes that stop last
# must not leave a file that says that there are only a few.
SETTLE_S = 60.0
_NUMBER = re.compile(rb"[1-9][0-9]{0,5}\n?")
_MAX_NUMBER_BYTES = 100
_logger = logging.getLogger("limen")


class LastGood:
    """The last good rules.

    `source` is the identity of the store that the rules come from. The file names it, and its rules
    are used for that store alone. A file without a source, of an earlier limen, is not used.
    """

    def __init__(self, folder: str | Path, source: str) -> None:
        self.path: Path = Path(folder) / RULES
        self._source = source
        self._is_foreign = False

    @property
    def is_usable(self) -> bool:
        """Whether the file can be read and has rules of this source."""
        try:
            entry = self._entry()
        except LimenError:
            return False
        return entry is not None and entry.source == self._source

    def write(self, snapshot: Snapshot) -> None:
        """Keep a rule set. Raises `StoreError` when it cannot be kept."""
        replace(self.path, encode(snapshot, self._source))

    def read(self) -> Entry | None:
        """Return the rules of this source; None without any. Raises `Poisoned` or `StoreError`."""
        entry = self._entry()
        if entry is None or entry.source == self._source:
            return entry
        if not self._is_foreign:
            self._is_foreign = True
            theirs = entry.source or "an unknown source"
            _logger.warning(
                "%s has the rules of %s, not of %s; not used", self.path, theirs, self._source
            )
        return None

    def _entry(self) -> Entry | None:
        written = read_file(self.path)
        return None if written is None else decode(written)


class InstanceFile:
    """The last known number of processes.

    Without it, each process of a fleet that restarts during an outage would take itself for the
    only one, and admit the whole of each limit instead of its share.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path: Path = Path(folder) / INSTANCES
        self._kept: int | None = None
        """The number in the file, as far as this process knows."""
        self._confirmed_at = 0.0
        """When there were last as many processes as the file says, by the monotonic clock."""

    def read(self) -> int:
        """Return the number in the file; 1 without a file.

        Raises `StoreError` when the file cannot be read or holds something else.
        """
        written = read_file(self.path, _MAX_NUMBER_BYTES)
        if written is None:
            return 1
        if not _NUMBER.fullmatch(written):
            raise StoreError(
                f"{self.path} holds {shown(written)}, expected the number of processes, such as 4; "
                "it is replaced when Redis answers"
            )
        return int(written)

    def keep(self, count: int) -> None:
        """Write the number if it has changed: a larger one at once, a smaller one after a minute.

        Raises `StoreError` when the file cannot be written.
        """
        now = time.monotonic()
        if self._kept is None or count >= self._kept:
            self._confirmed_at = now
        elif now < self._confirmed_at + SETTLE_S:
            return
        if count == self._kept:
            return
        written = 0
        with contextlib.suppress(StoreError):
            written = self.read()
        # Another worker of this host may have written it.
        if written != count:
            replace(self.path, b"%d\n" % count)
        self._kept = count


def read_file(path: Path, size: int = -1) -> bytes | None:
    """Return a file, or its first bytes; None without one. Raises `StoreError`."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None


def replace(path: Path, written: bytes, at: float | None = None) -> None:
    """Put a new file in place of another, at once and as a whole; `StoreError` if it cannot be.

    `at` is the time it is said to be written at, if that is not now.
    """
    # A name of its own: several processes of a host, and threads, may write at the same time.
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as file:
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
        if at is not None:
            os.utime(fresh, (at, at))
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
