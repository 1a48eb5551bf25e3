"""Worked timelines: (seconds, cost) -> (allowed, remaining, retry_after)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen import Limit
from limen.algorithms import STATES
from limen.algorithms.concurrency import Leases
from limen.algorithms.fixed_window import window_at
from limen.algorithms.packed_window import PackedWindowState
from limen.model import NEVER_US, Concurrency

NEVER = NEVER_US / 1e6

TABLES: dict[str, list[tuple[float, int, bool, int, float]]] = {
    "3/10s fixed_window": [
        (1, 1, True, 2, 0),
        (2, 2, True, 0, 0),
        (3, 1, False, 0, 7),  # until the window ends at 10
        (3, 4, False, 0, NEVER),
        (9.999999, 1, False, 0, 0.000001),
        (10, 3, True, 0, 0),  # a new window: five within nine seconds
        (11, 0, True, 0, 0),  # cost 0 is always allowed
        (35, 1, True, 2, 0),
    ],
    "4/10s sliding_counter": [
        (5, 4, True, 0, 0),
        (9, 1, False, 0, 3.5),  # in the next window, when 4 * left <= 3 * 10
        (12.5, 1, True, 0, 0),  # 4 * 7.5 / 10 is 3
        (12.5, 1, False, 0, 2.5),
        (20, 3, True, 0, 0),  # one in the window before, all of it in view
        (40, 4, True, 0, 0),
    ],
    "3/10s rolling_window": [
        (0, 1, True, 2, 0),
        (4, 2, True, 0, 0),
        (5, 1, False, 0, 5),
        (5, 3, False, 0, 9),  # not before both of 4 have left
        (5, 4, False, 0, NEVER),
        (9.999999, 1, False, 0, 0.000001),
        (10, 1, True, 0, 0),
        (14, 2, True, 0, 0),
        (30, 0, True, 3, 0),
    ],
    "10/10s min_interval 2s": [
        (0, 3, True, 7, 0),
        (1, 1, False, 7, 1),
        (2, 1, True, 6, 0),
        (2, 7, False, 6, 8),  # the longer of the two waits
        (3, 1, False, 6, 1),  # since the newest, not since the first
    ],
    "2/10s count_denied": [
        (0, 2, True, 0, 0),
        (5, 1, False, 0, 5),  # counted: the newest two are now 0 and 5
        (9, 1, False, 0, 6),  # counted: 5 and 9
        (10, 1, False, 0, 9),
        (19, 1, True, 0, 0),  # 9 left; 10 is in view
    ],
    "2/s burst 4": [
        (0, 4, True, 0, 0),
        (0, 1, False, 0, 0.5),
        (0, 5, False, 0, NEVER),
        (0.5, 1, True, 0, 0),
        (1.75, 2, True, 0, 0),
        (2, 1, True, 0, 0),  # half a unit was left
        (9, 1, True, 3, 0),
    ],
    "7/day token_bucket": [
        (0, 7, True, 0, 0),
        (0, 1, False, 0, 12342.857143),  # a seventh of a day, rounded up
        (12342.857142, 1, False, 0, 0.000001),
        (12342.857143, 1, True, 0, 0),
    ],
    "2/s leaky_bucket burst 3": [
        (0, 1, True, 2, 0),
        (0, 1, True, 1, 0),
        (0, 1, True, 0, 0),
        (0, 1, False, 0, 0.5),
        (0.5, 1, True, 0, 0),
    ],
    "2/s leaky_bucket max_delay 600ms": [
        (0, 1, True, 1, 0),
        (0, 1, True, 0, 0),
        (0, 1, False, 0, 0.5),
        (0.4, 1, False, 0, 0.1),
        (0.5, 1, True, 0, 0),
    ],
    "3/day packed_window": [
        (0, 1, True, 2, 0),
        (36_000, 1, True, 1, 0),
        (72_000, 1, True, 0, 0),
        (75_600, 2, False, 0, 46_800),  # when the second has left: the low 32 bits would not tell
    ],
}
TABLES["3/10s packed_window"] = TABLES["3/10s rolling_window"]


@pytest.mark.parametrize("text", TABLES)
def test_timeline(text: str) -> None:
    limit = Limit.parse(text)
    state = STATES[limit.algorithm](limit)
    for seconds, cost, *expected in TABLES[text]:
        allowed, remaining, retry_us, *_ = state.decide(limit, round(seconds * 1e6), cost, True)
        assert [allowed, remaining, retry_us] == [
            expected[0],
            expected[1],
            round(expected[2] * 1e6),
        ], f"at {seconds} s, cost {cost}"


@pytest.mark.parametrize("algorithm", ["packed_window", "rolling_window"])
def test_counted_refusals_keep_no_more_stamps_than_the_quota(algorithm: str) -> None:
    limit = Limit(5, 60, algorithm=algorithm, count_denied=True)
    state = STATES[limit.algorithm](limit)
    for second in range(1_000):
        state.decide(limit, second * 1_000_000, 2, True)
        assert state.count <= 5  # type: ignore[attr-defined]  # only exact windows have one


@pytest.mark.parametrize("algorithm", ["packed_window", "rolling_window"])
def test_a_refund_of_what_has_left_the_window_gives_nothing(algorithm: str) -> None:
    limit = Limit(3, 10, algorithm=algorithm)
    state = STATES[limit.algorithm](limit)
    for second in (0, 6):
        assert state.decide(limit, second * 1_000_000, 1, True)[0]
    # The first has left, though nothing has come since to drop it.
    assert state.refund(10_000_000, 1, 0) == 0
    assert state.refund(10_000_000, 1, 6_000_000) == 1


def test_leaky_bucket_gives_each_its_turn() -> None:
    limit = Limit.parse("2/s leaky_bucket burst 3")
    state = STATES["leaky_bucket"](limit)
    delays_us = [state.decide(limit, 0, 1, True)[4] for _ in range(4)]
    assert delays_us == [0, 500_000, 1_000_000, 0]  # the last is refused


def test_leaky_bucket_peek_tells_the_delay() -> None:
    limit = Limit.parse("2/s leaky_bucket")
    state = STATES["leaky_bucket"](limit)
    state.decide(limit, 0, 1, True)
    assert state.decide(limit, 0, 1, False)[4] == 500_000
    assert state.decide(limit, 0, 0, False)[4] == 0


class TestConcurrency:
    limit = Concurrency(2, lease=10)

    def test_admits_as_many_as_there_are_slots(self) -> None:
        state = Leases(self.limit)
        answers = [state.decide(self.limit, 0, holder, True) for holder in "abc"]
        assert [answer[:3] for answer in answers] == [
            (True, 1, 0),
            (True, 0, 0),
            (False, 0, 10_000_000),  # a hint: when the first lease ends
        ]

    def test_a_dead_holder_frees_its_slot_when_the_lease_ends(self) -> None:
        state = Leases(self.limit)
        for holder in "ab":
            state.decide(self.limit, 0, holder, True)
        assert not state.decide(self.limit, 9_999_999, "c", True)[0]
        assert state.decide(self.limit, 10_000_000, "c", True)[0]

    def test_a_renewed_lease_lives_on(self) -> None:
        state = Leases(self.limit)
        for holder in "ab":
            state.decide(self.limit, 0, holder, True)
        assert state.renew(self.limit, 9_000_000, "a")
        assert state.decide(self.limit, 10_000_000, "c", True)[1] == 0
        assert not state.decide(self.limit, 18_999_999, "d", True)[0]
        assert state.decide(self.limit, 19_000_000, "d", True)[0]

    def test_releasing_an_ended_lease_frees_nobody_elses_slot(self) -> None:
        state = Leases(self.limit)
        state.decide(self.limit, 0, "a", True)
        assert state.decide(self.limit, 11_000_000, "b", True)[0]
        assert state.decide(self.limit, 11_000_000, "c", True)[0]
        assert not state.release(11_000_000, "a")
        assert not state.renew(self.limit, 11_000_000, "a")
        assert not state.decide(self.limit, 11_000_000, "d", True)[0]

    def test_the_same_holder_takes_no_second_slot(self) -> None:
        state = Leases(self.limit)
        for _ in range(3):
            assert state.decide(self.limit, 0, "a", True)[1] == 1
        assert state.decide(self.limit, 0, "b", True)[1] == 0
        assert state.decide(self.limit, 0, "a", True)[:2] == (True, 0)

    def test_who_comes_too_late_renews_nothing(self) -> None:
        state = Leases(self.limit)
        state.decide(self.limit, 0, "a", True)
        assert not state.renew(self.limit, 10_000_000, "a")

    def test_a_clock_that_stepped_back_lets_nobody_hold_for_longer_than_a_lease(self) -> None:
        state = Leases(self.limit)
        for holder in "ab":
            state.decide(self.limit, 3_600_000_000, holder, True)
        refused = state.decide(self.limit, 5, "c", True)
        assert refused[:3] == (False, 0, 10_000_000)
        assert state.decide(self.limit, 10_000_005, "c", True)[0]

    def test_fewer_slots_let_the_holders_finish(self) -> None:
        state = Leases(self.limit)
        for holder in "ab":
            state.decide(self.limit, 0, holder, True)
        one = Concurrency(1, lease=10)
        state.release(1, "a")
        assert state.decide(one, 1, "c", True)[:2] == (False, 0)
        state.release(1, "b")
        assert state.decide(one, 1, "c", True)[0]

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["take", "take", "renew", "release"]),
                st.sampled_from("abcdef"),
                st.integers(0, 12_000_000),
                st.sampled_from([0, 0, 0, 5_000_000, 30_000_000]),
            ),
            max_size=40,
        )
    )
    def test_never_more_holders_than_slots_in_true_time(
        self, trace: list[tuple[str, str, int, int]]
    ) -> None:
        state = Leases(self.limit)
        true_us, lag_us = 10**15, 0
        until_us: dict[str, int] = {}
        for verb, holder, passes_us, back_us in trace:
            true_us, lag_us = true_us + passes_us, lag_us + back_us
            now_us = true_us - lag_us
            if verb == "release":
                state.release(now_us, holder)
                until_us.pop(holder, None)
            elif (
                state.decide(self.limit, now_us, holder, True)[0]
                if verb == "take"
                else state.renew(self.limit, now_us, holder)
            ):
                until_us[holder] = true_us + self.limit.lease_us
            assert sum(end_us > true_us for end_us in until_us.values()) <= self.limit.slots


@given(st.integers(0, 280 * 365 * 86_400 * 10**6))
def test_calendar_windows_follow_the_utc_calendar(t_us: int) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    moment = epoch + timedelta(microseconds=t_us)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    first = day.replace(day=1)
    following = (first + timedelta(days=32)).replace(day=1)
    expected = {"month": (first, following), "calendar day": (day, day + timedelta(days=1))}
    for period, bounds in expected.items():
        in_us = tuple((bound - epoch) // timedelta(microseconds=1) for bound in bounds)
        assert window_at(Limit(1, period), t_us) == in_us


def test_a_monthly_quota_starts_afresh_on_the_first() -> None:
    limit = Limit.parse("2/month")
    state = STATES["fixed_window"](limit)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def at(*when: int) -> int:
        return (datetime(*when, tzinfo=UTC) - epoch) // timedelta(microseconds=1)  # type: ignore[misc, arg-type]  # year, month, day, ...

    assert state.decide(limit, at(2028, 2, 10), 2, True)[0]
    refused = state.decide(limit, at(2028, 2, 29, 23, 59, 59), 1, True)
    assert refused[:3] == (False, 0, 1_000_000)
    assert state.decide(limit, at(2028, 3, 1), 1, True)[:2] == (True, 1)


def test_expiry_of_a_hundred_thousand_stamps_at_once_is_found_in_a_few_steps() -> None:
    class Counting(array):  # type: ignore[type-arg]  # not subscriptable at run time
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            self.reads += 1
            return super().__getitem__(index)

    limit = Limit.parse("100000/hour packed_window")
    state = PackedWindowState(limit)
    for second in range(10):
        state.decide(limit, second * 1_000_000, 10_000, True)
    state.stamps = Counting("I", state.stamps)
    assert state.decide(limit, limit.period_us + 4_999_999, 1, True)[:2] == (True, 49_999)
    assert state.stamps.reads < 64
    assert state.at(0) == 5_000_000


@given(st.data())
def test_packed_stamps_are_found_like_those_in_a_list(data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.sampled_from([0, 1, 1, 7, 1_000]), min_size=1, max_size=200))
    limit = Limit(1_000, 4_000)
    state = PackedWindowState(limit)
    stamps = [2**33 + sum(gaps[: index + 1]) for index in range(len(gaps))]
    drop = data.draw(st.integers(0, len(gaps) - 1))
    for stamp in stamps[:-1]:
        state.push(stamp, 1, 0)
    state.push(stamps[-1], 1, drop)
    kept = stamps[drop:]
    for t_us in (stamp + around for stamp in stamps for around in (-1, 0, 1)):
        assert state.up_to(t_us) == bisect_right(kept, t_us)
    first = data.draw(st.integers(0, len(kept) - 1))
    state.cut(first, 1)
    state.count -= 1
    del kept[first]
    if first < len(kept):
        assert [state.at(index) for index in range(state.count)] == kept


def test_packed_stamps_take_no_more_room_than_is_in_view() -> None:
    limit = Limit(100, 60)
    state = PackedWindowState(limit)
    for index in range(10_000):
        assert state.decide(limit, index * 600_000, 1, True)[0]
        assert len(state.stamps) <= 140


def test_a_refund_that_finds_nothing_leaves_the_window_before_as_it_was() -> None:
    limit = Limit(3, 60, algorithm="fixed_window")
    minute_us = 60_000_000
    state: Any = STATES["fixed_window"](limit)
    assert state.decide(limit, 10 * minute_us, 3, True)[0]
    # In the next window there is nothing to give back; then the clock steps back over its border.
    state.refund(11 * minute_us, 1, 11 * minute_us)
    assert state.decide(limit, 11 * minute_us - 1, 1, True)[0] is False
