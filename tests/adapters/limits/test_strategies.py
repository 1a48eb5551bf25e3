"""What `limits` documents for its strategies, on our algorithms."""

from __future__ import annotations

import time
from typing import Any

import pytest
from limits import RateLimitItemPerMinute, parse

from limen.errors import InvalidInput, InvalidLimit
from limen.testing import ManualClock
from tests.adapters.limits.conftest import START_S
from tests.adapters.limits.using import ALL, FIXED, MOVING, SLIDING, Storage

# A year of `limits` has 360 days: no test meets the end of such a window.
FIVE = parse("5/year")
TEN = parse("10/year")
TEN_A_MINUTE = parse("10/minute")


@pytest.mark.parametrize("strategy", ALL)
class TestEveryStrategy:
    def test_admits_the_limit_and_then_refuses(self, storage: Storage, strategy: str) -> None:
        used = storage.by(strategy)
        assert used.hits(7, FIVE, "k") == [True] * 5 + [False] * 2

    def test_test_says_what_hit_would_say_and_takes_nothing(
        self, storage: Storage, strategy: str
    ) -> None:
        used = storage.by(strategy)
        for left in range(5, 0, -1):
            assert [used.test(FIVE, "k", cost=cost) for cost in (left, left + 1)] == [True, False]
            assert used.hit(FIVE, "k")
        assert not used.test(FIVE, "k")

    def test_a_cost_is_taken_as_a_whole_or_not_at_all(
        self, storage: Storage, strategy: str
    ) -> None:
        used = storage.by(strategy)
        assert used.hit(TEN, "k", cost=8)
        assert not used.hit(TEN, "k", cost=5)
        assert used.stats(TEN, "k").remaining == 2
        assert used.hit(TEN, "k", cost=2)
        assert not used.hit(TEN, "k")

    def test_a_cost_above_the_limit_never_fits(self, storage: Storage, strategy: str) -> None:
        used = storage.by(strategy)
        assert not used.hit(FIVE, "k", cost=6)
        assert not used.hit(FIVE, "k", cost=10**12)
        assert used.hit(FIVE, "k", cost=5)

    def test_a_cost_of_nothing_passes_even_when_full(self, storage: Storage, strategy: str) -> None:
        used = storage.by(strategy)
        assert used.hit(FIVE, "k", cost=0)
        assert used.stats(FIVE, "k").remaining == 5
        used.hits(5, FIVE, "k")
        assert used.hit(FIVE, "k", cost=0)

    def test_a_cost_below_nothing_is_an_error(self, storage: Storage, strategy: str) -> None:
        with pytest.raises(InvalidInput, match="cost must be a whole number"):
            storage.by(strategy).hit(FIVE, "k", cost=-1)

    @pytest.mark.parametrize("cost", [0.5, 7.5, "1"])
    def test_a_cost_that_is_no_whole_number_is_an_error_that_shows_it(
        self, memory: Storage, strategy: str, cost: Any
    ) -> None:
        with pytest.raises(InvalidInput, match=f"cost must be a whole number, got '?{cost}"):
            memory.by(strategy).hit(FIVE, "k", cost=cost)
        assert memory.by(strategy).stats(FIVE, "k").remaining == 5

    def test_stats_count_down(self, storage: Storage, strategy: str) -> None:
        used = storage.by(strategy)
        for left in range(5, 0, -1):
            assert used.stats(FIVE, "k").remaining == left
            used.hit(FIVE, "k")
        assert used.stats(FIVE, "k").remaining == 0
        used.hit(FIVE, "k")
        assert used.stats(FIVE, "k").remaining == 0

    def test_identifiers_and_namespaces_and_limits_are_counted_apart(
        self, storage: Storage, strategy: str
    ) -> None:
        used = storage.by(strategy)
        other = RateLimitItemPerMinute(5, 518_400, namespace="OTHER")
        used.hits(5, FIVE, "user", "1")
        assert not used.hit(FIVE, "user", "1")
        assert used.hit(FIVE, "user", "2")
        assert used.hit(FIVE, "user")
        assert used.hit(FIVE)
        assert used.hit(TEN, "user", "1")
        assert used.hit(other, "user", "1")
        assert used.stats(other, "user", "1").remaining == 4

    def test_any_text_may_be_an_identifier(self, storage: Storage, strategy: str) -> None:
        used = storage.by(strategy)
        for text in ("5/1/year", "{a}", "a b\n", "ключ", "x" * 1_000, "\udc80"):
            assert used.hits(6, FIVE, text) == [True] * 5 + [False]

    def test_strategies_do_not_share_a_count(self, storage: Storage, strategy: str) -> None:
        for other in ALL:
            if other != strategy:
                storage.by(other).hits(5, FIVE, "k")
        assert storage.by(strategy).hit(FIVE, "k")

    def test_clear_forgets_one_key_and_no_other(self, storage: Storage, strategy: str) -> None:
        used = storage.by(strategy)
        used.hits(5, FIVE, "k")
        used.hits(5, FIVE, "other")
        used.clear(FIVE, "k")
        assert used.stats(FIVE, "k").remaining == 5
        assert used.hits(6, FIVE, "k") == [True] * 5 + [False]
        assert not used.hit(FIVE, "other")
        used.clear(FIVE, "never seen")

    def test_clear_takes_any_limit_that_hit_takes(self, memory: Storage, strategy: str) -> None:
        used = memory.by(strategy)
        item = parse("1000000/minute" if strategy == MOVING else "1000000000/minute")
        used.hit(item, "k", cost=item.amount)
        assert not used.hit(item, "k")
        used.clear(item, "k")
        assert used.hit(item, "k")

    def test_a_limit_of_nothing_refuses_everybody(self, storage: Storage, strategy: str) -> None:
        used, nothing = storage.by(strategy), parse("0/year")
        assert not used.hit(nothing, "k")
        assert not used.test(nothing, "k")
        assert used.hit(nothing, "k", cost=0)
        assert used.stats(nothing, "k").remaining == 0
        used.clear(nothing, "k")

    def test_too_large_a_limit_is_one_clear_line(self, memory: Storage, strategy: str) -> None:
        with pytest.raises(InvalidLimit, match="must be a whole number from 1 to 1,000,000,000"):
            memory.by(strategy).hit(parse("10000000000/minute"), "k")


