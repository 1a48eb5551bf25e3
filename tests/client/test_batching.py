"""Decisions of tasks that wait at the same moment share a call; each gets its own verdict."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from limen import AsyncClient, Client, InvalidInput
from limen.client import Verdict
from limen.client.flows import MAX_CALLS
from tests.client.conftest import Connect
from tests.client.drivers import Blocking, Threaded, somebody
from tests.client.raw import raw, right
from tests.client.services import Served


def test_many_callers_share_calls_and_are_counted_exactly(
    client: Threaded, service: Served
) -> None:
    before, key = service.calls(), somebody()["user"]
    said = client.together([lambda: client.check(key, "100/minute")] * 1_280)
    assert sum(bool(verdict) for verdict in said) == 100
    assert {verdict.source for verdict in said} == {"store"}
    assert len({verdict.id for verdict in said}) == 1_280
    if isinstance(client, Blocking):  # threads do not share calls
        assert service.calls() - before < 640


def test_each_gets_its_own_verdict(client: Threaded) -> None:
    everybody = [somebody() for _ in range(640)]
    said = client.together([lambda facts=facts: client.decide(facts) for facts in everybody])  # type: ignore[misc]
    for facts, verdict in zip(everybody, said, strict=True):
        assert verdict.parts[0].key == f"user={facts['user']}"
        assert verdict.remaining == 9


def test_a_lone_caller_waits_for_nobody(client: Threaded, service: Served) -> None:
    client.decide(somebody())
    before = service.calls()
    for _ in range(50):
        client.decide(somebody())
    assert service.calls() - before == 51


def test_few_calls_are_under_way(connect: Connect) -> None:
    under_way, most = 0, 0
    lock = threading.Lock()

    def answer(head: bytes, body: bytes) -> bytes:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.01)
        with lock:
            under_way -= 1
        return right(head, body)

    with raw(answer) as server:
        client = connect(server.url, timeout=5)
        client.together([lambda: client.decide(somebody())] * 256)
        if isinstance(client, Blocking):
            assert most <= 2
            assert len(server.asked) < 64
        else:
            assert most <= MAX_CALLS
            assert len(server.asked) == 256


def test_one_that_the_rules_do_not_understand_harms_nobody_else(client: Threaded) -> None:
    facts = somebody()
    bad = {"user": "1", "path": "/llm", "tokens": "many"}
    requests = [bad if number % 16 == 5 else facts for number in range(128)]
    said = client.together([lambda each=each: client.decide(each) for each in requests])  # type: ignore[misc]
    wrong = [answer for answer in said if isinstance(answer, Exception)]
    assert len(wrong) == 8
    assert all(isinstance(error, InvalidInput) for error in wrong)
    assert not any("[" in str(error) for error in wrong)
    assert sum(isinstance(each, Verdict) and each.allowed for each in said) == 10
    assert client.usage(facts).remaining == 0


def test_a_cancelled_task_does_not_break_the_batch_of_others(service: Served) -> None:
    async def main() -> None:
        async with AsyncClient(service.url, timeout=5) as client:
            facts = somebody()
            tasks = [asyncio.create_task(client.decide(facts)) for _ in range(64)]
            await asyncio.sleep(0.001)
            for task in tasks[::2]:
                task.cancel()
            said = await asyncio.gather(*tasks, return_exceptions=True)
            kept = [each for each in said[1::2] if isinstance(each, Verdict)]
            assert len(kept) == 32
            assert {verdict.source for verdict in kept} == {"store"}
            assert (await client.decide(somebody())).remaining == 9

    asyncio.run(main())


def test_who_is_cancelled_before_the_call_is_not_charged(service: Served) -> None:
    async def main() -> None:
        async with AsyncClient(service.url, timeout=5) as client:
            facts = somebody()
            tasks = [asyncio.create_task(client.decide(facts)) for _ in range(5)]
            await asyncio.sleep(0)
            for task in tasks[:4]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (await client.usage(facts)).remaining == 9

    asyncio.run(main())


def test_who_is_cancelled_while_taking_a_slot_holds_none(service: Served) -> None:
    async def main() -> None:
        async with AsyncClient(service.url, timeout=5) as client:
            facts = somebody("/export")

            async def hold() -> None:
                async with client.slot(facts):
                    await asyncio.sleep(10)

            for pause in (0, 0.0001, 0.0005, 0.001, 0.002):
                task = asyncio.create_task(hold())
                await asyncio.sleep(pause)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with client.slot(facts), client.slot(facts):
                pass

    asyncio.run(main())


def test_one_client_serves_several_loops(service: Served) -> None:
    client = AsyncClient(service.url, timeout=5)
    key, said = somebody()["user"], list[Verdict]()
    asked, closed = threading.Barrier(5), threading.Event()

    async def work() -> None:
        said.extend(await asyncio.gather(*(client.check(key, "100/minute") for _ in range(100))))
        asked.wait()
        while not closed.is_set():  # noqa: ASYNC110  # it is another loop that sets it
            await asyncio.sleep(0.01)
        # What the other loop has closed is closed here.
        await asyncio.sleep(0.05)

    threads = [threading.Thread(target=lambda: asyncio.run(work())) for _ in range(4)]
    for thread in threads:
        thread.start()
    asked.wait()
    asyncio.run(client.aclose())
    closed.set()
    for thread in threads:
        thread.join()
    assert len(said) == 400
    assert sum(bool(verdict) for verdict in said) == 100


def test_threads_that_come_and_go_are_served(service: Served) -> None:
    with Client(service.url, timeout=5) as client:
        said: list[Verdict] = []
        for _ in range(10):
            threads = [
                threading.Thread(target=lambda: said.append(client.decide(somebody())))
                for _ in range(20)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert [verdict.remaining for verdict in said] == [9] * 200
