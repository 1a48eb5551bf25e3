"""The observer for a program's own registry: what it counts, and that no count is lost."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading

from limen import AsyncLimiter, Check, Concurrency, Decision, Limit, Limiter
from limen.observe import Metrics
from limen.observe.cells import MOST_NAMES, OTHERS
from limen.observe.figures import Figures
from tests import servers


def test_decisions_are_counted_by_limit_and_outcome() -> None:
    metrics = Metrics()
    limiter = Limiter(observers=[metrics])
    for _ in range(3):
        limiter.check("k", "2/minute")
    limiter.check("k", Limit(5, 60, name="uploads"))
    limiter.peek("k", "2/minute")
    assert metrics.figures().decisions == {"2/minute": [2, 1, 0, 0], "uploads": [1, 0, 0, 0]}


def test_of_several_limits_those_that_refused_are_counted_or_else_all() -> None:
    metrics = Metrics()
    limiter = Limiter(observers=[metrics])
    limiter.check("k", "1/minute", "5/hour")
    limiter.check("k", "1/minute", "5/hour")
    assert metrics.figures().decisions == {"1/minute": [1, 1, 0, 0], "5/hour": [1, 0, 0, 0]}


def test_a_shadow_is_counted_apart() -> None:
    metrics = Metrics()
    limiter = Limiter(observers=[metrics])
    shadow = Check(Limit(1, 60, name="new#1"), "k", enforce=False)
    for _ in range(3):
        assert limiter.decide(shadow, Check(Limit(9, 60, name="old#2"), "k")).allowed
    assert metrics.figures().decisions == {"new": [1, 0, 2, 0], "old": [3, 0, 0, 0]}


def test_slots_are_counted() -> None:
    metrics = Metrics()
    limiter = Limiter(observers=[metrics])
    with limiter.slot("k", Concurrency(1, lease=30, name="exports")):
        assert not limiter.slot("k", Concurrency(1, lease=30, name="exports")).acquire().allowed
    assert metrics.figures().decisions == {"exports": [1, 1, 0, 0]}


def test_without_the_store_decisions_are_degraded_and_say_by_whom() -> None:
    metrics = Metrics()
    with servers.process(servers.binaries()["valkey"]) as server:
        limiter = Limiter(f"redis://127.0.0.1:{server.port}", observers=[metrics], deadline=1.0)
        metrics.watch(limiter)
        limiter.check("k", "2/minute")
        server.kill()
        for _ in range(3):
            limiter.check("k", "2/minute")
    figures = metrics.figures()
    limiter.close()
    assert figures.decisions == {"2/minute": [1, 0, 0, 3]}
    assert figures.fallback == {"local": [1, 2]}
    [(where, told)] = figures.servers.items()
    assert where == f"redis://127.0.0.1:{server.port}"
    assert sum(told.faults.values()) > 0
    assert sum(told.trips.counts) == 1
    assert figures.tables["local"] == 1


def test_watched_limiters_tell_of_their_servers_and_tables(redis_url: str) -> None:
    metrics = Metrics()
    memory = metrics.watch(Limiter(observers=[metrics]))
    memory.check("k", "5/minute")

    async def ask() -> Figures:
        async with AsyncLimiter(redis_url, observers=[metrics]) as limiter:
            metrics.watch(limiter)
            await asyncio.gather(*[limiter.check(f"k{n}", "5/minute") for n in range(40)])
            return metrics.figures()

    figures = asyncio.run(ask())
    assert figures.decisions == {"5/minute": [41, 0, 0, 0]}
    assert figures.tables["memory"] == 1
    [told] = figures.servers.values()
    assert told.batches.total == 40
    assert sum(told.batches.counts) == sum(told.trips.counts) < 40


def test_threads_lose_no_count() -> None:
    metrics = Metrics()
    limiter = Limiter(observers=[metrics])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(
                target=lambda: [limiter.check("k", "1000/minute") for _ in range(5_000)]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert metrics.figures().decisions == {"1000/minute": [1_000, 19_000, 0, 0]}


def test_the_number_of_names_is_bounded_whatever_comes() -> None:
    metrics = Metrics()
    limiter = Limiter(observers=[metrics])
    for n in range(MOST_NAMES + 500):
        limiter.check("k", Limit(5, 60, name=f"made up {n}"))
    figures = metrics.figures()
    assert len(figures.decisions) == MOST_NAMES + 1
    assert figures.decisions[OTHERS] == [500, 0, 0, 0]


def test_a_name_that_is_not_unicode_is_escaped() -> None:
    metrics = Metrics()
    Limiter(observers=[metrics]).check("x", Limit(5, 60, name="a\ud800#1"))
    assert list(metrics.figures().decisions) == ["a\\ud800"]


def test_limits_made_anew_for_each_call_are_never_taken_for_each_other() -> None:
    metrics = Metrics()
    limiter = Limiter(observers=[metrics])
    for n in range(10_000):
        # Each is gone at once, and the next one may lie in the same place.
        limiter.check("k", Limit(10_000, 60, name="even" if n % 2 == 0 else "odd"))
    gc.collect()
    assert metrics.figures().decisions == {"even": [5_000, 0, 0, 0], "odd": [5_000, 0, 0, 0]}


def test_an_observer_may_be_an_object_a_function_or_a_method() -> None:
    told: list[Decision] = []

    class Observer:
        def __call__(self, decision: Decision) -> None:
            told.append(decision)

    observer = Observer()
    also = [observer.__call__, lambda decision: told.append(decision)]
    limiter = Limiter(observers=[observer, told.append, *also])
    decision = limiter.check("k", "1/minute")
    assert told == [decision] * 4
