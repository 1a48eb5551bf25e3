"""One look at a time: what happens between two words with the cache."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from limen.connect import target_of
from limen.rules.stores import Snapshot
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import RuleCache
from limen.rules.sync.entry import Entry
from limen.rules.sync.files import LastGood
from limen.rules.sync.seek import Notes, Seeker
from limen.rules.sync.switch import turned_off, turned_on
from tests.faults.proxy import Proxy
from tests.rules.sync.conftest import HOST, Watched, save
from tests.rules.sync.processes import NAMESPACE, rule_set

SOURCE = "the source of the rules"
Act = Callable[[], Awaitable[object]]


class Disturbed(RuleCache):
    """A cache to which something happens after it was looked at, and before it is read."""

    meanwhile: Act | None = None

    async def read(self) -> tuple[Entry, bytes]:
        if self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            await act()
        return await super().read()


class Sought:
    """A seeker with its cache, as a follower has them."""

    def __init__(self, url: str, watched: Watched, store: str | None, folder: Path | None) -> None:
        self.notes = Notes()
        kept = None if folder is None else LastGood(folder, SOURCE)
        self.seeker = Seeker(
            None if store is None else SqlStore(store), kept, watched.use, self.notes
        )
        target = target_of(url, asynchronous=True)
        self.cache = Disturbed(target, NAMESPACE)
        self.other = RuleCache(target, NAMESPACE)

    async def look(self) -> str:
        """Look at the cache alone; return the version in force then."""
        found = await self.seeker.look(self.cache)
        if found is not None:
            await self.seeker.take(self.cache, found)
        return self.seeker.version

    async def write(self, number: int, seen: bytes | None = None) -> bool:
        return await self.other.write(Snapshot(str(number), rule_set(number, 5)), seen)

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            try:
                return await work()
            finally:
                await self.seeker.close()
                self.cache.close()
                self.other.close()

        return asyncio.run(run())


@pytest.fixture
def seek(redis_url: str, watched: Watched) -> Callable[..., Sought]:
    def make(store: str | None = None, folder: Path | None = None, url: str = redis_url) -> Sought:
        return Sought(url, watched, store, folder)

    return make


def test_what_is_older_by_the_time_it_is_read_is_not_used(
    seek: Callable[..., Sought], lite: str, watched: Watched
) -> None:
    sought = seek(lite)

    async def work() -> str:
        await sought.write(5)
        await sought.look()
        await sought.write(7)
        sought.cache.meanwhile = lambda: sought.write(3, b"7")
        return await sought.look()

    assert sought.run(work) == "5"
    assert watched.versions == ["5"]
    assert not sought.notes.trouble


def test_what_is_newer_by_the_time_it_is_read_is_used(
    seek: Callable[..., Sought], watched: Watched
) -> None:
    sought = seek()

    async def work() -> None:
        await sought.write(5)
        sought.cache.meanwhile = lambda: sought.write(6)
        assert await sought.look() == "6"
        assert await sought.look() == "6"

    sought.run(work)
    assert watched.versions == ["6"]
    assert not sought.notes.trouble


def test_a_line_that_breaks_before_the_rules_came_says_nothing_about_them(
    seek: Callable[..., Sought], line: Proxy, watched: Watched
) -> None:
    sought = seek(url=f"redis://{HOST}:{line.port}")

    async def work() -> None:
        await sought.write(1)
        await sought.look()
        await sought.write(2)
        sought.cache.meanwhile = lambda: asyncio.to_thread(line.stall)
        assert await sought.look() == "1"
        assert "no answer in time" in sought.notes.trouble["rules"]
        line.flow()
        assert await sought.look() == "2"

    sought.run(work)
    assert not sought.notes.trouble


def test_rules_of_the_last_good_file_are_those_of_the_cache_once_it_holds_them(
    seek: Callable[..., Sought], watched: Watched, tmp_path: Path
) -> None:
    LastGood(tmp_path, SOURCE).write(Snapshot("1", rule_set(1, 5)))
    sought = seek(folder=tmp_path)

    async def work() -> None:
        await sought.seeker.ask(None, "me", None)
        assert (sought.seeker.version, sought.seeker.source) == ("1", "last-good")
        kept_at = sought.seeker.written_at
        await sought.write(1)
        assert await sought.look() == "1"
        assert sought.seeker.source == "cache"
        assert sought.seeker.written_at > kept_at

    sought.run(work)
    assert watched.versions == ["1"]


def test_a_disk_that_hangs_holds_up_no_rules_and_has_the_last_ones_in_the_end(
    seek: Callable[..., Sought], watched: Watched, tmp_path: Path
) -> None:
    sought = seek(folder=tmp_path)

    async def work() -> None:
        await sought.write(1)
        await sought.look()
        # The one thread that writes files has other things to do, and the rest does not wait.
        busy = threading.Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = asyncio.create_task(asyncio.to_thread(busy.wait, 60))
        for number in (2, 3):
            await sought.write(number)
            async with asyncio.timeout(10):
                await sought.look()
        assert watched.versions == ["1", "2", "3"]
        busy.set()
        await waiting

    sought.run(work)
    entry = LastGood(tmp_path, SOURCE).read()
    assert entry is not None
    assert entry.version == "3"


def test_the_child_of_a_fork_waits_for_no_file_of_its_parent(
    seek: Callable[..., Sought], tmp_path: Path
) -> None:
    sought = seek(folder=tmp_path)

    async def work() -> None:
        await sought.seeker._writing.acquire()  # by a task that did not come along
        sought.seeker.forget_tasks()
        await sought.write(1)
        assert await sought.look() == "1"

    sought.run(work)
    entry = LastGood(tmp_path, SOURCE).read()
    assert entry is not None
    assert entry.version == "1"


def test_what_was_replaced_meanwhile_is_not_kept_over_its_successor(
    seek: Callable[..., Sought], tmp_path: Path
) -> None:
    sought = seek(folder=tmp_path)

    async def work() -> None:
        await sought.write(1)
        await sought.look()
        await sought.write(2)
        await sought.look()
        await sought.seeker._keep(Snapshot("1", rule_set(1, 5)))  # held up until now

    sought.run(work)
    entry = LastGood(tmp_path, SOURCE).read()
    assert entry is not None
    assert entry.version == "2"


def test_what_the_store_has_replaced_is_not_taken_from_the_cache_again(
    seek: Callable[..., Sought], lite: str, watched: Watched
) -> None:
    save(lite, rule_set(1, 5))
    sought = seek(lite)

    async def work() -> None:
        await sought.write(99)  # in the database there is no such thing
        found = await sought.cache.look()
        # The store speaks while the cache is read; the next look finds the same there once more.
        sought.cache.meanwhile = lambda: sought.seeker.ask(None, "me", found)
        assert await sought.look() == "1"
        assert await sought.look() == "1"
        await sought.write(2, b"99")
        assert await sought.look() == "2"

    sought.run(work)
    assert watched.versions == ["1", "2"]


def test_poison_is_fetched_once_and_not_at_every_look(
    seek: Callable[..., Sought], redis_url: str, admin: Any
) -> None:
    sought = seek()

    async def work() -> None:
        await sought.write(1)
        await sought.look()
        admin.hset("limen:{rules}entry", mapping={"version": "2", "entry": b"x" * 1_000_000})
        for _ in range(5):
            assert await sought.look() == "1"

    before = admin.info("stats")["total_net_output_bytes"]
    sought.run(work)
    assert admin.info("stats")["total_net_output_bytes"] - before < 1_500_000


def test_what_is_too_large_is_not_even_fetched(
    seek: Callable[..., Sought], redis_url: str, admin: Any
) -> None:
    sought = seek()

    async def work() -> None:
        await sought.write(1)
        await sought.look()
        admin.hset("limen:{rules}entry", mapping={"version": "2", "entry": b"x" * 10_000_000})
        assert await sought.look() == "1"

    before = admin.info("stats")["total_net_output_bytes"]
    sought.run(work)
    assert "10,000,000 bytes" in sought.notes.trouble["rules"]
    assert admin.info("stats")["total_net_output_bytes"] - before < 100_000


def test_rules_in_the_store_that_are_wrong_are_told_and_not_loaded_again_and_again(
    seek: Callable[..., Sought], lite: str, watched: Watched
) -> None:
    loads: list[int] = []

    class Newer(SqlStore):
        """The store of a newer limen, with rules that this one does not know."""

        async def load(self) -> Snapshot | None:
            loads.append(1)
            found = await super().load()
            assert found is not None
            return Snapshot(
                found.version, {**found.document, "newer": 1} if wrong else found.document
            )

    wrong = False
    sought = seek(lite)
    sought.seeker._store = Newer(lite)
    save(lite, rule_set(1, 5))

    async def ask() -> None:
        found = await sought.seeker.look(sought.cache)
        assert found is not None
        await sought.seeker.take(sought.cache, found)
        await sought.other._link.call("DEL", "limen:{rules}claim")
        await sought.seeker.ask(sought.cache, "me", found)

    async def work() -> None:
        nonlocal wrong
        await ask()
        await ask()
        wrong = True
        await asyncio.to_thread(save, lite, rule_set(2, 5))
        loads.clear()
        sought.seeker._asked_at = 0.0
        for _ in range(4):
            sought.seeker._asked_at = 0.0
            await ask()
        assert len(loads) == 1
        assert "newer" in sought.notes.trouble["store"]
        assert sought.seeker._refused is not None
        frames = len(list(traceback.walk_tb(sought.seeker._refused[1].__traceback__)))
        assert frames < 10, "each time adds its own"
        assert sought.seeker.version == "1"
        # What is in the cache is left as it is, for those who know better.
        assert (await sought.other.look()).version == b"1"

    sought.run(work)
    assert watched.versions == ["1"]


def test_the_switch_covers_rules_that_come_later_and_lets_go_of_them(
    seek: Callable[..., Sought], watched: Watched
) -> None:
    sought = seek()

    async def work() -> None:
        sought.seeker.turn(turned_on(["all"]))
        await sought.write(1)
        await sought.look()
        sought.seeker.turn(turned_off())
        sought.seeker.turn(turned_off())  # says nothing new

    sought.run(work)
    assert [found.rules[0].enforced for found in watched.sets] == [0, None]
    assert [found.rules[1].enforced for found in watched.sets] == [None, None]
