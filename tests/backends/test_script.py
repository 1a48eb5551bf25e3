"""The script decides on a real server exactly as the pure form does, step for step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from limen import Check, Concurrency, InvalidLimit, Limit
from limen.algorithms import STATES
from limen.algorithms.concurrency import Leases
from limen.backends import Correct, Release, Renew
from limen.backends.memory import MemoryBackend
from limen.backends.redis import script
from limen.keys import marker_key
from limen.model import UNCHARGED, Receipt
from limen.testing import ManualClock
from tests.backends.conftest import Store

ALGORITHMS = sorted(STATES)
EXACT_WINDOWS = ("rolling_window", "packed_window")
SECOND_US = 1_000_000
PERIODS = [3, 60, 3_600 * 3, 86_400 * 20]
"""Seconds; with the longest one, there is one for each width of a packed stamp."""
EXTREME_PERIODS: list[float] = [0.000_001, 0.001_337, 3_650 * 86_400]
LARGEST = {
    "fixed_window": 10**9,
    "sliding_counter": 10**9,
    "rolling_window": 10_000,
    "packed_window": 1_000_000,
    "token_bucket": 90_000_000,
    "leaky_bucket": 90_000_000,
}
EARLIEST_US, LATEST_US = 10**15, 25 * 10**14
"""From 2001 to 2049: the longest steps and the largest debt beyond that stay below 2**53."""
MARGIN_MS = 3_600_000
"""How much longer keys live in the form of the script that is told the time."""


@dataclass
class Twins:
    """One state in Python and one on the server, which must never differ."""

    store: Store
    chance: random.Random
    limits: list[Any]
    key: str
    steady: bool = False
    """Whether requests come evenly, so that a window is full, and moves on one by one."""
    charged: list[tuple[Check, int]] = field(default_factory=list)
    retry_us: int = 0
    """After how long the last one who was refused was told to come back."""

    def __post_init__(self) -> None:
        self.limit = self.limits[0]
        self.state = self.fresh()
        self.store.now_us = 1_790_000_000_000_000 + self.chance.randrange(10**13)

    def fresh(self) -> Any:
        slots = isinstance(self.limit, Concurrency)
        return Leases(self.limit) if slots else STATES[self.limit.algorithm](self.limit)

    def steps(self) -> Iterator[int]:
        for step in range(self.chance.randint(5, 300 if self.steady else 80)):
            if self.store.now_us + self.state.offset_us > LATEST_US:
                return
            yield step

    def pass_time(self) -> None:
        chance, store = self.chance, self.store
        period_us = getattr(self.limit, "lease_us", 0) or self.limit.period_us or 10**11
        if self.steady and chance.random() < 0.99:
            store.now_us += chance.randrange(2 * period_us // self.limit.quota + 1)
        else:
            parts = [chance.randrange(period_us // 10 + 1), chance.randrange(2 * period_us)]
            told = [self.retry_us, max(self.retry_us - 1, 0)]
            store.now_us += chance.choice([0, 0, 1, *parts, period_us, *told])
            if chance.random() < 0.1 and store.now_us > EARLIEST_US:
                store.now_us -= chance.randrange(3 * period_us)
        if self.state.expires_us - self.state.offset_us <= store.now_us:
            # Now it equals none, and a store may forget it. So that both do, let both.
            self.state = self.fresh()
            store.client.delete(script.pack_checks("limen", [self.check()], False)[0][0])

    def check(self, cost: int = 1) -> Check:
        return Check(self.limit, self.key, cost)

    def step(self) -> None:
        self.pass_time()
        if self.chance.random() < 0.1:
            self.limit = self.chance.choice(self.limits)
        verb = self.chance.choice(["decide"] * 6 + ["peek", "refund", "settle"])
        getattr(self, verb)()
        self.assert_ends()

    def assert_ends(self, key: str = "") -> None:
        key = key or script.pack_checks("limen", [self.check()], False)[0][0]
        assert self.store.client.pttl(key) != -1, "every key has a TTL"

    def decide(self, charge: bool = True) -> None:
        costs = [0, 1, 1, 1, 2, 5, self.chance.randint(1, 30)]
        if self.limit.quota > 1_000:
            costs += [self.chance.randint(1, self.limit.quota), self.limit.capacity, 10**9]
        cost = self.chance.choice(costs)
        check = self.check(cost)
        expected = self.state.decide(self.limit, self.store.now_us, cost, charge)
        assert self.store.decide(check, charge=charge) == (expected,)
        self.retry_us = max(expected[2], 0)
        if expected[5] != UNCHARGED:
            self.charged.append((check, expected[5]))
            left_us = self.state.expires_us - self.state.offset_us - self.store.now_us
            [key], _ = script.pack_checks("limen", [check], False)
            # The server's clock has moved on since, but by less than a minute.
            assert self.store.client.pttl(key) > left_us / 1_000 + MARGIN_MS - 60_000

    def peek(self) -> None:
        self.decide(charge=False)

    def refund(self) -> None:
        if self.charged:
            charge = self.charged.pop(self.chance.randrange(len(self.charged)))
            self.correct(charge, 0)

    def settle(self) -> None:
        if self.charged:
            charge = self.charged.pop(self.chance.randrange(len(self.charged)))
            self.correct(charge, self.chance.randint(0, max(12, 3 * charge[0].cost)))

    def correct(self, charge: tuple[Check, int], actual_cost: int) -> None:
        # A correction works on what is there, and so under the limit it was written under.
        check = Check(self.state.limit, self.key, charge[0].cost)
        more = actual_cost - check.cost
        if more > 0:
            self.state.debit(self.store.now_us, more)
            expected = True
        else:
            expected = self.state.refund(self.store.now_us, -more, charge[1]) > 0
        receipt = Receipt(f"{self.chance.getrandbits(63):016x}", ((check, charge[1]),))
        assert self.store.change(Correct(receipt, actual_cost)) == expected
        [key], _ = script.pack_checks("limen", [check], False)
        self.assert_ends(marker_key(key, receipt.id))
        if more > 0:
            # A debit of nothing is no change to the pure form, and none that matters to a store.
            assert not self.store.change(Correct(receipt, actual_cost))


def limits_for(chance: random.Random, algorithm: str) -> list[Limit]:
    quotas, period = [1, 3, 7, 12, 40, 97, 100], float(chance.choice(PERIODS))
    if chance.random() < 0.1:
        largest = LARGEST[algorithm]
        quotas, period = [largest, largest - 1, largest // 7, 5], chance.choice(EXTREME_PERIODS)
    calendar = algorithm == "fixed_window" and chance.random() < 0.5
    span = chance.choice(["month", "calendar day"]) if calendar else period
    from_first = algorithm == "fixed_window" and not calendar and chance.random() < 0.5
    limits: list[Limit] = []
    while len(limits) < 3:
        # A few of the extremes cannot be combined.
        with suppress(InvalidLimit):
            limit = draw_limit(chance, algorithm, chance.choice(quotas), span)
            if from_first:
                limit = Limit(limit.quota, span, algorithm=algorithm, from_first=True)
            limits.append(limit)
    return limits[: chance.randint(1, 3)]


def draw_limit(chance: random.Random, algorithm: str, quota: int, period: float | str) -> Limit:
    options: dict[str, Any] = {}
    if algorithm.endswith("bucket"):
        bursts = [None, chance.randint(1, 15), *([2**53 // quota, quota] if quota > 1_000 else [])]
        options["burst"] = chance.choice(bursts)
    if algorithm == "leaky_bucket":
        options["max_delay"] = chance.choice([None, 0, 1])
    if algorithm in EXACT_WINDOWS:
        options["min_interval"] = chance.choice([None, None, min(0.3, float(period))])
        options["count_denied"] = chance.random() < 0.3
    return Limit(quota, period, algorithm=algorithm, **options)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_script_and_the_pure_form_agree_on_every_step(store: Store, algorithm: str) -> None:
    chance = random.Random(algorithm)
    done = 0
    while done < store.steps:
        limits = limits_for(chance, algorithm)
        twins = Twins(store, chance, limits, f"{algorithm}:{done}", steady=chance.random() < 0.2)
        for _ in twins.steps():
            twins.step()
            done += 1


def test_the_script_and_the_pure_form_agree_on_slots(store: Store) -> None:
    chance = random.Random(7)
    done = 0
    while done < store.steps:
        leases: list[float] = chance.choice([[3, 60], [3, 86_400 * 20], EXTREME_PERIODS])
        limits = [
            Concurrency(chance.choice([1, 2, 3, 4, 10_000]), lease=chance.choice(leases))
            for _ in range(2)
        ]
        twins = Twins(store, chance, limits, f"slots:{done}")
        for _ in twins.steps():
            twins.pass_time()
            twins.limit = chance.choice(limits)
            holder, check = chance.choice("abcdefg"), twins.check()
            verb = chance.choice(["take", "take", "take", "renew", "release"])
            if verb == "take":
                expected = twins.state.decide(twins.limit, store.now_us, holder, True)
                assert store.decide(check, holder=holder) == (expected,)
                twins.retry_us = expected[2]
            elif verb == "renew":
                renewed = twins.state.renew(twins.limit, store.now_us, holder)
                assert store.change(Renew(check, holder)) == renewed
            else:
                released = twins.state.release(store.now_us, holder)
                assert store.change(Release(check, holder)) == released
            twins.assert_ends()
            done += 1


def test_a_refund_that_finds_nothing_leaves_the_window_before_as_it_was(store: Store) -> None:
    check = Check(Limit(1, 60, algorithm="fixed_window"), "before")
    store.now_us -= store.now_us % (60 * SECOND_US)
    assert store.decide(check)[0][0]
    store.now_us += 60 * SECOND_US
    receipt = Receipt("0" * 16, ((check, store.now_us),))
    assert not store.change(Correct(receipt, 0))
    # The clock steps back to where the one unit was used.
    store.now_us -= SECOND_US
    assert not store.decide(check)[0][0]


def test_months_begin_alike_for_centuries(store: Store) -> None:
    chance, limit = random.Random(2_100), Limit(1, "month")
    for number in range(500):
        # To the middle of the year 2255: what is later passes 2**53.
        store.now_us = chance.randrange(10**15, 9 * 10**15)
        expected = STATES["fixed_window"](limit).decide(limit, store.now_us, 1, True)
        assert store.decide(Check(limit, f"century:{number}")) == (expected,)


def test_a_huge_quota_over_a_long_period_is_counted_in_ticks_alike(store: Store) -> None:
    chance, limit = random.Random(10**9), Limit(10**9, 2_592_000, algorithm="sliding_counter")
    assert limit.tick_us > 1
    state = STATES["sliding_counter"](limit)
    for _ in range(500):
        store.now_us += chance.randrange(limit.period_us // 3)
        cost = chance.randrange(limit.quota // 2)
        expected = state.decide(limit, store.now_us, cost, True)
        assert store.decide(Check(limit, "ticks", cost)) == (expected,)


def test_products_of_a_huge_quota_lose_no_digit(store: Store) -> None:
    chance, limit = random.Random(53), Limit(10**9, 2_592_000, algorithm="sliding_counter")
    period = -(-limit.period_us // limit.tick_us)
    start_us = store.now_us - store.now_us % limit.period_us
    for number in range(100):
        # Such that previous * left is one more than a multiple of the period, and so rounded up.
        previous = 30 * chance.randrange(limit.quota // 60, limit.quota // 30) + 1
        left = pow(previous, -1, period)
        state, key = STATES["sliding_counter"](limit), f"products:{number}"
        for now_us, cost in [
            (start_us, previous),
            (start_us + 2 * limit.period_us - left * limit.tick_us, 0),
        ]:
            store.now_us = now_us
            expected = state.decide(limit, now_us, cost, True)
            assert store.decide(Check(limit, key, cost)) == (expected,)


def test_what_was_used_under_a_huge_quota_is_countable_under_a_tiny_one(store: Store) -> None:
    huge, tiny = (Limit(quota, 3_650 * 86_400, burst=quota) for quota in (90_000_000, 5))
    state = STATES["token_bucket"](huge)
    for limit, cost in [(huge, huge.quota), (tiny, 1), (huge, 1)]:
        expected = state.decide(limit, store.now_us, cost, True)
        assert store.decide(Check(limit, "shrunk", cost)) == (expected,)
        store.now_us += SECOND_US


@pytest.mark.parametrize("algorithm", EXACT_WINDOWS)
def test_a_stamp_leaves_when_it_is_a_period_old_and_takes_no_other_along(
    store: Store, algorithm: str
) -> None:
    limit = Limit(2, 60, algorithm=algorithm)
    check = Check(limit, f"leaves:{algorithm}")
    admitted = []
    for step_us in (0, 1, 60 * SECOND_US - 2, 1, 0, 1):
        store.now_us += step_us
        admitted.append(store.decide(check)[0][0])
    assert admitted == [True, True, False, True, False, True]


@pytest.mark.parametrize("algorithm", EXACT_WINDOWS)
def test_a_window_that_begins_anew_after_a_step_back_keeps_nothing(
    store: Store, algorithm: str
) -> None:
    limit = Limit(60, 60, algorithm=algorithm)
    check, state = Check(limit, f"anew:{algorithm}", 20), STATES[limit.algorithm](limit)
    [key], _ = script.pack_checks("limen", [check], False)
    # At the third step all stamps have left, and are later than the clock.
    for step in (0, -100, 65, 1, 30, 40):
        store.now_us += step * SECOND_US
        store.client.pexpire(key, 1_000)
        assert store.decide(check) == (state.decide(limit, store.now_us, 20, True),)
        if step == 65:
            assert store.client.pttl(key) > 60_000


@pytest.mark.parametrize("quota", [40, 400])
def test_a_ring_that_wraps_grows_by_a_little(store: Store, quota: int) -> None:
    """Then what has wrapped to its beginning wraps again."""
    limits = [Limit(quota + more, 60) for more in range(4)]
    state = STATES["packed_window"](limits[0])
    for index in range(3 * quota):
        limit = limits[index * 4 // (3 * quota)]
        store.now_us += 60 * SECOND_US // quota - index % 3
        expected = state.decide(limit, store.now_us, 1, True)
        assert store.decide(Check(limit, f"ring:{quota}")) == (expected,)


def test_a_ring_that_was_large_becomes_small_again(store: Store) -> None:
    limit = Limit(10_000, 60)
    check, burst = Check(limit, "large"), Check(limit, "large", 9_000)
    state = STATES["packed_window"](limit)
    [key], _ = script.pack_checks("limen", [check], False)
    sizes = []
    for asked in [burst, *[check] * 20]:
        expected = state.decide(limit, store.now_us, asked.cost, True)
        assert store.decide(asked) == (expected,)
        sizes.append(store.client.strlen(key))
        store.now_us += 11 * SECOND_US
    assert sizes[0] > 36_000
    assert sizes[-1] < 100


def draw_checks(chance: random.Random, key: str) -> list[Check]:
    """Return checks of different states, some of them shadows, for one request."""
    limits: list[Limit | Concurrency] = [
        Limit(quota, period, algorithm=algorithm, count_denied=denied)
        for algorithm in ALGORITHMS
        for quota, period in [(chance.choice([2, 5, 30]), 60), (chance.choice([7, 40]), 3_600)]
        for denied in [algorithm in EXACT_WINDOWS and chance.random() < 0.5]
    ]
    limits.append(Concurrency(chance.choice([1, 3]), lease=30))
    return [
        Check(limit, key, chance.choice([0, 1, 1, 2, 6]), enforce=chance.random() < 0.8)
        for limit in chance.sample(limits, chance.choice([1, 1, 2, 3, 5]))
    ]


@pytest.mark.parametrize(
    "steps",
    # Far back only where nothing ends meanwhile: what memory has swept away, the server still has.
    [[0, 0.001, 1, 20, 100], [0, 0.25, 1, -1]],
    ids=["forward", "to and fro"],
)
def test_requests_of_several_checks_are_decided_as_in_memory(
    store: Store, steps: list[float]
) -> None:
    store.client.flushdb()
    chance = random.Random(11)
    clock = ManualClock(store.now_us / SECOND_US)
    memory = MemoryBackend(clock, 10_000)
    for _ in range(store.steps // 10):
        clock.advance(chance.choice(steps))
        store.now_us = clock.time_ns() // 1_000
        # A few users, so that the requests of one call meet in their states.
        requests = [
            (
                tuple(draw_checks(chance, chance.choice(["an", "bo"]))),
                chance.random() < 0.9,
                chance.choice("abc"),
            )
            for _ in range(chance.choice([1, 2, 5, 20]))
        ]
        replies = store.send(*(script.pack_checks("limen", *request) for request in requests))
        for request, reply in zip(requests, replies, strict=True):
            assert script.readings(reply) == memory.run(memory.prepare(*request))
