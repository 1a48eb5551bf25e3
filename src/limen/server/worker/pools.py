"""Thread pools for blocking work: one for each kind, so that no kind waits for another.

Decisions, health and small admin requests run on the event loop. The rest runs here:

| pool | work | threads | for each token | longest wait |
|---|---|---|---|---|
| `compute` | parse large bodies; validate, explain, compare, summarize rules | 2 | 1 | 30 s |
| `database` | transactions of the admin API | 8 | 2 | 5 s |
| `switch` | the file of the kill switch, and nothing else | 2 | 1 | 5 s |

asyncio's default executor is left to `/metrics` and to the files of insight. Rules and the kill
switch are followed on the thread `limen-rules`, which has its own event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar, TypeVarTuple

from limen.server.http.exchange import Rejected

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_RETRY_S = b"1"


class Pool:
    """A fixed number of threads, of which each token has at most a few at a time.

    Work first waits for the earlier work of its token, and then for a free thread, in the order of
    arrival. Both waits together are bounded.
    """

    def __init__(self, name: str, *, threads: int, per_token: int, wait_s: float) -> None:
        """Start no thread yet. `wait_s` is the longest time in seconds that work waits."""
        self._name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"limen-{name}")
        self._threads = asyncio.Semaphore(threads)
        self._per_token = per_token
        self._wait_s = wait_s
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._works: Counter[str] = Counter()
        """How much work of each token waits or runs."""

    @property
    def is_busy(self) -> bool:
        """Whether any work waits or runs."""
        return bool(self._works)

    async def run(self, token: str, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a function in a thread; return its result.

        Raises `Rejected` (503) when no thread is free in time.
        """
        turn = self._turns.setdefault(token, asyncio.Semaphore(self._per_token))
        with ExitStack() as held:
            self._works[token] += 1
            held.callback(self._forget, token)
            try:
                async with asyncio.timeout(self._wait_s):
                    for semaphore in (turn, self._threads):
                        await semaphore.acquire()
                        held.callback(semaphore.release)
            except TimeoutError:
                raise self._late() from None
            job = asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
            release = held.pop_all().close
        # A request that is cancelled does not stop its thread, which counts until it ends.
        job.add_done_callback(lambda _: release())
        return await asyncio.shield(job)

    def close(self) -> None:
        """Drop the work that waits. Work that runs goes on; see `is_busy`."""
        self._executor.shutdown(wait=not self.is_busy, cancel_futures=True)

    def _forget(self, token: str) -> None:
        self._works[token] -= 1
        if not self._works[token]:
            del self._works[token], self._turns[token]

    def _late(self) -> Rejected:
        detail = f"no {self._name} thread was free within {self._wait_s:g} s; try again later"
        return Rejected(503, detail, [(b"retry-after", _RETRY_S)])


class Pools:
    """All pools of one process."""

    def __init__(self) -> None:
        # Two: each thread that computes delays the event loop by up to 5 ms at a time.
        self.compute: Pool = Pool("compute", threads=2, per_token=1, wait_s=30.0)
        self.database: Pool = Pool("database", threads=8, per_token=2, wait_s=5.0)
        self.switch: Pool = Pool("switch", threads=2, per_token=1, wait_s=5.0)

    @property
    def is_busy(self) -> bool:
        """Whether any work waits or runs."""
        return any(pool.is_busy for pool in (self.compute, self.database, self.switch))

    def close(self) -> None:
        """Drop the work that waits, in every pool."""
        for pool in (self.compute, self.database, self.switch):
            pool.close()


class PerToken:
    """A bound on how many of something one token may have at a time."""

    def __init__(self, most: int, named: str) -> None:
        """Set the bound. `named` is the plural for error messages: `requests in progress`."""
        self._most = most
        self._named = named
        self._counts: Counter[str] = Counter()

    @contextmanager
    def hold(self, token: str) -> Iterator[None]:
        """Count one more while the context lasts. Raises `Rejected` (429) above the bound."""
        if self._counts[token] >= self._most:
            raise Rejected(
                429,
                f"this token has {self._most} {self._named}, the most that one token may have; "
                "wait until one ends",
                [(b"retry-after", _RETRY_S)],
            )
        self._counts[token] += 1
        try:
            yield
        finally:
            self._counts[token] -= 1
            if not self._counts[token]:
                del self._counts[token]
