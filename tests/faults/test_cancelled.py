"""Callers that are torn away at any moment: nobody else is told their answer, nothing is left over.

Every request has a key and a quota of its own, so that what is left tells whose answer it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
import redis

from limen import AsyncLimiter, Check, Concurrency, Decision, Limit, Limiter
from tests.faults.callers import PATIENT_S, WIDE, url_of
from tests.faults.figures import say
from tests.faults.proxy import proxy
from tests.waiting import FULL, wait_until, wait_until_async

CANCELLATIONS = 10_000 if FULL else 1_000
AT_ONCE = 10
STEPS = 53
"""How many different delays there are; prime to all that else happens in turns."""
TURNS = 6
"""A caller on a healthy way is answered within so many turns of the loop, or waits for the wire."""


@contextlib.contextmanager
def way(name: str, port: int) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield the address of a way to the server, and what counts the connections on it."""
    if name == "direct":
        with redis.Redis(port=port) as client:
            yield url_of(port), lambda: len(client.client_list()) - 2  # its own, and the admin's
        return
    with proxy(port) as between:
        if name == "late":
            between.delay, between.jitter = 0.001, 0.002
        elif name == "in slices":
            between.slices = 7
        yield url_of(between.port), lambda: between.live


class Own:
    """Requests that nobody confuses: each has a key and a quota of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.count = 0
        self.wrong: list[tuple[int, Decision]] = []
        self.degraded = 0

    def next(self) -> tuple[int, str, Limit]:
        self.count += 1
        return self.count, self.key(self.count), self.limit(self.count)

    def key(self, number: int) -> str:
        return f"{self._name} {number}"

    def limit(self, number: int) -> Limit:
        return Limit(number + 1, 86_400, algorithm="fixed_window")

    def look_at(self, number: int, decision: Decision) -> None:
        """Take note of an answer that is not that of its request."""
        self.degraded += decision.degraded
        if not decision.allowed or decision.remaining != number:
            self.wrong.append((number, decision))


async def usual_s(ask: Callable[[], Awaitable[None]]) -> float:
    """Return what it takes those who are not cancelled."""
    took = []
    for _ in range(15):
        start = time.perf_counter()
        await asyncio.gather(*[ask() for _ in range(AT_ONCE)])
        took.append(time.perf_counter() - start)
    return sorted(took)[7]


async def cancel_after_turns(task: asyncio.Task[Any], turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()


async def sweep(
    ask: Callable[[], Awaitable[None]], cancellations: int
) -> tuple[int, int, list[BaseException]]:
    """Cancel so many requests, after swept times and swept turns of the loop.

    Return how many were cancelled, how many were done before, and what else they ended with.
    """
    loop = asyncio.get_running_loop()
    longest_s = 2 * await usual_s(ask)
    cancelled, done = 0, 0
    errors: list[BaseException] = []
    for first in range(0, cancellations, AT_ONCE):
        tasks = [asyncio.ensure_future(ask()) for _ in range(AT_ONCE)]
        for number, task in enumerate(tasks, first):
            if number % 2:
                loop.call_later(longest_s * (number % STEPS) / STEPS, task.cancel)
            else:
                turns = asyncio.ensure_future(cancel_after_turns(task, number // 2 % TURNS))
                turns.add_done_callback(lambda _: None)
        await asyncio.wait(tasks, timeout=30)
        for task in tasks:
            assert task.done(), "a caller hangs"
            if task.cancelled():
                cancelled += 1
            elif error := task.exception():
                errors.append(error)
            else:
                done += 1
    return cancelled, done, errors


async def nothing_is_left(count: Callable[[], int], expected: int = 1) -> None:
    """See that no task is left, and no connection but the one that is used."""
    this = asyncio.current_task()

    def is_alone() -> bool:
        gc.collect()
        return asyncio.all_tasks() == {this} and count() == expected

    await wait_until_async(is_alone, details=lambda: (asyncio.all_tasks(), count()))


@pytest.mark.parametrize("name", ["direct", "late", "in slices"])
def test_no_answer_reaches_another(name: str, port: int, admin: redis.Redis) -> None:
    own, bystanders = Own("own"), Own("bystander")
    cancellations = CANCELLATIONS if name == "direct" or FULL else CANCELLATIONS // 4
    stopped = False

    async def stand_by(limiter: AsyncLimiter) -> None:
        while not stopped:
            number, key, limit = bystanders.next()
            bystanders.look_at(number, await limiter.check(key, limit))

    async def run(url: str, count: Callable[[], int]) -> None:
        nonlocal stopped
        async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:

            async def ask() -> None:
                number, key, limit = own.next()
                own.look_at(number, await limiter.check(key, limit))

            await limiter.ping()
            others = [asyncio.create_task(stand_by(limiter)) for _ in range(4)]
            start = time.monotonic()
            cancelled, done, errors = await sweep(ask, cancellations)
            took = time.monotonic() - start
            stopped = True
            await asyncio.gather(*others)
            await nothing_is_left(count)
            backend: Any = limiter._backend
            [home] = backend._homes.values()
            assert [lane.is_idle for lane in home.lanes.values()] == [True]
            assert not errors
            assert own.wrong == bystanders.wrong == []
            assert own.degraded == bystanders.degraded == 0
            assert cancelled + done == cancellations
            assert cancelled > 0.3 * cancellations
            assert done > 0.01 * cancellations, "all were cancelled: the sweep is too short"
            [shard] = limiter.shards
            assert (shard.state, shard.opened) == ("closed", 0)
            # Each was charged once at most, and those who were told so, exactly once.
            charged = 0
            for begin in range(1, own.count + 1, 500):
                numbers = range(begin, min(begin + 500, own.count + 1))
                peeks = [limiter.peek(own.key(each), own.limit(each)) for each in numbers]
                for number, decision in zip(numbers, await asyncio.gather(*peeks), strict=True):
                    assert decision.source == "store"
                    assert decision.remaining in (number, number + 1)
                    charged += decision.remaining == number
            assert done + 15 * AT_ONCE <= charged <= own.count
            say(
                f"cancelled, {name}",
                cancelled=cancelled,
                done=done,
                charged=charged,
                bystanders=bystanders.count,
                took=took,
            )

    with way(name, port) as (url, count):
        asyncio.run(run(url, count))


def test_time_outs_of_the_callers_own_are_no_different(port: int, admin: redis.Redis) -> None:
    own = Own("own")

    async def run(url: str, count: Callable[[], int]) -> None:
        async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:

            async def ask() -> None:
                await limiter.check("usual", WIDE)

            longest_s = 2 * await usual_s(ask)
            timeouts = 0
            for turn in range(CANCELLATIONS // 4):
                number, key, limit = own.next()
                seconds = longest_s * (turn % STEPS) / STEPS
                try:
                    if turn % 2:
                        async with asyncio.timeout(seconds):
                            own.look_at(number, await limiter.check(key, limit))
                    else:
                        asked = limiter.check(key, limit)
                        own.look_at(number, await asyncio.wait_for(asked, seconds))
                except TimeoutError:
                    timeouts += 1
            await nothing_is_left(count)
            assert not own.wrong
            assert not own.degraded
            assert 0 < timeouts < own.count
            assert (await limiter.check("after", WIDE)).source == "store"

    with way("direct", port) as (url, count):
        asyncio.run(run(url, count))


def test_whoever_is_cancelled_while_it_connects_leaves_no_connection(
    port: int, admin: redis.Redis
) -> None:
    async def run(url: str, count: Callable[[], int]) -> None:
        for turn in range(CANCELLATIONS // 20):
            async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:
                first = asyncio.create_task(limiter.check("first", Limit(7, 60)))
                await asyncio.sleep(0.004 * (turn % STEPS) / STEPS)
                first.cancel()
                await asyncio.wait([first])
                if turn % 2:
                    # Somebody else gets the connection that was begun.
                    own = Own(f"turn {turn}")
                    number, key, limit = own.next()
                    own.look_at(number, await limiter.check(key, limit))
                    assert not own.wrong
                    assert count() <= 1
            # Closed while it connects, or right after.
        await nothing_is_left(count, 0)

    with way("direct", port) as (url, count):
        asyncio.run(run(url, count))


def test_slots_are_not_lost(port: int, admin: redis.Redis) -> None:
    # A lease that nobody waits for: whatever is free at the end was given back.
    many = Concurrency(CANCELLATIONS, lease=300)

    async def run(url: str, count: Callable[[], int]) -> None:
        async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:

            async def hold() -> None:
                async with limiter.slot("door", many):
                    await asyncio.sleep(0)

            async def take() -> None:
                slot = limiter.slot("door", many)
                await slot.acquire()
                await slot.release()

            for ask in (hold, take):
                cancelled, done, errors = await sweep(ask, CANCELLATIONS // 4)
                assert not errors
                assert cancelled > 0
                assert done > 0
                await nothing_is_left(count)
                seen = await limiter.decide(Check(many, "door"), charge=False)
                assert seen.source == "store"
                assert many.slots - seen.remaining <= 0, "slots are held by nobody"

    with way("direct", port) as (url, count):
        asyncio.run(run(url, count))


def test_corrections_are_applied_once_at_most(port: int, admin: redis.Redis) -> None:
    async def run(url: str, count: Callable[[], int]) -> None:
        async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:
            receipts = iter([await limiter.check("k", WIDE, cost=5) for _ in range(400)])
            given: list[Decision] = []

            async def refund() -> None:
                decision = next(receipts)
                given.append(decision)
                await limiter.refund(decision)

            cancelled, _, errors = await sweep(refund, 250)
            assert not errors
            assert cancelled
            await nothing_is_left(count)
            before = WIDE.quota - (await limiter.peek("k", WIDE)).remaining
            again = await asyncio.gather(*[limiter.refund(each) for each in given])
            after = WIDE.quota - (await limiter.peek("k", WIDE)).remaining
            # What was given back the second time is what was not the first time.
            assert before - after == 5 * sum(again)
            assert after == 5 * (400 - len(given)), "every receipt once, and none twice"

    with way("direct", port) as (url, count):
        asyncio.run(run(url, count))


def test_those_who_wait_their_turn_are_let_through(port: int, admin: redis.Redis) -> None:
    # A line in which one after the other is torn away must go on moving.
    async def run(url: str, count: Callable[[], int]) -> None:
        async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:
            limit = Limit(1_000, 1, algorithm="token_bucket", burst=1)

            async def wait() -> None:
                await limiter.acquire("line", limit)

            cancelled, _, errors = await sweep(wait, CANCELLATIONS // 4)
            assert not errors
            assert cancelled
            await asyncio.wait_for(limiter.acquire("line", limit), 5)
            await nothing_is_left(count)

    with way("direct", port) as (url, count):
        asyncio.run(run(url, count))


class Torn(BaseException):
    """What a signal handler raises that ends a worker."""


class SoftLimit(Exception):
    """As those who run tasks throw it into one that takes too long."""


@pytest.mark.parametrize("kind", [Torn, SoftLimit])
def test_signal_handlers_that_raise_leave_no_answer_behind(
    kind: type[BaseException], port: int, admin: redis.Redis
) -> None:
    fired = 0

    def tear(*_: object) -> None:
        nonlocal fired
        fired += 1
        raise kind

    own = Own("own")
    torn = 0
    before = signal.signal(signal.SIGALRM, tear)
    try:
        with way("late", port) as (url, count), Limiter(url, deadline=PATIENT_S) as limiter:
            took = []
            for _ in range(15):
                start = time.perf_counter()
                limiter.check("warm", WIDE)
                took.append(time.perf_counter() - start)
            longest_s = 3 * sorted(took)[7]
            for turn in range(1_000 if FULL else 120):
                number, key, limit = own.next()
                try:
                    seconds = 0.00001 + longest_s * (turn % STEPS) / STEPS
                    signal.setitimer(signal.ITIMER_REAL, seconds)
                    decision = limiter.check(key, limit)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    own.look_at(number, decision)
                except kind:
                    torn += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            start = time.perf_counter()
            assert limiter.check("after", WIDE).source == "store"
            assert time.perf_counter() - start < PATIENT_S
            wait_until(lambda: count() <= 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not own.wrong
    assert not own.degraded
    assert 0 < torn < own.count
    # One that is late may hit the test, behind its call; none is taken for a store that is away.
    assert torn == fired


def test_who_is_cancelled_at_every_turn_is_given_back_what_it_was_charged(port: int) -> None:
    """As the scopes of anyio do it: whatever is awaited behind a cancellation is cancelled, too."""
    limit = Limit(2, 60, algorithm="leaky_bucket")

    async def work() -> Decision:
        async with AsyncLimiter(url_of(port), deadline=PATIENT_S, namespace="anyio") as limiter:
            await limiter.check("k", limit)
            for _ in range(3):
                with anyio.move_on_after(0.05):
                    await limiter.acquire("k", limit)
            await asyncio.sleep(0.2)
            return await limiter.peek("k", limit)

    seen = asyncio.run(work())
    assert (seen.allowed, seen.remaining) == (True, 1)
