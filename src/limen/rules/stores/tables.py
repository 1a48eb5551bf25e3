"""The tables of rules, as queries name them. How they came to be is in `migrations`."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    column,
    table,
)

metadata: MetaData = MetaData()

REVISIONS: tuple[str, ...] = ("0001", "0002", "0003")
"""The revisions of the schema that this limen knows, oldest first: the steps in `migrations`."""

# Alembic's own table, with one row: the revision of the schema.
SCHEMA = table("limen_alembic_version", column("version_num", String))

RULE_SETS = Table(
    "limen_rule_sets",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("parent", Integer, ForeignKey("limen_rule_sets.version")),
    Column("digest", String(64), nullable=False),
    Column("author", Text, nullable=False),
    Column("comment", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("document", Text, nullable=False),
    Column("changes", Text, nullable=False),
)

AUDIT = Table(
    "limen_audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("at", String(32), nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(16), nullable=False),
    Column("version", Integer, ForeignKey("limen_rule_sets.version")),
    Column("active_before", Integer, ForeignKey("limen_rule_sets.version")),
    Column("comment", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("subject", Text, nullable=False),
)

# Of a secret, only its digest.
TOKENS = Table(
    "limen_tokens",
    metadata,
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

# One row, which every writer locks first: it puts them in a line. It also holds the head of the
# chain of audit rows, so that rows cut off its end are missed.
STATE = Table(
    "limen_state",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("latest", Integer, ForeignKey("limen_rule_sets.version")),
    Column("active", Integer, ForeignKey("limen_rule_sets.version")),
    Column("audit_id", Integer, nullable=False),
    Column("audit_hash", String(64), nullable=False),
    # Grows with every change to the tokens.
    Column("tokens", Integer, nullable=False),
)
