"""The last good rules, in a file: for a start without a database and without a cache."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from limen.errors import StoreError
from limen.rules.stores import Snapshot
from limen.rules.sync.entry import Entry, decode, encode

NAME = "rules.last-good.json"


class LastGood:
    """One file in the data folder, replaced as a whole."""

    def __init__(self, folder: str | Path) -> None:
        self.path: Path = Path(folder) / NAME

    def write(self, snapshot: Snapshot) -> None:
        """Keep a rule set. Raises `StoreError` when it cannot be kept."""
        replace(self.path, encode(snapshot))

    def read(self) -> Entry | None:
        """Return what was kept; None without a file. Raises `Poisoned`, or `StoreError`."""
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
