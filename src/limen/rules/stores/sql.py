"""Rules in SQLite or PostgreSQL: numbered versions that never change, one of them active.

A save, an activation or a rollback is one transaction, with its rows in the audit; so is a token
that is created or revoked. Writers stand in line, and one whose edit is stale is told so. Knows
nothing of what the rules mean: they are checked at the door, before the database is touched. Nor
what a token may do: that is for those who are shown one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from limen.errors import ConfigurationError, InvalidInput, StoreError, shown
from limen.rules.document import check, digest
from limen.rules.stores import Snapshot
from limen.rules.stores.address import missing, need_packages, parse
from limen.rules.stores.records import (
    AuditRow,
    RecordedAction,
    StoredRuleSet,
    copied,
    valid_action,
    valid_subject,
    valid_version,
)
from limen.rules.stores.tokens import Role, Token, grant, id_of

try:
    from limen.rules.stores import keyring, ledger
    from limen.rules.stores.database import CONNECT_S, Database, Work
    from limen.rules.stores.faults import TO_PREPARE, NewerSchema, NotPrepared
    from limen.rules.stores.verify import verify
except ModuleNotFoundError as _error:
    raise missing(_error.name) from None

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["AuditRow", "SqlStore", "StoredRuleSet", "Token"]

T = TypeVar("T")
_MAX_LIMIT = 1_000


class SqlStore:
    """The rules of one database. It may be used from any event loop, and by many processes.

    `busy_timeout`: for how many seconds a writer waits for others. `connect_timeout`: for how many
    seconds a connection to PostgreSQL may take.
    """

    def __init__(
        self, url: str, *, busy_timeout: float = 5.0, connect_timeout: float = CONNECT_S
    ) -> None:
        self._address = parse(url)
        need_packages(self._address)
        if type(busy_timeout) not in (int, float) or not 0 <= busy_timeout <= 3600:
            raise ConfigurationError(
                f"busy_timeout must be seconds from 0 to 3600, got {shown(busy_timeout)}"
            )
        self._database = Database(self._address, busy_timeout, connect_timeout)
        self.obstacle: ledger.Obstacle | None = None
        """Why the database accepts no changes, as the last `tokens_version` found; None when it
        does. Stays as it is while the database does not answer."""

    def __repr__(self) -> str:
        return f"SqlStore({self._address.shown!r})"

    @property
    def source(self) -> str:
        """The identity of the database, without the login."""
        return self._address.source

    async def prepare(self) -> None:
        """Create the tables, or bring them up to date. Of many who call this at once, one does it.

        Raises `NewerSchema`, a `StoreError`, for tables of a newer limen, and touches nothing.
        """
        from limen.rules.stores import migrate

        self._database.create_file()
        age = await self._database.read(lambda opened: opened.run_sync(migrate.age))
        if age != "current":
            await self._database.migrate(lambda opened: opened.run_sync(migrate.upgrade))

    async def version(self) -> str:
        """Return the active version, such as `7`; empty when none is."""
        active = (await self._read(ledger.state_of)).active
        return str(active) if active else ""

    async def load(self) -> Snapshot | None:
        """Return the active rules; None when there are none."""
        found = await self.active()
        if found is None or found.document is None:
            return None
        return Snapshot(str(found.version), found.document)

    async def active(self) -> StoredRuleSet | None:
        """Return the active version with all that is known of it; None when there is none."""
        return await self._read(ledger.find_active)

    async def latest(self) -> StoredRuleSet | None:
        """Return the newest version, active or not: the one that edits start from."""
        return await self._read(ledger.find_latest)

    async def get(self, version: int) -> StoredRuleSet:
        """Return one version. Raises `InvalidInput` when there is none such."""
        valid_version("version", version)
        return await self._read(lambda opened: ledger.find(opened, version))

    async def was_active(self, version: int) -> bool:
        """Return whether a version is active, or was at any time; else it is a draft."""
        valid_version("version", version)
        return await self._read(lambda opened: ledger.was_active(opened, version))

    async def history(self, limit: int = 50, before: int | None = None) -> list[StoredRuleSet]:
        """Return versions without their documents, newest first; `before` a version, to go on."""
        _valid_page(limit, before)
        return await self._read(lambda opened: ledger.newest(opened, limit, before))

    async def audit(self, limit: int = 50, before: int | None = None) -> list[AuditRow]:
        """Return who did what, newest first; `before` the id of a row, to go on from there."""
        _valid_page(limit, before)
        return await self._read(lambda opened: ledger.audit_rows(opened, limit, before=before))

    async def verify_audit(self) -> None:
        """Raise `StoreError` when a rule set or an audit row is not as limen wrote it."""
        await self._read(verify)

    async def save(
        self,
        document: dict[str, Any],
        *,
        author: str,
        comment: str = "",
        base: int | None,
        activate: bool = True,
    ) -> StoredRuleSet:
        """Keep the rules as a new version, and make them the active ones.

        `base` is the version the edit was made from: 0 when there must be none yet, None to not
        ask. Raises `InvalidRules`, or `Conflict` when the newest version is another; nothing is
        written then. Rules that are the newest already are not saved again.
        """
        check(document)
        ours = copied(document)
        what = ledger.act(author, comment)
        if base is not None:
            valid_version("base", base, lowest=0)

        async def work(books: ledger.Ledger) -> StoredRuleSet:
            books.expect_latest(base)
            latest = books.state.latest
            found = await books.find(latest) if latest else None
            if found is None or found.digest != digest(ours):
                found = await books.append(ours, what)
                await books.record("save", what, found)
            if activate and books.state.active != found.version:
                await books.record("activate", what, found)
            return await books.find(found.version)

        return await self._write(work)

    async def activate(
        self, version: int, *, author: str, comment: str = "", expected: int | None = None
    ) -> StoredRuleSet:
        """Make a version the active one; nothing is written when it is already.

        `expected` is the active version the caller saw, 0 for none: another one is a `Conflict`.
        Raises `InvalidInput` when there is no such version.
        """
        valid_version("version", version)
        what = ledger.act(author, comment)
        if expected is not None:
            valid_version("expected", expected, lowest=0)

        async def work(books: ledger.Ledger) -> StoredRuleSet:
            books.expect_active(expected)
            found = await books.find(version)
            if not found.active:
                await books.record("activate", what, found)
            return await books.find(version)

        return await self._write(work)

    async def rollback(
        self, version: int, *, author: str, comment: str = "", base: int | None = None
    ) -> StoredRuleSet:
        """Save an old version as the newest one, and make it active.

        `base` is the newest version the caller saw: another one is a `Conflict`. Raises
        `InvalidInput` when there is no such version, and `InvalidRules` when its rules are not
        valid any more.
        """
        valid_version("version", version)
        what = ledger.act(author, comment or f"rollback to version {version}")
        if base is not None:
            valid_version("base", base, lowest=0)

        async def work(books: ledger.Ledger) -> StoredRuleSet:
            books.expect_latest(base)
            document = (await books.find(version)).document or {}
            check(document)
            found = await books.append(document, what)
            await books.record("rollback", what, found)
            return await books.find(found.version)

        return await self._write(work)

    async def create_token(
        self, role: Role, name: str, author: str, expires_at: datetime | None = None
    ) -> tuple[Token, str]:
        """Create a token; return it with its secret, which is kept nowhere and never told again.

        Raises `InvalidInput` for an unknown role, a name that is empty or too long, an expiry that
        is past or has no time zone, and when there are too many tokens.
        """
        granted = grant(role, name, expires_at)
        what = ledger.act(author, granted.name)
        return await self._write(lambda books: keyring.add(books, granted, what))

    async def revoke_token(self, id: str, author: str) -> Token:
        """Let a token hold no longer; nothing is written when it does not already.

        `id` may also be the secret itself. Raises `InvalidInput` when there is no such token.
        """
        token_id = id_of(id)
        what = ledger.act(author, "")
        return await self._write(lambda books: keyring.revoke(books, token_id, what))

    async def tokens(self) -> list[Token]:
        """Return the tokens, newest first; also those that expired or were revoked."""
        return await self._read(keyring.all_tokens)

    async def tokens_version(self) -> int:
        """Return a number that grows with every change to the tokens, cheaply; 0 at first.

        Also finds out whether the database accepts changes: see `obstacle`.
        """
        obstacle = None
        unwritable = await asyncio.to_thread(self._database.unwritable_path)
        if unwritable is not None:
            reason = f"this user cannot write {unwritable}; allow it, or mount it writable"
            self.obstacle = obstacle = ledger.Obstacle("read-only", reason)
        try:
            version, known = await self._read(ledger.tokens_version)
        except NewerSchema as error:
            self.obstacle = ledger.Obstacle("schema", str(error))
            raise
        self.obstacle = known or obstacle
        return version

    async def record(
        self,
        action: RecordedAction,
        subject: str,
        author: str,
        comment: str = "",
        *,
        at: datetime | None = None,
    ) -> None:
        """Write down an act that was done elsewhere: a kill switch turned, a key reset.

        `subject` says what it was done to: `rule search-per-user, user=42`. `at` is the time of the
        act, with a time zone; None is now. Rows are in the order in which they are written.
        """
        valid_action(action)
        valid_subject(subject)
        what = ledger.act(author, comment, at)
        await self._write(lambda books: books.record(action, what, subject=subject))

    async def check_writable(self) -> None:
        """Commit a write that leaves the data as it is. Raises `StoreError` if it fails."""
        await self._write(ledger.Ledger.touch)

    async def close(self) -> None:
        """Let go of the database. A later call opens it again."""
        await self._database.close()

    async def _read(self, work: Work[T]) -> T:
        return await self._run(self._database.read, work)

    async def _write(self, work: Callable[[ledger.Ledger], Awaitable[T]]) -> T:
        async def locked(connection: AsyncConnection) -> T:
            return await work(await ledger.Ledger.locked(connection))

        return await self._run(self._database.write, locked)

    async def _run(self, transaction: Callable[[Work[T]], Awaitable[T]], work: Work[T]) -> T:
        try:
            return await transaction(work)
        except NotPrepared as error:
            raise await self._looked_at() or error from None

    async def _looked_at(self) -> StoreError | None:
        """Return what to say of tables that are there, and not as they should be."""
        from limen.rules.stores import migrate

        try:
            age = await self._database.read(lambda opened: opened.run_sync(migrate.age))
        except NewerSchema as error:
            return error
        except StoreError:
            return None
        where = f"rules at {self._address.shown}"
        if age == "current":
            return StoreError(f"{where}: the tables are damaged: restore a backup")
        if age == "old":
            return NotPrepared(f"{where}: the tables are of an older limen; {TO_PREPARE}")
        return None


def _valid_page(limit: int, before: int | None) -> None:
    if type(limit) is not int or not 1 <= limit <= _MAX_LIMIT:
        raise InvalidInput(
            f"limit must be a whole number from 1 to {_MAX_LIMIT}, got {shown(limit)}"
        )
    if before is not None:
        valid_version("before", before, lowest=0)
