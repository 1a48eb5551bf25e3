"""Brings the tables of rules up to date: Alembic's steps, inside a transaction of the caller's.

Alembic's own `env.py` works through variables of its modules, which two stores in one process
would share. Here each step is handed what it works on, so there is no `env.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from limen.rules.stores.faults import newer_schema
from limen.rules.stores.tables import REVISIONS, SCHEMA

VERSION_TABLE = SCHEMA.name
_FOLDER = Path(__file__).with_name("migrations")


def age(connection: Connection) -> Literal["none", "old", "current"]:
    """Return whether there are tables, and of which limen. Raises `NewerSchema` for a newer one."""
    revision = _revision(_context(connection))
    if revision is None:
        return "none"
    return "current" if revision == REVISIONS[-1] else "old"


def upgrade(connection: Connection, target: str = "head") -> None:
    """Run the steps that are missing, up to a revision. All of them, or none, as the caller ends.

    Raises `NewerSchema` for tables of a newer limen, and touches nothing.
    """
    steps, context = ScriptDirectory(str(_FOLDER)), _context(connection)
    revision = _revision(context)
    for step in reversed(list(steps.iterate_revisions(target, revision))):
        step.module.upgrade(Operations(context))
        context.stamp(steps, step.revision)


def _context(connection: Connection) -> MigrationContext:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})


def _revision(context: MigrationContext) -> str | None:
    revision = context.get_current_revision()
    if error := newer_schema(revision):
        raise error
    return revision
