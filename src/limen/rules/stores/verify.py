"""Whether the books of the rules are as they were written. Reads everything, changes nothing."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncConnection

from limen.errors import StoreError
from limen.rules.stores.ledger import State, audit_rows, find, state_of
from limen.rules.stores.records import AuditRow, chained

_PAGE = 200


async def verify(connection: AsyncConnection) -> None:
    """Raise `StoreError` at the first row that was changed, added or removed by another hand."""
    state = await state_of(connection)
    head, previous, active, saved = 0, "", 0, 0
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
                await _verify_rule_set(connection, row, saved, state)
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


async def _verify_rule_set(
    connection: AsyncConnection, row: AuditRow, expected: int, state: State
) -> None:
    if row.version != expected or row.version > state.latest:
        raise _broken(f"row {row.id} of the audit is about a version that was not saved then")
    if (await find(connection, row.version, state)).digest != row.digest:
        raise _broken(f"version {row.version} of the rules is not what was saved")


def _broken(what: str) -> StoreError:
    return StoreError(f"the rules were changed past limen: {what}; compare with a backup")
