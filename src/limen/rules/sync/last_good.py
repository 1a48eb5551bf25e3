"""The last good rules, in a file: for a start without a database and without a cache."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from pathlib import Path

from limen.errors import LimenError, StoreError
from limen.rules.stores import Snapshot
from limen.rules.sync.entry import Entry, decode, encode

NAME = "rules.last-good.json"
_logger = logging.getLogger("limen")


class LastGood:
    """One file in the data folder, replaced as a whole.

    `source` is the identity of the store that the rules come from. The file names it, and its rules
    are used for that store alone. A file without a source, of an earlier limen, is not used.
    """

    def __init__(self, folder: str | Path, source: str) -> None:
        self.path: Path = Path(folder) / NAME
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
        try:
            return decode(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror}") from None


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
