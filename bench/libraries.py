"""The limiters that are measured, each behind the same loop: one check for each key.

Every loop does what a server does with an answer: branch on the verdict, and read what the headers
need. Peers are imported when they are built, because the tests run without them; and by name, so
that mypy says the same whether they are installed or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from bench.harness import BenchError, nothing
from limen import Limiter
from limen.clock import Clock

LIMEN = "limen"
LIMITS = "limits"
THROTTLED = "throttled-py"
PYRATE = "pyrate-limiter"
PEERS = (LIMITS, THROTTLED, PYRATE)

Loop = Callable[[Iterable[str]], int]

_LIMITS_STRATEGIES = {
    "fixed window": "FixedWindowRateLimiter",
    "moving window": "MovingWindowRateLimiter",
    "sliding window counter": "SlidingWindowCounterRateLimiter",
}


@dataclass(frozen=True, slots=True)
class Quota:
    """How much is allowed, in which time, and for how many keys there must be room."""

    units: int
    seconds: int
    max_keys: int | None = None
    """None is the library's default."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A limiter with an empty store of its own."""

    loop: Loop
    """Check each key once, read the answer, and return how many were admitted."""
    rest: Callable[[], object] = nothing
    """Wait until the library's own threads have done what these checks asked of them."""
    close: Callable[[], object] = nothing


def build(library: str, algorithm: str, quota: Quota) -> Instance:
    """Return a new limiter of a library. `algorithm` is the library's own name for it."""
    if library == LIMEN:
        return limen(algorithm, quota)
    with needed(library):
        if library == LIMITS:
            return _limits(algorithm, quota)
        if library == THROTTLED:
            return _throttled(algorithm, quota)
        return _pyrate(algorithm, quota)


@contextmanager
def needed(library: str) -> Iterator[None]:
    """Say in one line that a peer is missing, and what installs it."""
    try:
        yield
    except ImportError as error:
        raise BenchError(f"{library} is not installed ({error}); run: make bench") from error


def limen(algorithm: str, quota: Quota, clock: Clock | None = None) -> Instance:
    """Return limen in memory."""
    store = "memory://" if quota.max_keys is None else f"memory://?max_keys={quota.max_keys}"
    limiter = Limiter(store, clock=clock)
    check = limiter.check
    limit = f"{quota.units}/{quota.seconds}s {algorithm}"

    def loop(keys: Iterable[str]) -> int:
        admitted = 0
        for key in keys:
            decision = check(key, limit)
            if decision.allowed:
                admitted += 1
            _ = decision.remaining
            _ = decision.retry_after
            _ = decision.reset_after
        return admitted

    return Instance(loop, close=limiter.close)


def _limits(strategy: str, quota: Quota) -> Instance:
    """Return limits in memory. `hit` answers yes or no, so the rest takes a second call."""
    storage: Any = import_module("limits.storage").MemoryStorage()
    limiter: Any = getattr(import_module("limits.strategies"), _LIMITS_STRATEGIES[strategy])(
        storage
    )
    item = import_module("limits").RateLimitItemPerSecond(quota.units, quota.seconds)
    hit, get_window_stats = limiter.hit, limiter.get_window_stats

    def loop(keys: Iterable[str]) -> int:
        admitted = 0
        for key in keys:
            if hit(item, key):
                admitted += 1
            stats = get_window_stats(item, key)
            _ = stats.remaining
            _ = stats.reset_time
        return admitted

    # Its sweeper is a thread that starts 10 ms after a hit. Left alone, it would run in the block
    # of whoever comes next.
    return Instance(loop, rest=lambda: storage.timer.join())


def _throttled(using: str, quota: Quota) -> Instance:
    """Return throttled-py in memory. Its default store holds 1,024 keys."""
    throttled: Any = import_module("throttled")
    options = None if quota.max_keys is None else {"MAX_SIZE": quota.max_keys}
    return Instance(throttled_loop(using, quota, throttled.MemoryStore(options=options)))


def throttled_loop(using: str, quota: Quota, store: Any) -> Loop:
    """Return the loop over a limiter of throttled-py, whatever its store."""
    throttled: Any = import_module("throttled")
    limit = throttled.Throttled(
        using=using,
        quota=throttled.per_duration(timedelta(seconds=quota.seconds), quota.units),
        store=store,
    ).limit

    def loop(keys: Iterable[str]) -> int:
        admitted = 0
        for key in keys:
            result = limit(key)
            if not result.limited:
                admitted += 1
            state = result.state
            _ = state.remaining
            _ = state.retry_after
            _ = state.reset_after
        return admitted

    return loop


def _pyrate(algorithm: str, quota: Quota) -> Instance:
    """Return pyrate-limiter in memory, with a bucket for each key. It answers yes or no only."""
    pyrate: Any = import_module("pyrate_limiter")
    rates = [pyrate.Rate(quota.units, quota.seconds * 1_000)]
    bucket = pyrate.InMemoryBucket if algorithm == "sliding window log" else pyrate.StateBucket
    limiter = pyrate.Limiter(import_module("bench.pyrate").PerKey(lambda: bucket(rates)))
    try_acquire = limiter.try_acquire

    def loop(keys: Iterable[str]) -> int:
        admitted = 0
        for key in keys:
            if try_acquire(key, blocking=False):
                admitted += 1
        return admitted

    return Instance(loop, close=limiter.close)
