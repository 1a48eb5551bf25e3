"""The books of the rules: `limen rules history` and `limen rules audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from limen.cli import draw, place
from limen.errors import StoreError
from limen.rules.diff import summary

if TYPE_CHECKING:
    from limen.rules.stores.sql import AuditRow, SqlStore, StoredRuleSet


def history(where: str, limit: int, as_json: bool) -> None:
    """List versions."""
    found = place.use(where, lambda store: store.history(limit))
    if as_json:
        draw.json([_version(stored) for stored in found])
        return
    if not found:
        raise StoreError(place.NO_RULES)
    headings = ("VERSION", "", "TIME (UTC)", "AUTHOR", "CHANGES", "COMMENT")
    draw.table(headings, [_version_row(stored) for stored in found])
    oldest = found[-1].version
    if oldest > 1:
        draw.line(f"and {draw.counted(oldest - 1, 'older version')}; add --limit to see more")


def _version_row(stored: StoredRuleSet) -> list[draw.Cell]:
    mark = "active" if stored.active else ""
    when = draw.time(stored.created_at)
    changed = summary(stored.changes)
    return [str(stored.version), mark, when, stored.author, changed, stored.comment]


def _version(stored: StoredRuleSet) -> dict[str, Any]:
    told = structs.asdict(stored)
    del told["document"]
    return told


def audit(where: str, limit: int, as_json: bool) -> None:
    """List acts, and say whether the chain of their hashes holds."""

    async def work(store: SqlStore) -> tuple[list[AuditRow], StoreError | None]:
        rows = await store.audit(limit)
        try:
            await store.verify_audit()
        except StoreError as error:
            return rows, error
        return rows, None

    rows, broken = place.use(where, work)
    if as_json:
        problem = None if broken is None else str(broken)
        draw.json({"holds": broken is None, "problem": problem, "rows": rows})
    else:
        headings = ("ROW", "TIME (UTC)", "WHO", "DID", "VERSION", "BEFORE", "ABOUT", "COMMENT")
        draw.table(headings, [_audit_row(row) for row in rows])
    if broken is not None:
        raise broken
    if not as_json:
        last = rows[0].id if rows else 0
        draw.line(f"{draw.counted(last, 'row')} in all, and the chain of their hashes holds")


def _audit_row(row: AuditRow) -> list[draw.Cell]:
    version, before = (str(number) if number else "-" for number in (row.version, row.before))
    who = [draw.time(row.at), row.actor, row.action]
    return [str(row.id), *who, version, before, row.subject, row.comment]
