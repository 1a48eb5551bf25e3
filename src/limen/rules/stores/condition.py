"""The condition of a database: the version of its tokens, and whether it accepts changes.

It is found out by reading, so it can be asked for every second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from msgspec import Struct
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from limen.rules.stores.faults import NotPrepared, newer_schema
from limen.rules.stores.tables import SCHEMA, STATE


class Obstacle(Struct, frozen=True):
    """The reason why a database accepts no changes."""

    kind: Literal["schema", "read-only"]
    """`schema`: a newer limen made the tables. `read-only`: the server or the file is."""
    reason: str
    """For the log: what was found, and how to fix it."""


class Condition(Struct, frozen=True):
    """One look at a database."""

    tokens: int
    """Grows with every change to the tokens."""
    obstacle: Obstacle | None
    """None when the database accepts changes, as far as can be seen without one."""


async def look(connection: AsyncConnection) -> Condition:
    """Return the condition of a database. Raises `NotPrepared`. One query, which writes nothing."""
    columns = [
        select(STATE.c.tokens).scalar_subquery().label("tokens"),
        select(SCHEMA.c.version_num).scalar_subquery().label("revision"),
    ]
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql:
        columns.append(func.pg_is_in_recovery().label("is_standby"))
        columns.append(func.current_setting("transaction_read_only").label("read_only"))
    row = (await connection.execute(select(*columns))).one()
    if row.tokens is None:
        raise NotPrepared
    obstacle = None
    if error := newer_schema(row.revision):
        obstacle = Obstacle("schema", str(error))
    elif is_postgresql and row.is_standby:
        reason = "the server is a standby; use the address of the primary"
        obstacle = Obstacle("read-only", reason)
    elif is_postgresql and row.read_only == "on":
        obstacle = Obstacle("read-only", "default_transaction_read_only is on; turn it off")
    return Condition(int(row.tokens), obstacle)


def file_obstacle(path: Path) -> Obstacle | None:
    """Return the reason why a file of SQLite cannot be written; None when it can, or is missing."""
    try:
        path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        pass  # of a folder on the way; `access` says the same
    # SQLite also writes files beside it, for which it needs the folder.
    for each in (path, path.parent):
        if not os.access(each, os.W_OK):
            reason = f"this user cannot write {each}; allow it, or mount it writable"
            return Obstacle("read-only", reason)
    return None
