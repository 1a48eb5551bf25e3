"""Rule sets and audit rows are written once: the database itself refuses to change them."""

from __future__ import annotations

from alembic.operations import Operations

revision = "0002"
down_revision = "0001"

_KEYS = {"limen_rule_sets": "version", "limen_audit": "id"}


def upgrade(op: Operations) -> None:
    """Create the triggers."""
    create = _on_postgresql if op.get_bind().dialect.name == "postgresql" else _on_sqlite
    create(op)


def _on_postgresql(op: Operations) -> None:
    op.execute(
        "CREATE FUNCTION limen_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    for table in _KEYS:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION limen_append_only()"
        )


def _on_sqlite(op: Operations) -> None:
    for table, key in _KEYS.items():
        create_triggers(op, table, key)


def create_triggers(op: Operations, table: str, key: str) -> None:
    """Let SQLite refuse changes to the rows of a table."""
    refuse = f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
    for verb in ("UPDATE", "DELETE"):
        op.execute(f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {refuse}")
    # INSERT OR REPLACE deletes without a word to the trigger on DELETE.
    op.execute(
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
        f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key}) {refuse}"
    )
