"""Strategies of `limits`, for threads and for asyncio, called in the same way."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, cast

import redis
from limits import RateLimitItem, WindowStats
from limits.aio.strategies import STRATEGIES as FOR_ASYNCIO
from limits.storage import storage_from_string
from limits.strategies import STRATEGIES as FOR_THREADS

import limen.adapters.limits  # noqa: F401  # makes the addresses known

FIXED, MOVING, SLIDING = "fixed-window", "moving-window", "sliding-window-counter"
ALL = (FIXED, MOVING, SLIDING)
KINDS = ("threads", "asyncio")
STRATEGIES: dict[str, Any] = {**FOR_THREADS}
ASYNC_STRATEGIES: dict[str, Any] = {**FOR_ASYNCIO}
PATIENT_S = 5.0
"""A deadline for a busy machine: that decisions are in time is for other tests to show."""


class Storage:
    """A storage whose verbs can be called without `await`."""

    def __init__(self, kind: str, uri: str, runner: asyncio.Runner, **options: Any) -> None:
        self.kind, self.runner = kind, runner
        self.real: Any = storage_from_string(
            uri if kind == "threads" else f"async+{uri}", **options
        )

    def __getattr__(self, verb: str) -> Any:
        return blocking(getattr(self.real, verb), self.runner)

    def by(self, strategy: str) -> Used:
        """Return a strategy on this storage."""
        strategies = STRATEGIES if self.kind == "threads" else ASYNC_STRATEGIES
        return Used(strategies[strategy](self.real), self.runner)

    def close(self) -> None:
        blocking(self.real.close if self.kind == "threads" else self.real.aclose, self.runner)()


class Used:
    """A strategy whose verbs can be called without `await`."""

    def __init__(self, real: Any, runner: asyncio.Runner) -> None:
        self.real = real
        self.hit: Callable[..., bool] = blocking(real.hit, runner)
        self.test: Callable[..., bool] = blocking(real.test, runner)
        self.stats: Callable[..., WindowStats] = blocking(real.get_window_stats, runner)
        self.clear: Callable[..., None] = blocking(real.clear, runner)

    def hits(self, count: int, item: RateLimitItem, *identifiers: str) -> list[bool]:
        return [self.hit(item, *identifiers) for _ in range(count)]

    def hit_until_refused(self, item: RateLimitItem, *identifiers: str) -> int:
        """Return how many passed: on a slow machine, more than fit into one window."""
        for passed in range(10_000):
            if not self.hit(item, *identifiers):
                return passed
        raise AssertionError("nobody is ever refused")

    def wait_for_reset(self, item: RateLimitItem, *identifiers: str) -> None:
        # A little more, because `limits` can be told of less than one whole window only.
        left_s = self.stats(item, *identifiers).reset_time - time.time()
        time.sleep(max(left_s, 0) + 0.01)


def keys(admin: redis.Redis) -> list[bytes]:
    """Return every key that a server has."""
    return [bytes(key) for key in cast("list[bytes]", admin.keys("*"))]


def blocking(verb: Callable[..., Any], runner: asyncio.Runner) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        answer = verb(*args, **kwargs)
        return runner.run(answer) if inspect.iscoroutine(answer) else answer

    return call
