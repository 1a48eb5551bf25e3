"""The tables of rules, as queries name them. How they came to be is in `migrations`."""

from __future__ import annotations

from sqlalchemy import TableClause, column, table

REVISIONS: tuple[str, ...] = ("0001", "0002", "0003")
"""The revisions of the schema that this limen knows, oldest first: the steps in `migrations`."""


def _table(name: str, columns: str) -> TableClause:
    return table(name, *map(column, columns.split()))


# Alembic's own table, with one row: the revision of the schema.
SCHEMA = _table("limen_alembic_version", "version_num")

RULE_SETS = _table(
    "limen_rule_sets", "version parent digest author comment created_at document changes"
)
AUDIT = _table(
    "limen_audit", "id at actor action version active_before comment digest hash subject"
)
# Of a secret, only its digest.
TOKENS = _table(
    "limen_tokens", "id digest role name created_at created_by expires_at revoked_at revoked_by"
)
# One row, which every writer locks first: it puts them in a line. It also holds the head of the
# chain of audit rows, so that rows cut off its end are missed. `tokens` grows with every change to
# the tokens.
STATE = _table("limen_state", "id latest active audit_id audit_hash tokens")
