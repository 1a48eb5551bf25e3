"""The audit of the kill switch: rows that are written behind the response, one at a time.

The kill switch takes effect without the database. Its audit rows wait in a queue, and one task
writes them in their order, so that a slow database holds one connection. A row is tried again until
it is written; after a connection that broke during the commit it can be in the audit twice. A row
that is given up is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime
from typing import Protocol

from msgspec import Struct

from limen.errors import LimenError, StoreError
from limen.rules.stores.records import valid_author, valid_comment, valid_subject
from limen.rules.stores.sql import SqlStore

MAX_ROWS = 1_000
"""How many rows wait at a time."""
_RETRY_S = 0.5
_CLOSE_S = 2.0
_logger = logging.getLogger("limen.server")


class PendingRow(Struct, frozen=True):
    """One use of the kill switch that is not in the audit yet."""

    subject: str
    """The new state: `on for all rules`."""
    actor: str
    comment: str
    at: datetime
    """The time of the action, in UTC."""


def pending_row(subject: str, actor: str, comment: str) -> PendingRow:
    """Return a row with the present time. Raises `InvalidInput` for a text that cannot be kept."""
    return PendingRow(
        valid_subject(subject), valid_author(actor), valid_comment(comment), datetime.now(UTC)
    )


class NoteWrite(Protocol):
    """A function that notes whether the database took a write."""

    def __call__(self, *, succeeded: bool) -> None:
        """Note one attempt."""


class AuditWriter:
    """The queue of rows, and the one task of the process that writes them."""

    def __init__(self, books: SqlStore, note_write: NoteWrite, max_rows: int = MAX_ROWS) -> None:
        """Start nothing yet. `note_write` is called after each attempt."""
        self._books = books
        self._note_write = note_write
        self._max_rows = max_rows
        self._rows: deque[tuple[PendingRow, asyncio.Future[bool]]] = deque()
        """The first row is the one that is being written."""
        self._task: asyncio.Task[None] | None = None

    async def write(self, row: PendingRow, wait_s: float) -> bool:
        """Queue a row; return whether it was written within `wait_s` seconds.

        A row that was not is still written later, unless the queue is full.
        """
        if len(self._rows) >= self._max_rows:
            _log_dropped(row, f"{self._max_rows:,} rows are waiting already")
            return False
        written = asyncio.get_running_loop().create_future()
        self._rows.append((row, written))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all())
        await asyncio.wait([written], timeout=wait_s)
        return written.done() and written.result()

    async def close(self) -> None:
        """Write the rows that wait, for 2 seconds at most; log those that are left."""
        try:
            if self._task is not None:
                await asyncio.wait([self._task], timeout=_CLOSE_S)
        finally:
            # Logged before the task ends: a transaction of SQLite ends only with its lock timeout.
            for row, _ in self._rows:
                _log_dropped(row, "the service stops, and has no confirmation from the database")
            self._rows.clear()
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)

    async def _write_all(self) -> None:
        while self._rows:
            row, written = self._rows[0]
            is_written = await self._write(row)
            self._rows.popleft()
            written.set_result(is_written)

    async def _write(self, row: PendingRow) -> bool:
        """Write a row, however long the database is away. Return False for a row given up."""
        has_failed = False
        while True:
            try:
                await self._books.record(
                    "kill-switch", row.subject, row.actor, row.comment, at=row.at
                )
            except StoreError as error:
                if not has_failed:
                    _logger.warning("the audit of the kill switch waits: %s", error)
                has_failed = True
                self._note_write(succeeded=False)
                await asyncio.sleep(_RETRY_S)
            except LimenError as error:
                _log_dropped(row, str(error))
                return False
            else:
                self._note_write(succeeded=True)
                return True


def _log_dropped(row: PendingRow, reason: str) -> None:
    _logger.error(
        "the audit may lack a row: kill switch %s at %s by %s, comment %r: %s",
        row.subject,
        row.at.isoformat(timespec="seconds"),
        row.actor,
        row.comment,
        reason,
    )
