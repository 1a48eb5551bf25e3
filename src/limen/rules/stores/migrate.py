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

from limen.errors import StoreError

VERSION_TABLE = "limen_alembic_version"
_FOLDER = Path(__file__).with_name("migrations")


def is_current(connection: Connection) -> bool:
    """Return whether there is nothing to do. Raises `StoreError` for tables of a newer limen."""
    return age(connection) == "current"


def age(connection: Connection) -> Literal["none", "old", "current"]:
    """Return whether there are tables, and of which limen. Raises as `is_current` does."""
    steps = ScriptDirectory(str(_FOLDER))
    revision = _revision(_context(connection), steps)
    if revision is None:
        return "none"
    return "current" if revision == steps.get_current_head() else "old"


def upgrade(connection: Connection, target: str = "head") -> None:
    """Run the steps that are missing, up to a revision. All of them, or none, as the caller ends.

    Raises `StoreError` for tables of a newer limen, and touches nothing.
    """
    steps, context = ScriptDirectory(str(_FOLDER)), _context(connection)
    revision = _revision(context, steps)
    for step in reversed(list(steps.iterate_revisions(target, revision))):
        step.module.upgrade(Operations(context))
        context.stamp(steps, step.revision)


def _context(connection: Connection) -> MigrationContext:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})


def _revision(context: MigrationContext, steps: ScriptDirectory) -> str | None:
    revision = context.get_current_revision()
    known = {step.revision for step in steps.walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreError(
            f"the tables of the rules are at revision {revision}, which this limen does not know; "
            "they belong to a newer one: upgrade limen here"
        )
    return revision
