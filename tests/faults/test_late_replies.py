"""Replies that come late, or twice: whoever asks next is told its own answer, and no other.

Each request has a key and a quota of its own, so that `remaining` tells whose answer it is.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from limen import AsyncLimiter, Decision, Limit, Limiter
from tests import servers
from tests.faults.proxy import Proxy, proxy

PATIENT_S = 5.0
ANSWER = b"\x01" + struct.pack(">?Iqqqq", True, 1, 0, 1_000_000, 0, 1)
"""What the script answers to one check: allowed, and one is left."""


@pytest.fixture
def between(own_valkey: servers.Server) -> Iterator[Proxy]:
    with proxy(own_valkey.port) as made:
        yield made


def limit(number: int) -> Limit:
    return Limit(number + 1, 86_400, algorithm="fixed_window")


class Told:
    """What callers were told, and who was told something else than its own."""

    def __init__(self) -> None:
        self.wrong: list[tuple[int, Decision]] = []
        self.sources: Counter[str] = Counter()

    def add(self, number: int, decision: Decision) -> None:
        self.sources[decision.source] += 1
        if decision.remaining != number:
            self.wrong.append((number, decision))


def test_threads_skip_what_came_too_late_for_others(between: Proxy) -> None:
    # A round trip takes 0.2 s. Whoever waits for its turn has then too little time left, and goes
    # without its answer, which the next one finds.
    told = Told()
    url = f"redis://127.0.0.1:{between.port}?max_connections=1"
    with Limiter(url, deadline=0.3) as limiter:
        limiter.check("warm", limit(0))
        between.delay = 0.1

        def ask(number: int) -> None:
            told.add(number, limiter.check(f"key {number}", limit(number)))

        for turn in range(5):
            asking = []
            for number in range(turn * 6, turn * 6 + 6):
                asking.append(threading.Thread(target=ask, args=(number,)))
                asking[-1].start()
                time.sleep(0.06)
            for thread in asking:
                thread.join()
    assert not told.wrong
    assert told.sources["local"], "nobody was too late"
    assert told.sources["store"], "nobody was in time"


def test_tasks_do_not_hear_what_came_too_late_for_others(own_valkey: servers.Server) -> None:
    told = Told()

    async def work() -> None:
        async with AsyncLimiter(f"redis://127.0.0.1:{own_valkey.port}", deadline=0.05) as limiter:

            async def ask(number: int) -> None:
                told.add(number, await limiter.check(f"key {number}", limit(number)))

            for turn in range(10):
                for number in range(turn * 10, turn * 10 + 6):
                    await ask(number)
                own_valkey.pause()
                await ask(turn * 10 + 6)
                following = asyncio.create_task(ask(turn * 10 + 7))
                await asyncio.sleep(0.01)
                own_valkey.resume()
                await following
                await asyncio.sleep(0.05)

    asyncio.run(work())
    assert not told.wrong
    assert told.sources["local"] >= 10
    assert told.sources["store"] >= 10


class TestTwice:
    """A reply that comes twice would be taken for the answer to the next request."""

    twice = b"$%d\r\n%b\r\n" % (len(ANSWER), ANSWER) * 2

    def test_threads_hear_it_once(self, between: Proxy) -> None:
        told = Told()
        with Limiter(f"redis://127.0.0.1:{between.port}", deadline=PATIENT_S) as limiter:
            limiter.check("warm", limit(0))
            between.garbage(self.twice)
            for number in range(1, 20):
                told.add(number, limiter.check(f"key {number}", limit(number)))
        assert not told.wrong
        assert told.sources == {"store": 19}

    def test_tasks_hear_it_once(self, between: Proxy) -> None:
        told = Told()

        async def work() -> None:
            url = f"redis://127.0.0.1:{between.port}"
            async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:
                await limiter.check("warm", limit(0))
                between.garbage(self.twice)
                for number in range(1, 20):
                    told.add(number, await limiter.check(f"key {number}", limit(number)))

        asyncio.run(work())
        assert not told.wrong
        assert told.sources == {"store": 19}
