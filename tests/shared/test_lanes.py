"""Callers who share a connection: nobody hangs, and nobody is told what another one asked.

Every decision of the store has a number of its own (see `load.WIDE`): were an answer lost, given
twice, or given to somebody else, a number would be missing or there twice.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import subprocess
import sys
import threading
from typing import Any

import pytest
import redis

from limen import AsyncLimiter, Check, Concurrency, Limit, Limiter
from limen.backends.histogram import BATCH
from tests.shared.load import WIDE, Tasks, Threads, Told

SLOW_MACHINE_S = 5.0
"""For tests of who is told what: time is not what they are about."""


def test_threads_are_told_their_own_answers(url: str) -> None:
    with Limiter(url, deadline=SLOW_MACHINE_S) as limiter:
        with Threads(limiter, 16, calls=200) as threads:
            pass
        assert not threads.told.errors
        assert threads.told.numbers == list(range(1, 3_201))


def test_tasks_are_told_their_own_answers(url: str) -> None:
    async def ask() -> Told:
        async with AsyncLimiter(url, deadline=SLOW_MACHINE_S) as limiter:
            async with Tasks(limiter, 64, calls=50) as tasks:
                pass
            return tasks.told

    told = asyncio.run(ask())
    assert not told.errors
    assert told.numbers == list(range(1, 3_201))


def test_what_waits_together_travels_together(url: str, admin: redis.Redis) -> None:
    async def ask() -> None:
        async with AsyncLimiter(url, deadline=SLOW_MACHINE_S) as limiter:
            await limiter.check("warm", WIDE)
            admin.config_resetstat()
            await asyncio.gather(*[limiter.check("k", WIDE) for _ in range(100)])

    asyncio.run(ask())
    calls = admin.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls <= 2


def test_behind_a_lone_one_the_others_go_in_halves(url: str, admin: redis.Redis) -> None:
    async def ask() -> tuple[int, ...]:
        async with AsyncLimiter(url, deadline=SLOW_MACHINE_S) as limiter:
            await limiter.check("warm", WIDE)
            admin.client_pause(10_000, all=False)
            asked = [asyncio.ensure_future(limiter.check("k", WIDE))]
            await asyncio.sleep(0.05)
            asked += [asyncio.ensure_future(limiter.check("k", WIDE)) for _ in range(60)]
            await asyncio.sleep(0.05)
            # Two are under way, and no third before one of them is back.
            assert sum(limiter.shards[0].batches.counts) == 3
            admin.client_unpause()
            await asyncio.gather(*asked)
            return limiter.shards[0].batches.counts

    counts = asyncio.run(ask())
    # The first two were alone; of the others no packet holds more than half of all.
    assert counts[:1] == (2,)
    assert sum(counts) == 4
    assert not any(counts[BATCH.index(32) + 1 :])


def _ask_in_child(limiter: Limiter, calls: int, queue: Any) -> None:
    numbers = [WIDE.quota - limiter.check("k", WIDE).remaining for _ in range(calls)]
    queue.put((numbers, _own_port(limiter)))


def _own_port(limiter: Any) -> int:
    [server] = limiter._backend._servers.values()
    [connection] = server.pool._connections
    port: int = connection._socket.getsockname()[1]
    return port


def _ask_in_a_loop_of_the_child(limiter: AsyncLimiter, calls: int, queue: Any) -> None:
    async def ask() -> None:
        async with Tasks(limiter, 10, calls=calls // 10) as tasks:
            pass
        queue.put((tasks.told.numbers, 0))
        await limiter.aclose()

    asyncio.run(ask())


def test_after_a_fork_each_process_has_its_own_loop_and_connection(url: str) -> None:
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    limiter = AsyncLimiter(url, deadline=SLOW_MACHINE_S)

    async def ask() -> list[int]:
        # Connected in the parent, whose connection goes on being used while the children live.
        async with Tasks(limiter, 4, calls=50) as tasks:
            children = [
                fork.Process(target=_ask_in_a_loop_of_the_child, args=(limiter, 100, queue))
                for _ in range(3)
            ]
            for child in children:
                await asyncio.to_thread(child.start)
        numbers = list(tasks.told.numbers)
        for child in children:
            numbers += (await asyncio.to_thread(queue.get, True, 60))[0]
            await asyncio.to_thread(child.join, 60)
        await limiter.aclose()
        return numbers

    assert sorted(asyncio.run(ask())) == list(range(1, 501))


def test_after_a_fork_each_process_has_its_own_connection(url: str) -> None:
    # As gunicorn does with preload: made and used before the fork, and busy while it happens.
    with Limiter(url, deadline=SLOW_MACHINE_S) as limiter, Threads(limiter, 4) as threads:
        threads.told.wait_for("store")
        fork = multiprocessing.get_context("fork")
        queue = fork.Queue()
        children = [
            fork.Process(target=_ask_in_child, args=(limiter, 200, queue)) for _ in range(4)
        ]
        for child in children:
            child.start()
        found = [queue.get(timeout=60) for _ in children]
        in_children = [number for numbers, _ in found for number in numbers]
        for child in children:
            child.join(60)
            assert child.exitcode == 0
    assert len({port for _, port in found}) == 4, "processes share a socket"
    numbers = sorted([*threads.told.numbers, *in_children])
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(in_children) == 800


def test_after_a_fork_receipts_have_other_ids(url: str) -> None:
    with Limiter(url, deadline=SLOW_MACHINE_S) as limiter:
        fork = multiprocessing.get_context("fork")
        queue = fork.Queue()
        limiter.check("k", WIDE)
        child = fork.Process(target=lambda: queue.put(limiter.check("k", WIDE).id))
        child.start()
        theirs = queue.get(timeout=60)
        child.join(60)
        assert abs(theirs - limiter.check("k", WIDE).id) > 1_000


def test_two_event_loops_share_a_limiter(url: str) -> None:
    limiter = AsyncLimiter(url, deadline=SLOW_MACHINE_S)
    told: list[Told] = []
    both_are_done = threading.Barrier(2)

    async def ask() -> None:
        async with Tasks(limiter, 20, calls=20) as tasks:
            pass
        told.append(tasks.told)
        await asyncio.to_thread(both_are_done.wait, 60)
        await limiter.aclose()

    loops = [threading.Thread(target=asyncio.run, args=(ask(),)) for _ in range(2)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(60)
        assert not loop.is_alive()
    assert not [error for each in told for error in each.errors]
    assert sorted([*told[0].numbers, *told[1].numbers]) == list(range(1, 801))


def test_one_loop_after_the_other(url: str) -> None:
    limiter = AsyncLimiter(url, deadline=SLOW_MACHINE_S)

    async def ask() -> int:
        decision = await limiter.check("k", WIDE)
        await limiter.aclose()
        return WIDE.quota - decision.remaining

    assert [asyncio.run(ask()) for _ in range(3)] == [1, 2, 3]


GEVENT = """
from gevent import monkey; monkey.patch_all()
import gevent, sys
from limen import Limit, Limiter
wide = Limit(1_000_000, 86_400, algorithm="fixed_window")
limiter = Limiter(sys.argv[1], deadline=5)
told = []
def ask():
    for _ in range(20):
        decision = limiter.check("k", wide)
        told.append((decision.source, wide.quota - decision.remaining))
