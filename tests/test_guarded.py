"""The ladder: what is decided here when the store cannot, by whom, and what is said about it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import redis

from limen import (
    AsyncLimiter,
    Check,
    Concurrency,
    Limit,
    Limiter,
    StoreError,
    guarded,
    last_readings,
)
from limen.backends import Change, sampled
from limen.keys import redis_key
from limen.limiter import plan
from limen.model import ALGORITHMS, OnError
from limen.model.text import digest
from tests import servers
from tests.conformance.stores import LIMITERS, Blocking, Threaded, is_renewed
from tests.waiting import wait_until

SECRET = "hunter2"
SLOW_MACHINE_S = 5.0
DEADLINE_S = 0.2
NAMESPACE = "guarded"
LIMIT = Limit(4, 86_400)
OTHER = Limit(2, 3_600, algorithm="token_bucket")

Open = Callable[..., Any]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=LIMITERS)
def open_limiter(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Open]:
    """Make a limiter of one kind or the other, called in the same way."""
    opened: list[Any] = []

    def make(store: str, **settings: Any) -> Any:
        settings = {"namespace": NAMESPACE, "deadline": SLOW_MACHINE_S, **settings}
        if request.param == "Limiter":
            opened.append(Threaded(Limiter(store, **settings)))
        else:
            opened.append(Blocking(AsyncLimiter(store, **settings), runner))
        return opened[-1]

    yield make
    for limiter in opened:
        limiter.close()


@pytest.fixture(scope="module")
def dead() -> str:
    """The address of a server that is not there."""
    return f"redis://me:{SECRET}@{servers.HOST}:{servers.free_port()}"


@pytest.fixture
def alive(redis_url: str) -> str:
    return redis_url


def poison(admin: redis.Redis, *checks: Check) -> None:
    """Put a list where a state of ours should be."""
    for check in checks:
        admin.rpush(redis_key(NAMESPACE, check), "not ours")


def heal(admin: redis.Redis) -> None:
    admin.flushall()


def wait_for_the_store(limiter: Any) -> None:
    wait_until(lambda: not limiter.peek("nobody", LIMIT).degraded)


def let_it_work(limiter: Any, seconds: float) -> None:
    """Sleep, and let a loop that only runs while it is called do what it has to."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        limiter.peek("nobody", LIMIT)
        time.sleep(0.02)


def used(limiter: Any, limit: Limit) -> int:
    """Return how much the store has charged to the key."""
    decision = limiter.peek("k", limit)
    assert decision.source == "store"
    return int(limit.capacity - decision.remaining)


def settled(limiter: Any, limit: Limit) -> int:
    """Return how much was charged in the store, when anything was."""
    wait_for_the_store(limiter)
    return wait_until(lambda: used(limiter, limit))


def sources(decision: Any) -> list[str]:
    return [part.source for part in decision.parts]


