"""The short path of `Limiter.check` in memory gives the same decisions as `decide`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from limen import Check, Decision, Limit, Limiter
from limen.keys import MAX_PLAIN
from limen.testing import ManualClock
from tests.algorithms.traces import ALGORITHM_NAMES, START_US, Step, histories

KEYS = ("user:42", "x" * (MAX_PLAIN + 1))


def without_id(decision: Decision) -> Decision:
    return structs.replace(decision, id=0)


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
@given(data=st.data())
def test_check_and_decide_give_equal_decisions(algorithm: str, data: st.DataObject) -> None:
    limits, steps = data.draw(histories(algorithm))
    key = data.draw(st.sampled_from(KEYS))
    compare(limits, steps, key)


def test_check_and_decide_give_equal_decisions_for_calendar_periods() -> None:
    day_us = 86_400_000_000
    steps = [Step(day_us * days, 0, cost, 0) for days in (0, 0, 1, 30) for cost in (1, 2, 3)]
    compare([Limit(4, "month")], steps, KEYS[0])
    compare([Limit(4, "calendar day")], steps, KEYS[0])


def compare(limits: list[Limit], steps: list[Step], key: str) -> None:
    clock = ManualClock(START_US / 1e6)
    observed: tuple[list[Decision], list[Decision]] = [], []
    short = Limiter(clock=clock, observers=[observed[0].append])
    general = Limiter(clock=clock, observers=[observed[1].append])
    for step in steps:
        clock.advance((step.passes_us - step.back_us) / 1e6)
        limit = limits[step.limit % len(limits)]
        written = str(limit) if limit.name is None and step.cost % 2 else limit
        checked = short.check(key, written, cost=step.cost)
        decided = general.decide(Check(limit, key, step.cost))
        assert without_id(checked) == without_id(decided)
        peeked = short.peek(key, limit, cost=step.cost)
        assert without_id(peeked) == without_id(
            general.decide(Check(limit, key, step.cost), charge=False)
        )
    assert list(map(without_id, observed[0])) == list(map(without_id, observed[1]))
