"""The versions and the audit of rules: `limen rules history` and `limen rules audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from limen.cli import output, rules_location
from limen.errors import StoreError
from limen.rules.diff import summary

if TYPE_CHECKING:
    from limen.rules.stores.sql import AuditRow, SqlStore, StoredRuleSet


def history(where: str, limit: int, as_json: bool) -> None:
    """List versions."""
    versions = rules_location.with_store(where, lambda store: store.history(limit))
    if as_json:
        output.print_json([_version(stored) for stored in versions])
        return
    if not versions:
        raise StoreError(rules_location.NO_RULES)
    headings = ("VERSION", "", "TIME (UTC)", "AUTHOR", "CHANGES", "COMMENT")
    output.print_table(headings, [_version_row(stored) for stored in versions])
    oldest = versions[-1].version
    if oldest > 1:
        output.print_line(
            f"and {output.pluralize(oldest - 1, 'older version')}; add --limit to see more"
        )


def _version_row(stored: StoredRuleSet) -> list[output.Cell]:
    mark = "active" if stored.active else ""
    when = output.format_time(stored.created_at)
    changed = summary(stored.changes)
    return [str(stored.version), mark, when, stored.author, changed, stored.comment]


def _version(stored: StoredRuleSet) -> dict[str, Any]:
    fields = structs.asdict(stored)
    del fields["document"]
    return fields


def audit(where: str, limit: int, as_json: bool) -> None:
    """List actions, and verify the chain of their hashes."""

    async def work(store: SqlStore) -> tuple[list[AuditRow], StoreError | None]:
        rows = await store.audit(limit)
        try:
            await store.verify_audit()
        except StoreError as error:
            return rows, error
        return rows, None

    rows, broken = rules_location.with_store(where, work)
    if as_json:
        problem = None if broken is None else str(broken)
        output.print_json({"holds": broken is None, "problem": problem, "rows": rows})
    else:
        headings = ("ROW", "TIME (UTC)", "WHO", "DID", "VERSION", "BEFORE", "ABOUT", "COMMENT")
        output.print_table(headings, [_audit_row(row) for row in rows])
    if broken is not None:
        raise broken
    if not as_json:
        last = rows[0].id if rows else 0
        output.print_line(
            f"{output.pluralize(last, 'row')} in all, and the chain of their hashes holds"
        )


def _audit_row(row: AuditRow) -> list[output.Cell]:
    version, before = (str(number) if number else "-" for number in (row.version, row.before))
    who = [output.format_time(row.at), row.actor, row.action]
    return [str(row.id), *who, version, before, row.subject, row.comment]
