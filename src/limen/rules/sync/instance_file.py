"""The last known number of processes, in a file: for a start while Redis is away.

Without it, each process of a fleet that restarts during an outage would take itself for the only
one, and admit the whole of each limit instead of its share.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from limen.errors import StoreError, shown
from limen.rules.sync.last_good import replace

NAME = "instances"
_NUMBER = re.compile(rb"[1-9][0-9]{0,5}\n?")
_MAX_BYTES = 100
# Longer than a rolling restart or the drain of a whole fleet takes: the processes that stop last
# must not leave a file that says that there are only a few.
SETTLE_S = 60.0


class InstanceFile:
    """One file in the data folder, replaced as a whole, and only when the number changes."""

    def __init__(self, folder: str | Path) -> None:
        self.path: Path = Path(folder) / NAME
        self._kept: int | None = None
        """The number in the file, as far as this process knows."""
        self._confirmed_at = 0.0
        """When there were last as many processes as the file says, by the monotonic clock."""

    def read(self) -> int:
        """Return the number in the file; 1 without a file.

        Raises `StoreError` when the file cannot be read or holds something else.
        """
        try:
            with self.path.open("rb") as file:
                written = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return 1
        except OSError as error:
            raise StoreError(f"{self.path} cannot be read: {error.strerror}") from None
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
        # Another worker of this host may have written it.
        if not self._says(count):
            replace(self.path, b"%d\n" % count)
        self._kept = count

    def _says(self, count: int) -> bool:
        try:
            return self.read() == count
        except StoreError:
            return False
