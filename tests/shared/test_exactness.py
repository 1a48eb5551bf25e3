"""Limits that hold across processes: four of them, many decisions, few keys."""

from __future__ import annotations

import asyncio
import multiprocessing
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from limen import AsyncLimiter, Check, Limit, Limiter
from limen.model import UNCHARGED
from tests import servers

PROCESSES = 4
DECISIONS = 102_400
TASKS = 32
KEYS = ["a", "b", "c", "d"]
PATIENT_S = 10.0


@pytest.fixture(scope="module", params=["redis", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    binary = servers.binaries()["valkey"]
    if request.param == "redis":
        with servers.server(binary) as port:
            yield f"redis://127.0.0.1:{port}"
    else:
        with servers.cluster(binary) as cluster:
            yield "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in cluster.ports)


def in_processes(work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run `work` in several processes at once; return what each of them found."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(PROCESSES) as pool:
        running = [pool.apply_async(work, (*arguments, number)) for number in range(PROCESSES)]
        return [each.get(110) for each in running]


def most_in_any_window(stamps: list[int], period_us: int) -> int:
    stamps = sorted(stamps)
    return max(
        (bisect_right(stamps, first + period_us - 1) - index for index, first in enumerate(stamps)),
        default=0,
    )


def ask_often(url: str, limit_text: str, number: int) -> tuple[dict[str, list[int]], int]:
    """Return the server's time of each admission, by key; and how many were refused."""
    limit = Limit.parse(limit_text)
    each = DECISIONS // PROCESSES // TASKS

    async def ask() -> tuple[dict[str, list[int]], int]:
        stamps: dict[str, list[int]] = defaultdict(list)
        refused = 0

        async def task(index: int) -> None:
            nonlocal refused
            for turn in range(each):
                key = KEYS[(index + turn) % len(KEYS)]
                decision = await limiter.check(key, limit)
                assert decision.source == "store"
                if decision.allowed:
                    stamps[key].append(decision.stamp_us)
                else:
                    refused += 1

        async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:
            await asyncio.gather(*[task(index) for index in range(TASKS)])
        return stamps, refused

    return asyncio.run(ask())


@pytest.mark.parametrize("algorithm", ["packed_window", "rolling_window"])
def test_no_window_ever_holds_more_than_the_limit(url: str, algorithm: str) -> None:
    limit = Limit(700, 0.25, algorithm=algorithm)
    found = in_processes(ask_often, url, str(limit))
    admitted: dict[str, list[int]] = defaultdict(list)
    for stamps, _ in found:
        for key, each in stamps.items():
            admitted[key] += each
    refused = sum(each for _, each in found)
    total = sum(map(len, admitted.values())) + refused
    assert total == DECISIONS
    assert refused > 1_000, "the limit was never reached"
    assert set(admitted) == set(KEYS)
    for stamps in admitted.values():
        assert most_in_any_window(stamps, limit.period_us) == limit.quota


def ask_all_or_nothing(url: str, number: int) -> Counter[bool]:
    wide, tight, middle = three_limits()

    async def ask() -> Counter[bool]:
        verdicts: Counter[bool] = Counter()

        async def task() -> None:
            for _ in range(30):
                decision = await limiter.decide(wide, tight, middle)
                assert decision.source == "store"
                verdicts[decision.allowed] += 1

        async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:
            await asyncio.gather(*[task() for _ in range(TASKS)])
        return verdicts

    return asyncio.run(ask())


def three_limits() -> tuple[Check, Check, Check]:
    return (
        Check(Limit(9_000, 3_600, algorithm="token_bucket"), "together"),
        Check(Limit(1_234, 3_600, algorithm="packed_window"), "together"),
        Check(Limit(5_000, 86_400, algorithm="fixed_window"), "together"),
    )


def test_limits_that_would_have_passed_hold_exactly_the_admitted(url: str) -> None:
    verdicts = sum(in_processes(ask_all_or_nothing, url), Counter[bool]())
    assert sum(verdicts.values()) == PROCESSES * TASKS * 30
    assert verdicts[True] == 1_234
    wide, _, middle = three_limits()
    with Limiter(url, deadline=PATIENT_S) as limiter:
        [bucket] = limiter.decide(Check(wide.limit, "together", cost=0)).parts
        [window] = limiter.decide(Check(middle.limit, "together", cost=0)).parts
    assert window.remaining == 5_000 - 1_234
    # A bucket drains while the test runs: 2.5 a second.
    assert 9_000 - 1_234 <= bucket.remaining <= 9_000 - 1_234 + 300
    assert bucket.stamp_us == UNCHARGED
