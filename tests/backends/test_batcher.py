"""Requests of one event loop share batches, and expire at deadlines that do not count pauses."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Awaitable, Callable

import pytest

from limen._internal.batcher import QueuedRequest, TaskBatcher
from limen._internal.deadline import ActiveClock
from limen._internal.per_loop import PerLoop

Send = Callable[[list[QueuedRequest[str, str]]], Awaitable[list[str]]]


def late(*, unsent: bool) -> str:
    return "never sent" if unsent else "no answer"


def batcher_of(send: Send, max_in_flight: int = 2) -> tuple[TaskBatcher[str, str], ActiveClock]:
    clock = ActiveClock(1.0)
    batcher: TaskBatcher[str, str] = TaskBatcher(
        asyncio.get_running_loop(), clock, send, late, max_in_flight=max_in_flight, max_batch=3
    )
    return batcher, clock


def test_requests_of_one_turn_share_batches() -> None:
    batches: list[list[str]] = []

    async def send(batch: list[QueuedRequest[str, str]]) -> list[str]:
        batches.append([queued.request for queued in batch])
        await asyncio.sleep(0.01)
        return [queued.request.upper() for queued in batch]

    async def work() -> None:
        batcher, clock = batcher_of(send)
        answers = await asyncio.gather(*[batcher.ask(each, clock.now() + 5) for each in "abcdefgh"])
        assert "".join(answers) == "ABCDEFGH"

    asyncio.run(work())
    assert ["".join(batch) for batch in batches] == ["abc", "def", "gh"]


def test_a_cancelled_request_is_not_sent() -> None:
    sent: list[str] = []

    async def send(batch: list[QueuedRequest[str, str]]) -> list[str]:
        sent.extend(queued.request for queued in batch)
        return ["" for _ in batch]

    async def work() -> None:
        batcher, clock = batcher_of(send)
        kept, cancelled = [batcher.ask(each, clock.now() + 5) for each in "ab"]
        cancelled.cancel()
        await kept

    asyncio.run(work())
    assert sent == ["a"]


def test_a_late_request_is_told_whether_it_was_sent() -> None:
    async def send(batch: list[QueuedRequest[str, str]]) -> list[str]:
        await asyncio.sleep(60)
        raise AssertionError("unreachable")

    async def work() -> None:
        batcher, clock = batcher_of(send, max_in_flight=1)
        asked = [batcher.ask(each, clock.now() + 0.05) for each in "abcd"]
        assert await asyncio.gather(*asked) == ["no answer"] * 3 + ["never sent"]
        batcher.close("closed")

    asyncio.run(work())


def test_a_pause_of_the_process_does_not_count() -> None:
    async def send(batch: list[QueuedRequest[str, str]]) -> list[str]:
        time.sleep(0.5)  # noqa: ASYNC251  # it blocks the loop
        await asyncio.sleep(0.01)
        return [queued.request for queued in batch]

    async def work() -> None:
        batcher, clock = batcher_of(send)
        assert await batcher.ask("a", clock.now() + 0.2) == "a"

    asyncio.run(work())


def test_closing_answers_all_requests_and_ends_the_calls() -> None:
    cancelled: list[bool] = []

    async def send(batch: list[QueuedRequest[str, str]]) -> list[str]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        raise AssertionError("unreachable")

    async def work() -> None:
        batcher, clock = batcher_of(send, max_in_flight=1)
        asked = [batcher.ask(each, clock.now() + 5) for each in "abcd"]
        await asyncio.sleep(0.01)
        batcher.close("closed")
        assert await asyncio.gather(*asked) == ["closed"] * 4
        await asyncio.sleep(0.01)

    asyncio.run(work())
    assert cancelled == [True]


def test_each_loop_has_a_value_of_its_own_until_it_ends() -> None:
    closed: list[int] = []
    numbers = iter(range(10))
    values = PerLoop(lambda _: next(numbers), closed.append)

    async def get() -> int:
        assert values.get() == values.get()
        return values.get()

    assert [asyncio.run(get()) for _ in range(3)] == [0, 1, 2]
    assert values.values() == [2]

    async def close() -> None:
        assert values.get() == 3
        await values.close()
        assert values.values() == []

    asyncio.run(close())
    assert closed == [3]


def test_values_of_the_parent_are_not_finalized_in_the_child_of_a_fork() -> None:
    class Value:
        pass

    finalized: list[bool] = []
    values = PerLoop(lambda _: Value(), lambda _: None)

    async def get() -> Value:
        return values.get()

    first = asyncio.run(get())
    weakref.finalize(first, finalized.append, True)
    del first
    values.after_fork()
    assert values.values() == []
    gc.collect()
    assert finalized == []


def test_an_exception_of_a_batch_leaves_the_others_alone() -> None:
    async def send(batch: list[QueuedRequest[str, str]]) -> list[str]:
        if batch[0].request == "a":
            raise ValueError("a mistake")
        return [queued.request for queued in batch]

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        batcher, clock = batcher_of(send)
        bad = batcher.ask("a", clock.now() + 0.05)
        await asyncio.sleep(0.01)
        assert await batcher.ask("b", clock.now() + 5) == "b"
        with pytest.raises(ValueError, match="a mistake"):
            await bad

    asyncio.run(work())
