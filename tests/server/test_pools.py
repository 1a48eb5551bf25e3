"""The pools of threads: how long work waits, and what is left when it does not run."""

from __future__ import annotations

import asyncio
import threading

import pytest

from limen.server.http.exchange import Rejected
from limen.server.worker.pools import Pool, Pools


def test_refuses_work_that_waits_too_long_for_the_work_of_other_tokens() -> None:
    async def run() -> None:
        pool, is_done = Pool("compute", threads=2, per_token=1, wait_s=0.1), threading.Event()
        busy = [asyncio.create_task(pool.run(token, is_done.wait, 10)) for token in "ab"]
        await asyncio.sleep(0)
        with pytest.raises(Rejected, match=r"no compute thread was free within 0\.1 s") as refused:
            await pool.run("c", int)
        assert (refused.value.status, refused.value.headers) == (503, [(b"retry-after", b"1")])
        is_done.set()
        await asyncio.gather(*busy)
        assert await pool.run("c", int) == 0
        assert not pool.is_busy
        pool.close()

    asyncio.run(run())


def test_a_request_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    async def run() -> None:
        pool, is_done = Pool("compute", threads=1, per_token=1, wait_s=10), threading.Event()
        busy = asyncio.create_task(pool.run("a", is_done.wait, 10))
        waiting = [asyncio.create_task(pool.run(token, int)) for token in "ab"]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        is_done.set()
        await busy
        assert not pool.is_busy
        assert [await pool.run(token, int) for token in "ab"] == [0, 0]
        pool.close()

    asyncio.run(run())


def test_work_after_the_close_leaves_nothing() -> None:
    async def run() -> None:
        pools = Pools()
        pools.close()
        for _ in range(3):
            with pytest.raises(RuntimeError, match="shutdown"):
                await pools.compute.run("a", int)
        assert not pools.is_busy

    asyncio.run(run())