gevent.joinall([gevent.spawn(ask) for _ in range(50)], timeout=60, raise_error=True)
assert sorted(told) == [("store", number) for number in range(1, 1001)], sorted(told)[:20]
print("as it should be")
"""


def test_greenlets_share_a_limiter(url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GEVENT, url], capture_output=True, text=True, timeout=100
    )
    assert done.stdout.strip() == "as it should be", done.stderr


def test_a_cancelled_waiter_takes_nobody_along(url: str) -> None:
    chance = random.Random(2)

    async def ask() -> tuple[Told, int]:
        async with AsyncLimiter(url, deadline=SLOW_MACHINE_S) as limiter:
            cancelled = 0
            async with Tasks(limiter, 16) as tasks:
                for _ in range(1_500):
                    task = asyncio.create_task(limiter.check("k", WIDE))
                    for _ in range(chance.randrange(4)):
                        await asyncio.sleep(0)
                    task.cancel()
                    await asyncio.wait([task])
                    cancelled += task.cancelled()
            return tasks.told, cancelled

    told, cancelled = asyncio.run(ask())
    assert cancelled > 1_000
    assert not told.errors
    assert told.sources.keys() == {"store"}
    numbers = told.numbers
    assert len(set(numbers)) == len(numbers), "two callers were told the same"


def test_what_is_cancelled_before_it_is_sent_is_not_charged(url: str) -> None:
    async def ask() -> int:
        async with AsyncLimiter(url, deadline=SLOW_MACHINE_S) as limiter:
            await limiter.check("warm", WIDE)
            tasks = [asyncio.create_task(limiter.check("k", WIDE)) for _ in range(10)]
            await asyncio.sleep(0)  # they stand in line now, and the line leaves at the next turn
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            return (await limiter.peek("k", WIDE)).remaining

    assert asyncio.run(ask()) == WIDE.quota


def test_slots_that_are_cancelled_while_they_are_acquired_are_given_back(url: str) -> None:
    async def ask() -> tuple[int, int]:
        async with AsyncLimiter(url, deadline=SLOW_MACHINE_S) as limiter:
            few, cancelled = Concurrency(3, lease=60), 0
            for turns in range(60):
                slot = limiter.slot("k", few)
                task = asyncio.create_task(slot.acquire())
                for _ in range(turns % 6):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                cancelled += task.cancelled()
                if not task.cancelled():
                    assert (await task).allowed
                    await slot.release()
            decision = await limiter.slot("k", few).acquire()
            return decision.remaining, cancelled

    remaining, cancelled = asyncio.run(ask())
    assert remaining == 2
    assert cancelled > 20


def test_requests_of_different_sizes_share_a_batch(url: str) -> None:
    async def ask() -> None:
        async with AsyncLimiter(url, deadline=SLOW_MACHINE_S) as limiter:
            limits = [Limit(10, 60, name=f"n{number}") for number in range(20)]
            asked = [
                limiter.decide(*[Check(limit, f"key{size}") for limit in limits[: size + 1]])
                for size in range(20)
            ]
            for size, decision in enumerate(await asyncio.gather(*asked)):
                assert decision.source == "store"
                assert len(decision.parts) == size + 1
                assert decision.parts[0].key == f"key{size}"
                assert all(part.remaining == 9 for part in decision.parts)

    asyncio.run(ask())


@pytest.mark.parametrize("turn", range(3))
def test_a_lone_caller_waits_for_nobody(url: str, admin: redis.Redis, turn: int) -> None:
    with Limiter(url, deadline=SLOW_MACHINE_S) as limiter:
        limiter.ping()
        limiter.check("warm", WIDE)
        admin.config_resetstat()
        for _ in range(50):
            assert limiter.check("k", WIDE).source == "store"
    stats = admin.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 50
    assert "cmdstat_ping" not in stats
