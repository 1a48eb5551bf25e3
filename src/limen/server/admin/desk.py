"""Where changes to the rules are made: the books, and the news of what was written in them.

One that changes everything says from which version; a small edit is made again when somebody else
was faster. Every change has an author. Knows no paths and no statuses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from typing import Any, TypeVar, TypeVarTuple

from msgspec import Struct

from limen.connect import target_of
from limen.errors import Conflict, InvalidInput, LimenError, StoreError
from limen.rules.stores import Snapshot
from limen.rules.stores.sql import SqlStore, StoredRuleSet
from limen.rules.sync import RuleCache
from limen.server.access import Caller
from limen.server.admin.edits import Document, Missing, Taken
from limen.server.service import Service

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_TRIES = 5
_logger = logging.getLogger("limen.server")


class Held(Struct, frozen=True):
    """The rules that hold, and where they were found."""

    document: Mapping[str, Any]
    version: int | None
    """None when they are in a file."""
    stored: StoredRuleSet | None = None
    """All that is known of the version; None for a file, or when there is none."""


class Desk:
    """Reads and changes the rules of one service."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @property
    def is_file(self) -> bool:
        """Whether the rules are in a file, which is not changed here."""
        return self.service.place.rules_file is not None

    async def held(self, caller: Caller) -> Held:
        """Return the rules that hold."""
        if self.is_file:
            return Held(self.service.engine.rules.document, None)
        stored = await self.ask(caller, lambda books: books.active())
        if stored is None:
            return Held({"rules": []}, 0)
        return Held(stored.document or {}, stored.version, stored)

    async def latest(self, caller: Caller) -> int:
        """Return the newest version, active or not; 0 when there is none."""
        found = await self.ask(caller, lambda books: books.history(1))
        return found[0].version if found else 0

    async def version(self, caller: Caller, number: int) -> StoredRuleSet:
        """Return one version. Raises `Missing`."""
        if self.is_file:
            raise Missing("the rules are in a file, which keeps no versions")
        try:
            return await self.ask(caller, lambda books: books.get(number))
        except InvalidInput as error:
            raise Missing(str(error)) from None

    async def history(self, caller: Caller, limit: int, before: int | None) -> list[StoredRuleSet]:
        """Return versions without their documents, the newest first."""
        if self.is_file:
            return []
        return await self.ask(caller, lambda books: books.history(limit, before))

    async def change(
        self, caller: Caller, work: Callable[[SqlStore], Awaitable[StoredRuleSet]]
    ) -> StoredRuleSet:
        """Change the rules, and let every process know. Raises `Taken` when they are in a file."""
        self._refuse_file()
        stored = await self.write(caller, work)
        await self._announce(stored)
        return stored

    async def edit(
        self, caller: Caller, comment: str, make: Callable[[Document], None]
    ) -> StoredRuleSet:
        """Change something small in the active rules, whatever others save meanwhile."""
        self._refuse_file()

        async def work(books: SqlStore) -> StoredRuleSet:
            # The newest first: a version that is saved in between is then a conflict, and not lost.
            newest = await books.history(1)
            active = await books.active()
            document = deepcopy(active.document or {}) if active else {"rules": []}
            make(document)
            base = newest[0].version if newest else 0
            return await books.save(document, author=caller.name, comment=comment, base=base)

        for _ in range(_TRIES - 1):
            try:
                return await self.change(caller, work)
            except Conflict:
                continue
        return await self.change(caller, work)

    async def ask(self, caller: Caller, work: Callable[[SqlStore], Awaitable[T]]) -> T:
        """Run some work on the database, in the pool for that: ten thousand rules take a while."""
        books = self.service.books

        async def run() -> T:
            return await work(books)

        pool = self.service.pools.database
        return await pool.run(caller.token, lambda: asyncio.run(run()))

    async def write(self, caller: Caller, work: Callable[[SqlStore], Awaitable[T]]) -> T:
        """Run some work that writes to the database, and note whether the database takes writes."""
        try:
            written = await self.ask(caller, work)
        except StoreError:
            self.service.note_write(succeeded=False)
            raise
        self.service.note_write(succeeded=True)
        return written

    async def compute(self, caller: Caller, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a function that may take long, in the pool for that."""
        return await self.service.pools.compute.run(caller.token, work, *arguments)

    async def tell(self, work: Callable[[RuleCache], Awaitable[T]]) -> T:
        """Let some work use the Redis that all processes share, which has to be there."""
        service = self.service
        assert service.redis is not None
        target = target_of(service.redis, asynchronous=True)
        cache = RuleCache(target, service.settings.namespace)
        try:
            return await work(cache)
        finally:
            cache.close()

    def _refuse_file(self) -> None:
        file = self.service.place.rules_file
        if file is not None:
            raise Taken(f"the rules are in a file, {file.name}: change the file")

    async def _announce(self, stored: StoredRuleSet) -> None:
        """Let every process know. Not to reach them is no failure: they look for themselves."""
        if self.service.redis is None or not stored.active:
            return
        snapshot = Snapshot(str(stored.version), stored.document or {})

        async def work(cache: RuleCache) -> None:
            if await cache.write(snapshot):
                return
            found = await cache.look()
            if await self.service.books.version() == snapshot.version:
                # An old version that holds again: it takes the place of a newer one on purpose.
                await cache.write(snapshot, seen=found.version, stamp=found.stamp)

        try:
            await self.tell(work)
        except LimenError as error:
            _logger.warning("version %d is saved, and not announced: %s", stored.version, error)
