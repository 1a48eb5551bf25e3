"""`Service`: all that one worker holds, put together from the settings, started and ended.

Nothing here waits for a store or a database that is away: rules and tokens known last hold on, and
`Health` says what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from pathlib import Path

from msgspec import Struct

from limen.engine import AsyncEngine
from limen.errors import LimenError, StoreError
from limen.limiter import AsyncLimiter
from limen.observe.figures import Figures
from limen.rules import RuleSet
from limen.rules.stores.file import FileStore
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Follower, Status, SwitchFile
from limen.server.api.handlers import CheckHandlers
from limen.server.api.receipts import Receipts
from limen.server.auth.cookies import Cookies
from limen.server.auth.tokens import Access
from limen.server.envoy.service import RateLimits
from limen.server.http.exchange import RETRY_SOON, Rejected, RequestIds
from limen.server.insight.insight import Insight
from limen.server.insight.watch import Watch
from limen.server.settings import Settings
from limen.server.worker.audit import AuditWriter
from limen.server.worker.data_dir import Place
from limen.server.worker.pools import Pools

_LOOK_S = 1.0
_FIRST_RULES_S = 2.0
"""How long a start waits for rules and tokens before it listens without them."""
_POLL_S = 0.01
_logger = logging.getLogger("limen.server")


class Health(Struct, frozen=True):
    """How a worker is."""

    status: str
    """`ok`; `degraded` when it decides without something it should have; `starting` while rules
    are not loaded."""
    rules: str
    """The version of the rules in force."""
    rules_source: str
    """Where they were taken from."""
    rules_age: float
    """For how many seconds they have been in force."""
    instances: int
    """How many processes enforce rules, as far as is known."""
    kill_switch: str
    store: str
    """`ok`, or `away` when one of its servers does not answer."""
    trouble: tuple[str, ...]
    """What else does not work; why is in the log.

    `source`: the database or file of the rules. `tokens`: the database of tokens. `read-only`: the
    database is, so changes are refused. `schema`: a newer limen made its tables, so changes are
    refused. `writes`: the last change was not written to the database for another reason, and it
    still takes none. `cache`, `news`, `sharing`: how rules travel by Redis. `rules`: what is there
    is not believed. `last-good`, `switch`, `instance-file`: files of the data folder.
    `instances`, `callback`: within the process.
    """


class Service:
    """What one worker holds."""

    def __init__(
        self, settings: Settings, folder: Path | None = None, *, others_serve: bool = False
    ) -> None:
        """Put it together; `folder` is what it shares with the other workers of its parent.

        With `others_serve`, the start waits for rules however long it takes: other workers answer
        meanwhile.
        """
        self.settings: Settings = settings
        self.place: Place = Place(settings)
        self.id: str = f"{os.getpid():x}{secrets.token_hex(3)}"
        self.request_ids: RequestIds = RequestIds(self.id)
        self._min_instances = max(settings.store.min_instances, settings.workers)
        self.limiter: AsyncLimiter = AsyncLimiter(
            settings.store.url.get_secret_value(),
            namespace=settings.namespace,
            on_error=settings.store.on_error,
            deadline=settings.store.deadline,
            instances=self._min_instances,
        )
        self.engine: AsyncEngine = AsyncEngine(RuleSet(()), self.limiter)
        self.books: SqlStore = SqlStore(self.place.books)
        """The database of tokens and of the audit; and of the rules, unless they are in a file."""
        self.audit: AuditWriter = AuditWriter(self.books, self.note_write)
        """Writes the audit rows of the kill switch."""
        self.receipts: Receipts = Receipts(self.place.secret(), self.id)
        self.redis: str | None = settings.shared_store
        """The store, if others share it; by way of it rules and the kill switch travel."""
        self.insight: Insight = Insight(
            settings,
            self.id,
            self.limiter,
            self.place.secret(),
            redis=self.redis,
            folder=folder,
            tell_rules=self._tell_rules,
        )
        self.watch: Watch = self.insight.watch
        """Told of every decision."""
        self.cookies: Cookies = Cookies(self.place.secret())
        """Those of who is signed in to the dashboard."""
        self.access: Access = Access(
            self.place.fixed_tokens(), self.place.folder, cookies=self.cookies
        )
        self.handlers: CheckHandlers = CheckHandlers(
            self.engine,
            self.limiter,
            self.receipts,
            self.watch,
            max_batch=settings.http.max_batch,
            styles=settings.http.headers,
        )
        self.envoy: RateLimits = RateLimits(
            self.engine,
            self.limiter,
            self.watch,
            within=settings.gateway_deadline,
            styles=settings.http.headers,
        )
        rules_file = self.place.rules_file
        self.follower: Follower = Follower(
            self.books if rules_file is None else FileStore(rules_file),
            self._use,
            redis=self.redis,
            namespace=settings.namespace,
            folder=self.place.folder,
            on_instances=self._share_with,
        )
        assert self.follower.switch_file is not None
        self.switch: SwitchFile = self.follower.switch_file
        """The kill switch of this host."""
        self.pools: Pools = Pools()
        """The threads of the admin API."""
        self._others_serve = others_serve
        self._has_rules = self._has_looked = False
        self._is_store_away = False
        self._takes_writes = True
        self._probing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow rules and tokens, and wait for them. Never fails.

        While no other worker serves, it waits two seconds at most: it is better to listen and
        answer that rules are not loaded than not to listen.
        """
        self.switch.toggle_on()
        self.access.recall()
        self.follower.start()
        self._watching = asyncio.create_task(self._watch())
        end = asyncio.get_running_loop().time() + _FIRST_RULES_S
        while not (self.has_rules and self._has_looked):
            if not self._others_serve and asyncio.get_running_loop().time() > end:
                break
            await asyncio.sleep(_POLL_S)
        if not self.has_rules:
            _logger.warning("rules are not loaded yet, so requests for decisions are refused")
        self.insight.start()

    async def close(self) -> None:
        """Let go of everything."""
        tasks = [task for task in (self._watching, self._probing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.audit.close()
        await self.insight.close()
        await asyncio.to_thread(self.follower.close)
        await self.limiter.aclose()
        await self.books.close()
        self.pools.close()

    def note_write(self, *, succeeded: bool) -> None:
        """Note whether a change was written to the database, for `health`."""
        if self._takes_writes and not succeeded:
            _logger.warning("a change was not written to the database")
        self._takes_writes = succeeded

    @property
    def has_rules(self) -> bool:
        """Whether rules are loaded, or there are none yet. Once true, it stays true."""
        if not self._has_rules:
            self._has_rules = self.follower.status.is_loaded
        return self._has_rules

    def require_rules(self, status: int = 503) -> None:
        """Raise `Rejected` with this status while rules are not loaded.

        With the kill switch on for all rules, none of them would refuse anybody.
        """
        if not self.has_rules and not self.follower.status.switch.all:
            detail = "the rules are not loaded yet; try again, and see /readyz"
            raise Rejected(status, detail, [RETRY_SOON])

    @property
    def health(self) -> Health:
        """How this worker is. Names no address: it is told to whoever asks."""
        status: Status = self.follower.status
        trouble = {"source" if name == "store" else name for name in status.trouble}
        if self.access.is_stale:
            trouble.add("tokens")
        if self.books.obstacle is not None:
            trouble.add(self.books.obstacle.kind)
        elif not self._takes_writes:
            trouble.add("writes")
        is_open = any(shard.state == "open" for shard in self.limiter.shards)
        is_away = is_open or self._is_store_away
        is_well = not trouble and not is_away
        return Health(
            "starting" if not self.has_rules else "ok" if is_well else "degraded",
            status.version,
            status.source,
            max(0.0, time.time() - status.used_at) if status.version else 0.0,
            status.instances,
            str(status.switch),
            "away" if is_away else "ok",
            tuple(sorted(trouble)),
        )

    def _share_with(self, instances: int) -> None:
        self.limiter.share_with(max(instances, self._min_instances))

    def _use(self, rules: RuleSet) -> None:
        self.engine.use(rules)
        self.watch.use(rules)

    def _tell_rules(self, figures: Figures) -> None:
        status: Status = self.follower.status
        figures.rules_version, figures.rules_source = status.version, status.source
        if status.version:
            figures.rules_age = max(0.0, time.time() - status.used_at)
        figures.rules = len(self.engine.rules.rules)
        figures.rules_trouble = len(status.trouble)
        figures.kill_switch = status.switch.is_on
        figures.instances = status.instances

    async def _watch(self) -> None:
        while True:
            try:
                await self._look()
                if self._has_looked and (not self.has_rules or self.access.is_stale):
                    # If the database did not answer at the start, its tables may be missing or old.
                    with contextlib.suppress(StoreError):
                        await self.place.open(self.books)
            except Exception:  # whatever it is: who looks no more lets revoked tokens hold
                _logger.exception("looking after store and tokens failed; it goes on")
            self._has_looked = True
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        is_probing = self._probing is not None and not self._probing.done()
        if not self._takes_writes and not is_probing and self.books.obstacle is None:
            # Not awaited: with a lock on the state, it takes seconds to fail.
            self._probing = asyncio.create_task(self._probe_writes())
        # Neither waits for the other: the first request finds a connection to the store.
        await asyncio.gather(self._look_at_books(), self._look_at_store())

    async def _look_at_books(self) -> None:
        before = self.books.obstacle
        await self.access.refresh(self.books)
        obstacle = self.books.obstacle
        if obstacle == before:
            return
        if obstacle is None:
            _logger.info("the database accepts changes again")
        else:
            _logger.warning("the database accepts no changes: %s", obstacle.reason)

    async def _look_at_store(self) -> None:
        try:
            await self.limiter.ping()
            self._is_store_away = False
        except LimenError as error:
            if not self._is_store_away:
                _logger.warning("the store is away: %s", error)
            self._is_store_away = True

    async def _probe_writes(self) -> None:
        with contextlib.suppress(StoreError):
            await self.books.check_writable()
            self.note_write(succeeded=True)