class TestDeadStore:
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_local_counts_in_this_process(
        self, open_limiter: Open, dead: str, algorithm: str
    ) -> None:
        limiter = open_limiter(dead)
        limit = Limit(3, 86_400, algorithm=algorithm)
        decisions = [limiter.check("k", limit) for _ in range(4)]
        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        assert [decision.remaining for decision in decisions] == [2, 1, 0, 0]
        assert [decision.source for decision in decisions] == ["local"] * 4
        assert all(decision.degraded for decision in decisions)
        assert decisions[3].retry_after > 0
        assert limiter.check("other", limit).remaining == 2

    def test_open_lets_everybody_pass_and_counts_nothing(
        self, open_limiter: Open, dead: str
    ) -> None:
        limiter = open_limiter(dead, on_error="open")
        decisions = [limiter.check("k", LIMIT, cost=4) for _ in range(3)]
        assert all(decision.allowed and decision.degraded for decision in decisions)
        assert {decision.source for decision in decisions} == {"open"}
        assert {(each.remaining, each.retry_after, each.delay) for each in decisions} == {
            (4, 0.0, 0.0)
        }
        assert decisions[0].receipt is None
        assert limiter.refund(decisions[0]) is False
        assert limiter.slot("k", Concurrency(1, lease=30)).acquire().source == "open"

    def test_closed_refuses_everybody_and_says_when_to_try_again(
        self, open_limiter: Open, dead: str
    ) -> None:
        limiter = open_limiter(dead, on_error="closed")
        decision = limiter.check("k", LIMIT)
        assert (decision.allowed, decision.source, decision.degraded) == (False, "closed", True)
        assert 0 < decision.retry_after < 60
        assert decision.receipt is None
        assert limiter.slot("k", Concurrency(1, lease=30)).acquire().source == "closed"

    def test_peek_asks_here_too_and_charges_nothing(self, open_limiter: Open, dead: str) -> None:
        limiter = open_limiter(dead)
        for _ in range(3):
            peeked = limiter.peek("k", LIMIT)
            assert (peeked.remaining, peeked.source) == (4, "local")
        limiter.check("k", LIMIT, cost=4)
        assert not limiter.peek("k", LIMIT).allowed

    def test_several_limits_are_all_or_nothing_here_too(
        self, open_limiter: Open, dead: str
    ) -> None:
        limiter = open_limiter(dead)
        for _ in range(2):
            assert limiter.check("k", LIMIT, OTHER).allowed
        refused = limiter.check("k", LIMIT, OTHER)
        assert [part.allowed for part in refused.parts] == [True, False]
        assert (refused.limit, refused.source) == (OTHER, "local")
        assert limiter.peek("k", LIMIT).remaining == 2

    def test_a_shadow_has_no_say_here_either(self, open_limiter: Open, dead: str) -> None:
        limiter = open_limiter(dead)
        checks = (Check(Limit(1, 86_400), "k", enforce=False), Check(OTHER, "k"))
        decisions = [limiter.decide(*checks) for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert [decision.parts[0].allowed for decision in decisions] == [True, False, False]
        shut = (Check(LIMIT, "s", enforce=False, on_error="closed"), Check(OTHER, "s"))
        assert limiter.decide(*shut).allowed
        assert limiter.peek("s", OTHER).remaining == 1

    def test_acquire_and_the_decorator_go_by_what_is_decided_here(
        self, open_limiter: Open, dead: str
    ) -> None:
        limiter = open_limiter(dead)
        assert limiter.acquire("k", "2/30ms").source == "local"
        start = time.monotonic()
        assert all(limiter.acquire("k", "2/30ms").allowed for _ in range(3))
        assert time.monotonic() - start >= 0.02
        assert limiter.limit("1/day")(lambda: "ran")() == "ran"

    def test_observers_see_who_decided(self, open_limiter: Open, dead: str) -> None:
        seen: list[Any] = []
        limiter = open_limiter(dead, observers=[seen.append])
        told = limiter.check("k", LIMIT)
        assert seen == [told]
        assert seen[0].degraded

    def test_many_callers_at_once_are_counted_exactly(self, open_limiter: Open, dead: str) -> None:
        decisions = open_limiter(dead).check_all(["k"] * 100, Limit(40, 86_400))
        assert sum(decision.allowed for decision in decisions) == 40
        assert {decision.source for decision in decisions} == {"local"}


class TestMixed:
    """Each check says by itself what happens without the store."""

    def checks(self, *on_error: OnError | None) -> list[Check]:
        limits = (LIMIT, OTHER, Limit(9, 60))
        return [
            Check(limit, "k", on_error=each) for limit, each in zip(limits, on_error, strict=False)
        ]

    @pytest.mark.parametrize("default", ["local", "open", "closed"])
    def test_the_limiter_decides_for_who_says_nothing(
        self, open_limiter: Open, dead: str, default: OnError
    ) -> None:
        limiter = open_limiter(dead, on_error=default)
        decision = limiter.decide(*self.checks("local", None, "open"))
        assert sources(decision) == ["local", default, "open"]
        assert decision.degraded

    def test_local_counts_beside_open(self, open_limiter: Open, dead: str) -> None:
        limiter = open_limiter(dead)
        decisions = [limiter.decide(*self.checks("open", "local")) for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert [decision.source for decision in decisions] == ["local"] * 3
        assert [part.allowed for part in decisions[2].parts] == [True, False]

    def test_one_that_is_closed_refuses_all_and_charges_nothing(
        self, open_limiter: Open, dead: str
    ) -> None:
        limiter = open_limiter(dead)
        checks = self.checks("local", "closed", "open")
        for _ in range(6):
            refused = limiter.decide(*checks)
            assert (refused.allowed, refused.source, refused.limit) == (False, "closed", OTHER)
            assert [part.allowed for part in refused.parts] == [True, False, True]
            assert refused.receipt is None
        assert limiter.peek("k", LIMIT).remaining == 4

    def test_what_is_charged_here_is_refunded_here(self, open_limiter: Open, dead: str) -> None:
        limiter = open_limiter(dead)
        decision = limiter.decide(*self.checks("open", "local"))
        assert limiter.refund(decision) is True
        assert limiter.refund(decision) is False
        assert limiter.peek("k", OTHER).remaining == 2


class TestPoisonedKey:
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_faults_its_own_request_and_is_kept(
        self, open_limiter: Open, alive: str, admin: redis.Redis, algorithm: str
    ) -> None:
        limit = Limit(3, 86_400, algorithm=algorithm)
        poison(admin, Check(limit, "bad"))
        limiter = open_limiter(alive)
        for verb in (limiter.check, limiter.peek):
            decision = verb("bad", limit)
            assert (decision.allowed, decision.source) == (True, "local")
            assert limiter.check("good", limit).source == "store"
        key = redis_key(NAMESPACE, Check(limit, "bad"))
        assert admin.lrange(key, 0, -1) == [b"not ours"]
        assert admin.pttl(key) == -1

    def test_harms_nobody_in_the_same_batch(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        poison(admin, Check(LIMIT, "bad"))
        limiter = open_limiter(alive)
        told = limiter.check_all(["a", "bad", "b", "bad", "c"] * 10, LIMIT)
        for key in "abc":
            answers = sorted((each.source, each.allowed) for each in told if each.key == key)
            assert answers == [("store", False)] * 6 + [("store", True)] * 4
        bad = [each for each in told if each.key == "bad"]
        assert {each.source for each in bad} == {"local"}
        assert sum(each.allowed for each in bad) == 4

    def test_among_several_leaves_the_others_uncharged(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        poison(admin, Check(OTHER, "k"))
        limiter = open_limiter(alive)
        assert sources(limiter.check("k", LIMIT, OTHER)) == ["local", "local"]
        assert limiter.peek("k", LIMIT).remaining == 4
        assert limiter.peek("k", LIMIT).source == "store"

    @pytest.mark.parametrize(
        ("on_error", "allowed"), [("local", True), ("open", True), ("closed", False)]
    )
    def test_follows_what_its_check_says(
        self,
        open_limiter: Open,
        alive: str,
        admin: redis.Redis,
        on_error: OnError,
        allowed: bool,
    ) -> None:
        poison(admin, Check(LIMIT, "bad"))
        limiter = open_limiter(alive)
        decision = limiter.decide(Check(LIMIT, "bad", on_error=on_error))
        assert (decision.allowed, decision.source) == (allowed, on_error)

    def test_of_a_shadow_is_nobodys_fault(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        shadow = Check(OTHER, "k", enforce=False)
        poison(admin, shadow)
        limiter = open_limiter(alive)
        for remaining in (3, 2):
            decision = limiter.decide(shadow, Check(LIMIT, "k"))
            assert sources(decision) == ["store", "store"]
            assert (decision.remaining, decision.parts[0].remaining) == (remaining, 2)
        assert admin.lrange(redis_key(NAMESPACE, shadow), 0, -1) == [b"not ours"]

    def test_of_slots_is_kept_too(self, open_limiter: Open, alive: str, admin: redis.Redis) -> None:
        one = Concurrency(1, lease=30)
        poison(admin, Check(one, "k"))
        limiter = open_limiter(alive)
        slot = limiter.slot("k", one)
        assert slot.acquire().source == "local"
        assert not limiter.slot("k", one).acquire().allowed
        assert slot.renew() is True
        assert slot.release() is True
        assert admin.lrange(redis_key(NAMESPACE, Check(one, "k")), 0, -1) == [b"not ours"]

    def test_can_be_reset(self, open_limiter: Open, alive: str, admin: redis.Redis) -> None:
        """The one who asks for that has been told that the key holds something else."""
        poison(admin, Check(LIMIT, "k"))
        limiter = open_limiter(alive)
        limiter.reset("k", LIMIT)
        assert limiter.check("k", LIMIT).source == "store"


class TestShare:
    """Each of n instances admits ceil(limit ÷ n) alone."""

    @pytest.mark.parametrize(("quota", "instances", "share"), [(10, 4, 3), (9, 3, 3), (2, 5, 1)])
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_of_a_quota(
        self,
        open_limiter: Open,
        dead: str,
        algorithm: str,
        quota: int,
        instances: int,
        share: int,
    ) -> None:
        limit = Limit(quota, 86_400, algorithm=algorithm)
        limiter = open_limiter(dead, instances=instances)
        decisions = [limiter.check("k", limit) for _ in range(share + 2)]
        assert [decision.allowed for decision in decisions] == [True] * share + [False] * 2
        assert decisions[0].remaining == share - 1
        assert {decision.limit for decision in decisions} == {limit}

    @pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
    def test_of_a_burst(self, open_limiter: Open, dead: str, algorithm: str) -> None:
        limit = Limit(10, 86_400, algorithm=algorithm, burst=21)
        limiter = open_limiter(dead, instances=4)
        assert limiter.check("k", limit, cost=6).remaining == 0
        assert not limiter.check("k", limit).allowed

    def test_of_a_calendar_quota(self, open_limiter: Open, dead: str) -> None:
        limiter = open_limiter(dead, instances=4)
        assert limiter.check("k", Limit(10, "month")).remaining == 2

    @pytest.mark.parametrize(
        ("whole", "third"),
        [
            ("9/day min_interval 1h", "3/day min_interval 1h"),
            ("9/day count_denied", "3/day count_denied"),
            ("9/hour fixed_window from_first", "3/hour fixed_window from_first"),
            ("9/s leaky_bucket burst 6 max_delay 2s", "3/s leaky_bucket burst 2 max_delay 2s"),
        ],
    )
    def test_is_under_the_same_terms(self, whole: str, third: str) -> None:
        for name in (None, "uploads"):
            assert Limit.parse(whole).named(name).share(3) == Limit.parse(third).named(name)

    def test_of_slots(self, open_limiter: Open, dead: str) -> None:
        limiter = open_limiter(dead, instances=4)
        slots = [limiter.slot("k", Concurrency(10, lease=30)) for _ in range(4)]
        decisions = [slot.acquire() for slot in slots]
        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        assert decisions[0].remaining == 2

    def test_is_refunded_and_settled_as_a_share(self, open_limiter: Open, dead: str) -> None:
        limit = Limit(10, 86_400)
        limiter = open_limiter(dead, instances=2)
        first, second = limiter.check("k", limit, cost=2), limiter.check("k", limit, cost=3)
        assert limiter.settle(first, 1) is True
        assert limiter.refund(second) is True
        assert limiter.peek("k", limit).remaining == 4

    def test_is_not_taken_while_the_store_decides(self, open_limiter: Open, alive: str) -> None:
        assert open_limiter(alive, instances=4).check("k", Limit(10, 86_400)).remaining == 9

    def test_of_the_longest_bucket_there_can_be_is_still_a_decision(
        self, open_limiter: Open, dead: str
    ) -> None:
        """Rounding up must not make a limit that is not allowed."""
        limit = Limit(3, 3_650 * 86_400 * 3 / 4, burst=4)
        assert open_limiter(dead, instances=3).check("k", limit).source == "local"


class TestChanges:
    """What is counted here is changed here, and nowhere else."""

    def test_a_local_charge_is_refunded_to_the_local_count_and_never_to_the_store(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        limiter = open_limiter(alive)
        poison(admin, Check(LIMIT, "k"))
        here = limiter.check("k", LIMIT, cost=3)
        assert here.source == "local"
        heal(admin)
        assert limiter.check("k", LIMIT, cost=2).source == "store"
        assert limiter.refund(here) is True
        assert limiter.refund(here) is False
        there = limiter.peek("k", LIMIT)
        assert (there.source, there.remaining) == ("store", 2)
        heal(admin)
        poison(admin, Check(LIMIT, "k"))
        here = limiter.peek("k", LIMIT)
        assert (here.source, here.remaining) == ("local", 2), "what the store said last"

    def test_a_charge_of_the_store_is_not_refunded_here(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        limiter = open_limiter(alive)
        there = limiter.check("k", LIMIT, cost=3)
        heal(admin)
        poison(admin, Check(LIMIT, "k"))
        here = limiter.check("k", LIMIT, cost=1)
        assert (there.source, here.source, here.allowed) == ("store", "local", True)
        assert limiter.refund(there) is False
        assert limiter.settle(there, 9) is False
        assert limiter.peek("k", LIMIT).remaining == 0

    def test_a_slot_granted_here_is_renewed_and_released_here(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        one = Concurrency(1, lease=30)
        limiter = open_limiter(alive)
        poison(admin, Check(one, "k"))
        here = limiter.slot("k", one)
        assert here.acquire().source == "local"
        heal(admin)
        there = limiter.slot("k", one)
        assert there.acquire().source == "store"
        assert here.renew() is True
        assert here.release() is True
        assert here.release() is False
        assert there.renew() is True

    def test_a_slot_of_a_dead_store_can_be_held_by_with(
        self, open_limiter: Open, dead: str
    ) -> None:
        limit = Concurrency(1, lease=2)
        limiter = open_limiter(dead)
        with limiter.slot("k", limit) as slot:
            assert slot.decision.source == "local"
            assert is_renewed(limiter, "k", limit)
        assert limiter.slot("k", limit).acquire().allowed

    def test_without_the_store_a_refund_is_false_and_a_reset_raises(
        self, open_limiter: Open, alive: str, admin: redis.Redis, valkey: servers.Server
    ) -> None:
        limiter = open_limiter(alive, deadline=1)
        decision = limiter.check("k", LIMIT)
        slot = limiter.slot("k", Concurrency(1, lease=30))
        assert slot.acquire().source == "store"
        valkey.kill()
        try:
            assert limiter.refund(decision) is False
            assert limiter.settle(decision, 3) is False
            assert slot.release() is False
            with pytest.raises(StoreError, match=rf"\Aredis://{servers.HOST}:{valkey.port}: "):
                slot.renew()
            with pytest.raises(StoreError, match=rf"\Aredis://{servers.HOST}:{valkey.port}: "):
                limiter.reset("k", LIMIT)
        finally:
            valkey.restart()


class TestLastReading:
    """Local counting starts from what the store said last."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_key_that_was_refused_stays_refused(
        self, open_limiter: Open, alive: str, admin: redis.Redis, algorithm: str
    ) -> None:
        limit = Limit(3, 86_400, algorithm=algorithm)
        limiter = open_limiter(alive)
        decisions = [limiter.check("k", limit) for _ in range(4)]
        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        heal(admin)
        poison(admin, Check(limit, "k"))
        here = limiter.check("k", limit)
        assert (here.source, here.allowed, here.remaining) == ("local", False, 0)
        assert here.receipt is None, "a refused request is not charged"
        assert here.retry_after == pytest.approx(decisions[3].retry_after, abs=60)
        assert limiter.check("other", limit).allowed

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_units_that_were_left_are_all_that_is_admitted(
        self, open_limiter: Open, alive: str, admin: redis.Redis, algorithm: str
    ) -> None:
        limit = Limit(5, 86_400, algorithm=algorithm)
        limiter = open_limiter(alive)
        assert limiter.check("k", limit, cost=3).remaining == 2
        heal(admin)
        poison(admin, Check(limit, "k"))
        decisions = [limiter.check("k", limit) for _ in range(4)]
        assert [decision.allowed for decision in decisions] == [True, True, False, False]
        assert {decision.source for decision in decisions} == {"local"}

    def test_units_that_were_left_are_shared_between_the_instances(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        limit = Limit(40, 86_400)
        limiter = open_limiter(alive, instances=4)
        limiter.check("k", limit, cost=30)
        heal(admin)
        poison(admin, Check(limit, "k"))
        assert sum(limiter.check("k", limit).allowed for _ in range(10)) == 3

    def test_each_limit_of_a_request_has_its_own(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        limiter = open_limiter(alive)
        for _ in range(2):
            limiter.check("k", LIMIT, OTHER)
        heal(admin)
        poison(admin, Check(LIMIT, "k"))
        here = limiter.check("k", LIMIT, OTHER)
        assert [part.remaining for part in here.parts] == [2, 0]
        assert (here.allowed, here.limit) == (False, OTHER)

    def test_reading_of_a_store_that_comes_and_goes_hands_out_no_new_share(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        limiter = open_limiter(alive)
        poison(admin, Check(LIMIT, "k"))
        assert limiter.check("k", LIMIT, cost=3).source == "local"
        heal(admin)
        assert limiter.check("k", LIMIT).source == "store"
        heal(admin)
        poison(admin, Check(LIMIT, "k"))
        here = limiter.peek("k", LIMIT)
        assert here.source == "local"
        assert here.remaining <= 1

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_refund_of_a_local_charge_is_left_again(
        self, open_limiter: Open, alive: str, admin: redis.Redis, algorithm: str
    ) -> None:
        limit = Limit(5, 86_400, algorithm=algorithm)
        limiter = open_limiter(alive)
        assert limiter.check("k", limit, cost=3).source == "store"
        heal(admin)
        poison(admin, Check(limit, "k"))
        for _ in range(6):
            here = limiter.check("k", limit, cost=2)
            assert (here.source, here.allowed) == ("local", True)
            assert limiter.refund(here) is True

    def test_reset_key_starts_from_nothing(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        limiter = open_limiter(alive)
        limiter.check("k", LIMIT, cost=4)
        limiter.reset("k", LIMIT)
        poison(admin, Check(LIMIT, "k"))
        assert limiter.check("k", LIMIT).remaining == 3

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_reading_that_has_reset_is_not_used(
        self, open_limiter: Open, alive: str, admin: redis.Redis, algorithm: str
    ) -> None:
        limit = Limit(2, 0.2, algorithm=algorithm)
        limiter = open_limiter(alive)
        assert limiter.check("k", limit, cost=2).allowed
        time.sleep(0.2)  # a sliding counter has it in the window before, now
        time.sleep(limiter.peek("k", limit).reset_after + 0.01)
        heal(admin)
        poison(admin, Check(limit, "k"))
        here = limiter.check("k", limit, cost=2)
        assert (here.source, here.allowed) == ("local", True)

    def test_raised_quota_keeps_what_was_used(
        self, open_limiter: Open, alive: str, admin: redis.Redis
    ) -> None:
        limiter = open_limiter(alive)
        limiter.check("k", LIMIT, cost=4)
        heal(admin)
        poison(admin, Check(LIMIT, "k"))
        assert limiter.peek("k", Limit(10, 86_400)).remaining == 6

    def test_table_is_bounded_and_keeps_the_keys_in_use(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(last_readings, "_MAX_RECENT", 100)
        table = last_readings.LastReadings()
        reading = (True, 3, 0, 60_000_000, 0, 1)
        for number in range(1_000):
            table.record([Check(LIMIT, f"k{number}"), Check(LIMIT, "hot")], [reading, reading])
            assert len(table) <= 200
        assert table.take(Check(LIMIT, "hot")) is not None
        assert table.take(Check(LIMIT, "hot")) is None
        assert table.take(Check(LIMIT, "k0")) is None

    def test_states_of_long_keys_and_subjects_are_told_apart(self) -> None:
        long = "x" * 5_000
        subjects = [None, "s", f"{long}y", f"{long}z", digest(f"{long}y")]
        checks = [Check(LIMIT, key, subject=each) for key in ("k", long) for each in subjects]
        identities = {last_readings.state_id(check) for check in checks}
        assert len(identities) == len(checks)
        for key in ("k", long):
            own = last_readings.state_id(Check(LIMIT, key, subject=key))
            assert own == last_readings.state_id(Check(LIMIT, key))
        assert max(len(str(each)) for each in identities) < 500


class TestDebts:
    """What was admitted without the store is charged there when it is back."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_are_paid(self, open_limiter: Open, own_valkey: servers.Server, algorithm: str) -> None:
        limit = Limit(10, 86_400, algorithm=algorithm)
        limiter = open_limiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
        limiter.ping()
        own_valkey.kill()
        decisions = [limiter.check("k", limit, cost=2) for _ in range(3)]
        assert [(d.source, d.fault) for d in decisions] == [("local", "connection")] * 3
        own_valkey.restart()
        # The first connection had a call under way when it ended, which may have been charged.
        assert 4 <= settled(limiter, limit) <= 6

    def test_are_paid_by_one_however_long_it_takes(
        self, open_limiter: Open, own_valkey: servers.Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(guarded, "_LOST_S", 2.0)
        limiter = open_limiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
        limiter.ping()
        own_valkey.kill()
        for number in range(50):
            assert limiter.check(str(number), LIMIT).source == "local"
        backend, at_once = limiter._backend, [0, 0]
        change, is_async = backend.change, inspect.iscoroutinefunction(backend.change)

        @contextmanager
        def paying() -> Iterator[None]:
            at_once[:] = at_once[0] + 1, max(at_once[0] + 1, at_once[1])
            yield
            at_once[0] -= 1

        # Longer than who pays is missed for: threads pay one by one, tasks sixteen at once.
        def slow(debt: Change) -> Any:
            with paying():
                time.sleep(0.06)
            return change(debt)

        async def slow_async(debt: Change) -> Any:
            with paying():
                await asyncio.sleep(0.75)
            return await change(debt)

        monkeypatch.setattr(backend, "change", slow_async if is_async else slow)
        own_valkey.restart()

        def is_paid() -> bool:
            limiter.check("somebody", Limit(10_000, 60))
            return not limiter._guard.owed

        wait_until(is_paid, 30, sleep=limiter.sleep)
        assert at_once[1] <= (plan.MOST_UNPAID if is_async else 1)

    # Loops that end leave connections behind: that is how such programs are.
    @pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
    )
    def test_are_paid_though_each_call_has_a_loop_of_its_own(
        self, own_valkey: servers.Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Who was to pay ends with its loop: it is missed after a while.
        monkeypatch.setattr(guarded, "_LOST_S", 0.2)
        limit = Limit(10, 86_400)
        limiter = AsyncLimiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
        asyncio.run(limiter.ping())
        own_valkey.kill()
        decisions = [asyncio.run(limiter.check("k", limit, cost=2)) for _ in range(3)]
        assert {decision.source for decision in decisions} == {"local"}
        own_valkey.restart()

        def remaining(limiter: AsyncLimiter) -> float:
            seen = asyncio.run(limiter.peek("k", limit))
            return seen.remaining if seen.source == "store" else limit.capacity

        wait_until(partial(lambda limiter: remaining(limiter) <= 6, limiter))
        assert remaining(limiter) >= 4
        del limiter
        gc.collect()

    def test_are_charged_once_and_for_what_is_left_of_them(
        self, open_limiter: Open, own_valkey: servers.Server
    ) -> None:
        limit = Limit(10, 86_400)
        limiter = open_limiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
        limiter.ping()
        own_valkey.kill()
        limiter.check("k", limit)
        refunded = limiter.check("k", limit, cost=3)
        limiter.check("k", limit, cost=2)
        assert limiter.refund(refunded)
        own_valkey.restart()
        assert 2 <= settled(limiter, limit) <= 3
        let_it_work(limiter, 0.6)
        assert 2 <= used(limiter, limit) <= 3

    def test_of_an_answer_that_was_lost_are_none(
        self, open_limiter: Open, own_valkey: servers.Server
    ) -> None:
        # It may have been charged there, and was counted here: not there again.
        limit = Limit(10, 86_400)
        limiter = open_limiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
        limiter.ping()
        own_valkey.pause()
        decision = limiter.check("k", limit)
        assert (decision.source, decision.fault) == ("local", "timeout")
        own_valkey.resume()
        wait_for_the_store(limiter)
        let_it_work(limiter, 0.6)
        assert used(limiter, limit) == 1

    def test_of_a_period_that_is_over_are_forgotten(
        self, open_limiter: Open, own_valkey: servers.Server
    ) -> None:
        limit = Limit(4, 1, algorithm="packed_window")
        limiter = open_limiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
        limiter.ping()
        own_valkey.kill()
        for _ in range(6):
            limiter.check("k", limit)
        time.sleep(1.1)
        own_valkey.restart()
        wait_for_the_store(limiter)
        let_it_work(limiter, 0.4)
        assert used(limiter, limit) == 0

    def test_do_not_let_a_store_that_comes_and_goes_hand_out_a_limit_each_time(
        self, open_limiter: Open
    ) -> None:
        limit = Limit(10, 86_400)
        kept = ("--appendonly", "yes", "--appendfsync", "always")
        with servers.process(servers.binaries()["valkey"], *kept) as own_valkey:
            limiter = open_limiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
            limiter.ping()
            admitted = 0
            for _ in range(3):
                own_valkey.kill()
                admitted += sum(limiter.check("k", limit).allowed for _ in range(20))
                own_valkey.restart()
                settled(limiter, limit)
                admitted += sum(limiter.check("k", limit).allowed for _ in range(20))
        # One call was under way when the store died, and may have been charged there or not.
        assert 10 <= admitted <= 11

    def test_follow_what_a_decision_is_settled_to(
        self, open_limiter: Open, own_valkey: servers.Server
    ) -> None:
        limit = Limit(1_000, 86_400)
        limiter = open_limiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
        limiter.ping()
        own_valkey.kill()
        limiter.check("other", limit)  # this one may have been under way
        more, less = [limiter.check("k", limit, cost=10) for _ in range(2)]
        assert limiter.settle(more, 400)
        assert limiter.settle(less, 5)
        own_valkey.restart()
        wait_for_the_store(limiter)
        wait_until(
            lambda: used(limiter, limit) == 405,
            details=lambda: f"{used(limiter, limit)} were charged",
        )

    def test_of_what_was_reset_are_none(
        self, open_limiter: Open, own_valkey: servers.Server
    ) -> None:
        limit = Limit(10, 86_400)
        limiter = open_limiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
        limiter.ping()
        own_valkey.kill()
        for _ in range(5):
            limiter.check("k", limit)
        with pytest.raises(StoreError):
            limiter.reset("k", limit)
        own_valkey.restart()
        wait_for_the_store(limiter)
        let_it_work(limiter, 0.5)
        assert used(limiter, limit) == 0

    def test_of_two_subjects_are_each_ones_own(
        self, open_limiter: Open, own_valkey: servers.Server
    ) -> None:
        limit = Limit(1_000, 86_400)
        alice, bob = (Check(limit, "k", 5, subject=name) for name in ("alice", "bob"))
        limiter = open_limiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
        limiter.ping()
        own_valkey.kill()
        limiter.check("other", limit)  # this one may have been under way
        for check in (alice, alice, bob):
            limiter.decide(check)
        own_valkey.restart()
        wait_for_the_store(limiter)
        let_it_work(limiter, 0.5)
        remaining = [limiter.decide(each, charge=False).remaining for each in (alice, bob)]
        assert remaining == [990, 995]

    def test_of_slots_are_taken_over_when_they_are_renewed(
        self, open_limiter: Open, own_valkey: servers.Server
    ) -> None:
        two = Concurrency(2, lease=30)
        limiter = open_limiter(f"redis://{servers.HOST}:{own_valkey.port}", deadline=DEADLINE_S)
        limiter.ping()
        own_valkey.kill()
        slot = limiter.slot("k", two)
        assert slot.acquire().source == "local"
        own_valkey.restart()
        wait_for_the_store(limiter)
        assert slot.renew()
        other = limiter.slot("k", two)
        decision = other.acquire()
        assert (decision.source, decision.remaining) == ("store", 0)
        assert slot.release()
        assert limiter.slot("k", two).acquire().remaining == 0


class TestLog:
    CHECKS = 200

    @pytest.fixture(
        params=["redis://{}", "redis+sentinel://{}/limen", "redis+cluster://{}"],
        ids=["server", "sentinel", "cluster"],
    )
    def gone(self, request: pytest.FixtureRequest) -> str:
        url: str = request.param
        return url.format(f"me:{SECRET}@{servers.HOST}:{servers.free_port()}")

    def test_has_a_line_a_second_and_says_neither_key_nor_password(
        self, open_limiter: Open, gone: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        limiter = open_limiter(gone, deadline=0.01)
        start = time.monotonic()
        asked = 0
        while asked < 30 or time.monotonic() - start < 0.6:
            assert limiter.check("somebody@example.com", "1000000/day fixed_window").degraded
            asked += 1
        seconds = int(time.monotonic() - start) + 1
        lines = [record.getMessage() for record in caplog.records if record.name == "limen"]
        kinds = set(re.findall(r"did not answer \((\w+)\)", caplog.text))
        # Who looks up the shape of a cluster may have something to say, too.
        most = len(kinds) + ("cluster" in gone)
        assert 1 <= len(lines) <= most * seconds
        assert not any("\n" in line for line in lines)
        assert SECRET not in caplog.text
        assert "somebody" not in caplog.text

    def test_says_how_many_it_did_not_say(
        self,
        open_limiter: Open,
        dead: str,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(sampled, "EVERY_S", 0.1)
        limiter = open_limiter(dead)
        for _ in range(3):
            limiter.check("k", LIMIT)
        limiter.sleep(0.12)
        limiter.check("k", LIMIT)
        lines = [record.getMessage() for record in caplog.records if record.name == "limen"]
        assert lines[0].startswith("the store did not answer (connection): redis://")
        assert any("more of the kind since the last line" in line for line in lines[1:])

    def test_tells_kinds_apart(
        self, open_limiter: Open, alive: str, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        poison(admin, Check(LIMIT, "somebody@example.com"))
        limiter = open_limiter(alive)
        for _ in range(self.CHECKS):
            limiter.check("somebody@example.com", LIMIT)
        lines = [record for record in caplog.records if "(poisoned)" in record.getMessage()]
        assert 1 <= len(lines) <= 3
        assert {record.levelno for record in lines} == {logging.WARNING}
        assert "somebody" not in caplog.text
