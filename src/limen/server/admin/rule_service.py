"""Reads and changes the rules for the endpoints: the database, and the announcement of new rules.

A change of all rules names the version that it is based on; a small edit is retried after a
conflict. Every change has an author. This module knows no paths and no statuses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import closing
from copy import deepcopy
from typing import Annotated, Any, TypeVar, TypeVarTuple

import msgspec
from fastapi import Depends, Request
from msgspec import Struct

from limen.connect import target_of
from limen.errors import Conflict, InvalidInput, LimenError, StoreError
from limen.rules.stores import Snapshot
from limen.rules.stores.records import MAX_COMMENT
from limen.rules.stores.sql import SqlStore, StoredRuleSet
from limen.rules.sync import RuleCache
from limen.server.admin.edits import AlreadyExists, Document, NotFound
from limen.server.admin.responses import SavedVersion
from limen.server.auth.tokens import Caller
from limen.server.worker.container import Service

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_TRIES = 5
_logger = logging.getLogger("limen.server")


class ActiveDocument(Struct, frozen=True):
    """The active rules, and their version."""

    document: Mapping[str, Any]
    version: int | None
    """None when they are in a file."""
    stored: StoredRuleSet | None = None
    """The whole version; None for a file, or when there is none."""


class RuleService:
    """Reads and changes the rules of one service for one caller."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.service = service
        self.caller = caller

    @property
    def is_file(self) -> bool:
        """Whether the rules are in a file, which is not changed here."""
        return self.service.place.rules_file is not None

    async def active(self) -> ActiveDocument:
        """Return the active rules."""
        if self.is_file:
            return ActiveDocument(self.service.engine.rules.document, None)
        stored = await self.ask(lambda books: books.active())
        if stored is None:
            return ActiveDocument({"rules": []}, 0)
        return ActiveDocument(stored.document or {}, stored.version, stored)

    async def latest(self) -> int:
        """Return the newest version, active or not; 0 when there is none."""
        found = await self.ask(lambda books: books.history(1))
        return found[0].version if found else 0

    async def version(self, number: int) -> StoredRuleSet:
        """Return one version. Raises `NotFound`."""
        if self.is_file:
            raise NotFound("the rules are in a file, which keeps no versions")
        try:
            return await self.ask(lambda books: books.get(number))
        except InvalidInput as error:
            raise NotFound(str(error)) from None

    async def history(self, limit: int, before: int | None) -> list[StoredRuleSet]:
        """Return versions without their documents, the newest first."""
        if self.is_file:
            return []
        return await self.ask(lambda books: books.history(limit, before))

    async def change(
        self, work: Callable[[SqlStore], Coroutine[Any, Any, StoredRuleSet]]
    ) -> SavedVersion:
        """Change the rules, and announce them to every process.

        Raises `AlreadyExists` when they are in a file.
        """
        self._refuse_file()
        stored = await self.write(work)
        await self._announce(stored)
        return view(stored, SavedVersion)

    async def edit(self, comment: str, make: Callable[[Document], None]) -> SavedVersion:
        """Change something small in the active rules; retry after a conflict.

        A long comment is cut.
        """
        self._refuse_file()

        async def work(books: SqlStore) -> StoredRuleSet:
            # The newest first: a version that is saved in between is then a conflict, and not lost.
            newest = await books.history(1)
            active = await books.active()
            document = deepcopy(active.document or {}) if active else {"rules": []}
            make(document)
            base = newest[0].version if newest else 0
            return await books.save(
                document, author=self.caller.name, comment=comment[:MAX_COMMENT], base=base
            )

        for _ in range(_TRIES - 1):
            try:
                return await self.change(work)
            except Conflict:
                continue
        return await self.change(work)

    async def ask(self, work: Callable[[SqlStore], Coroutine[Any, Any, T]]) -> T:
        """Run some work on the database, in the pool for that: ten thousand rules take a while."""
        books, pool = self.service.books, self.service.pools.database
        return await pool.run(self.caller.token, lambda: asyncio.run(work(books)))

    async def write(self, work: Callable[[SqlStore], Coroutine[Any, Any, T]]) -> T:
        """Run some work that writes to the database, and note whether the database takes writes."""
        try:
            written = await self.ask(work)
        except StoreError:
            self.service.note_write(succeeded=False)
            raise
        self.service.note_write(succeeded=True)
        return written

    async def compute(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a function that may take long, in the pool for that."""
        return await self.service.pools.compute.run(self.caller.token, work, *arguments)

    async def tell(self, work: Callable[[RuleCache], Awaitable[T]]) -> T:
        """Let some work use the Redis that all processes share, which has to be there."""
        service = self.service
        assert service.redis is not None
        target = target_of(service.redis, asynchronous=True)
        with closing(RuleCache(target, service.settings.namespace)) as cache:
            return await work(cache)

    def _refuse_file(self) -> None:
        file = self.service.place.rules_file
        if file is not None:
            raise AlreadyExists(f"the rules are in a file, {file.name}: change the file")

    async def _announce(self, stored: StoredRuleSet) -> None:
        """Let every process know. Not to reach them is no failure: they look for themselves."""
        if self.service.redis is None or not stored.active:
            return
        snapshot = Snapshot(str(stored.version), stored.document or {})

        active_version = self.service.books.version
        try:
            await self.tell(lambda cache: cache.publish(snapshot, active_version))
        except LimenError as error:
            _logger.warning("version %d is saved, and not announced: %s", stored.version, error)


def view(value: object, kind: type[T]) -> T:
    """Return a message, or a list of them, with the fields of a value that has more."""
    return msgspec.convert(value, kind, from_attributes=True)


async def _for_caller(request: Request) -> RuleService:
    return RuleService(request.app.state.service, request.state.caller)


ForCaller = Annotated[RuleService, Depends(_for_caller)]
"""The parameter of an endpoint that needs the rules; every route has checked the token before."""
