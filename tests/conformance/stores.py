"""The stores that the suite runs over, and both limiters called in the same way."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import redis

from limen import AsyncLimiter, Concurrency, Decision, Limit, Limiter
from limen.keys import MAX_BYTES
from limen.limiter import AsyncSlot
from tests import servers

PATIENT_S = 5.0
"""A deadline for a busy machine: that decisions are in time is for other tests to show."""
CALLERS = 8

STORES = ("memory", *servers.binaries(), "sentinel", "cluster")
LIMITERS = ("Limiter", "AsyncLimiter")


@dataclass
class Store:
    """A store to make limiters on, and the servers behind it that hold states."""

    url: str
    nodes: list[redis.Redis] = field(default_factory=list)

    @property
    def is_shared(self) -> bool:
        return bool(self.nodes)

    def ttls_ms(self, pattern: str = "*") -> dict[bytes, int]:
        """Return every key there is, with the time it has left; -1 is for ever."""
        found: dict[bytes, int] = {}
        for node in self.nodes:
            keys = list(node.scan_iter(pattern, count=1_000))
            pipeline = node.pipeline(transaction=False)
            for key in keys:
                pipeline.pttl(key)
            found.update(zip(keys, pipeline.execute(), strict=True))
        return found

    def assert_keys_are_short_and_end(self, pattern: str = "*") -> None:
        ttls_ms = self.ttls_ms(pattern)
        assert max((len(key) for key in ttls_ms), default=0) <= MAX_BYTES
        assert [key for key, ttl_ms in ttls_ms.items() if ttl_ms == -1] == []


def is_renewed(limiter: Any, key: str, limit: Concurrency) -> bool:
    """Ask for a slot that is held until its lease ends later than before, or it is lost.

    A lease of two seconds stands a process that gets no turn for more than one of them.
    """
    left = limit.lease
    while not (said := limiter.slot(key, limit).acquire()).allowed:
        if said.retry_after > left:
            return True
        left = said.retry_after
        limiter.sleep(0.01)
    return False


@contextmanager
def store_called(name: str) -> Iterator[Store]:
    """Start what belongs to a store; see at the end that each key in it is short and ends."""
    with _started(name) as (url, ports):
        store = Store(url, [redis.Redis(port=port) for port in ports])
        try:
            yield store
            store.assert_keys_are_short_and_end()
        finally:
            for node in store.nodes:
                node.close()


@contextmanager
def _started(name: str) -> Iterator[tuple[str, list[int]]]:
    """Start the servers; yield the address of the store, and the ports of who holds states."""
    binaries = servers.binaries()
    if name == "memory":
        yield "memory://", []
    elif name == "sentinel":
        with servers.sentinel(binaries["valkey"]) as watched:
            hosts = _hosts(watched.sentinel_ports)
            yield f"redis+sentinel://{hosts}/{watched.service}", [watched.primary_port()]
    elif name == "cluster":
        with servers.cluster(binaries["valkey"]) as cluster:
            yield f"redis+cluster://{_hosts(cluster.ports)}", cluster.ports
    else:
        with servers.server(binaries[name]) as port:
            yield f"redis://{_hosts([port])}", [port]


def _hosts(ports: list[int]) -> str:
    return ",".join(f"{servers.HOST}:{port}" for port in ports)


class Threaded:
    """A `Limiter`, with what the suite needs besides its verbs."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._limiter, verb)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def check_all(self, keys: Iterable[str], *limits: Limit) -> list[Decision]:
        """Ask by many threads at once."""
        with ThreadPoolExecutor(CALLERS) as pool:
            asked = [pool.submit(self._limiter.check, key, *limits) for key in keys]
            return [each.result() for each in asked]


class Blocking:
    """An `AsyncLimiter`, or a slot of it, whose verbs are called like those of a `Limiter`."""

    def __init__(self, wrapped: AsyncLimiter | AsyncSlot, runner: asyncio.Runner) -> None:
        self._wrapped, self._runner = wrapped, runner

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._wrapped, verb)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            if inspect.iscoroutine(answer):
                return self._runner.run(answer)
            return Blocking(answer, self._runner) if isinstance(answer, AsyncSlot) else answer

        return call

    def close(self) -> None:
        self.aclose()

    def __enter__(self) -> Blocking:
        self._runner.run(self._wrapped.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._runner.run(self._wrapped.__aexit__(kind, error, traceback))

    def limit(self, *limits: Any, **options: Any) -> Callable[..., Any]:
        """Decorate a plain function by way of an async one."""
        assert isinstance(self._wrapped, AsyncLimiter)
        decorate = self._wrapped.limit(*limits, **options)

        def decorate_plain(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            async def later(*args: Any, **kwargs: Any) -> Any:
                return function(*args, **kwargs)

            guarded: Callable[..., Any] = decorate(later)
            return lambda *args, **kwargs: self._runner.run(guarded(*args, **kwargs))

        return decorate_plain

    def sleep(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))

    def check_all(self, keys: Iterable[str], *limits: Limit) -> list[Decision]:
        """Ask by many tasks at once."""

        async def ask() -> list[Decision]:
            assert isinstance(self._wrapped, AsyncLimiter)
            asked = [self._wrapped.check(key, *limits) for key in keys]
            return list(await asyncio.gather(*asked))

        return self._runner.run(ask())
