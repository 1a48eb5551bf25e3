"""What a door does when something goes wrong between a question and its answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from limen import AsyncLimiter, Concurrency, Limiter
from limen.adapters import RateLimit, Visit
from limen.adapters.asgi import AsgiRequest
from limen.adapters.door import AsyncDoor, Door
from limen.adapters.manner import manner_of
from limen.errors import ConfigurationError
from limen.testing import ManualClock


def request() -> AsgiRequest:
    scope = {"type": "http", "path": "/", "headers": [], "client": ("192.0.2.7", 1)}
    return AsgiRequest(scope, manner_of({}))


class Slow(AsyncLimiter):
    """A limiter that takes its time to settle, and tells when it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.settled: list[int] = []

    async def settle(self, decision: Any, actual_cost: int) -> bool:
        self.begun.set()
        await asyncio.sleep(0.01)
        self.settled.append(actual_cost)
        return await super().settle(decision, actual_cost)


def test_what_was_begun_is_settled_also_for_who_is_cancelled() -> None:
    async def run() -> None:
        limiter = Slow()
        door = AsyncDoor(limiter, RateLimit("9/hour", Concurrency(1, lease=60), settle=len))
        visit = Visit(request())
        assert await door.enter(visit, door.limits)
        leaving = asyncio.ensure_future(door.leave(visit, "1234567"))
        await limiter.begun.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert limiter.settled == [7]
        # And let go of, by then.
        assert await door.enter(Visit(request()), door.limits)

    asyncio.run(run())


def test_who_is_cancelled_while_he_waits_for_a_leaky_bucket_is_charged_nothing() -> None:
    async def run() -> None:
        limiter = AsyncLimiter()
        door = AsyncDoor(limiter, "1/minute leaky_bucket burst 5")
        assert await door.enter(Visit(request()), door.limits)
        waiting = asyncio.ensure_future(door.enter(Visit(request()), door.limits))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        left = await limiter.peek("ip=192.0.2.7", "1/minute leaky_bucket burst 5")
        assert left.delay < 61

    asyncio.run(run())


def failing(response: object) -> Any:
    return {"tokens": 5}


@pytest.mark.parametrize("settle", [failing, lambda response: -1, lambda response: "many"])
def test_a_slot_is_let_go_whatever_settling_comes_to(
    settle: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    door = Door(Limiter(), RateLimit("9/hour", Concurrency(1, lease=60), settle=settle))
    for _ in range(2):
        visit = Visit(request())
        assert door.enter(visit, door.limits)
        door.leave(visit, None)
        door.leave(visit, None)  # once is enough
    assert "was not settled" in caplog.text


class Grudging(Limiter):
    """Gives nothing back, and says so."""

    def settle(self, decision: Any, actual_cost: int) -> bool:
        raise ConfigurationError("this token may not")


class AsyncGrudging(AsyncLimiter):
    async def settle(self, decision: Any, actual_cost: int) -> bool:
        raise ConfigurationError("this token may not")


GIVEN = (RateLimit("9/hour", Concurrency(1, lease=60)), RateLimit("1/hour", scope="once"))


def test_who_is_refused_is_told_so_though_nothing_can_be_given_back() -> None:
    door = Door(Grudging(), *GIVEN)
    entered = []
    for _ in range(3):
        visit = Visit(request())
        entered += [door.enter(visit, (limit,)) for limit in door.limits]
        door.leave(visit, None)
    assert entered == [True, True, True, False, True, False]  # and the slot is free each time


def test_a_task_that_is_refused_is_told_so_though_nothing_can_be_given_back() -> None:
    async def run() -> list[bool]:
        door = AsyncDoor(AsyncGrudging(), *GIVEN)
        entered = []
        for _ in range(3):
            visit = Visit(request())
            entered += [await door.enter(visit, (limit,)) for limit in door.limits]
            await door.leave(visit, None)
        return entered

    assert asyncio.run(run()) == [True, True, True, False, True, False]


def test_a_finalizer_of_django_asks_nobody_in_the_thread_that_it_interrupts() -> None:
    """Which may hold the very lock that it would wait for."""
    stream = pytest.importorskip("limen.adapters.django.stream")
    left: list[int] = []
    done = threading.Event()

    class Watched(Door):
        def leave(self, visit: Any, response: Any) -> None:
            left.append(threading.get_ident())
            done.set()

    door = Watched(Limiter(), "9/hour")
    leaving = stream._Leaving(door, Visit(request()), object())
    del leaving
    assert done.wait(10)
    assert left != [threading.get_ident()]
    leaving = stream._Leaving(door, Visit(request()), object())
    leaving.now()
    del leaving
    time.sleep(0.05)
    assert len(left) == 2  # once each


def test_nobody_is_asked_what_a_refused_request_cost() -> None:
    seen: list[object] = []
    limit = RateLimit("1/hour", settle=lambda response: seen.append(response) or 1)  # type: ignore[func-returns-value]
    door = Door(Limiter(), limit)
    for number in range(3):
        visit = Visit(request())
        door.enter(visit, door.limits)
        door.leave(visit, number)
    assert seen == [0]


def test_the_last_word_on_a_cost_counts_and_one_that_comes_too_late_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limiter = Limiter()
    door = Door(limiter, "100/hour")
    visit = Visit(request())
    door.enter(visit, door.limits)
    visit.costs(3)
    visit.costs(8)
    door.leave(visit, None)
    assert limiter.peek("ip=192.0.2.7", "100/hour").remaining == 92
    assert not caplog.text
    visit.costs(50)
    assert "too late" in caplog.text
    assert limiter.peek("ip=192.0.2.7", "100/hour").remaining == 92


def test_a_leaky_bucket_beside_a_slot_is_waited_for_once() -> None:
    clock = ManualClock()
    door = Door(
        Limiter(clock=clock),
        RateLimit("1/second leaky_bucket burst 5", Concurrency(5, lease=60)),
    )
    for _ in range(3):
        door.enter(Visit(request()), door.limits)
    assert clock.monotonic() == 2


def test_rules_are_not_asked_when_limits_of_ones_own_refuse() -> None:
    from limen.engine import Engine
    from limen.rules import parse_text

    engine = Engine(parse_text("rules: [{name: r, key: [ip], limits: 9/minute}]"), Limiter())
    door = Door(engine, "1/hour", RateLimit())
    visits = [Visit(request()) for _ in range(3)]
    assert [door.enter(visit, door.limits) for visit in visits] == [True, False, False]
    assert [len(visit.passages) for visit in visits] == [2, 1, 1]
    verdict = engine.peek({"ip": "192.0.2.7"})
    assert verdict.remaining == 8