def test_a_real_second_sets_free_what_was_taken(shared: Storage) -> None:
    item = parse("3/second")
    full = [shared.by(strategy) for strategy in ALL]
    for used in full:
        assert used.hit_until_refused(item, "k") >= 3
    for used in full:
        # On a slow machine it may be free already, and then it is told as of now.
        assert -5 < used.stats(item, "k").reset_time - time.time() <= 1.01
        used.wait_for_reset(item, "k")
        assert used.hit(item, "k")


class TestFixedWindow:
    def test_follows_the_documented_example(self, memory: Storage, clock: ManualClock) -> None:
        used = memory.by(FIXED)
        clock.advance(45)
        assert used.hit(TEN_A_MINUTE, "k")
        clock.advance(30)
        assert used.hits(10, TEN_A_MINUTE, "k") == [True] * 9 + [False]
        assert used.stats(TEN_A_MINUTE, "k") == (START_S + 105, 0)
        clock.advance(30 - 1e-6)
        assert not used.hit(TEN_A_MINUTE, "k")
        clock.advance(1e-6)
        assert used.stats(TEN_A_MINUTE, "k").remaining == 10
        assert used.hits(11, TEN_A_MINUTE, "k") == [True] * 10 + [False]
        assert used.stats(TEN_A_MINUTE, "k").reset_time == START_S + 165

    def test_multiples_make_a_longer_window(self, memory: Storage, clock: ManualClock) -> None:
        used, item = memory.by(FIXED), parse("10/2 minutes")
        used.hits(10, item, "k")
        clock.advance(119)
        assert not used.hit(item, "k")
        assert used.stats(item, "k") == (START_S + 120, 0)
        clock.advance(1)
        assert used.hit(item, "k")

    def test_an_unused_window_ends_now(self, memory: Storage, clock: ManualClock) -> None:
        clock.advance(7)
        assert memory.by(FIXED).stats(TEN_A_MINUTE, "k") == (START_S + 7, 10)

    def test_a_refused_hit_is_charged_nothing(self, memory: Storage) -> None:
        used = memory.by(FIXED)
        used.hits(30, TEN_A_MINUTE, "k")
        assert memory.get(TEN_A_MINUTE.key_for("k")) == 10

    def test_incr_returns_the_count_and_when_refused_one_beyond_the_limit(
        self, memory: Storage
    ) -> None:
        key = TEN_A_MINUTE.key_for("k")
        counts = [memory.incr(key, 60, amount=cost) for cost in (4, 4, 4, 2, 1, 11)]
        assert counts == [4, 8, 12, 10, 11, 11]


