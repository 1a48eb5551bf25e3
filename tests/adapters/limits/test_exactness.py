"""Many at once on one window: never one more than the limit, and never one less."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from limits import parse
from limits.storage import storage_from_string

from limen.adapters.limits import AsyncLimenStorage, LimenStorage
from limen.keys import MAX_BYTES
from tests.adapters.limits.using import (
    ALL,
    ASYNC_STRATEGIES,
    MOVING,
    PATIENT_S,
    STRATEGIES,
    Storage,
    keys,
)

MANY = parse("100/year")
CALLERS = 8
HITS = 30
PROCESSES = 3


def open_for_threads(uri: str) -> LimenStorage:
    return LimenStorage(uri, deadline=PATIENT_S)


def hit_often(uri: str, strategy: str) -> int:
    """Hit from one thread of its own process; return how often it passed."""
    storage = open_for_threads(uri)
    used = STRATEGIES[strategy](storage)
    passed: int = sum(used.hit(MANY, "all") for _ in range(2 * HITS))
    storage.close()
    return passed


@pytest.fixture(params=["memory", "valkey"])
def store(request: pytest.FixtureRequest) -> str:
    return "limen+memory://" if request.param == "memory" else request.getfixturevalue("uri")


@pytest.mark.parametrize("strategy", ALL)
class TestOneWindow:
    def test_threads_share_it_exactly(self, store: str, strategy: str) -> None:
        storage = open_for_threads(store)
        used = STRATEGIES[strategy](storage)
        with ThreadPoolExecutor(CALLERS) as pool:
            passed = list(pool.map(lambda _: used.hit(MANY, "all"), range(CALLERS * HITS)))
        assert sum(passed) == 100
        assert used.get_window_stats(MANY, "all").remaining == 0
        storage.close()

    def test_tasks_share_it_exactly(self, store: str, strategy: str) -> None:
        async def run() -> None:
            storage = AsyncLimenStorage(f"async+{store}", deadline=PATIENT_S)
            used = ASYNC_STRATEGIES[strategy](storage)
            passed = await asyncio.gather(*[used.hit(MANY, "all") for _ in range(CALLERS * HITS)])
            assert sum(passed) == 100
            assert (await used.get_window_stats(MANY, "all")).remaining == 0
            await storage.aclose()

        asyncio.run(run())

    def test_costs_share_it_exactly(self, store: str, strategy: str) -> None:
        storage = open_for_threads(store)
        used = STRATEGIES[strategy](storage)
        with ThreadPoolExecutor(CALLERS) as pool:
            passed = list(pool.map(lambda _: used.hit(MANY, "all", cost=7), range(CALLERS * 4)))
        assert sum(passed) == 14
        assert used.hit(MANY, "all", cost=2)
        assert not used.hit(MANY, "all")
        storage.close()


def test_processes_share_each_window_exactly(uri: str) -> None:
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        for strategy in ALL:
            running = [pool.apply_async(hit_often, (uri, strategy)) for _ in range(PROCESSES)]
            assert sum(each.get(60) for each in running) == 100


def test_threads_and_tasks_count_in_the_same_place(uri: str) -> None:
    async def hit(strategy: str) -> bool:
        storage = AsyncLimenStorage(f"async+{uri}", deadline=PATIENT_S)
        passed: bool = await ASYNC_STRATEGIES[strategy](storage).hit(MANY, "all", cost=60)
        await storage.aclose()
        return passed

    storage = open_for_threads(uri)
    for strategy in ALL:
        assert STRATEGIES[strategy](storage).hit(MANY, "all", cost=60)
        assert not asyncio.run(hit(strategy))
    storage.close()


def test_a_moving_window_never_holds_more_than_its_limit(uri: str) -> None:
    """Wherever the window begins: by real time, while threads keep asking for 2.5 seconds."""
    storage, item = open_for_threads(uri), parse("20/second")
    used = STRATEGIES[MOVING](storage)
    passed: list[tuple[float, float]] = []
    end = time.monotonic() + 2.5

    def ask() -> None:
        while time.monotonic() < end:
            began = time.time()
            if used.hit(item, "all"):
                passed.append((began, time.time()))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storage.close()
    assert len(passed) >= 2 * item.amount
    passed.sort(key=lambda each: each[1])
    for first in range(len(passed) - item.amount):
        # Of one more than fit, the first was asked for and the last answered within more than that.
        some = passed[first : first + item.amount + 1]
        assert some[-1][1] - min(began for began, _ in some) > 1.0


@pytest.mark.parametrize("strategy", ALL)
def test_every_key_is_short_and_ends(shared: Storage, admin: redis.Redis, strategy: str) -> None:
    used = shared.by(strategy)
    for item, user in itertools.product((MANY, parse("3/hour")), ("1", "x" * 5_000)):
        for _ in range(4):
            used.hit(item, user)
            used.test(item, user)
            used.stats(item, user)
    found = keys(admin)
    assert len(found) == 4
    for key in found:
        assert key.startswith(b"limits:{")
        assert len(key) <= MAX_BYTES
        assert admin.pttl(key) > 0


def test_reading_leaves_no_key(shared: Storage, admin: redis.Redis) -> None:
    for strategy in ALL:
        used = shared.by(strategy)
        used.test(MANY, "k")
        used.stats(MANY, "k")
        used.clear(MANY, "k")
    assert keys(admin) == []


def test_clear_leaves_no_key(shared: Storage, admin: redis.Redis) -> None:
    for strategy in ALL:
        shared.by(strategy).hit(MANY, "k")
    assert len(keys(admin)) == 3
    shared.by(MOVING).clear(MANY, "k")
    assert keys(admin) == []


def test_storage_from_string_makes_both_kinds(uri: str) -> None:
    assert isinstance(storage_from_string(uri), LimenStorage)
    assert isinstance(storage_from_string(f"async+{uri}"), AsyncLimenStorage)
