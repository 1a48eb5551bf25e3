"""Whether the books of the rules are as they were written. Reads everything, changes nothing."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from limen.errors import StoreError
from limen.rules.diff import changes
from limen.rules.stores.ledger import State, audit_rows, find, state_of
from limen.rules.stores.records import AuditRow, chained
from limen.rules.stores.tables import AUDIT, RULE_SETS

_PAGE = 200


async def verify(connection: AsyncConnection) -> None:
    """Raise `StoreError` at the first row that was changed, added or removed by another hand."""
    state = await state_of(connection)
    head, previous, active, saved = 0, "", 0, 0
    document: dict[str, Any] | None = None
    while head < state.audit_id:
        # What was committed after we looked at the state is for the next time.
        rows = [
            row
            for row in await audit_rows(connection, _PAGE, after=head)
            if row.id <= state.audit_id
        ]
        for row in rows:
            if row.id != head + 1 or row.hash != chained(previous, row):
                raise _broken(f"row {head + 1} of the audit is not what was written")
            if row.action != "activate":
                saved += 1
                document = await _verify_rule_set(connection, row, saved, state, document)
            head, previous = row.id, row.hash
            active = active if row.action == "save" else row.version
        if not rows:
            break
    if (head, previous) != (state.audit_id, state.audit_hash):
        raise _broken(f"the audit ends at row {head} and should at {state.audit_id}")
    if (saved, active) != (state.latest, state.active):
        raise _broken(
            f"by the audit, version {active} of {saved} is active; the state says "
            f"{state.active} of {state.latest}"
        )
    await _verify_ends(connection)


async def _verify_rule_set(
    connection: AsyncConnection,
    row: AuditRow,
    expected: int,
    state: State,
    before: dict[str, Any] | None,
) -> dict[str, Any] | None:
    """Hold a rule set against the row about its saving; return its document."""
    if row.version != expected or row.version > state.latest:
        raise _broken(f"row {row.id} of the audit is about a version that was not saved then")
    found = await find(connection, row.version, state)
    said = (found.digest, found.author, found.comment, found.created_at, found.parent)
    if said != (row.digest, row.actor, row.comment, row.at, expected - 1):
        raise _broken(f"version {row.version} of the rules is not what was saved")
    if found.changes != changes(before, found.document or {}):
        raise _broken(f"the changes of version {row.version} are not what was saved")
    return found.document


async def _verify_ends(connection: AsyncConnection) -> None:
    """Look for rows behind the last one that limen wrote."""
    last = select(
        select(func.max(AUDIT.c.id)).scalar_subquery(),
        select(func.max(RULE_SETS.c.version)).scalar_subquery(),
    )
    audited, saved = (await connection.execute(last)).one()
    # Asked for again: somebody may have saved a version in between.
    state = await state_of(connection)
    if (audited or 0) > state.audit_id or (saved or 0) > state.latest:
        raise _broken("there are rows behind the last one that was written")


def _broken(what: str) -> StoreError:
    return StoreError(f"the rules were changed past limen: {what}; compare with a backup")
