"""The tables of rules, as queries name them. How they came to be is in `migrations`."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table, Text

metadata: MetaData = MetaData()

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
    Column("version", Integer, ForeignKey("limen_rule_sets.version"), nullable=False),
    Column("active_before", Integer, ForeignKey("limen_rule_sets.version")),
    Column("comment", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
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
)
