"""Many at once: threads, tasks and processes; and a store or a service that may be away.

An API counts when requests arrive, and a limiter when they leave. On a busy machine some take long
for the way: so the API here has a period of a quarter of what it tells.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from limen import Limit
from tests.adapters.outgoing import drivers
from tests.adapters.outgoing.drivers import Driver
from tests.adapters.outgoing.upstream import Upstream, serving
from tests.client.services import Served, free_port, served

ROOT = Path(__file__).parents[3]
TOLD, REAL = "20/2 seconds", Limit(20, 0.5)
each_library_and_loop = pytest.mark.parametrize(
    "driver", drivers.EACH_LIBRARY_AND_LOOP, indirect=True
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving(REAL) as started:
        yield started


@each_library_and_loop
def test_many_at_once_never_provoke_a_429(driver: Driver, upstream: Upstream) -> None:
    # By its headers alone the API would hold them up too.
    transport = driver.transport(driver.limiter(), TOLD, learn=False)
    caller = driver.call(transport, upstream.url)
    began = time.monotonic()
    responses = caller.together(["/"] * 35)
    assert {response.status_code for response in responses} == {200}
    assert upstream.refused == 0
    # The first 20 at once. The machine's clock may be set a little meanwhile.
    assert time.monotonic() - began > 1.8


@each_library_and_loop
def test_without_limits_of_ones_own_they_do(driver: Driver) -> None:
    with serving(Limit(20, 60)) as upstream:
        caller = driver.call(driver.transport(driver.limiter(), learn=False), upstream.url)
        caller.together(["/"] * 35)
        caller.close()
        assert upstream.refused == 15


@each_library_and_loop
def test_a_429_holds_up_all_who_come_after_it(driver: Driver) -> None:
    with serving() as upstream:
        caller = driver.call(driver.transport(driver.limiter()), upstream.url)
        upstream.reply(429, retry_after="1")
        caller.get("/first")
        caller.together(["/after"] * 8)
        first, *after = upstream.calls
        assert len(after) == 8
        assert min(call.at for call in after) - first.at >= 1
        caller.close()


def test_several_processes_share_a_budget_on_one_store(upstream: Upstream, redis_url: str) -> None:
    arguments = [redis_url, upstream.url, TOLD, "11"]
    command = [sys.executable, "-m", "tests.adapters.outgoing.worker", *arguments]
    workers = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    try:
        assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert len(upstream.calls) == 33
    assert upstream.refused == 0
    assert upstream.calls[-1].at - upstream.calls[0].at > 1.5


@pytest.mark.parametrize("driver", drivers.ALL, indirect=True)
def test_with_its_store_away_it_sends_at_its_share(driver: Driver) -> None:
    with serving() as upstream:
        limiter = driver.limiter(f"redis://127.0.0.1:{free_port()}", instances=2)
        caller = driver.call(driver.transport(limiter, "6/hour", wait=0), upstream.url)
        for _ in range(3):
            assert caller.get().status_code == 200
        with pytest.raises(driver.error, match=r"over the limit of \d+/hour"):
            caller.get()
        assert len(upstream.calls) == 3
        caller.close()


@each_library_and_loop
def test_who_never_waits_is_not_refused_because_others_ask_at_the_same_moment(
    driver: Driver, redis_url: str
) -> None:
    with serving() as upstream:
        limiter = driver.limiter(redis_url, deadline=10)
        caller = driver.call(driver.transport(limiter, "40/hour", wait=0), upstream.url)
        assert {response.status_code for response in caller.together(["/"] * 40)} == {200}
        with pytest.raises(driver.error):
            caller.get()
        caller.close()


@each_library_and_loop
def test_two_limiters_on_one_store_share_a_budget(driver: Driver, redis_url: str) -> None:
    with serving() as upstream:
        limiters = [driver.limiter(redis_url, deadline=10) for _ in range(2)]
        first, second = [
            driver.call(driver.transport(limiter, "3/hour", wait=0), upstream.url)
            for limiter in limiters
        ]
        first.get()
        second.get()
        first.get()
        for caller in (first, second):
            with pytest.raises(driver.error):
                caller.get()
            caller.close()
        assert len(upstream.calls) == 3


@each_library_and_loop
def test_a_service_may_do_the_counting(driver: Driver, service: Served) -> None:
    with serving() as upstream:
        client = driver.service(service.url)
        caller = driver.call(driver.transport(client, "5/second"), upstream.url)
        began = time.monotonic()
        caller.together(["/"] * 6)
        assert time.monotonic() - began > 0.9
        slow = driver.call(driver.transport(client, "2/hour", wait=0), upstream.url)
        slow.get()
        slow.get()
        with pytest.raises(driver.error, match="not sent: over the limit of 2/hour for") as told:
            slow.get()
        assert told.value.retry_after == pytest.approx(3600, abs=60)
        assert len(upstream.calls) == 8
        caller.close()
        slow.close()


@pytest.mark.parametrize("driver", drivers.ALL, indirect=True)
def test_the_delay_of_a_service_that_does_not_fit_is_given_back(
    driver: Driver, service: Served
) -> None:
    with serving() as upstream:
        limits = ["60/minute leaky_bucket"]
        client = driver.service(service.url)
        caller = driver.call(driver.transport(client, *limits, wait=0), upstream.url)
        caller.get()
        for _ in range(3):
            with pytest.raises(driver.error) as told:
                caller.get()
            # Had the others not been given back, each would wait a second more.
            assert told.value.retry_after <= 1
        caller.close()


@pytest.mark.parametrize("driver", ["httpx-asyncio", "httpx2-asyncio"], indirect=True)
def test_a_task_that_is_cancelled_while_it_waits_is_neither_sent_nor_in_the_way(
    driver: Driver,
) -> None:
    with serving() as upstream:
        limiter = driver.limiter()
        caller = driver.call(driver.transport(limiter, "1/hour", wait=None), upstream.url)

        async def main() -> None:
            await caller.client.get("/first")
            given_up = asyncio.create_task(caller.client.get("/given up"))
            await asyncio.sleep(0.05)
            given_up.cancel()
            await asyncio.wait([given_up])
            assert given_up.cancelled()
            await limiter.reset(upstream.url, "1/hour")
            await caller.client.get("/second")

        caller.run(main())
        caller.close()
        assert upstream.paths == ["/first", "/second"]
