"""One limit on one key: what is admitted, what is said, what can be given back."""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from limen import Decision, Limit
from limen.model import ALGORITHMS
from tests.conformance.stores import Store

SLACK_S = 0.005
"""The store's clock and ours are one, read at different places."""

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
every_exact_window = pytest.mark.parametrize("algorithm", ["packed_window", "rolling_window"])
every_bucket = pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])


@pytest.fixture
def limit_of(period: float) -> Callable[..., Limit]:
    """Make limits of the calm period."""
    return lambda quota, algorithm, **options: Limit(quota, period, algorithm=algorithm, **options)


def waits(algorithm: str, quota: int, period: float, now: float) -> tuple[float, float]:
    """Return `retry_after` of one more and `reset_after`, when the quota was used up just now."""
    window_ends = period - now % period
    return {
        "fixed_window": (window_ends, window_ends),
        "sliding_counter": (window_ends + period / quota, window_ends + period),
        "rolling_window": (period, period),
        "packed_window": (period, period),
        "token_bucket": (period / quota, period),
        "leaky_bucket": (period / quota, period),
    }[algorithm]


def remaining(limiter: Any, limit: Limit) -> int:
    left: int = limiter.peek("k", limit).remaining
    return left


class TestQuota:
    @every_algorithm
    def test_is_admitted_to_the_last_and_the_next_is_told_when_to_come_back(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(3, algorithm)
        before = time.time()
        decisions = [limiter.check("k", limit) for _ in range(4)]
        took = time.time() - before + SLACK_S
        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        assert [decision.remaining for decision in decisions] == [2, 1, 0, 0]
        assert [decision.retry_after for decision in decisions[:3]] == [0.0, 0.0, 0.0]
        assert [decision.source for decision in decisions] == ["store"] * 4
        assert not any(decision.degraded for decision in decisions)
        assert [decision.receipt is None for decision in decisions] == [False, False, False, True]
        retry, reset = waits(algorithm, 3, float(limit.period), before)
        assert retry - took <= decisions[3].retry_after <= retry + SLACK_S
        assert reset - took <= decisions[3].reset_after <= reset + SLACK_S

    @every_algorithm
    def test_is_exact_when_many_come_at_once(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        decisions = limiter.check_all(["k"] * 60, limit_of(40, algorithm))
        assert sum(decision.allowed for decision in decisions) == 40
        assert sorted(decision.remaining for decision in decisions) == [0] * 20 + [*range(40)]

    @every_algorithm
    def test_is_free_again_when_the_wait_is_over(self, limiter: Any, algorithm: str) -> None:
        limit = Limit(3, 0.03, algorithm=algorithm)
        refused = until_refused(limiter, limit)
        assert refused.retry_after is not None
        assert 0 < refused.retry_after <= 0.06
        limiter.sleep(refused.retry_after)
        assert limiter.check("k", limit).allowed

    @every_algorithm
    def test_is_whole_again_after_the_reset_and_nothing_is_left_behind(
        self, limiter: Any, store: Store, namespace: str, algorithm: str
    ) -> None:
        limit = Limit(3, 0.02, algorithm=algorithm)
        limiter.sleep(until_refused(limiter, limit).reset_after)
        assert remaining(limiter, limit) == 3
        # A fixed window is kept for one period more, for a clock that steps back.
        limiter.sleep(0.025)
        assert store.ttls_ms(f"{namespace}*") == {}

    @every_algorithm
    def test_is_remembered_until_the_reset(
        self, limiter: Any, store: Store, namespace: str, algorithm: str
    ) -> None:
        limit = Limit(10, 0.1, algorithm=algorithm)

        def assert_kept() -> None:
            before = time.time()
            reset_ms = limiter.peek("k", limit).reset_after * 1_000
            left_ms = store.ttls_ms(f"{namespace}:{{k}}*|").values()
            took_ms = (time.time() - before) * 1_000 + 1
            assert all(ttl_ms >= reset_ms - took_ms for ttl_ms in left_ms)

        first = limiter.check("k", limit, cost=2)
        assert_kept()
        limiter.sleep(0.02)
        limiter.check("k", limit)
        assert_kept()
        limiter.sleep(0.02)
        limiter.settle(first, 5)
        assert_kept()


def until_refused(limiter: Any, limit: Limit) -> Decision:
    """Ask until it is over the limit: on a slow machine, a short period may end in between."""
    while (decision := limiter.check("k", limit)).allowed:
        pass
    refused: Decision = decision
    return refused


class TestCost:
    @every_algorithm
    def test_counts_in_full_or_not_at_all(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(10, algorithm)
        assert limiter.check("k", limit, cost=8).remaining == 2
        refused = limiter.check("k", limit, cost=3)
        assert (refused.allowed, refused.remaining, refused.cost) == (False, 2, 3)
        assert limiter.check("k", limit, cost=2).remaining == 0

    @every_algorithm
    def test_of_nothing_is_always_allowed_and_reports(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(3, algorithm)
        fresh = limiter.check("k", limit, cost=0)
        assert (fresh.allowed, fresh.remaining, fresh.reset_after) == (True, 3, 0.0)
        limiter.check("k", limit, cost=3)
        spent = limiter.check("k", limit, cost=0)
        assert (spent.allowed, spent.remaining, spent.receipt) == (True, 0, None)
        assert (spent.retry_after, spent.delay) == (0.0, 0.0)
        assert spent.reset_after > 0

    @every_algorithm
    def test_above_the_quota_never_fits_and_changes_nothing(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(3, algorithm)
        limiter.check("k", limit)
        refused = limiter.check("k", limit, cost=4)
        assert (refused.allowed, refused.retry_after, refused.receipt) == (False, None, None)
        assert limiter.check("k", limit, cost=10**9).retry_after is None
        assert remaining(limiter, limit) == 2

    @every_algorithm
    def test_may_be_large(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        exact = algorithm in ("packed_window", "rolling_window")
        quota = 10_000 if exact else 90_000_000
        limit = limit_of(quota, algorithm)
        assert limiter.check("k", limit, cost=quota - 1).allowed
        refused = limiter.check("k", limit, cost=quota)
        assert (refused.allowed, refused.receipt) == (False, None)
        assert refused.retry_after > 0
        assert limiter.check("k", limit).allowed

    def test_of_a_bucket_may_be_the_burst(self, limiter: Any) -> None:
        limit = Limit(1, 86_400, burst=5)
        assert limiter.check("k", limit, cost=5).remaining == 0
        assert limiter.check("k", limit, cost=6).retry_after is None


class TestPeek:
    @every_algorithm
    def test_charges_nothing_and_says_what_check_would_say(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(2, algorithm)
        for _ in range(3):
            peeked = limiter.peek("k", limit)
            assert (peeked.allowed, peeked.remaining, peeked.receipt) == (True, 2, None)
        limiter.check("k", limit, cost=2)
        peeked, refused = limiter.peek("k", limit), limiter.check("k", limit)
        assert (peeked.allowed, peeked.remaining) == (False, 0)
        assert peeked.retry_after == pytest.approx(refused.retry_after, abs=5)
        assert limiter.peek("k", limit, cost=3).retry_after is None
        assert limiter.peek("k", limit, cost=0).allowed

    @every_algorithm
    def test_leaves_no_key_behind(
        self,
        limiter: Any,
        limit_of: Callable[..., Limit],
        store: Store,
        namespace: str,
        algorithm: str,
    ) -> None:
        limiter.peek("k", limit_of(2, algorithm))
        limiter.check("k", limit_of(2, algorithm), cost=0)
        limiter.check("k", limit_of(2, algorithm), cost=3)
        assert store.ttls_ms(f"{namespace}*") == {}


class TestRefund:
    @every_algorithm
    def test_gives_back_once(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(3, algorithm)
        first, second = limiter.check("k", limit), limiter.check("k", limit, cost=2)
        assert limiter.refund(second) is True
        assert remaining(limiter, limit) == 2
        assert limiter.refund(second) is False
        assert limiter.refund(second.receipt) is False
        assert limiter.settle(second, 3) is False
        assert remaining(limiter, limit) == 2
        assert limiter.refund(first.receipt) is True
        assert remaining(limiter, limit) == 3

    @every_algorithm
    def test_of_a_refusal_changes_nothing(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(1, algorithm)
        limiter.check("k", limit)
        refused = limiter.check("k", limit)
        assert limiter.refund(refused) is False
        assert remaining(limiter, limit) == 0

    @every_bucket
    def test_of_older_charges_can_go_on_for_ever(self, limiter: Any, algorithm: str) -> None:
        """A bucket adds up how much such refunds have moved; the sum starts again when it is large.

        The refund of a charge from before that returns False, and the charge drains by itself.
        """
        limit = Limit(12, 3_650 * 86_400, algorithm=algorithm)
        lost = 0
        for _ in range(130):
            first, second = limiter.check("k", limit, cost=3), limiter.check("k", limit)
            assert (first.allowed, second.allowed) == (True, True)
            assert (first.source, second.source) == ("store", "store")
            assert limiter.refund(first) is True
            lost += not limiter.refund(second)
            assert remaining(limiter, limit) == 12 - lost
        assert lost <= 5

    @every_algorithm
    def test_of_what_was_forgotten_gives_nothing(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(3, algorithm)
        old = limiter.check("k", limit, cost=3)
        limiter.reset("k", limit)
        assert limiter.refund(old) is False
        assert remaining(limiter, limit) == 3

    @every_algorithm
    def test_settles_an_estimate_downwards(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(10, algorithm)
        decision = limiter.check("k", limit, cost=5)
        assert limiter.settle(decision, 2) is True
        assert remaining(limiter, limit) == 8
        assert limiter.settle(decision, 1) is False
        assert limiter.refund(decision) is False
        assert remaining(limiter, limit) == 8

    @every_algorithm
    def test_settles_an_estimate_upwards_into_debt(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(10, algorithm)
        decision = limiter.check("k", limit, cost=5)
        assert limiter.settle(decision, 9) is True
        assert remaining(limiter, limit) == 1
        assert limiter.settle(decision, 10) is False
        last = limiter.check("k", limit)
        assert limiter.settle(last, 5) is True
        refused = limiter.check("k", limit)
        assert (refused.allowed, refused.remaining) == (False, 0)
        assert refused.retry_after > 0
        assert limiter.check("k", limit, cost=0).allowed

    @every_algorithm
    def test_settles_a_right_estimate_by_nothing_and_for_good(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(10, algorithm)
        decision = limiter.check("k", limit, cost=5)
        assert limiter.settle(decision, 5) is False
        assert limiter.refund(decision) is False
        assert remaining(limiter, limit) == 5


class TestIdentity:
    @every_algorithm
    def test_a_raised_quota_keeps_what_was_used(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limiter.check("k", limit_of(100, algorithm), cost=100)
        raised = limit_of(1_000, algorithm)
        assert remaining(limiter, raised) == 900
        assert limiter.check("k", raised, cost=900).remaining == 0

    @every_algorithm
    def test_a_lowered_quota_keeps_what_was_used(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limiter.check("k", limit_of(1_000, algorithm), cost=100)
        refused = limiter.check("k", limit_of(100, algorithm))
        assert (refused.allowed, refused.remaining) == (False, 0)
        assert remaining(limiter, limit_of(1_000, algorithm)) == 900

    @every_algorithm
    def test_a_name_an_algorithm_or_a_period_keeps_states_apart(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(5, algorithm)
        limiter.check("k", limit, cost=5)
        others = [limit_of(5, algorithm, name=name) for name in ("a", "b", "a|", "k")]
        others += [limit_of(5, other) for other in ALGORITHMS if other != algorithm]
        others.append(Limit(5, float(limit.period) + 1, algorithm=algorithm))
        for other in others:
            assert limiter.check("k", other, cost=5).allowed
            assert not limiter.check("k", other).allowed

    @every_algorithm
    def test_reset_forgets_one_state(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit, other = limit_of(1, algorithm), limit_of(1, algorithm, name="other")
        limiter.check("k", limit, other)
        limiter.reset("k", limit)
        limiter.reset("never seen", limit)
        assert limiter.check("k", limit).allowed
        assert not limiter.check("k", other).allowed

    def test_reset_takes_several_limits(self, limiter: Any) -> None:
        limits = ("1/day", "1/hour", "1/day token_bucket")
        limiter.check("k", *limits)
        limiter.reset("k", *limits)
        assert limiter.check("k", *limits).allowed

    def test_namespaces_are_apart_and_limiters_on_one_store_are_not(
        self, connect: Callable[..., Any], store: Store, namespace: str
    ) -> None:
        one, two = connect(), connect()
        other = connect(namespace=f"{namespace}-other")
        assert one.check("k", "2/day").remaining == 1
        assert two.check("k", "2/day").remaining == (0 if store.is_shared else 1)
        assert other.check("k", "2/day").remaining == 1

    def test_a_receipt_is_good_on_every_limiter_of_the_store(
        self, connect: Callable[..., Any], store: Store
    ) -> None:
        one, two = connect(), connect()
        decision = one.check("k", "2/day")
        assert two.refund(decision) is store.is_shared
        assert one.refund(decision) is not store.is_shared
        assert one.peek("k", "2/day").remaining == 2


class TestOptions:
    @every_exact_window
    def test_count_denied_keeps_the_door_shut_on_who_hammers(
        self, limiter: Any, period: float, algorithm: str
    ) -> None:
        limit = Limit(1, period, algorithm=algorithm, count_denied=True)
        limiter.check("k", limit)
        limiter.sleep(0.05)
        before = time.time()
        refused = limiter.check("k", limit)
        peeked = limiter.peek("k", limit)
        assert refused.retry_after == period  # if silent from now
        assert peeked.retry_after >= period - (time.time() - before) - SLACK_S

    @every_exact_window
    def test_count_denied_counts_refusals_and_not_what_never_fits(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(10, algorithm, count_denied=True)
        limiter.check("k", limit, cost=6)
        assert not limiter.check("k", limit, cost=11).allowed
        assert remaining(limiter, limit) == 4
        refused = limiter.check("k", limit, cost=5)
        assert (refused.allowed, refused.receipt) == (False, None)
        assert remaining(limiter, limit) == 0
        assert limiter.refund(refused) is False
        assert not limiter.check("k", limit).allowed

    @every_exact_window
    def test_min_interval_spaces_requests_whatever_they_cost(
        self, limiter: Any, limit_of: Callable[..., Limit], algorithm: str
    ) -> None:
        limit = limit_of(100, algorithm, min_interval=1_000)
        assert limiter.check("k", limit, cost=50).allowed
        refused = limiter.check("k", limit)
        assert (refused.allowed, refused.remaining) == (False, 50)
        assert 900 < refused.retry_after <= 1_000
        # The longer of the two waits.
        assert limiter.check("k", limit, cost=60).retry_after > 1_000
        assert limiter.check("k", limit, cost=0).allowed

    @every_exact_window
    def test_min_interval_ends(self, limiter: Any, algorithm: str) -> None:
        limit = Limit(1_000, 60, algorithm=algorithm, min_interval=0.02)
        refused = until_refused(limiter, limit)
        assert refused.retry_after is not None
        limiter.sleep(refused.retry_after)
        assert limiter.check("k", limit).allowed

    def test_leaky_bucket_gives_each_its_turn(self, limiter: Any) -> None:
        limit = Limit(4, 4_000, algorithm="leaky_bucket")
        decisions = [limiter.check("k", limit) for _ in range(5)]
        assert [decision.allowed for decision in decisions] == [True] * 4 + [False]
        turns = [decision.delay for decision in decisions]
        assert turns == pytest.approx([0, 1_000, 2_000, 3_000, 0], abs=5)
        assert turns[0] == turns[4] == 0.0
        assert limiter.peek("k", limit).retry_after == pytest.approx(1_000, abs=5)

    def test_leaky_bucket_refuses_what_would_wait_longer_than_max_delay(self, limiter: Any) -> None:
        limit = Limit(4, 4_000, algorithm="leaky_bucket", max_delay=1_500)
        decisions = [limiter.check("k", limit) for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert decisions[2].retry_after == pytest.approx(500, abs=5)
        assert decisions[2].remaining == 2

    def test_leaky_bucket_without_delay_is_a_pace(self, limiter: Any) -> None:
        limit = Limit(4, 4_000, algorithm="leaky_bucket", max_delay=0)
        assert limiter.check("k", limit).delay == 0.0
        assert limiter.check("k", limit).retry_after == pytest.approx(1_000, abs=5)

    @every_bucket
    def test_burst_is_what_a_bucket_holds(self, limiter: Any, algorithm: str) -> None:
        limit = Limit(97, 970_000, algorithm=algorithm, burst=200)
        assert limiter.check("k", limit, cost=200).remaining == 0
        refused = limiter.check("k", limit)
        assert refused.retry_after == pytest.approx(10_000, abs=5)
        assert refused.reset_after == pytest.approx(2_000_000, abs=5)


@pytest.fixture
def before_midnight() -> datetime:
    """Now, and not so late in the day that the test could end in the next."""
    left = 86_400 - time.time() % 86_400
    if left < 5:
        time.sleep(left)
    return datetime.now(UTC)


class TestCalendar:
    def test_day_ends_at_midnight_utc(self, limiter: Any, before_midnight: datetime) -> None:
        now = before_midnight
        left = 86_400 - (now - now.replace(hour=0, minute=0, second=0)).total_seconds()
        limit = Limit(2, "calendar day")
        assert limiter.check("k", limit, cost=2).reset_after == pytest.approx(left, abs=5)
        assert limiter.check("k", limit).retry_after == pytest.approx(left, abs=5)

    def test_month_ends_on_its_last_day(self, limiter: Any, before_midnight: datetime) -> None:
        now = before_midnight
        days = calendar.monthrange(now.year, now.month)[1]
        begun = now.replace(day=1, hour=0, minute=0, second=0)
        left = days * 86_400 - (now - begun).total_seconds()
        limit = Limit(2, "month")
        assert limiter.check("k", limit, cost=2).reset_after == pytest.approx(left, abs=5)
        assert limiter.check("k", limit).retry_after == pytest.approx(left, abs=5)

    @pytest.mark.usefixtures("before_midnight")
    def test_day_month_and_24_hours_are_counted_apart(self, limiter: Any) -> None:
        limits = ("1/month", "1/calendar day", "1/day fixed_window")
        for limit in limits:
            assert limiter.check("k", limit).allowed
        assert [limiter.check("k", limit).allowed for limit in limits] == [False] * 3
