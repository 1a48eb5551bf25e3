from __future__ import annotations

import asyncio

import pytest

from tests.waiting import wait_until, wait_until_async


def test_returns_the_first_true_result() -> None:
    results = iter([0, 0, 7, 8])
    assert wait_until(lambda: next(results), interval_s=0) == 7
    assert asyncio.run(wait_until_async(lambda: next(results))) == 8


def test_names_the_condition_that_does_not_become_true() -> None:
    never: list[int] = []
    with pytest.raises(AssertionError, match=r"after 0 s still 0: .*lambda: len\(never\)"):
        wait_until(lambda: len(never), timeout_s=0)
    with pytest.raises(AssertionError, match=r"lambda: never\[:1\].*\nthe log"):
        wait_until(lambda: never[:1], timeout_s=0, details=lambda: "the log")
    with pytest.raises(AssertionError, match=r"list\.copy"):
        asyncio.run(wait_until_async(never.copy, timeout_s=0))


def test_awaits_a_condition_that_is_a_coroutine_function() -> None:
    results = iter([0, 0, 7])

    async def condition() -> int:
        await asyncio.sleep(0)
        return next(results)

    assert asyncio.run(wait_until_async(condition, interval_s=0)) == 7


def test_ignores_only_the_exceptions_it_is_given() -> None:
    calls: list[int] = []

    def fail_twice() -> bool:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("not yet")
        return True

    assert wait_until(fail_twice, interval_s=0, ignoring=OSError)
    calls.clear()
    with pytest.raises(OSError, match="not yet"):
        wait_until(fail_twice, interval_s=0)
