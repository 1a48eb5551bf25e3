"""Several limits on one request: all or nothing, on one subject or on many; shadows beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import pytest
from redis.crc import key_slot

from limen import Check, InvalidInput, Limit
from limen.model import ALGORITHMS
from tests.servers import SLOTS

DAY, HOUR = 86_400, 3_600
NODES = 3
SHORT = Limit(3, DAY, algorithm="packed_window")
LONG = Limit(10, 30 * DAY, algorithm="rolling_window")
BUCKET = Limit(5, DAY, algorithm="token_bucket")


def node_of(key: str) -> int:
    """Return which node of a cluster owns the key."""
    return key_slot(key.encode()) * NODES // SLOTS


def keys_of(node: int) -> Iterator[str]:
    """Give keys that a node owns, in different slots."""
    return (key for key in map("user:{}".format, count()) if node_of(key) == node)


A, B, C = (next(keys_of(node)) for node in range(NODES))


def left(limiter: Any, *checks: Check) -> list[int]:
    """Return what remains for each check, when nothing is asked for."""
    asked = [Check(check.limit, check.key, 0, check.subject) for check in checks]
    return [part.remaining for part in limiter.decide(*asked).parts]


def checks_on(keys: tuple[str, str, str], cost: int = 1) -> list[Check]:
    limits = (SHORT, LONG, BUCKET)
    return [Check(limit, key, cost) for limit, key in zip(limits, keys, strict=True)]


on_one_node_or_three = pytest.mark.parametrize(
    "keys", [(A, A, A), (A, B, C), (A, B, A)], ids=["one subject", "three", "two"]
)


class TestAllOrNothing:
    def test_takes_limits_as_arguments_and_in_one_text(self, limiter: Any) -> None:
        decision = limiter.check("k", "3/day; 10/hour", BUCKET, cost=2)
        assert [str(part.limit) for part in decision.parts] == [
            "3/day",
            "10/hour",
            "5/day token_bucket",
        ]
        assert [part.remaining for part in decision.parts] == [1, 8, 3]
        assert [part.key for part in decision.parts] == ["k"] * 3

    @on_one_node_or_three
    def test_what_is_allowed_is_charged_everywhere(
        self, limiter: Any, keys: tuple[str, str, str]
    ) -> None:
        checks = checks_on(keys, cost=2)
        decision = limiter.decide(*checks)
        assert decision.allowed
        assert [part.remaining for part in decision.parts] == [1, 8, 3]
        assert [part.key for part in decision.parts] == list(keys)
        assert [part.source for part in decision.parts] == ["store"] * 3
        assert left(limiter, *checks) == [1, 8, 3]

    @on_one_node_or_three
    @pytest.mark.parametrize("refusing", [0, 1, 2])
    def test_what_one_refuses_is_charged_nowhere(
        self, limiter: Any, keys: tuple[str, str, str], refusing: int
    ) -> None:
        checks = checks_on(keys)
        spent = checks[refusing]
        limiter.decide(Check(spent.limit, spent.key, spent.limit.quota))
        before = left(limiter, *checks)
        refused = limiter.decide(*checks)
        assert not refused.allowed
        assert [part.allowed for part in refused.parts] == [index != refusing for index in range(3)]
        assert (refused.limit, refused.key) == (spent.limit, spent.key)
        assert refused.retry_after > 0
        assert refused.receipt is None
        assert not limiter.refund(refused)
        assert [part.remaining for part in refused.parts] == before
        assert left(limiter, *checks) == before

    @on_one_node_or_three
    def test_what_was_charged_nowhere_says_so(
        self, limiter: Any, keys: tuple[str, str, str]
    ) -> None:
        checks = checks_on(keys)
        limiter.decide(Check(SHORT, keys[0], 3))
        refused = limiter.decide(*checks)
        assert [part.reset_after > 0 for part in refused.parts] == [True, False, False]

    @on_one_node_or_three
    def test_what_never_fits_in_one_is_charged_nowhere(
        self, limiter: Any, keys: tuple[str, str, str]
    ) -> None:
        checks = checks_on(keys, cost=4)
        refused = limiter.decide(*checks)
        assert (refused.allowed, refused.retry_after, refused.limit) == (False, None, SHORT)
        assert [part.retry_after for part in refused.parts] == [None, 0.0, 0.0]
        assert left(limiter, *checks) == [3, 10, 5]

    @on_one_node_or_three
    def test_refund_gives_back_everywhere_once(
        self, limiter: Any, keys: tuple[str, str, str]
    ) -> None:
        checks = checks_on(keys, cost=2)
        decision = limiter.decide(*checks)
        assert limiter.refund(decision)
        assert left(limiter, *checks) == [3, 10, 5]
        assert not limiter.refund(decision)
        assert not limiter.refund(decision.parts[1])
        assert left(limiter, *checks) == [3, 10, 5]

    @on_one_node_or_three
    def test_settle_corrects_everywhere(self, limiter: Any, keys: tuple[str, str, str]) -> None:
        checks = checks_on(keys, cost=2)
        assert limiter.settle(limiter.decide(*checks), 1)
        assert left(limiter, *checks) == [2, 9, 4]
        assert limiter.settle(limiter.decide(*checks_on(keys)), 2)
        assert left(limiter, *checks) == [0, 7, 2]

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_holds_for_every_algorithm_over_three_nodes(
        self, limiter: Any, period: float, algorithm: str
    ) -> None:
        limit = Limit(4, period, algorithm=algorithm)
        checks = [Check(limit, key, 3) for key in (A, B, C)]
        limiter.decide(Check(limit, B, 2))
        refused = limiter.decide(*checks)
        assert not refused.allowed
        assert [part.allowed for part in refused.parts] == [True, False, True]
        assert left(limiter, *checks) == [4, 2, 4]
        assert limiter.decide(*(Check(limit, key, 2) for key in (A, B, C))).allowed
        assert left(limiter, *checks) == [2, 0, 2]

    def test_costs_may_differ(self, limiter: Any) -> None:
        decision = limiter.decide(Check(SHORT, A, 3), Check(LONG, B, 0), Check(BUCKET, C, 5))
        assert [(part.cost, part.remaining) for part in decision.parts] == [(3, 0), (0, 10), (5, 0)]
        assert not limiter.decide(Check(SHORT, A), Check(LONG, B, 4)).allowed
        assert left(limiter, Check(LONG, B)) == [10]


class TestSubject:
    @pytest.mark.parametrize("subjects", [2, 3, 20])
    def test_shares_a_node_with_others_and_needs_no_other_call_for_that(
        self, limiter: Any, subjects: int
    ) -> None:
        """In a cluster one caller then asks one node for several slots, at the same time."""
        checks = [Check(SHORT, key) for key in islice(keys_of(0), subjects)]
        decisions = [limiter.decide(*checks) for _ in range(2)]
        assert [decision.source for decision in decisions] == ["store", "store"]
        assert left(limiter, *checks) == [1] * subjects

    def test_brings_keys_together_and_counts_them_apart(self, limiter: Any) -> None:
        checks = [Check(SHORT, key, 1, subject=A) for key in (A, B, C)]
        assert limiter.decide(*checks).allowed
        assert limiter.decide(Check(SHORT, B, 2, subject=A)).allowed
        refused = limiter.decide(*checks)
        assert [part.allowed for part in refused.parts] == [True, False, True]
        assert left(limiter, *checks) == [2, 0, 2]

    def test_goes_with_the_receipt(self, limiter: Any) -> None:
        checks = [Check(SHORT, A, 2, subject="tenant"), Check(LONG, B, 2, subject=C)]
        decision = limiter.decide(*checks)
        assert limiter.refund(decision)
        assert left(limiter, *checks) == [3, 10]

    def test_does_not_hide_that_one_state_is_asked_for_twice(self, limiter: Any) -> None:
        with pytest.raises(InvalidInput, match="would share one state"):
            limiter.decide(Check(SHORT, A, subject=B), Check(SHORT, A, subject=C))


class TestBindingPart:
    @on_one_node_or_three
    def test_of_a_refusal_is_the_longest_to_wait_for(
        self, limiter: Any, keys: tuple[str, str, str]
    ) -> None:
        one, two, three = keys
        week = Limit(1, 7 * DAY, algorithm="rolling_window")
        limiter.decide(Check(SHORT, one, 3), Check(week, two, 1), Check(BUCKET, three, 5))
        refused = limiter.decide(Check(SHORT, one), Check(week, two), Check(BUCKET, three))
        assert (refused.limit, refused.key) == (week, two)
        assert DAY < refused.retry_after <= 7 * DAY
        never = limiter.decide(Check(week, two), Check(SHORT, one), Check(BUCKET, three, 6))
        assert (never.limit, never.key, never.retry_after) == (BUCKET, three, None)

    @on_one_node_or_three
    def test_of_an_admission_is_the_nearest_its_limit(
        self, limiter: Any, keys: tuple[str, str, str]
    ) -> None:
        decision = limiter.decide(*checks_on(keys))
        assert (decision.limit, decision.remaining, decision.retry_after) == (SHORT, 2, 0.0)
        assert decision.key == keys[0]

    def test_of_equals_is_the_first(self, limiter: Any) -> None:
        limits = [Limit(2, HOUR, name=name) for name in "abc"]
        assert limiter.check("k", *limits).limit == limits[0]
        assert limiter.check("k", *limits[::-1]).limit == limits[2]

    def test_delay_is_the_longest_of_all(self, limiter: Any) -> None:
        slow = Limit(10, 10 * HOUR, algorithm="leaky_bucket")
        fast = Limit(10, HOUR, algorithm="leaky_bucket")
        limiter.check("k", slow, fast)
        second = limiter.check("k", fast, SHORT, slow)
        assert second.delay == pytest.approx(HOUR, abs=5)
        assert limiter.check("k", slow, fast, SHORT, cost=4).delay == 0.0  # refused: nobody waits


class TestShadow:
    @on_one_node_or_three
    def test_has_no_say_and_counts_what_it_alone_would_admit(
        self, limiter: Any, keys: tuple[str, str, str]
    ) -> None:
        strict = Check(Limit(1, DAY), keys[0], enforce=False)
        checks = (strict, Check(LONG, keys[1]), Check(BUCKET, keys[2]))
        decisions = [limiter.decide(*checks) for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True] * 3
        assert [decision.parts[0].allowed for decision in decisions] == [True, False, False]
        assert [decision.parts[0].remaining for decision in decisions] == [0, 0, 0]
        assert [part.enforce for part in decisions[0].parts] == [False, True, True]
        assert decisions[2].limit == BUCKET
        assert left(limiter, *checks) == [0, 7, 2]

    @on_one_node_or_three
    def test_is_not_charged_for_a_refusal(self, limiter: Any, keys: tuple[str, str, str]) -> None:
        shadow = Check(LONG, keys[0], enforce=False)
        checks = (shadow, Check(SHORT, keys[1], 2), Check(BUCKET, keys[2]))
        assert [limiter.decide(*checks).allowed for _ in range(3)] == [True, False, False]
        assert left(limiter, *checks) == [9, 1, 4]

    def test_alone_lets_everything_pass(self, limiter: Any) -> None:
        check = Check(Limit(1, DAY), A, enforce=False)
        decisions = [limiter.decide(check) for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True] * 3
        assert [decision.retry_after for decision in decisions] == [0.0] * 3
        assert [decision.parts[0].allowed for decision in decisions] == [True, False, False]

    @on_one_node_or_three
    def test_is_given_back_with_the_rest(self, limiter: Any, keys: tuple[str, str, str]) -> None:
        checks = (Check(SHORT, keys[0], 2, enforce=False), Check(LONG, keys[1], 2))
        decision = limiter.decide(*checks)
        assert limiter.refund(decision)
        assert left(limiter, *checks) == [3, 10]

    def test_shadows_are_apart_from_each_other(self, limiter: Any) -> None:
        full = Check(Limit(1, DAY), A, 2, enforce=False)
        free = Check(LONG, A, enforce=False)
        decision = limiter.decide(full, free, Check(BUCKET, A))
        assert [part.allowed for part in decision.parts] == [False, True, True]
        assert left(limiter, full, free) == [1, 9]


class TestCountDenied:
    @on_one_node_or_three
    def test_counts_only_where_it_was_refused(
        self, limiter: Any, keys: tuple[str, str, str], period: float
    ) -> None:
        strict = Limit(1, period, count_denied=True)
        loose = Limit(5, period, count_denied=True, name="loose")
        checks = (Check(strict, keys[0]), Check(loose, keys[1]))
        before = limiter.decide(*checks)
        limiter.sleep(0.03)
        refused = [limiter.decide(*checks) for _ in range(3)][2]
        assert (before.allowed, refused.allowed) == (True, False)
        assert left(limiter, *checks) == [0, 4]
        # The wait begins anew with each refusal.
        assert refused.retry_after == period


@pytest.fixture
def mixed(period: float) -> Callable[[str], list[Check]]:
    """One check for each algorithm, all on one key."""
    return lambda key: [Check(Limit(6, period, algorithm=name), key, 2) for name in ALGORITHMS]


def test_six_algorithms_decide_together(limiter: Any, mixed: Callable[[str], list[Check]]) -> None:
    checks = mixed("k")
    decisions = [limiter.decide(*checks) for _ in range(4)]
    assert [decision.allowed for decision in decisions] == [True, True, True, False]
    assert [part.remaining for part in decisions[1].parts] == [2] * 6
    assert limiter.refund(decisions[2])
    assert left(limiter, *checks) == [2] * 6
