"""The audit of the kill switch: rows that are written behind the response, one at a time.

The kill switch takes effect without the database. Its audit rows wait in a queue, and are
written in their order, so that a slow database holds one connection. A row is tried again until
it is written; after a connection that broke during the commit it can be in the audit twice. A row
that is given up is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

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


class AuditWriter:
    """The rows that wait, and the tasks that write them one after the other."""

    def __init__(
        self, books: SqlStore, note_write: Callable[..., object], max_rows: int = MAX_ROWS
    ) -> None:
        """Start nothing yet. `note_write(succeeded=...)` is called after each attempt."""
        self._books = books
        self._note_write = note_write
        self._max_rows = max_rows
        self._rows: dict[asyncio.Task[bool], PendingRow] = {}
        self._lock = asyncio.Lock()
        """Held while a row is written; tasks get it in the order in which they ask for it."""

    async def write(self, row: PendingRow, wait_s: float) -> bool:
        """Queue a row; return whether it was written within `wait_s` seconds.

        A row that was not is still written later, unless the queue is full.
        """
        if len(self._rows) >= self._max_rows:
            _log_dropped(row, f"{self._max_rows:,} rows are waiting already")
            return False
        task = asyncio.create_task(self._write(row))
        self._rows[task] = row
        task.add_done_callback(self._rows.pop)
        await asyncio.wait([task], timeout=wait_s)
        return task.done() and not task.cancelled() and task.result()

    async def close(self) -> None:
        """Write the rows that wait, for 2 seconds at most; log those that are left."""
        try:
            if self._rows:
                await asyncio.wait(list(self._rows), timeout=_CLOSE_S)
        finally:
            tasks = list(self._rows)
            # Logged before the tasks end: a transaction of SQLite ends only with its lock timeout.
            for task in tasks:
                reason = "the service stops, and has no confirmation from the database"
                _log_dropped(self._rows[task], reason)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, row: PendingRow) -> bool:
        """Write a row, however long the database is away. Return False for a row given up."""
        async with self._lock:
            return await self._write_now(row)

    async def _write_now(self, row: PendingRow) -> bool:
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
