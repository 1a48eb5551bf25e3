"""Flows: the same generator on threads and on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from limen.flow import Flow, run, run_async


def add_twice(add: Callable[[int], int] | Callable[[int], Awaitable[int]]) -> Flow[int]:
    first: int = yield add(1)
    second: int = yield add(first)
    return second


def undone(call: Callable[[], object], log: list[str]) -> Flow[str]:
    try:
        yield call()
    except BaseException as error:
        log.append(type(error).__name__)
        yield undo(log)
        raise
    return "done"


async def undo(log: list[str]) -> None:
    await asyncio.sleep(0)
    log.append("undone")


def test_a_flow_is_sent_the_results_of_its_calls() -> None:
    async def add(number: int) -> int:
        await asyncio.sleep(0)
        return number + 10

    assert run(add_twice(lambda number: number + 10)) == 21
    assert asyncio.run(run_async(add_twice(add))) == 21


def test_a_flow_without_calls_returns_its_result() -> None:
    def flow() -> Flow[int]:
        yield from ()
        return 3

    assert run(flow()) == 3
    assert asyncio.run(run_async(flow())) == 3


def test_an_error_is_raised_in_the_flow_and_reaches_its_caller() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    log: list[str] = []
    with pytest.raises(ValueError, match="no"):
        asyncio.run(run_async(undone(fail, log)))
    assert log == ["ValueError", "undone"]

    def catch(call: Callable[[], object]) -> Flow[str]:
        try:
            yield call()
        except ZeroDivisionError:
            return "caught"
        return "done"

    assert run(catch(lambda: 1 // 0)) == "caught"


def test_a_flow_that_is_cancelled_can_undo_its_work() -> None:
    log: list[str] = []

    async def cancel() -> None:
        task = asyncio.ensure_future(run_async(undone(asyncio.Event().wait, log)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert log == ["CancelledError", "undone"]
