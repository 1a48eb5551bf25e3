"""What holds for every algorithm: exact waits, free peeks, refunds that undo, states that end."""

from __future__ import annotations

import itertools
from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.algorithms import STATES
from limen.model import NEVER_US, Limit
from tests.algorithms.traces import (
    ALGORITHM_NAMES,
    EXACT,
    START_US,
    Admission,
    Step,
    World,
    fresh,
    histories,
    most_in_any,
    play,
    steps,
)

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)


@every_algorithm
@given(data=st.data(), cost=st.integers(1, 6))
def test_waiting_exactly_retry_after_admits_and_a_microsecond_less_does_not(
    algorithm: str, data: st.DataObject, cost: int
) -> None:
    found, trace = data.draw(histories(algorithm))
    world = play(found, trace)
    limit = found[-1]
    # A changed quota counts from the first request on, also a refused one.
    if not world.peek(limit, cost)[0]:
        world.state.decide(limit, world.now_us, cost, True)
    allowed, _, retry_us, *_ = world.peek(limit, cost)
    if allowed:
        assert retry_us == 0
    elif retry_us == NEVER_US:
        assert cost > limit.capacity
    else:
        assert cost <= limit.capacity
        assert world.peek(limit, cost, retry_us)[0]
        assert not world.peek(limit, cost, retry_us - 1)[0]


@every_algorithm
@given(data=st.data(), cost=st.integers(0, 6))
def test_a_peek_says_what_a_check_would_say_and_changes_nothing(
    algorithm: str, data: st.DataObject, cost: int
) -> None:
    found, trace = data.draw(histories(algorithm))
    world = play(found, trace)
    limit = found[-1]
    # The first call after a step back may repair the state's time; look at the next.
    world.state.decide(found[0], world.now_us, 0, False)
    before = deepcopy(world.state)
    peeked = world.state.decide(limit, world.now_us, cost, False)
    assert world.state == before
    checked = world.state.decide(limit, world.now_us, cost, True)
    assert peeked[0] == checked[0]
    if not checked[0] and limit.count_denied:
        return  # the refusal itself is counted, and the wait is longer by that
    assert peeked[2] == checked[2]
    assert peeked[4] == checked[4]
    if not checked[0] or not cost:
        assert checked == peeked
        assert world.state == before or before.limit.quota != limit.quota


@every_algorithm
@given(data=st.data(), cost=st.integers(1, 6))
def test_remaining_is_what_can_be_taken_at_once(
    algorithm: str, data: st.DataObject, cost: int
) -> None:
    found, trace = data.draw(histories(algorithm))
    limit = Limit(found[0].quota, found[0].period, algorithm=algorithm, burst=found[0].burst)
    world = play(found, trace)
    remaining = world.peek(limit, 0)[1]
    assert remaining >= 0
    if remaining:
        assert world.peek(limit, remaining)[0]
    assert not world.peek(limit, remaining + 1)[0]


@every_algorithm
@given(data=st.data())
def test_a_state_past_its_expiry_equals_none(algorithm: str, data: st.DataObject) -> None:
    found, trace = data.draw(histories(algorithm))
    world = play(found, trace)
    later = data.draw(steps(found[0].period_us, most=12, back=False))
    ends_us = max(world.state.expires_us - world.state.offset_us, world.now_us)
    old, new = World(world.state, ends_us), World(STATES[found[0].algorithm](found[0]), ends_us)
    for step in later:
        limit = found[step.limit % len(found)]
        assert old.ask(step, limit) == new.ask(step, limit)


@every_algorithm
@given(data=st.data())
def test_reset_after_is_when_the_whole_capacity_is_back(
    algorithm: str, data: st.DataObject
) -> None:
    found, trace = data.draw(histories(algorithm, change=False))
    world = play(found, trace)
    limit = found[0]
    _, remaining, _, reset_us, *_ = world.peek(limit, 0)
    assert (reset_us == 0) == (remaining == limit.capacity)
    assert world.peek(limit, 0, reset_us)[1] == limit.capacity
    if reset_us and algorithm != "sliding_counter":
        # The estimate of a sliding counter is rounded up to whole units, so it may be one early.
        assert world.peek(limit, 0, reset_us - 1)[1] < limit.capacity


