"""Load for a shared store: many callers at once, and what each was told."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from limen import AsyncLimiter, Decision, Limit, Limiter
from tests.waiting import wait_until, wait_until_async

PROCESSES = 4
WIDE = Limit(1_000_000, 86_400, algorithm="fixed_window")
"""So wide that nobody is refused: `remaining` numbers the decisions, and so tells them apart."""


class Crowd:
    """Processes that do the same at the same time. Started once, because that takes a second."""

    def __enter__(self) -> Crowd:
        self._pool = multiprocessing.get_context("spawn").Pool(PROCESSES)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def run(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Let each do `work` with these arguments and its number; return what each found."""
        running = [
            self._pool.apply_async(work, (*arguments, number)) for number in range(PROCESSES)
        ]
        return [each.get(110) for each in running]


@dataclass
class Told:
    """What callers were told, and how long the slowest waited."""

    decisions: list[Decision] = field(default_factory=list)
    slowest_s: float = 0.0
    errors: list[BaseException] = field(default_factory=list)

    def add(self, decision: Decision, took_s: float) -> None:
        self.decisions.append(decision)
        self.slowest_s = max(self.slowest_s, took_s)

    @property
    def sources(self) -> Counter[str]:
        return Counter(decision.source for decision in self.decisions)

    def wait_for(self, source: str, count: int = 50) -> None:
        """Wait until so many more decisions come from there."""
        most = self.sources[source] + count
        wait_until(lambda: self.sources[source] >= most)

    async def wait_for_async(self, source: str, count: int = 50) -> None:
        most = self.sources[source] + count
        await wait_until_async(lambda: self.sources[source] >= most)

    @property
    def numbers(self) -> list[int]:
        """The number of each decision that the store made, in the order it made them."""
        return sorted(
            WIDE.quota - each.remaining for each in self.decisions if each.source == "store"
        )


class Threads:
    """Threads that ask until they are told to stop, or have asked often enough."""

    def __init__(self, limiter: Limiter, count: int, *, calls: int | None = None, key: str = "k"):
        self.told = Told()
        self._limiter, self._calls, self._key = limiter, calls, key
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(count)]

    def __enter__(self) -> Threads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._calls is None:
            self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a caller hangs"

    def _ask(self) -> None:
        asked = 0
        while not self._stop.is_set() and asked != self._calls:
            asked += 1
            start = time.perf_counter()
            try:
                decision = self._limiter.check(self._key, WIDE)
            except BaseException as error:
                self.told.errors.append(error)
                return
            self.told.add(decision, time.perf_counter() - start)
            if decision.degraded:
                # Decided at once: eight threads would otherwise only fight for the interpreter.
                time.sleep(0.001)


class Tasks:
    """The same with tasks of the running loop."""

    def __init__(
        self, limiter: AsyncLimiter, count: int, *, calls: int | None = None, key: str = "k"
    ) -> None:
        self.told = Told()
        self._limiter, self._calls, self._key = limiter, calls, key
        self._stopped = False
        self._count = count
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Tasks:
        self.tasks = [asyncio.create_task(self._ask()) for _ in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = self._calls is None
        done, pending = await asyncio.wait(self.tasks, timeout=60)
        assert not pending, "a caller hangs"
        for task in done:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self.told.errors.append(error)

    async def _ask(self) -> None:
        asked = 0
        while not self._stopped and asked != self._calls:
            asked += 1
            start = time.perf_counter()
            decision = await self._limiter.check(self._key, WIDE)
            self.told.add(decision, time.perf_counter() - start)
            if decision.degraded:
                await asyncio.sleep(0.001)
