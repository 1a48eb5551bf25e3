"""Limits that hold across processes: four of them, many decisions, few keys."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from limen import AsyncLimiter, Check, Limit, Limiter
from limen.algorithms import STATES
from limen.backends.redis import script
from limen.model import UNCHARGED, AlgorithmName, Reading
from tests import script_forms, servers
from tests.shared.load import PROCESSES, Crowd
from tests.waiting import FULL

DECISIONS = 102_400
FEWER = DECISIONS if FULL else 51_200
"""Where the same code has decided so often already: another algorithm, or another way there."""
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


def is_cluster(url: str) -> bool:
    return url.startswith("redis+cluster")


def most_in_any_window(stamps: list[int], period_us: int) -> int:
    stamps = sorted(stamps)
    return max(
        (bisect_right(stamps, first + period_us - 1) - index for index, first in enumerate(stamps)),
        default=0,
    )


def ask_often(
    url: str, limit_text: str, decisions: int, number: int
) -> tuple[dict[str, list[int]], int]:
    """Return the server's time of each admission, by key; and how many were refused."""
    limit = Limit.parse(limit_text)
    each = decisions // PROCESSES // TASKS

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
def test_no_window_ever_holds_more_than_the_limit(crowd: Crowd, url: str, algorithm: str) -> None:
    is_first = algorithm == "packed_window" and not is_cluster(url)
    decisions = DECISIONS if is_first else FEWER
    limit = Limit(700 * decisions // DECISIONS, 0.25, algorithm=algorithm)
    found = crowd.run(ask_often, url, str(limit), decisions)
    admitted: dict[str, list[int]] = defaultdict(list)
    for stamps, _ in found:
        for key, each in stamps.items():
            admitted[key] += each
    refused = sum(each for _, each in found)
    total = sum(map(len, admitted.values())) + refused
    assert total == decisions
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


def test_limits_that_would_have_passed_hold_exactly_the_admitted(crowd: Crowd, url: str) -> None:
    verdicts = sum(crowd.run(ask_all_or_nothing, url), Counter[bool]())
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


Step = tuple[str, int, int, int, bool, Reading]
"""Key, number, time in microseconds, cost, whether it charges, and what the script replied."""


def ask_in_order(url: str, algorithm: str, decisions: int, number: int) -> list[Step]:
    """Ask the script itself, in the form that numbers its replies, a batch of ten at a time."""
    chance = random.Random(f"{algorithm} {number}")
    text = script_forms.numbered()
    port = int(url.rpartition(":")[2])
    steps: list[Step] = []
    client: Any = (redis.RedisCluster if is_cluster(url) else redis.Redis)(
        host="127.0.0.1", port=port
    )
    with client:
        for _ in range(decisions // PROCESSES // len(STATES) // 10 + 1):
            key = chance.choice(KEYS)
            asked = [(chance.randint(0, 3), chance.random() < 0.9) for _ in range(10)]
            packed = [
                script.pack_checks("limen", [Check(limit_of(algorithm), key, cost)], charge)
                for cost, charge in asked
            ]
            keys = [each for keys, _ in packed for each in keys]
            counter = f"limen:{{{key}}}sequence"
            replies = client.eval(text, 11, *keys, counter, *[request for _, request in packed])
            for (cost, charge), reply in zip(asked, replies, strict=True):
                answer, now_us, place = script_forms.split_number(reply)
                [reading] = script.readings(answer)
                steps.append((key, place, now_us, cost, charge, reading))
    return steps


def limit_of(algorithm: str) -> Limit:
    return Limit(40, 0.2, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", sorted(STATES))
def test_the_pure_form_replayed_in_script_order_gives_every_decision(
    crowd: Crowd, url: str, algorithm: AlgorithmName
) -> None:
    limit = limit_of(algorithm)
    decisions = FEWER if is_cluster(url) else DECISIONS
    steps = [step for each in crowd.run(ask_in_order, url, algorithm, decisions) for step in each]
    assert len(steps) * len(STATES) >= decisions
    verdicts: Counter[bool] = Counter()
    for key in KEYS:
        in_order = sorted((step for step in steps if step[0] == key), key=lambda step: step[1])
        state: Any = STATES[algorithm](limit)
        for _, _, now_us, cost, charge, reading in in_order:
            assert state.decide(limit, now_us, cost, charge) == reading
            verdicts[reading[0]] += 1
    assert min(verdicts.values()) > 100