class TestMovingWindow:
    def test_follows_the_documented_example(self, memory: Storage, clock: ManualClock) -> None:
        used = memory.by(MOVING)
        for wait, hits in ((10, 1), (10, 2), (10, 4), (20, 3)):
            clock.advance(wait)
            assert all(used.hits(hits, TEN_A_MINUTE, "k"))
        assert used.stats(TEN_A_MINUTE, "k") == (START_S + 70, 0)
        clock.advance(21)  # 00:01:11, when the hit of 00:00:10 is 61 seconds old
        assert used.hits(2, TEN_A_MINUTE, "k") == [True, False]
        clock.advance(1)
        assert not used.hit(TEN_A_MINUTE, "k")

    def test_a_hit_is_free_exactly_one_window_later(
        self, memory: Storage, clock: ManualClock
    ) -> None:
        used, item = memory.by(MOVING), parse("2/minute")
        used.hit(item, "k")
        clock.advance(20)
        used.hit(item, "k")
        clock.advance(40 - 1e-6)
        assert not used.hit(item, "k")
        clock.advance(1e-6)
        assert used.hits(2, item, "k") == [True, False]

    @pytest.mark.parametrize("taken", [1, 2, 3])
    def test_stats_tell_when_the_oldest_hit_leaves_full_or_not(
        self, memory: Storage, clock: ManualClock, taken: int
    ) -> None:
        used, item = memory.by(MOVING), parse("3/minute")
        for _ in range(taken):
            clock.advance(5)
            used.hit(item, "k")
        reset_time, remaining = used.stats(item, "k")
        assert remaining == 3 - taken
        assert reset_time == pytest.approx(START_S + 65, abs=1e-6)

    def test_an_unused_window_is_told_as_one_that_begins_now(
        self, memory: Storage, clock: ManualClock
    ) -> None:
        assert memory.by(MOVING).stats(TEN_A_MINUTE, "k") == (START_S + 60, 10)

    def test_multiples_make_a_longer_window(self, memory: Storage, clock: ManualClock) -> None:
        used, item = memory.by(MOVING), parse("10/2 minutes")
        used.hits(10, item, "k")
        clock.advance(119)
        assert not used.hit(item, "k")
        clock.advance(1)
        assert used.hit(item, "k")

    def test_stats_on_a_server_tell_when_the_oldest_hit_leaves(self, shared: Storage) -> None:
        used, item = shared.by(MOVING), parse("3/hour")
        before = time.time()
        used.hit(item, "k")
        after = time.time()
        used.hit(item, "k")
        reset_time, remaining = used.stats(item, "k")
        assert remaining == 1
        # It may be told late by as long as the answer took, and not early.
        assert before + 3_600 - 0.001 <= reset_time <= after + 3_600 + 5


