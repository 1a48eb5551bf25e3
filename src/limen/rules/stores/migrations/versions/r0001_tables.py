"""The tables: rule sets, the acts of their authors, and the one row of state."""

from __future__ import annotations

from alembic.operations import Operations
from sqlalchemy import CheckConstraint, Column, ForeignKey, Integer, String, Text

revision = "0001"
down_revision = None


def upgrade(op: Operations) -> None:
    """Create the tables, and the row of state."""
    op.create_table(
        "limen_rule_sets",
        Column("version", Integer, primary_key=True, autoincrement=False),
        Column("parent", Integer, ForeignKey("limen_rule_sets.version")),
        Column("digest", String(64), nullable=False),
        Column("author", Text, nullable=False),
        Column("comment", Text, nullable=False),
        Column("created_at", String(32), nullable=False),
        Column("document", Text, nullable=False),
        Column("changes", Text, nullable=False),
        CheckConstraint("version > 0", name="limen_rule_sets_numbered_from_1"),
    )
    op.create_table(
        "limen_audit",
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("at", String(32), nullable=False),
        Column("actor", Text, nullable=False),
        Column("action", String(16), nullable=False),
        Column("version", Integer, ForeignKey("limen_rule_sets.version"), nullable=False),
        Column("active_before", Integer, ForeignKey("limen_rule_sets.version")),
        Column("comment", Text, nullable=False),
        Column("digest", String(64), nullable=False),
        Column("hash", String(64), nullable=False),
        CheckConstraint("id > 0", name="limen_audit_numbered_from_1"),
    )
    op.create_table(
        "limen_state",
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("latest", Integer, ForeignKey("limen_rule_sets.version")),
        Column("active", Integer, ForeignKey("limen_rule_sets.version")),
        Column("audit_id", Integer, nullable=False),
        Column("audit_hash", String(64), nullable=False),
        CheckConstraint("id = 1", name="limen_state_is_one_row"),
    )
    op.execute("INSERT INTO limen_state (id, audit_id, audit_hash) VALUES (1, 0, '')")
