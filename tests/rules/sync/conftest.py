"""Real servers, and what the tests of this folder do to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from limen.connect import target_of
from limen.rules import RuleSet
from limen.rules.stores import Snapshot
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Follower, RuleCache
from tests import servers
from tests.faults.proxy import Proxy, proxy
from tests.postgres import Postgres
from tests.rules.sync.processes import NAMESPACE, Fleet
from tests.waiting import FULL

HOST = "127.0.0.1"
DATABASE = "rules"
HARD = FULL
"""Whether to repeat what is short in `make test`."""


def times(short: int, hard: int) -> int:
    return hard if HARD else short


@pytest.fixture
def line(valkey: servers.Server) -> Iterator[Proxy]:
    """A way to the server that can be disturbed."""
    with proxy(valkey.port) as made:
        yield made


@pytest.fixture
def post(postgres: Postgres) -> Postgres:
    """PostgreSQL with an empty database."""
    postgres.empty_database(DATABASE)
    return postgres


@pytest.fixture
def database(post: Postgres) -> str:
    """The address of a database that is ready, and empty."""
    asyncio.run(SqlStore(post.url(DATABASE)).prepare())
    return post.url(DATABASE)


@pytest.fixture
def lite(tmp_path: Path) -> str:
    """The same in SQLite."""
    url = f"sqlite:///{tmp_path}/rules.db"
    asyncio.run(SqlStore(url).prepare())
    return url


def save(url: str, document: dict[str, Any]) -> Snapshot:
    """Save rules in a database, and tell nobody."""
    saved = asyncio.run(SqlStore(url).save(document, author="ann", base=None))
    assert saved.document is not None
    return Snapshot(str(saved.version), saved.document)


def at_cache(url: str, work: Callable[[RuleCache], Awaitable[Any]]) -> Any:
    """Do something with the cache as a command does: connect, do it, leave."""

    async def run() -> Any:
        cache = RuleCache(target_of(url, asynchronous=True), NAMESPACE)
        try:
            return await work(cache)
        finally:
            cache.close()

    return asyncio.run(run())


def publish(url: str, redis_url: str, document: dict[str, Any]) -> Snapshot:
    """Save rules in a database and announce them, as the command does."""
    snapshot = save(url, document)
    assert at_cache(redis_url, lambda cache: cache.write(snapshot))
    return snapshot


class Watched:
    """Rule sets as they come into force."""

    def __init__(self) -> None:
        self.sets: list[RuleSet] = []

    def use(self, found: RuleSet) -> None:
        self.sets.append(found)

    @property
    def versions(self) -> list[str]:
        return [found.version for found in self.sets]


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def follow(watched: Watched, tmp_path: Path) -> Iterator[Callable[..., Follower]]:
    """Start a follower in this process: `follow(database, redis_url)`."""
    started: list[Follower] = []

    def start(database: str | None, redis_url: str | None = None, **options: Any) -> Follower:
        store = None if database is None else SqlStore(database)
        options = {"folder": tmp_path / "host", "use": watched.use, **options}
        follower = Follower(store, redis=redis_url, namespace=NAMESPACE, **options)
        follower.start()
        started.append(follower)
        return follower

    yield start
    for follower in started:
        follower.close()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged of troubles so far."""
    caplog.set_level(logging.WARNING, "limen")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "limen"]
