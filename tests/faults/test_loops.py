"""The loops that callers bring: another kind, many that live for a moment, one that is held up."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import uvloop

from limen import AsyncLimiter, Limit
from tests import servers
from tests.waiting import wait_until

LIMIT = Limit(1_000_000, 3_600, algorithm="fixed_window")
DEADLINE_S = 0.05
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=LOOPS)
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    found: NewLoop = LOOPS[request.param]
    return found


def url_of(server: servers.Server) -> str:
    return f"redis://127.0.0.1:{server.port}"


async def ask_for(limiter: AsyncLimiter, seconds: float) -> Counter[str]:
    """Ask a thousand times a second, whether or not there are answers; return who gave them."""

    async def ask(key: str) -> str:
        return (await limiter.check(key, LIMIT)).source

    asked: list[asyncio.Task[str]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asked.append(asyncio.create_task(ask(f"key {len(asked) % 50}")))
        await asyncio.sleep(0.001)
    return Counter(await asyncio.gather(*asked))


def test_an_outage_under_any_loop_is_no_error_and_ends(
    own_valkey: servers.Server, new_loop: NewLoop
) -> None:
    # Its own timers may ring early, late, and at the same moment as replies come.
    async def work() -> tuple[Counter[str], Counter[str]]:
        async with AsyncLimiter(url_of(own_valkey), deadline=DEADLINE_S) as limiter:
            await limiter.ping()
            own_valkey.pause()
            away = await ask_for(limiter, 1.0)
            own_valkey.resume()
            await asyncio.sleep(1.0)
            return away, await ask_for(limiter, 0.5)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        away, back = runner.run(work())
    assert away.keys() == {"local"}
    assert back["store"] > 0.8 * back.total()


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_loop_for_each_call_finds_the_store_again(own_valkey: servers.Server) -> None:
    # Whoever probes in the background of such a loop ends with it, before it has begun. That the
    # loops leave connections behind is their caller's way, and Python's to warn of.
    limiter = AsyncLimiter(url_of(own_valkey), deadline=DEADLINE_S)

    async def ask(limiter: AsyncLimiter) -> str:
        return (await limiter.check("key", LIMIT)).source

    def is_found(limiter: AsyncLimiter) -> bool:
        return asyncio.run(ask(limiter)) == "store"

    assert is_found(limiter)
    own_valkey.kill()
    assert [asyncio.run(ask(limiter)) for _ in range(10)] == ["local"] * 10
    assert [shard.state for shard in limiter.shards] == ["open"]
    own_valkey.restart()
    wait_until(partial(is_found, limiter), interval_s=0.02)
    assert [shard.state for shard in limiter.shards] == ["closed"]
    del limiter
    gc.collect()


class TestHeldUp:
    """What holds the loop up makes good answers late. It is no fault of the server."""

    @pytest.mark.parametrize("block_s", [0.048, 0.1])
    def test_a_breaker_stays_closed(
        self, own_valkey: servers.Server, new_loop: NewLoop, block_s: float
    ) -> None:
        async def work() -> None:
            async with AsyncLimiter(url_of(own_valkey), deadline=DEADLINE_S) as limiter:
                await limiter.ping()
                ends = asyncio.get_running_loop().time() + 1.0

                async def ask(key: str) -> None:
                    while asyncio.get_running_loop().time() < ends:
                        await limiter.check(key, LIMIT)

                asking = [asyncio.create_task(ask(f"key {number}")) for number in range(32)]
                while asyncio.get_running_loop().time() < ends:
                    await asyncio.sleep(0.002)
                    time.sleep(block_s)  # noqa: ASYNC251  # the fault itself
                await asyncio.gather(*asking)
                assert limiter.shards[0].opened == 0

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(work())

    def test_many_slots_in_one_packet_are_late_once(self) -> None:
        async def work(url: str) -> None:
            async with AsyncLimiter(url, deadline=DEADLINE_S) as limiter:
                await limiter.ping()
                asking = [
                    asyncio.create_task(limiter.check(f"key {number}", LIMIT))
                    for number in range(64)
                ]
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                time.sleep(0.048)  # noqa: ASYNC251  # the fault itself
                await asyncio.gather(*asking)
                assert limiter.shards[0].opened == 0

        with servers.cluster(servers.binaries()["valkey"], masters=1) as cluster:
            asyncio.run(work(f"redis+cluster://127.0.0.1:{cluster.ports[0]}"))