@every_algorithm
@given(data=st.data(), cost=st.integers(1, 6))
def test_a_refund_at_once_undoes_the_charge(algorithm: str, data: st.DataObject, cost: int) -> None:
    # Without steps back where windows follow the clock: a charge makes them remember one longer.
    back = algorithm not in ("fixed_window", "sliding_counter")
    found, trace = data.draw(histories(algorithm, back=back, change=False))
    world = play(found, trace)
    limit = found[0]
    world.state.decide(limit, world.now_us, 0, False)
    without = World(deepcopy(world.state), world.true_us, world.lag_us)
    reading = world.state.decide(limit, world.now_us, cost, True)
    if not reading[0]:
        return
    assert world.state.refund(world.now_us, cost, reading[5]) == cost
    for step in data.draw(steps(limit.period_us, most=10, back=False)):
        assert world.ask(step, limit) == without.ask(step, limit)


@every_algorithm
@given(data=st.data(), later_us=st.integers(0, 3), cost=st.integers(1, 4))
def test_a_late_refund_never_leaves_more_than_if_the_request_had_not_come(
    algorithm: str, data: st.DataObject, later_us: int, cost: int
) -> None:
    found, trace = data.draw(histories(algorithm, back=False, change=False))
    limit = found[0]
    world = play(found, trace)
    without = World(deepcopy(world.state), world.true_us)
    refunded = world.ask(Step(0, 0, cost, 0), limit)
    if not refunded[0]:
        return
    for step in data.draw(steps(limit.period_us, most=8, back=False)):
        # What the request kept out stays out of the other world too.
        if world.ask(step, limit)[0]:
            without.ask(step, limit)
        else:
            without.true_us += step.passes_us
    assert without.now_us == world.now_us
    back = world.state.refund(world.now_us, cost, refunded[5])
    assert 0 <= back <= cost
    # The end of a charge is known to the microsecond, so a bucket may be as much ahead.
    ahead_us = 1 if algorithm.endswith("bucket") else 0
    for passes_us in data.draw(st.lists(st.integers(0, limit.period_us), max_size=4)):
        most = without.peek(limit, 0, passes_us + ahead_us)[1]
        assert world.peek(limit, 0, passes_us)[1] <= most


@every_algorithm
@given(data=st.data())
def test_refunds_in_any_order_leave_what_was_kept_within_the_bound(
    algorithm: str, data: st.DataObject
) -> None:
    """What was admitted and not given back fits into the limit, whoever gave back what.

    Receipts from before a step back of the clock are left out: their time may come again.
    """
    found, trace = data.draw(histories(algorithm))
    world = fresh(found[0])
    kept: dict[int, int] = {}
    lags: list[int] = []
    for step in trace:
        world.ask(step, found[step.limit % len(found)])
        lags += [world.lag_us] * (len(world.admissions) - len(lags))
        if not world.admissions or not data.draw(st.booleans()):
            continue
        index = data.draw(st.integers(0, len(world.admissions) - 1))
        if index not in kept and lags[index] == world.lag_us:
            admission = world.admissions[index]
            cost, stamp_us = admission.cost, admission.reading[5]
            kept[index] = cost - min(world.state.refund(world.now_us, cost, stamp_us), cost)
    net = [
        Admission(a.at_us, kept.get(index, a.cost), a.reading)
        for index, a in enumerate(world.admissions)
    ]
    quota = max(limit.quota for limit in found)
    capacity = max(limit.capacity for limit in found)
    if not algorithm.endswith("bucket"):
        most = most_in_any(net, found[0].period_us, lambda a: a.at_us)
        assert most <= (quota if algorithm in EXACT else 2 * quota)
        return
    rate = max(Fraction(limit.quota, limit.period_us) for limit in found)
    for first, last in itertools.combinations_with_replacement(range(len(net)), 2):
        units = sum(a.cost for a in net[first : last + 1])
        width_us = net[last].at_us - net[first].at_us
        # The units of a refund are rounded up, and its end is known to the microsecond.
        assert units <= capacity + (width_us + len(kept)) * rate


