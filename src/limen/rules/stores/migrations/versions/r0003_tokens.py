"""Tokens; and an audit that tells of acts which are not about a version of the rules."""

from __future__ import annotations

from alembic.operations import Operations
from sqlalchemy import CheckConstraint, Column, ForeignKey, Integer, String, Text, UniqueConstraint

from limen.rules.stores.migrations.versions.r0002_append_only import create_triggers

revision = "0003"
down_revision = "0002"

_COPIED = "id, at, actor, action, version, active_before, comment, digest, hash"


def upgrade(op: Operations) -> None:
    """Create the table of tokens, and widen the audit. Its rows stay as they are."""
    # The state before the audit, as every writer locks them: in another order, they would wait
    # for each other. The defaults are for an older limen that still runs.
    op.add_column("limen_state", Column("tokens", Integer, nullable=False, server_default="0"))
    widen = _on_postgresql if op.get_bind().dialect.name == "postgresql" else _on_sqlite
    widen(op)
    op.create_table(
        "limen_tokens",
        Column("id", Text, primary_key=True),
        Column("digest", String(64), nullable=False),
        Column("role", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("created_at", String(32), nullable=False),
        Column("created_by", Text, nullable=False),
        Column("expires_at", String(32)),
        Column("revoked_at", String(32)),
        Column("revoked_by", Text),
        UniqueConstraint("digest", name="limen_tokens_digest_once"),
    )


def _on_postgresql(op: Operations) -> None:
    op.alter_column("limen_audit", "version", nullable=True)
    op.add_column("limen_audit", Column("subject", Text, nullable=False, server_default=""))


def _on_sqlite(op: Operations) -> None:
    """Make the table anew: SQLite changes no column, and drops the triggers with the table."""
    op.create_table(
        "limen_audit_wider",
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("at", String(32), nullable=False),
        Column("actor", Text, nullable=False),
        Column("action", String(16), nullable=False),
        Column("version", Integer, ForeignKey("limen_rule_sets.version")),
        Column("active_before", Integer, ForeignKey("limen_rule_sets.version")),
        Column("comment", Text, nullable=False),
        Column("digest", String(64), nullable=False),
        Column("hash", String(64), nullable=False),
        Column("subject", Text, nullable=False, server_default=""),
        CheckConstraint("id > 0", name="limen_audit_numbered_from_1"),
    )
    op.execute(f"INSERT INTO limen_audit_wider ({_COPIED}) SELECT {_COPIED} FROM limen_audit")
    op.drop_table("limen_audit")
    op.rename_table("limen_audit_wider", "limen_audit")
    create_triggers(op, "limen_audit", "id")
