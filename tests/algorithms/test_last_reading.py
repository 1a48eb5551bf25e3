"""A state continued from a reading: never more generous than the state that gave the reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen import Limit
from limen.algorithms import STATES, State
from limen.algorithms.last_reading import LastReading, continued
from limen.model import ALGORITHMS, Reading

PERIOD_US = 10_000_000
START_US = 1_700_000_000_000_000
LIMITS = [Limit(7, 10, algorithm=algorithm) for algorithm in ALGORITHMS] + [
    Limit(7, 10, algorithm="token_bucket", burst=12),
    Limit(7, 10, algorithm="fixed_window", from_first=True),
]
STEPS = st.tuples(st.integers(0, PERIOD_US // 2), st.integers(0, 4), st.booleans())


def continue_from(
    limit: Limit, reading: Reading, cost: int, now_us: int, age_us: int = 0, instances: int = 1
) -> State:
    """Return a state that continues from a reading which was made `age_us` ago."""
    last = LastReading(limit, cost, reading, age_us)
    return continued(last, limit.share(instances), instances, now_us)


def left(state: State, limit: Limit, now_us: int) -> int:
    return state.decide(limit, now_us, 0, False)[1]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@given(
    traffic=st.lists(STEPS, min_size=1, max_size=12),
    age_us=st.integers(0, 2 * PERIOD_US),
    later=st.lists(st.integers(0, PERIOD_US), min_size=1, max_size=8),
)
def test_continued_state_never_has_more_left_than_its_origin(
    limit: Limit, traffic: list[tuple[int, int, bool]], age_us: int, later: list[int]
) -> None:
    origin, now_us = STATES[limit.algorithm](limit), START_US
    cost, reading = 0, origin.decide(limit, now_us, 0, False)
    for wait_us, cost, charge in traffic:
        now_us += wait_us
        reading = origin.decide(limit, now_us, cost, charge)
    state = continue_from(limit, reading, cost, now_us)
    # A reading of a bucket rounds up to the next microsecond.
    assert left(state, limit, now_us) in (reading[1], max(reading[1] - 1, 0))
    late = continue_from(limit, reading, cost, now_us + age_us, age_us)
    for wait_us in later:
        now_us += wait_us
        assert left(state, limit, now_us) <= left(origin, limit, now_us)
    assert left(late, limit, now_us + age_us) <= left(origin, limit, now_us + age_us)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_continued_state_is_empty_after_two_periods(limit: Limit) -> None:
    origin = STATES[limit.algorithm](limit)
    reading = origin.decide(limit, START_US, limit.capacity, True)
    state = continue_from(limit, reading, limit.capacity, START_US)
    assert left(state, limit, START_US) == 0
    assert left(state, limit, START_US + 2 * PERIOD_US) == limit.capacity


@pytest.mark.parametrize("algorithm", ["rolling_window", "packed_window"])
def test_refused_key_is_admitted_again_at_retry_after_and_no_earlier(algorithm: str) -> None:
    limit = Limit(3, 10, algorithm=algorithm)
    origin = STATES[limit.algorithm](limit)
    for at_us in (0, 2_000_000, 5_000_000):
        assert origin.decide(limit, START_US + at_us, 1, True)[0]
    now_us = START_US + 6_000_000
    reading = origin.decide(limit, now_us, 1, True)
    assert reading[:4] == (False, 0, 4_000_000, 9_000_000)
    state = continue_from(limit, reading, 1, now_us)
    assert not state.decide(limit, now_us + 3_999_999, 1, False)[0]
    assert state.decide(limit, now_us + 4_000_000, 1, True)[0]
    assert not state.decide(limit, now_us + 8_999_999, 1, False)[0]
    assert state.decide(limit, now_us + 9_000_000, 2, True)[0]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_refused_key_waits_as_long_as_the_store_said(limit: Limit) -> None:
    origin = STATES[limit.algorithm](limit)
    origin.decide(limit, START_US + 1_000_000, limit.capacity - 1, True)
    origin.decide(limit, START_US + 3_000_000, 1, True)
    now_us = START_US + 9_500_000
    while origin.decide(limit, now_us, 1, True)[0]:
        pass
    reading = origin.decide(limit, now_us, 1, True)
    state = continue_from(limit, reading, 1, now_us)
    assert not state.decide(limit, now_us, 1, False)[0]
    waits_us = state.decide(limit, now_us, 1, False)[2]
    if limit.algorithm == "sliding_counter":
        assert reading[2] <= waits_us <= reading[3]
    else:
        assert reading[2] <= waits_us <= reading[2] + 1


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("instances", [2, 3, 5])
def test_instances_together_have_hardly_more_left_than_the_store(
    limit: Limit, instances: int
) -> None:
    origin = STATES[limit.algorithm](limit)
    reading = origin.decide(limit, START_US, 4, True)
    state = continue_from(limit, reading, 4, START_US, instances=instances)
    share = limit.share(instances)
    assert instances * left(state, share, START_US) < reading[1] + instances


def test_quota_that_was_raised_since_keeps_the_use() -> None:
    for limit in LIMITS:
        raised = Limit(
            10 * limit.quota,
            10,
            algorithm=limit.algorithm,
            burst=None if limit.burst is None else 10 * limit.burst,
            from_first=limit.from_first,
        )
        origin = STATES[limit.algorithm](limit)
        reading = origin.decide(limit, START_US, limit.capacity, True)
        state = continue_from(limit, reading, limit.capacity, START_US)
        free = raised.capacity - limit.capacity
        assert left(state, raised, START_US) in (free, free - 1), limit


def test_sliding_counter_continues_from_the_previous_window_alone() -> None:
    limit = Limit(100, 10, algorithm="sliding_counter")
    origin = STATES[limit.algorithm](limit)
    origin.decide(limit, START_US, 80, True)
    now_us = START_US + 14_000_000
    reading = origin.decide(limit, now_us, 1, False)
    assert reading[1] == 52
    state = continue_from(limit, reading, 1, now_us)
    for later_us in (0, 1_000_000, 3_000_000, 6_000_000):
        assert left(state, limit, now_us + later_us) == left(origin, limit, now_us + later_us)