@every_algorithm
@given(data=st.data(), more=st.integers(0, 400))
def test_a_debit_is_charged_and_never_holds_more_than_twice_the_limit(
    algorithm: str, data: st.DataObject, more: int
) -> None:
    found, trace = data.draw(histories(algorithm, back=False, change=False))
    limit = Limit(found[0].quota, found[0].period, algorithm=algorithm, burst=found[0].burst)
    world = play([limit], trace)
    before = world.peek(limit, 0)[1]
    world.state.debit(world.now_us, more)
    assert world.peek(limit, 0)[1] == max(before - more, 0)
    waits_us = 3 * (max(limit.period_us, limit.fill_us) + 1)
    assert world.peek(limit, limit.capacity, waits_us)[0]


@every_algorithm
def test_no_debt_is_larger_than_the_limit_itself(algorithm: str) -> None:
    limit = Limit(10, 60, algorithm=algorithm)
    world = fresh(limit)
    world.state.debit(world.now_us, 1_000)
    # Thrice the room shows what is used of it: twice the limit, the limit and as much in debt.
    thrice = (
        Limit(10, 60, algorithm=algorithm, burst=30)
        if algorithm.endswith("bucket")
        else Limit(30, 60, algorithm=algorithm)
    )
    assert world.peek(thrice, 0)[1] == 10


@given(data=st.data())
def test_packed_and_rolling_window_decide_alike_on_every_trace(data: st.DataObject) -> None:
    found, trace = data.draw(histories("packed_window"))
    count_denied = data.draw(st.booleans())
    worlds = []
    for algorithm in EXACT:
        same = [
            Limit(
                limit.quota,
                limit.period,
                algorithm=algorithm,
                min_interval=limit.min_interval,
                count_denied=count_denied,
            )
            for limit in found
        ]
        worlds.append((fresh(same[0]), same))
    (packed, _), (rolling, _) = worlds
    for step in trace:
        readings = [world.ask(step, same[step.limit % len(same)]) for world, same in worlds]
        assert readings[0] == readings[1]
        assert packed.state.expires_us == rolling.state.expires_us
        then = data.draw(st.sampled_from(["nothing", "nothing", "refund", "debit"]))
        if then == "refund" and packed.admissions:
            given_back = data.draw(st.sampled_from(packed.admissions))
            cost, stamp_us = given_back.cost, given_back.reading[5]
            backs = [world.state.refund(world.now_us, cost, stamp_us) for world, _ in worlds]
            assert backs[0] == backs[1]
        elif then == "debit":
            for world, _ in worlds:
                world.state.debit(world.now_us, step.cost)
        stamps = [packed.state.at(index) for index in range(packed.state.count)]
        assert stamps == rolling.state.stamps


