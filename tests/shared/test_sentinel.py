"""A primary that sentinels name: when another one takes over, it is found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import redis

from limen import AsyncLimiter, Limiter, StoreError
from tests import servers
from tests.shared.load import WIDE, Tasks, Threads, Told
from tests.waiting import generous


@pytest.fixture(scope="module")
def group() -> Iterator[servers.Sentinel]:
    with servers.sentinel(servers.binaries()["valkey"]) as started:
        yield started


def url_of(group: servers.Sentinel) -> str:
    hosts = ",".join(f"127.0.0.1:{port}" for port in group.sentinel_ports)
    return f"redis+sentinel://{hosts}/limen"


@pytest.fixture
def url(group: servers.Sentinel) -> str:
    return url_of(group)


def test_an_unknown_service_is_named(url: str) -> None:
    with Limiter(url + "x") as limiter, pytest.raises(StoreError, match="no service 'limenx'"):
        limiter.ping()


def test_a_soft_failover_costs_at_most_a_second(group: servers.Sentinel, url: str) -> None:
    with Limiter(url, deadline=0.25) as limiter:
        limiter.ping()
        before = group.primary_port()
        with Threads(limiter, 4) as threads:
            threads.told.wait_for("store")
            group.failover()
            group.wait_for_primary(other_than=before)
            threads.told.wait_for("store")
    assert not threads.told.errors
    assert threads.told.sources["store"] > 0
    assert threads.told.slowest_s < generous(0.25)


def calls_at(port: int) -> int:
    """Return how often a server was asked to decide."""
    with redis.Redis(port=port) as client:
        return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@pytest.mark.slow
def test_who_is_not_primary_any_more_is_left_though_it_takes_writes() -> None:
    # It does so for seconds, and all that it is told will be forgotten.
    async def ask_both(group: servers.Sentinel) -> list[str]:
        url = url_of(group)
        with Limiter(url, deadline=0.25) as limiter:
            async with AsyncLimiter(url, deadline=0.25) as other:
                limiter.ping()
                await other.ping()

                async def ask(seconds: float) -> list[str]:
                    sources: list[str] = []
                    end = time.monotonic() + seconds
                    while time.monotonic() < end:
                        first = await asyncio.to_thread(limiter.check, "threads", WIDE)
                        sources += [first.source, (await other.check("tasks", WIDE)).source]
                        await asyncio.sleep(0.02)
                    return sources

                await ask(0.2)
                before = group.primary_port()
                group.failover()
                after = await asyncio.to_thread(group.wait_for_primary, other_than=before)
                await ask(2.0)
                asked = calls_at(before), calls_at(after)
                sources = await ask(0.5)
                assert calls_at(before) == asked[0]
                assert calls_at(after) >= asked[1] + len(sources)
                return sources

    with servers.sentinel(servers.binaries()["valkey"]) as fresh:
        assert set(asyncio.run(ask_both(fresh))) == {"store"}


def test_a_killed_primary_is_replaced(group: servers.Sentinel, url: str) -> None:
    async def ask() -> Told:
        async with AsyncLimiter(url, deadline=0.25) as limiter:
            await limiter.ping()
            before = group.primary_port()
            async with Tasks(limiter, 8) as tasks:
                await tasks.told.wait_for_async("store")
                killed = await asyncio.to_thread(group.kill_primary)
                await asyncio.to_thread(lambda: group.wait_for_primary(other_than=before))
                await tasks.told.wait_for_async("store")
            killed.restart()
            return tasks.told

    told = asyncio.run(ask())
    assert not told.errors
    assert told.sources.keys() == {"store", "local"}
    assert told.slowest_s < generous(0.25)