class TestSlidingWindowCounter:
    def test_the_previous_window_is_weighted_by_what_is_left_of_it(
        self, memory: Storage, clock: ManualClock
    ) -> None:
        used = memory.by(SLIDING)
        used.hits(8, TEN_A_MINUTE, "k")
        clock.advance(60)
        for seconds, left in ((0, 2), (15, 4), (15, 6), (15, 8)):
            clock.advance(seconds)
            assert used.stats(TEN_A_MINUTE, "k").remaining == left
            assert used.test(TEN_A_MINUTE, "k", cost=left)
            assert not used.test(TEN_A_MINUTE, "k", cost=left + 1)
        clock.advance(15)
        assert used.stats(TEN_A_MINUTE, "k").remaining == 10

    def test_follows_the_documented_example(self, memory: Storage, clock: ManualClock) -> None:
        used = memory.by(SLIDING)
        used.hits(4, TEN_A_MINUTE, "k")
        clock.advance(60 + 28)
        # 28 seconds into the minute, 4 * 32 / 60 is 2: only now can the 8 hits be there.
        assert used.hits(9, TEN_A_MINUTE, "k") == [True] * 8 + [False]
        clock.advance(2)
        assert used.stats(TEN_A_MINUTE, "k").remaining == 0
        assert not used.hit(TEN_A_MINUTE, "k")
        clock.advance(10)
        assert used.stats(TEN_A_MINUTE, "k").remaining == 1
        assert used.hits(2, TEN_A_MINUTE, "k") == [True, False]

    def test_what_is_left_of_the_previous_window_is_rounded_down(
        self, memory: Storage, clock: ManualClock
    ) -> None:
        used, one = memory.by(SLIDING), parse("1/minute")
        used.hit(one, "k")
        clock.advance(60)
        assert not used.hit(one, "k")
        clock.advance(0.06)
        assert used.hit(one, "k")

    def test_it_is_told_when_a_hit_is_set_free(self, memory: Storage, clock: ManualClock) -> None:
        used, key = memory.by(SLIDING), TEN_A_MINUTE.key_for("k")
        used.hits(10, TEN_A_MINUTE, "k")
        clock.advance(20)
        _, _, counted, seconds = memory.get_sliding_window(key, 60)
        assert (counted, seconds) == (10, pytest.approx(40.006))
        told = used.stats(TEN_A_MINUTE, "k").reset_time - time.time()
        assert 35 < told <= 40.01
        clock.advance(seconds - 1e-5)
        assert not used.hit(TEN_A_MINUTE, "k")
        clock.advance(1e-5)
        assert used.hit(TEN_A_MINUTE, "k")

    def test_a_window_filled_at_its_beginning_is_told_to_free_in_one_window(
        self, memory: Storage
    ) -> None:
        used = memory.by(SLIDING)
        used.hits(10, TEN_A_MINUTE, "k")
        assert 55 < used.stats(TEN_A_MINUTE, "k").reset_time - time.time() <= 60

    def test_an_unused_window_is_told_as_free_now(self, memory: Storage) -> None:
        assert memory.get_sliding_window(TEN_A_MINUTE.key_for("k"), 60) == (0, 0.0, 0, 0.0)
        stats = memory.by(SLIDING).stats(TEN_A_MINUTE, "k")
        assert stats.remaining == 10
        assert abs(stats.reset_time - time.time()) < 5

    def test_multiples_make_a_longer_window(self, memory: Storage, clock: ManualClock) -> None:
        used, item = memory.by(SLIDING), parse("10/2 minutes")
        clock.advance(120 - START_S % 120)
        used.hits(10, item, "k")
        clock.advance(119)
        assert not used.hit(item, "k")
        clock.advance(1 + 60)
        assert used.stats(item, "k").remaining == 5

    @pytest.mark.parametrize("quota", [999_999, 1_000_000])
    def test_huge_limits_are_counted_in_whole_hits(self, memory: Storage, quota: int) -> None:
        used, item = memory.by(SLIDING), parse(f"{quota}/minute")
        assert used.hit(item, "k", cost=quota)
        assert not used.hit(item, "k")
        assert used.stats(item, "k").remaining == 0


class TestStorage:
    def test_reset_forgets_everything_in_memory(self, memory: Storage) -> None:
        for strategy in ALL:
            memory.by(strategy).hits(5, FIVE, "k")
        assert memory.reset() is None
        assert all(memory.by(strategy).hit(FIVE, "k") for strategy in ALL)

    def test_reset_of_a_shared_store_says_what_to_do_instead(self, shared: Storage) -> None:
        with pytest.raises(NotImplementedError, match="clear limits one by one"):
            shared.reset()

    def test_check_says_that_the_store_answers(self, storage: Storage) -> None:
        assert storage.check() is True

    @pytest.mark.parametrize("key", ["", "k", "LIMITER/10/1", "a/10/1/fortnight", "a/-1/1/minute"])
    def test_a_key_that_tells_no_limit_is_an_error_that_does_not_show_it(
        self, memory: Storage, key: str
    ) -> None:
        for verb in (memory.get, memory.get_expiry, memory.clear):
            with pytest.raises(InvalidInput, match=r"RateLimitItem\.key_for") as caught:
                verb(f"s3cret{key}" if key else "")
            assert "s3cret" not in str(caught.value)

    def test_an_expiry_that_is_not_the_keys_is_an_error(self, memory: Storage) -> None:
        with pytest.raises(InvalidInput, match="60 seconds, and the expiry is 61"):
            memory.incr(TEN_A_MINUTE.key_for("k"), 61)