class ExactBucket:
    """A token bucket in fractions, straight from its definition."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.rate = Fraction(limit.quota, limit.period_us)
        self.level = Fraction(limit.capacity)
        self.at_us = 0

    def decide(self, now_us: int, cost: int) -> tuple[bool, int, int]:
        self.level = min(
            self.level + (now_us - self.at_us) * self.rate, Fraction(self.limit.capacity)
        )
        self.at_us = now_us
        allowed = self.level >= cost
        retry_us = 0 if allowed else -((self.level - cost) / self.rate // 1)
        if allowed:
            self.level -= cost
        return allowed, int(self.level), int(retry_us)


@pytest.mark.parametrize("text", ["97/s token_bucket", "7/day token_bucket", "1000000/s burst 3"])
@given(data=st.data())
def test_rates_that_do_not_divide_agree_with_exact_fractions(
    text: str, data: st.DataObject
) -> None:
    limit = Limit.parse(text)
    state: Any = STATES["token_bucket"](limit)
    model = ExactBucket(limit)
    now_us = START_US
    passes = st.integers(0, 3 * limit.interval_us + 3) | st.just(limit.interval_us)
    for _ in range(30):
        now_us += data.draw(passes)
        cost = data.draw(st.integers(1, min(limit.capacity, 8)))
        allowed, remaining, retry_us, *_ = state.decide(limit, now_us, cost, True)
        assert (allowed, remaining, retry_us) == model.decide(now_us, cost)


@pytest.mark.parametrize(("quota", "period_s"), [(97, 1), (7, 86_400)])
def test_a_year_of_steady_traffic_drifts_by_nothing(quota: int, period_s: int) -> None:
    limit = Limit(quota, period_s, algorithm="token_bucket", burst=2)
    state: Any = STATES["token_bucket"](limit)
    now_us = START_US
    for index in range(2_600):
        _, _, retry_us, *_ = state.decide(limit, now_us, 1, False)
        now_us += retry_us
        assert state.decide(limit, now_us, 1, True)[0]
        # Two at once, then each at its fraction of the period, rounded up and never further off.
        assert now_us - START_US == -(-max(index - 1, 0) * limit.period_us // quota)


@given(data=st.data())
def test_sliding_counter_agrees_with_exact_fractions(data: st.DataObject) -> None:
    found, trace = data.draw(histories("sliding_counter", back=False, change=False))
    limit = found[0]
    world = fresh(limit)
    period_us = limit.period_us
    counts: dict[int, int] = {}
    for step in trace:
        allowed, remaining, *_ = world.ask(step, limit)
        window, age_us = divmod(world.now_us, period_us)
        weight = Fraction(period_us - age_us, period_us)
        seen = counts.get(window, 0) + counts.get(window - 1, 0) * weight
        assert allowed == (seen + step.cost <= limit.quota or step.cost == 0)
        if allowed:
            counts[window] = counts.get(window, 0) + step.cost
            seen += step.cost
        assert remaining == max(int((limit.quota - seen) // 1), 0)


@given(used=st.integers(1, 10**9), age_us=st.integers(0, 2_591_999_999_999), data=st.data())
def test_sliding_counter_of_a_huge_quota_errs_by_a_tick_and_to_the_strict_side(
    used: int, age_us: int, data: st.DataObject
) -> None:
    limit = Limit(10**9, 2_592_000, algorithm="sliding_counter")
    assert limit.tick_us > 1
    world = fresh(limit)
    world.true_us -= world.true_us % limit.period_us
    world.ask(Step(0, 0, used, 0), limit)
    world.true_us += limit.period_us + age_us
    remaining = world.peek(limit, 0)[1]
    exact = limit.quota - used * Fraction(limit.period_us - age_us, limit.period_us)
    assert exact - used * Fraction(limit.tick_us, limit.period_us) - 1 < remaining <= exact
    cost = data.draw(st.integers(1, limit.quota))
    allowed, _, retry_us, *_ = world.peek(limit, cost)
    assert allowed == (cost <= remaining)
    if not allowed:
        assert world.peek(limit, cost, retry_us)[0]
        assert not world.peek(limit, cost, retry_us - 1)[0]


@every_algorithm
def test_what_was_used_stays_used_when_the_quota_changes(algorithm: str) -> None:
    small, large = (Limit(quota, 60, algorithm=algorithm) for quota in (100, 1_000))
    world = fresh(small)
    assert world.ask(Step(0, 0, 100, 0), small)[1] == 0
    assert world.peek(large, 0)[1] == 900
    world = fresh(large)
    world.ask(Step(0, 0, 100, 0), large)
    assert world.peek(small, 0)[1] == 0
    assert world.peek(large, 0)[1] == 900
