"""A state continued from a reading: never more generous than the state that gave the reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen import Limit
from limen.algorithms import STATES, State
from limen.algorithms.last_reading import LastReading, continue_from
from limen.model import ALGORITHMS, Reading

PERIOD_US = 10_000_000
START_US = 1_700_000_000_000_000
LIMITS = [Limit(7, 10, algorithm=algorithm) for algorithm in ALGORITHMS] + [
    Limit(7, 10, algorithm="token_bucket", burst=12),
    Limit(7, 10, algorithm="fixed_window", from_first=True),
]
STEPS = st.tuples(st.integers(0, PERIOD_US // 2), st.integers(0, 4), st.booleans())


def continued(
    limit: Limit,
    reading: Reading,
    cost: int,
    now_us: int,
    age_us: int = 0,
    state: State | None = None,
) -> State:
    """Return a state that continues from a reading which was made `age_us` ago."""
    state = state or STATES[limit.algorithm](limit)
    last = LastReading(age_us, limit.capacity - reading[1], reading, cost)
    continue_from(state, limit, now_us, last, reading[1], last.freed)
    return state


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
    state = continued(limit, reading, cost, now_us)
    assert left(state, limit, now_us) == reading[1]
    late = continued(limit, reading, cost, now_us + age_us, age_us)
    for wait_us in later:
        now_us += wait_us
        assert left(state, limit, now_us) <= left(origin, limit, now_us)
    assert left(late, limit, now_us + age_us) <= left(origin, limit, now_us + age_us)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_continued_state_is_empty_after_two_periods(limit: Limit) -> None:
    origin = STATES[limit.algorithm](limit)
    reading = origin.decide(limit, START_US, limit.capacity, True)
    state = continued(limit, reading, limit.capacity, START_US)
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
    state = continued(limit, reading, 1, now_us)
    assert not state.decide(limit, now_us + 3_999_999, 1, False)[0]
    assert state.decide(limit, now_us + 4_000_000, 1, True)[0]
    assert not state.decide(limit, now_us + 8_999_999, 1, False)[0]
    assert state.decide(limit, now_us + 9_000_000, 2, True)[0]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_state_that_has_less_left_than_the_reading_stays_as_it_is(limit: Limit) -> None:
    state = STATES[limit.algorithm](limit)
    state.decide(limit, START_US, limit.capacity, True)
    origin = STATES[limit.algorithm](limit)
    reading = origin.decide(limit, START_US + 1, 1, True)
    continued(limit, reading, 1, START_US + 1, state=state)
    assert left(state, limit, START_US + 1) == 0


@pytest.mark.parametrize("algorithm", ["rolling_window", "packed_window"])
def test_units_of_an_older_reading_free_no_newer_unit_early(algorithm: str) -> None:
    limit = Limit(5, 10, algorithm=algorithm)
    state, origin = STATES[limit.algorithm](limit), STATES[limit.algorithm](limit)
    origin.decide(limit, START_US, 4, True)
    state.decide(limit, START_US + 8_000_000, 1, True)
    now_us = START_US + 9_000_000
    reading = origin.decide(limit, now_us, 1, False)
    continued(limit, reading, 1, now_us, state=state)
    assert left(state, limit, now_us) == 1
    assert left(state, limit, START_US + 17_999_999) <= 4
    assert left(state, limit, START_US + 18_000_000) == 5
