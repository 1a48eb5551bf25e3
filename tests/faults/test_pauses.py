"""Processes that pause while the store is healthy: no pause lets a request past the limit."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Self

import pytest
import redis
from uvloop import new_event_loop as uvloop_loop

from limen import AsyncLimiter, Check, Decision, Limit, Limiter
from tests.faults.callers import url_of
from tests.faults.figures import say
from tests.faults.rig import DEADLINE_S, NICE, History, rig, stop_all_threads
from tests.waiting import FULL

BLOCK_DEADLINE_S = DEADLINE_S if FULL else 0.2
"""Longer in `make test`, where other tests may keep the store itself waiting for a processor."""
PAUSE_S = 1.2 * BLOCK_DEADLINE_S
ROUNDS = 40 if FULL else 10
KEYS = [f"user:{number}" for number in range(10)]
"""Each key is a run of its own: all four workers ask for it, far above its limit."""
SESSIONS = 20 if FULL else 1
SESSION_S = 12.0 if FULL else 8.0
BURNERS = 4
"""Processes that keep the processors busy: two for each core of the machine that CI has."""


class Watch:
    """Measures how long the store takes to answer a client that never pauses."""

    def __init__(self, port: int) -> None:
        self.worst_s = 0.0
        self._client = redis.Redis(port=port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ping, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        self._client.close()

    def _ping(self) -> None:
        while not self._stop.wait(0.002):
            start = time.monotonic()
            self._client.ping()
            self.worst_s = max(self.worst_s, time.monotonic() - start)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_blocked_event_loop_admits_no_more_than_the_limit(port: int, round_: int) -> None:
    async def ask_and_block() -> list[Decision]:
        async with AsyncLimiter(url_of(port), deadline=BLOCK_DEADLINE_S) as limiter:
            await limiter.ping()
            key = f"loop:{time.monotonic_ns()}"
            asked = [asyncio.ensure_future(limiter.check(key, "5/minute")) for _ in range(12)]
            for _ in range(round_ % 4):
                await asyncio.sleep(0)
            time.sleep(PAUSE_S)  # noqa: ASYNC251  # a blocking handler
            return [*await asyncio.gather(*asked), await limiter.check(key, "5/minute")]

    decisions = asyncio.run(ask_and_block())
    assert [decision.source for decision in decisions] == ["store"] * len(decisions)
    assert sum(decision.allowed for decision in decisions) == 5


def run(story: Coroutine[Any, Any, Any], *, uvloop: bool) -> Any:
    with asyncio.Runner(loop_factory=uvloop_loop if uvloop else None) as runner:
        return runner.run(story)


@pytest.mark.parametrize("uvloop", [False, True], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(("handlers", "busy_s"), [(60, PAUSE_S / 30), (12, PAUSE_S / 6)])
def test_many_busy_handlers_admit_no_more_than_the_limit(
    port: int, handlers: int, busy_s: float, uvloop: bool
) -> None:
    """The handlers of one loop iteration together take longer than the deadline."""

    async def handle(limiter: AsyncLimiter, key: str) -> Decision:
        busy_until = time.monotonic() + busy_s
        while time.monotonic() < busy_until:
            pass
        return await limiter.check(key, "5/minute")

    async def serve() -> list[Decision]:
        async with AsyncLimiter(url_of(port), deadline=BLOCK_DEADLINE_S) as limiter:
            await limiter.ping()
            key = f"handlers:{time.monotonic_ns()}"
            return list(await asyncio.gather(*[handle(limiter, key) for _ in range(handlers)]))

    decisions = run(serve(), uvloop=uvloop)
    assert [decision.source for decision in decisions] == ["store"] * handlers
    assert sum(decision.allowed for decision in decisions) == 5


def test_pause_longer_than_the_deadline_of_one_call_admits_no_more_than_the_limit(
    port: int,
) -> None:
    async def ask_and_block() -> list[Decision]:
        async with AsyncLimiter(url_of(port), deadline=5.0) as limiter:
            await limiter.ping()
            check = Check(Limit(5, 60), f"within:{time.monotonic_ns()}")
            asked = [
                asyncio.ensure_future(limiter.decide(check, within=BLOCK_DEADLINE_S))
                for _ in range(12)
            ]
            await asyncio.sleep(0)
            time.sleep(PAUSE_S)  # noqa: ASYNC251  # a blocking handler
            return list(await asyncio.gather(*asked))

    decisions = asyncio.run(ask_and_block())
    assert [decision.source for decision in decisions] == ["store"] * 12
    assert sum(decision.allowed for decision in decisions) == 5


def test_pause_while_connecting_is_no_fault_of_the_store(port: int) -> None:
    async def connect_and_block(steps: int) -> list[Decision]:
        async with AsyncLimiter(url_of(port), deadline=BLOCK_DEADLINE_S) as limiter:
            key = f"connecting:{time.monotonic_ns()}"
            asked = [asyncio.ensure_future(limiter.check(key, "5/minute")) for _ in range(12)]
            for _ in range(steps):
                await asyncio.sleep(0)
            time.sleep(0.6)  # noqa: ASYNC251  # longer than a connection may take to open
            return list(await asyncio.gather(*asked))

    for steps in range(1, 7):
        decisions = asyncio.run(connect_and_block(steps))
        assert [decision.source for decision in decisions] == ["store"] * 12
        assert sum(decision.allowed for decision in decisions) == 5


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_stopped_threads_admit_no_more_than_the_limit(port: int, round_: int) -> None:
    decisions: list[Decision] = []
    with Limiter(url_of(port), deadline=BLOCK_DEADLINE_S) as limiter:
        limiter.ping()
        key = f"threads:{time.monotonic_ns()}"
        start = threading.Barrier(13)

        def ask() -> None:
            start.wait(10)
            decisions.append(limiter.check(key, "5/minute"))

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        start.wait(10)
        time.sleep(round_ % 4 * 0.000_1)
        stop_all_threads(PAUSE_S)
        for thread in threads:
            thread.join(10)
    assert [decision.source for decision in decisions] == ["store"] * 12
    assert sum(decision.allowed for decision in decisions) == 5


def _burn() -> None:
    os.nice(NICE)
    while True:
        pass


@contextmanager
def loaded_machine() -> Iterator[None]:
    """Keep all processors busy."""
    spawn = multiprocessing.get_context("spawn")
    burners: list[BaseProcess] = [spawn.Process(target=_burn, daemon=True) for _ in range(BURNERS)]
    try:
        for burner in burners:
            burner.start()
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join(10)


@pytest.mark.slow
@pytest.mark.parametrize("session", range(SESSIONS))
def test_random_pauses_on_a_loaded_machine_admit_no_more_than_the_limit(
    port: int, session: int
) -> None:
    limit = Limit(10, 2)
    keys = [f"{key}/{session}" for key in KEYS]
    with (
        loaded_machine(),
        rig(url_of(port), keys=keys, rate=100, limit=limit, pauses=(0.02, 0.5)) as load,
        Watch(port) as watch,
    ):
        load.seconds(SESSION_S)
        history = load.stop()
    most = max(history.most_admitted(key, 2.0) for key in keys)
    figures = {"local": len(history.degraded()), "asked": len(history.asked)}
    say("paused", most=most, limit=limit.quota, store_worst_s=watch.worst_s, **figures)
    assert not history.errors()
    assert {len(history.admitted(key)) >= limit.quota for key in keys} == {True}
    by_store = [each for each in history.asked if each.source == "store"]
    assert max(History(by_store).most_admitted(key, 2.0) for key in keys) <= limit.quota
    # Where the store had to wait for a processor, some requests are decided locally. The watch
    # cannot rule that out: it waits for a processor at the same time.
    is_healthy = watch.worst_s < 0.6 * DEADLINE_S
    most_local = 0.01 * len(history.asked) if is_healthy else len(history.asked)
    assert len(history.degraded()) <= most_local
    assert most <= limit.quota + (limit.quota if history.degraded() else 0)
