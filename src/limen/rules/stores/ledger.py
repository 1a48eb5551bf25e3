"""The books of the rules, inside one transaction: what is in them, and how a line is added.

Knows tables and records; opens no connection, and ends no transaction.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct, structs
from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from limen.errors import Conflict, InvalidInput, StoreError
from limen.rules.diff import Change, changes
from limen.rules.document import digest
from limen.rules.stores.faults import NotPrepared, newer_schema
from limen.rules.stores.records import (
    MAX_VERSION,
    Action,
    AuditRow,
    StoredRuleSet,
    chained,
    dumped,
    stamp,
    valid_author,
    valid_comment,
)
from limen.rules.stores.tables import AUDIT, RULE_SETS, SCHEMA, STATE

T = TypeVar("T")


class Act(Struct, frozen=True):
    """Who does something, why and when."""

    author: str
    comment: str
    at: datetime


class State(Struct):
    """The one row of state."""

    latest: int
    """The newest version; 0 when there is none."""
    active: int
    """The version that holds; 0 when there is none."""
    audit_id: int
    audit_hash: str


class Obstacle(Struct, frozen=True):
    """The reason why a database accepts no changes."""

    kind: Literal["schema", "read-only"]
    """`schema`: a newer limen made the tables. `read-only`: the server or the file is."""
    reason: str
    """For the log: what was found, and how to fix it."""


def act(author: str, comment: str, at: datetime | None = None) -> Act:
    """Return an act of now, or of another time, or raise `InvalidInput`."""
    return Act(valid_author(author), valid_comment(comment), at or datetime.now(UTC))


async def state_of(connection: AsyncConnection, *, lock: bool = False) -> State:
    """Return the state. With `lock`, every other writer waits until this transaction ends."""
    query = select(STATE.c.latest, STATE.c.active, STATE.c.audit_id, STATE.c.audit_hash)
    # SQLite has no such lock and needs none: there, the whole transaction is alone.
    row = (await connection.execute(query.with_for_update() if lock else query)).one_or_none()
    if row is None:
        raise NotPrepared
    return State(row.latest or 0, row.active or 0, row.audit_id, row.audit_hash)


async def tokens_version(connection: AsyncConnection) -> tuple[int, Obstacle | None]:
    """Return the version of the tokens, and why the database accepts no changes if it does not.

    One query, which writes nothing. Raises `NotPrepared`.
    """
    columns = [
        select(STATE.c.tokens).scalar_subquery().label("tokens"),
        select(SCHEMA.c.version_num).scalar_subquery().label("revision"),
    ]
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql:
        columns.append(func.pg_is_in_recovery().label("is_standby"))
        columns.append(func.current_setting("transaction_read_only").label("read_only"))
    row = (await connection.execute(select(*columns))).one()
    if row.tokens is None:
        raise NotPrepared
    obstacle = None
    if error := newer_schema(row.revision):
        obstacle = Obstacle("schema", str(error))
    elif is_postgresql and row.is_standby:
        reason = "the server is a standby; use the address of the primary"
        obstacle = Obstacle("read-only", reason)
    elif is_postgresql and row.read_only == "on":
        obstacle = Obstacle("read-only", "default_transaction_read_only is on; turn it off")
    return int(row.tokens), obstacle


async def find(
    connection: AsyncConnection, version: int, state: State | None = None
) -> StoredRuleSet:
    """Return one version with its document. Raises `InvalidInput` when there is none such."""
    state = state or await state_of(connection)
    query = select(RULE_SETS).where(RULE_SETS.c.version == min(version, MAX_VERSION))
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        there_are = f"the newest is {state.latest}" if state.latest else "there are none yet"
        raise InvalidInput(f"there is no version {version} of the rules; {there_are}")
    found = _rule_set(row, state.active, _decoded(row.document, version, dict[str, Any]))
    if digest(found.document) != found.digest:
        raise _damaged(version)
    return found


async def find_active(connection: AsyncConnection) -> StoredRuleSet | None:
    """Return the version that holds; None when there is none."""
    state = await state_of(connection)
    return await find(connection, state.active, state) if state.active else None


async def find_latest(connection: AsyncConnection) -> StoredRuleSet | None:
    """Return the newest version; None when there is none."""
    state = await state_of(connection)
    return await find(connection, state.latest, state) if state.latest else None


async def newest(
    connection: AsyncConnection, limit: int, before: int | None
) -> list[StoredRuleSet]:
    """Return versions without their documents, the newest first."""
    active = (await state_of(connection)).active
    columns = [column for column in RULE_SETS.c if column.name != "document"]
    query = select(*columns).order_by(RULE_SETS.c.version.desc()).limit(limit)
    if before is not None:
        query = query.where(RULE_SETS.c.version < min(before, MAX_VERSION))
    return [_rule_set(row, active, None) for row in await connection.execute(query)]


async def audit_rows(
    connection: AsyncConnection, limit: int, *, before: int | None = None, after: int | None = None
) -> list[AuditRow]:
    """Return audit rows: the newest first; with `after`, the oldest first that come after it."""
    order = AUDIT.c.id.desc() if after is None else AUDIT.c.id
    query = select(AUDIT).order_by(order).limit(limit)
    if before is not None:
        query = query.where(AUDIT.c.id < min(before, MAX_VERSION))
    if after is not None:
        query = query.where(AUDIT.c.id > after)
    return [_audit_row(row) for row in await connection.execute(query)]


async def was_active(connection: AsyncConnection, version: int) -> bool:
    """Return whether a version is active, or was at any time."""
    query = select(AUDIT.c.id).where(AUDIT.c.version == min(version, MAX_VERSION))
    found = await connection.execute(query.where(AUDIT.c.action != "save").limit(1))
    return found.first() is not None


def stale(base: int, latest: int) -> Conflict:
    """Return the error for an edit that was made from another version than the newest."""
    look = f"look at `limen rules diff {base} {latest}`, and " if 0 < base < latest else ""
    return Conflict(
        f"the rules are at version {latest}, and this edit was made from version {base}; "
        f"{look}apply again"
    )


class Ledger:
    """The books, open for one writer: every other one waits."""

    def __init__(self, connection: AsyncConnection, state: State) -> None:
        self.state = state
        self.connection = connection

    @classmethod
    async def locked(cls, connection: AsyncConnection) -> Ledger:
        """Open the books, when it is our turn. Raises `NewerSchema`, and has written nothing."""
        state = await state_of(connection, lock=True)
        # Behind the lock, so that no migration can come in between.
        if error := newer_schema(await connection.scalar(select(SCHEMA.c.version_num))):
            raise error
        return cls(connection, state)

    def expect_latest(self, base: int | None) -> None:
        """Raise `Conflict` when an edit was made from another version than the newest."""
        latest = self.state.latest
        if base is not None and base != latest:
            raise stale(base, latest)

    def expect_active(self, expected: int | None) -> None:
        """Raise `Conflict` when another version is active than the caller saw."""
        active = self.state.active
        if expected is not None and expected != active:
            raise Conflict(
                f"version {active} of the rules is active, and this was decided when {expected} "
                "was; look at `limen rules history`, and try again"
            )

    async def find(self, version: int) -> StoredRuleSet:
        """Return one version with its document."""
        return await find(self.connection, version, self.state)

    async def append(self, document: dict[str, Any], what: Act) -> StoredRuleSet:
        """Add a version after the newest."""
        parent = self.state.latest
        before = (await self.find(parent)).document if parent else None
        self.state.latest = version = parent + 1
        found = [structs.asdict(change) for change in changes(before, document)]
        await self.connection.execute(
            insert(RULE_SETS).values(
                version=version,
                parent=parent or None,
                digest=digest(document),
                author=what.author,
                comment=what.comment,
                created_at=stamp(what.at),
                document=dumped(document),
                changes=dumped(found),
            )
        )
        return await self.find(version)

    async def touch(self) -> None:
        """Write the state, and leave it as it is.

        A full disk shows only when the transaction is committed. SQLite skips an update that
        changes no byte, so a number is changed first and then restored.
        """
        audit_id = self.state.audit_id
        for number in (audit_id + 1, audit_id):
            await self.connection.execute(update(STATE).values(audit_id=number))

    async def record(
        self,
        action: Action,
        what: Act,
        rule_set: StoredRuleSet | None = None,
        *,
        subject: str = "",
        digest: str = "",
    ) -> None:
        """Append an audit row, about a version or a subject, and write the state.

        A version is activated if that was the action.
        """
        state = self.state
        row = AuditRow(
            id=state.audit_id + 1,
            at=what.at,
            actor=what.author,
            action=action,
            version=rule_set.version if rule_set else None,
            before=state.active if rule_set else 0,
            comment=what.comment,
            digest=rule_set.digest if rule_set else digest,
            hash="",
            subject=subject,
        )
        if rule_set is not None and action != "save":
            state.active = rule_set.version
        state.audit_id, state.audit_hash = row.id, chained(state.audit_hash, row)
        values = {**structs.asdict(row), "at": stamp(row.at), "hash": state.audit_hash}
        values["active_before"] = values.pop("before") or None
        await self.connection.execute(insert(AUDIT).values(values))
        changed = {"latest": state.latest or None, "active": state.active or None}
        chain = {"audit_id": state.audit_id, "audit_hash": state.audit_hash}
        await self.connection.execute(update(STATE).values({**changed, **chain}))


def _rule_set(row: Row[Any], active: int, document: dict[str, Any] | None) -> StoredRuleSet:
    return StoredRuleSet(
        version=row.version,
        parent=row.parent or 0,
        document=document,
        digest=row.digest,
        author=row.author,
        comment=row.comment,
        created_at=datetime.fromisoformat(row.created_at),
        changes=_decoded(row.changes, row.version, list[Change]),
        active=row.version == active,
    )


def _audit_row(row: Row[Any]) -> AuditRow:
    values = dict(row._mapping)
    values["before"] = values.pop("active_before") or 0
    return AuditRow(**{**values, "at": datetime.fromisoformat(row.at)})


def _decoded(text: str, version: int, kind: type[T]) -> T:
    try:
        return msgspec.convert(json.loads(text), kind)
    except ValueError:
        raise _damaged(version) from None


def _damaged(version: int) -> StoreError:
    return StoreError(f"version {version} of the rules is not what was saved: restore a backup")
