"""The script decides on a real server exactly as the pure form does, step for step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from limen import Check, Concurrency, Limit
from limen.algorithms import STATES
from limen.algorithms.concurrency import Leases
from limen.backends import Change, Correct, Release, Renew, Reset
from limen.backends.redis import script
from limen.model import UNCHARGED, Reading, Receipt
from tests import servers

STEPS = 10_000
ALGORITHMS = sorted(STATES)
SECOND_US = 1_000_000
PERIODS_US = [3, 60, 3_600 * 3, 86_400 * 20]
"""Seconds; one for each width of a packed stamp."""


@dataclass
class Store:
    """A server that is asked through the script, at a time of our choosing."""

    client: redis.Redis
    run: Any
    now_us: int = 1_790_000_000_000_000

    def send(self, *requests: script.Packed) -> list[Any]:
        keys = [key for request_keys, _ in requests for key in request_keys]
        replies: list[Any] = self.run(keys, [*(packed for _, packed in requests), self.now_us])
        return replies

    def decide(self, *checks: Check, charge: bool = True, holder: str = "") -> tuple[Reading, ...]:
        [reply] = self.send(script.pack_checks("limen", checks, charge, holder))
        assert reply[0] == 1, reply
        return script.readings(reply)

    def change(self, change: Change) -> bool:
        [reply] = self.send(script.pack_change("limen", change))
        assert reply[0] == 1, reply
        return bool(reply[1])


@pytest.fixture(scope="module", params=sorted(servers.binaries()))
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with servers.server(servers.binaries()[request.param]) as port:
        client = redis.Redis(port=port)
        yield Store(client, client.register_script(script.text(test="time")))
        client.close()


@dataclass
class Twins:
    """One state in Python and one on the server, which must never differ."""

    store: Store
    chance: random.Random
    limits: list[Any]
    key: str
    charged: list[tuple[Check, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limit = self.limits[0]
        self.state = self.fresh()
        self.store.now_us = 1_790_000_000_000_000 + self.chance.randrange(10**13)

    def fresh(self) -> Any:
        slots = isinstance(self.limit, Concurrency)
        return Leases(self.limit) if slots else STATES[self.limit.algorithm](self.limit)

    def pass_time(self) -> None:
        chance, store = self.chance, self.store
        period_us = getattr(self.limit, "lease_us", 0) or self.limit.period_us or 10**11
        store.now_us += chance.choice(
            [0, 0, 1, chance.randrange(period_us // 10), chance.randrange(2 * period_us), period_us]
        )
        if chance.random() < 0.1:
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
        key = script.pack_checks("limen", [self.check()], False)[0][0]
        assert self.store.client.pttl(key) != -1, "every key has a TTL"

    def decide(self, charge: bool = True) -> None:
        cost = self.chance.choice([0, 1, 1, 1, 2, 5, self.chance.randint(1, 30)])
        check = self.check(cost)
        expected = self.state.decide(self.limit, self.store.now_us, cost, charge)
        assert self.store.decide(check, charge=charge) == (expected,)
        if expected[5] != UNCHARGED:
            self.charged.append((check, expected[5]))

    def peek(self) -> None:
        self.decide(charge=False)

    def refund(self) -> None:
        if self.charged:
            charge = self.charged.pop(self.chance.randrange(len(self.charged)))
            self.correct(charge, 0)

    def settle(self) -> None:
        if self.charged:
            charge = self.charged.pop(self.chance.randrange(len(self.charged)))
            self.correct(charge, self.chance.randint(0, 12))

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
        if more > 0:
            # A debit of nothing is no change to the pure form, and none that matters to a store.
            assert not self.store.change(Correct(receipt, actual_cost))


def limits_for(chance: random.Random, algorithm: str) -> list[Limit]:
    period: float | str = chance.choice(PERIODS_US)
    if algorithm == "fixed_window":
        period = chance.choice([period, period, "month", "calendar day"])
    options: dict[str, Callable[[], Any]] = {}
    if algorithm.endswith("bucket"):
        options["burst"] = lambda: chance.choice([None, chance.randint(1, 15)])
    if algorithm == "leaky_bucket":
        options["max_delay"] = lambda: chance.choice([None, 0, 1])
    if algorithm in ("rolling_window", "packed_window"):
        options["min_interval"] = lambda: chance.choice([None, None, 0.3])
        options["count_denied"] = lambda: chance.random() < 0.3
    return [
        Limit(
            chance.choice([1, 3, 7, 12, 40, 97, 100]),
            period,
            algorithm=algorithm,
            **{name: draw() for name, draw in options.items()},
        )
        for _ in range(chance.randint(1, 3))
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_script_and_the_pure_form_agree_on_every_step(store: Store, algorithm: str) -> None:
    chance = random.Random(algorithm)
    done = 0
    while done < STEPS:
        twins = Twins(store, chance, limits_for(chance, algorithm), f"{algorithm}:{done}")
        for _ in range(chance.randint(5, 80)):
            twins.step()
            done += 1


def test_the_script_and_the_pure_form_agree_on_slots(store: Store) -> None:
    chance = random.Random(7)
    done = 0
    while done < STEPS:
        lease = chance.choice(PERIODS_US)
        limits = [Concurrency(chance.randint(1, 4), lease=lease) for _ in range(2)]
        twins = Twins(store, chance, limits, f"slots:{done}")
        for _ in range(chance.randint(5, 80)):
            twins.pass_time()
            twins.limit = chance.choice(limits)
            holder, check = chance.choice("abcdefg"), twins.check()
            verb = chance.choice(["take", "take", "take", "renew", "release"])
            if verb == "take":
                expected = twins.state.decide(twins.limit, store.now_us, holder, True)
                assert store.decide(check, holder=holder) == (expected,)
            elif verb == "renew":
                renewed = twins.state.renew(twins.limit, store.now_us, holder)
                assert store.change(Renew(check, holder)) == renewed
            else:
                released = twins.state.release(store.now_us, holder)
                assert store.change(Release(check, holder)) == released
            done += 1


def test_several_checks_are_all_or_nothing(store: Store) -> None:
    strict, loose, shadow = (
        Check(Limit(2, 60), "together"),
        Check(Limit(10, 3_600, algorithm="token_bucket"), "together"),
        Check(Limit(1, 60, algorithm="fixed_window"), "together", enforce=False),
    )
    answers = [store.decide(strict, loose, shadow) for _ in range(3)]
    assert [[reading[0] for reading in answer] for answer in answers] == [
        [True, True, True],
        [True, True, False],
        [False, True, False],
    ]
    [left] = store.decide(loose, charge=False)
    assert left[1] == 8


def test_a_poisoned_key_faults_its_own_request_and_is_kept(store: Store) -> None:
    good, bad = Check(Limit(2, 60), "good"), Check(Limit(2, 60), "bad")
    poisoned = script.pack_checks("limen", [bad], True)[0][0]
    store.client.rpush(poisoned, "not ours")
    replies = store.send(
        script.pack_checks("limen", [good], True),
        script.pack_checks("limen", [bad], True),
        script.pack_checks("limen", [good], True),
    )
    assert [reply[0] for reply in replies] == [1, 0, 1]
    assert b"WRONGTYPE" in replies[1][1]
    assert store.client.lrange(poisoned, 0, -1) == [b"not ours"]


def test_a_poisoned_key_among_several_leaves_the_others_uncharged(store: Store) -> None:
    good, bad = Check(Limit(2, 60), "both"), Check(Limit(2, 60, name="bad"), "both")
    store.client.rpush(script.pack_checks("limen", [bad], True)[0][0], "not ours")
    [reply] = store.send(script.pack_checks("limen", [good, bad], True))
    assert reply[0] == 0
    [left] = store.decide(good, charge=False)
    assert left[1] == 2


def test_reset_forgets(store: Store) -> None:
    check = Check(Limit(1, 60), "reset")
    store.decide(check)
    assert store.change(Reset((check,)))
    assert not store.change(Reset((check,)))
    assert store.decide(check)[0][0]


def test_time_comes_from_the_server(store: Store) -> None:
    run = store.client.register_script(script.text())
    limit = Limit(1, 86_400)
    keys, packed = script.pack_checks("limen", [Check(limit, "clock")], True)
    first, second = (run(keys, [packed])[0] for _ in range(2))
    seconds, micros = store.client.time()
    [admitted], [refused] = script.readings(first), script.readings(second)
    assert (admitted[0], refused[0]) == (True, False)
    assert 0 <= seconds * SECOND_US + micros - admitted[5] < 10 * SECOND_US
    assert 0 < limit.period_us - refused[2] < 10 * SECOND_US
