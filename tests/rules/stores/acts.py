"""What tests do to a store, one thing after the other."""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from limen.rules.stores.sql import SqlStore, StoredRuleSet
from tests.rules.stores.work import document

run = asyncio.run
FIRST, SECOND, THIRD = (document(a=limit) for limit in ("1/day", "2/day", "3/day"))


def save(store: SqlStore, *documents: dict[str, Any], **options: Any) -> StoredRuleSet:
    """Save one after the other; return the last."""
    options = {"author": "ann", "base": None, **options}
    return [run(store.save(each, **options)) for each in documents][-1]


def execute(store: SqlStore, *statements: str) -> None:
    """Change the tables past the store."""

    async def work(connection: AsyncConnection) -> None:
        for statement in statements:
            await connection.execute(text(statement))

    run(store._database.write(work))


def written(store: SqlStore) -> tuple[int, int, str]:
    """Return how much there is: versions, audit rows, and which version is active."""
    return len(run(store.history())), len(run(store.audit())), run(store.version())
