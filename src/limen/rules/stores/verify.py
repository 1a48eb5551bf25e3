"""Whether the books are as they were written, and the tokens too. Reads all, changes nothing."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from limen.errors import StoreError
from limen.rules.diff import changes
from limen.rules.stores.keyring import all_tokens
from limen.rules.stores.ledger import State, audit_rows, find, state_of
from limen.rules.stores.records import AuditRow, chained
from limen.rules.stores.tables import RULE_SETS
from limen.rules.stores.tokens import Token, fingerprint

_PAGE = 200
_ROWS_BEHIND = "there are rows behind the last one that was written"


async def verify(connection: AsyncConnection) -> None:
    """Raise `StoreError` at the first row that was changed, added or removed by another hand."""
    state, tokens = await state_of(connection), await all_tokens(connection)
    head, previous, active, saved = 0, "", 0, 0
    acts: dict[str, AuditRow] = {}
    document: dict[str, Any] | None = None
    while rows := await audit_rows(connection, _PAGE, after=head):
        for row in rows:
            if row.id > state.audit_id:
                raise _broken(_ROWS_BEHIND)
            if row.id != head + 1 or row.hash != chained(previous, row):
                raise _broken(f"row {head + 1} of the audit is not what was written")
            if row.action in ("save", "rollback"):
                saved += 1
                document = await _verify_rule_set(connection, row, saved, state, document)
            head, previous = row.id, row.hash
            if row.action in ("activate", "rollback"):
                active = row.version or 0
            elif row.action in ("token-create", "token-revoke"):
                acts[row.digest] = row
    if (head, previous) != (state.audit_id, state.audit_hash):
        raise _broken(f"the audit ends at row {head} and should at {state.audit_id}")
    if (saved, active) != (state.latest, state.active):
        raise _broken(
            f"by the audit, version {active} of {saved} is active; the state says "
            f"{state.active} of {state.latest}"
        )
    for token in tokens:
        _verify_token(token, acts.get(fingerprint(token)))
    if (await connection.scalar(select(func.max(RULE_SETS.c.version))) or 0) > state.latest:
        raise _broken(_ROWS_BEHIND)


async def _verify_rule_set(
    connection: AsyncConnection,
    row: AuditRow,
    expected: int,
    state: State,
    before: dict[str, Any] | None,
) -> dict[str, Any] | None:
    """Hold a rule set against the row about its saving; return its document."""
    if row.version != expected or expected > state.latest:
        raise _broken(f"row {row.id} of the audit is about a version that was not saved then")
    found = await find(connection, expected, state)
    said = (found.digest, found.author, found.comment, found.created_at, found.parent)
    if said != (row.digest, row.actor, row.comment, row.at, expected - 1):
        raise _broken(f"version {row.version} of the rules is not what was saved")
    if found.changes != changes(before, found.document or {}):
        raise _broken(f"the changes of version {row.version} are not what was saved")
    return found.document


def _verify_token(token: Token, last: AuditRow | None) -> None:
    """Hold a token against the last row about it. A row without a token made room for another."""
    if last is None:
        raise _broken(f"token {token.id} is not what was created")
    revoked = (last.at, last.actor) if last.action == "token-revoke" else (None, None)
    if (token.revoked_at, token.revoked_by) != revoked:
        raise _broken(f"whether token {token.id} is revoked is not what was written")


def _broken(what: str) -> StoreError:
    return StoreError(f"the rules were changed past limen: {what}; compare with a backup")
