"""No algorithm admits more than its bound, in any stretch of true time, whatever the clock does."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limen.model import Limit
from tests.algorithms.traces import (
    EXACT,
    Admission,
    Step,
    World,
    fresh,
    histories,
    most_in_any,
    play,
)


def by_arrival(admission: Admission) -> int:
    return admission.at_us


def by_start(admission: Admission) -> int:
    return admission.at_us + admission.reading[4]


def rate(found: list[Limit]) -> Fraction:
    return max(Fraction(limit.quota, limit.period_us) for limit in found)


@pytest.mark.parametrize("algorithm", EXACT)
@given(data=st.data())
def test_exact_window_admits_at_most_its_quota_in_any_window(
    algorithm: str, data: st.DataObject
) -> None:
    found, trace = data.draw(histories(algorithm))
    world = play(found, trace)
    most = most_in_any(world.admissions, found[0].period_us, by_arrival)
    assert most <= max(limit.quota for limit in found)


@pytest.mark.parametrize("algorithm", EXACT)
@given(data=st.data())
def test_exact_window_keeps_the_least_interval(algorithm: str, data: st.DataObject) -> None:
    found, trace = data.draw(histories(algorithm))
    world = play(found, trace)
    least_us = min(limit.min_interval_us for limit in found)
    for earlier, later in itertools.pairwise(world.admissions):
        assert later.at_us - earlier.at_us >= least_us


@given(data=st.data())
def test_fixed_window_admits_at_most_twice_its_quota_in_any_window(data: st.DataObject) -> None:
    found, trace = data.draw(histories("fixed_window"))
    world = play(found, trace)
    most = most_in_any(world.admissions, found[0].period_us, by_arrival)
    assert most <= 2 * max(limit.quota for limit in found)


@given(data=st.data())
def test_sliding_counter_admits_less_than_twice_its_quota_in_any_window(
    data: st.DataObject,
) -> None:
    found, trace = data.draw(histories("sliding_counter"))
    world = play(found, trace)
    most = most_in_any(world.admissions, found[0].period_us, by_arrival)
    assert most < 2 * max(limit.quota for limit in found)


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
@given(data=st.data())
def test_bucket_admits_at_most_its_capacity_and_its_rate(
    algorithm: str, data: st.DataObject
) -> None:
    found, trace = data.draw(histories(algorithm))
    admissions = play(found, trace).admissions
    capacity = max(limit.capacity for limit in found)
    for first, last in itertools.combinations_with_replacement(range(len(admissions)), 2):
        units = sum(a.cost for a in admissions[first : last + 1])
        width_us = admissions[last].at_us - admissions[first].at_us
        assert units <= capacity + width_us * rate(found)


@given(data=st.data())
def test_leaky_bucket_starts_at_most_its_rate_and_one_request(data: st.DataObject) -> None:
    # With one limit: who was told to wait under an older one keeps that turn.
    found, trace = data.draw(histories("leaky_bucket", change=False))
    starts = sorted(play(found, trace).admissions, key=by_start)
    for first, last in itertools.combinations(range(len(starts)), 2):
        before = sum(a.cost for a in starts[first:last])
        width_us = by_start(starts[last]) - by_start(starts[first])
        # A start is rounded up to the microsecond, so two may seem closer by less than one.
        assert before < (width_us + 1) * rate(found)


@given(data=st.data())
def test_leaky_bucket_lets_nobody_wait_longer_than_max_delay(data: st.DataObject) -> None:
    found, trace = data.draw(histories("leaky_bucket"))
    world = fresh(found[0])
    for step in trace:
        limit = found[step.limit % len(found)]
        assert world.ask(step, limit)[4] <= limit.max_delay_us


def test_fixed_window_reaches_twice_its_quota_at_a_boundary() -> None:
    limit = Limit.parse("10/10s fixed_window")
    world = fresh(limit)
    world.true_us = 19_999_999
    for passes_us in (0, 1):
        for index in range(10):
            assert world.ask(Step(passes_us if index == 0 else 0, 0, 1, 0), limit)[0]
        assert not world.ask(Step(0, 0, 1, 0), limit)[0]


@pytest.mark.parametrize(
    "text",
    ["10/10s packed_window", "10/10s rolling_window", "10/10s fixed_window", "10/10s token_bucket"],
)
@settings(max_examples=30)
@given(back_us=st.integers(1, 10**9))
def test_a_clock_that_stepped_back_refills_nothing_and_blocks_no_longer_than_a_period(
    text: str, back_us: int
) -> None:
    limit = Limit.parse(text)
    world = fresh(limit)
    for _ in range(10):
        world.ask(Step(1, 0, 1, 0), limit)
    allowed, _, retry_us, *_ = world.ask(Step(0, back_us, 1, 0), limit)
    assert not allowed
    assert retry_us <= limit.period_us
    assert world.ask(Step(limit.period_us, 0, 1, 0), limit)[0]


def test_a_fixed_window_moved_by_a_step_back_stays_moved_when_it_rolls_over() -> None:
    limit = Limit.parse("10/10s fixed_window")
    world = fresh(limit)
    world.true_us = 10_000_000
    trace = [Step(0, 0, 1, 0), Step(0, 15_000_000, 0, 0), Step(9_900_000, 0, 9, 0)]
    # Were the offset dropped with the window, the next two would lie in windows of their own.
    trace += [Step(100_000, 0, 10, 0), Step(5_000_000, 0, 10, 0)]
    assert [world.ask(step, limit)[0] for step in trace] == [True, True, True, True, False]


def test_a_fixed_window_is_not_handed_out_again_when_the_clock_steps_back_over_its_end() -> None:
    limit = Limit.parse("10/10s fixed_window")
    world = fresh(limit)
    world.true_us = 19_999_999
    taken = World(world.state, world.true_us)
    admitted = 0
    for step in (Step(0, 0, 1, 0), Step(1, 0, 1, 0), Step(0, 2, 1, 0), Step(2, 0, 1, 0)):
        for _ in range(12):
            admitted += taken.ask(step, limit)[0]
            step = Step(0, 0, 1, 0)
    assert admitted == 20
