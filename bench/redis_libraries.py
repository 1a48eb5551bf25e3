"""The limiters that are measured on Redis: each behind a loop for threads, some also for asyncio.

As in memory, a loop branches on the verdict and reads what the headers need. A decision of limen
counts only if the store made it: what its local stand-in admits would be another measurement.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bench.libraries import LIMEN, LIMITS, Instance, Loop, Quota, needed, throttled_loop
from limen import AsyncLimiter, Concurrency, Decision, Limiter

Name = tuple[str, str]
"""A library, and what it is asked to do."""

QUOTA = Quota(10_000, 3_600)
ONE = (LIMEN, "packed_window")
THREE = (LIMEN, "packed_window, three limits")
TOKENS = (LIMEN, "token_bucket")
HIT = (LIMITS, "hit")
HIT_AND_STATS = (LIMITS, "hit and get_window_stats")
CONCURRENCY = "Concurrency"

# The smaller two are never filled either: see the test.
_LIMITS = {
    ONE: ("10000/hour",),
    THREE: ("10000/hour", "5000 per 10 minutes", "2000/minute"),
    TOKENS: ("10000/hour token_bucket",),
}
# Far from the default of 50 ms: on a busy machine a fallback would spoil the block.
_DEADLINE_S = 5.0

AsyncLoop = Callable[[Iterable[str]], Coroutine[Any, Any, int]]


@dataclass(frozen=True, slots=True)
class AsyncInstance:
    """A limiter for asyncio, with states of its own."""

    loop: AsyncLoop
    """Check each key once, read the answer, and return how many were admitted."""
    close: Callable[[], Awaitable[object]]


def shown(name: Name) -> str:
    """Return what tables call it."""
    library, job = name
    algorithm, comma, rest = job.partition(",")
    return f"`{algorithm}`{comma}{rest}" if library == LIMEN else f"{library}, {job}"


def open_limiter(url: str, namespace: str = "limen") -> Limiter:
    """Return limen for threads, patient."""
    return Limiter(url, namespace=namespace, deadline=_DEADLINE_S)


def open_async_limiter(url: str, namespace: str = "limen") -> AsyncLimiter:
    """Return limen for asyncio, patient."""
    return AsyncLimiter(url, namespace=namespace, deadline=_DEADLINE_S)


def build(name: Name, url: str) -> Instance:
    """Return a limiter for threads."""
    library, job = name
    if library == LIMEN:
        limiter = open_limiter(url, _namespace(name))
        return Instance(limen_loop(limiter, *_LIMITS[name]), close=limiter.close)
    with needed(library):
        if library == LIMITS:
            return _limits(url, with_stats=name == HIT_AND_STATS)
        store: Any = import_module("throttled").RedisStore(server=f"{url}/0")
        return Instance(throttled_loop(job, QUOTA, store))


def build_async(name: Name, url: str) -> AsyncInstance:
    """Return a limiter for asyncio."""
    library, _ = name
    if library == LIMEN:
        limiter = open_async_limiter(url, _namespace(name))
        return AsyncInstance(limen_async_loop(limiter, *_LIMITS[name]), limiter.aclose)
    with needed(library):
        return _limits_async(url, with_stats=name == HIT_AND_STATS)


def _namespace(name: Name) -> str:
    """Return where a contestant's states are, so that nobody fills another's windows."""
    return name[1].replace(", ", "-").replace(" ", "-")


def limen_loop(limiter: Limiter, *limits: str) -> Loop:
    """Return the loop over limen."""
    check = limiter.check

    def loop(keys: Iterable[str]) -> int:
        admitted = 0
        for key in keys:
            decision = check(key, *limits)
            if decision.allowed and decision.source == "store":
                admitted += 1
            _ = decision.remaining
            _ = decision.retry_after
            _ = decision.reset_after
        return admitted

    return loop


def limen_async_loop(limiter: AsyncLimiter, *limits: str) -> AsyncLoop:
    """Return the loop over limen for asyncio."""
    check = limiter.check

    async def loop(keys: Iterable[str]) -> int:
        admitted = 0
        for key in keys:
            decision = await check(key, *limits)
            if decision.allowed and decision.source == "store":
                admitted += 1
            _ = decision.remaining
            _ = decision.retry_after
            _ = decision.reset_after
        return admitted

    return loop


def _limits(url: str, *, with_stats: bool) -> Instance:
    """Return the moving window of limits. `hit` answers yes or no, the rest is a second call."""
    storage: Any = import_module("limits.storage").RedisStorage(url, key_prefix=_prefix(with_stats))
    limiter: Any = import_module("limits.strategies").MovingWindowRateLimiter(storage)
    item = import_module("limits").RateLimitItemPerSecond(QUOTA.units, QUOTA.seconds)
    hit, get_window_stats = limiter.hit, limiter.get_window_stats

    def loop(keys: Iterable[str]) -> int:
        admitted = 0
        for key in keys:
            if hit(item, key):
                admitted += 1
            if with_stats:
                stats = get_window_stats(item, key)
                _ = stats.remaining
                _ = stats.reset_time
        return admitted

    return Instance(loop, close=storage.storage.close)


def _limits_async(url: str, *, with_stats: bool) -> AsyncInstance:
    """Return the same for asyncio, on redis-py, which is what limen opens its connections with."""
    storage: Any = import_module("limits.aio.storage").RedisStorage(
        f"async+{url}", implementation="redispy", key_prefix=_prefix(with_stats)
    )
    limiter: Any = import_module("limits.aio.strategies").MovingWindowRateLimiter(storage)
    item = import_module("limits").RateLimitItemPerSecond(QUOTA.units, QUOTA.seconds)
    hit, get_window_stats = limiter.hit, limiter.get_window_stats

    async def loop(keys: Iterable[str]) -> int:
        admitted = 0
        for key in keys:
            if await hit(item, key):
                admitted += 1
            if with_stats:
                stats = await get_window_stats(item, key)
                _ = stats.remaining
                _ = stats.reset_time
        return admitted

    return AsyncInstance(loop, storage.bridge.storage.aclose)


def _prefix(with_stats: bool) -> str:
    return "hit-and-stats" if with_stats else "hit"


def ask(limiter: Limiter, algorithm: str, quota: Quota) -> Callable[[str], Decision]:
    """Return what asks for one unit of a key, or for one slot."""
    if algorithm == CONCURRENCY:
        slots = Concurrency(quota.units, lease=quota.seconds)
        return lambda key: limiter.slot(key, slots).acquire()
    limit = f"{quota.units}/{quota.seconds}s {algorithm}"
    return lambda key: limiter.check(key, limit)


def ask_async(
    limiter: AsyncLimiter, algorithm: str, quota: Quota
) -> Callable[[str], Awaitable[Decision]]:
    """Return the same for asyncio."""
    if algorithm == CONCURRENCY:
        slots = Concurrency(quota.units, lease=quota.seconds)
        return lambda key: limiter.slot(key, slots).acquire()
    limit = f"{quota.units}/{quota.seconds}s {algorithm}"
    return lambda key: limiter.check(key, limit)
