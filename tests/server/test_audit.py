"""The queue of audit rows, over a real SQLite that another process has locked."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from limen.rules.stores.sql import SqlStore
from limen.server.worker.audit import AuditWriter, pending_row


def note_write(*, succeeded: bool) -> None:
    pass


def test_logs_a_row_that_a_full_queue_does_not_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rules.db"

    async def run() -> None:
        books = SqlStore(f"sqlite:///{path}", busy_timeout=0.1)
        await books.prepare()
        writer = AuditWriter(books, note_write, max_rows=2)
        with closing(sqlite3.connect(path)) as database:
            database.execute("BEGIN IMMEDIATE")
            for number in (1, 2, 3):
                row = pending_row("on for all rules", "ann", f"comment {number}")
                assert not await writer.write(row, wait_s=0.01)
        await writer.close()
        rows = await books.audit()
        assert [row.comment for row in rows] == ["comment 2", "comment 1"]
        await books.close()

    asyncio.run(run())
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "on for all rules" in line
    assert "by ann, comment 'comment 3': 2 rows are waiting already" in line
