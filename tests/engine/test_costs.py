"""What a request costs; giving it back, and correcting it."""

from __future__ import annotations

import pytest

from limen.errors import InvalidInput
from tests.engine.conftest import Make
from tests.engine.drivers import Threaded, left

COSTS = """\
rules:
  - {name: requests, key: [org], cost: 1, limits: 100/day}
  - {name: asked, key: [org], limits: 100/day}
  - {name: tokens, key: [org], cost: tokens, limits: [1000/day, 5000/week]}
  - {name: bytes, key: [org], cost: bytes, limits: 1000/day token_bucket}
  - {name: free, key: [org], cost: 0, limits: 1/day}
"""
ACME = {"org": "acme"}


@pytest.fixture
def engine(make: Make) -> Threaded:
    return make(COSTS)


def used(engine: Threaded) -> list[int]:
    """Return what is counted: requests, asked, tokens by day and week, bytes, free."""
    quotas = (100, 100, 1_000, 5_000, 1_000, 1)
    remaining = left(engine, ACME).values()
    return [
        quota - (quota if of is None else of) for quota, of in zip(quotas, remaining, strict=True)
    ]


# Columns: the cost of the request; its attributes; what is counted then.
@pytest.mark.parametrize(
    ("cost", "facts", "counted"),
    [
        (1, {}, [1, 1, 1, 1, 1, 0]),
        (5, {}, [1, 5, 5, 5, 5, 0]),
        (0, {}, [1, 0, 0, 0, 0, 0]),
        (5, {"tokens": "731"}, [1, 5, 731, 731, 5, 0]),
        (5, {"tokens": "731", "bytes": "12"}, [1, 5, 731, 731, 12, 0]),
        (5, {"tokens": "0", "bytes": ""}, [1, 5, 0, 0, 5, 0]),
    ],
)
def test_each_rule_counts_what_it_says(
    engine: Threaded, cost: int, facts: dict[str, str], counted: list[int]
) -> None:
    verdict = engine.decide({**ACME, **facts}, cost)
    assert verdict.allowed
    assert [part.cost for part in verdict.parts] == counted
    assert used(engine) == counted


@pytest.mark.parametrize("tokens", ["abc", "-1", "1.5", "1000000001"])
def test_an_attribute_that_is_no_cost_charges_nobody(engine: Threaded, tokens: str) -> None:
    for ask in (engine.decide, engine.peek, engine.slot):
        with pytest.raises(InvalidInput, match="'tokens' is the cost in rule 'tokens'"):
            ask({**ACME, "tokens": tokens})
    assert used(engine) == [0] * 6


@pytest.mark.parametrize("cost", [-1, 1.5, True, "1", 10**9 + 1, None])
def test_a_cost_that_is_none_charges_nobody(engine: Threaded, cost: int) -> None:
    for ask in (engine.decide, engine.peek, engine.slot):
        with pytest.raises(InvalidInput, match="cost must be a whole number"):
            ask(ACME, cost)
    assert used(engine) == [0] * 6


def test_a_cost_above_what_a_limit_holds_never_fits(engine: Threaded) -> None:
    verdict = engine.decide({**ACME, "tokens": "1001"})
    assert (verdict.allowed, verdict.rule, verdict.retry_after) == (False, "tokens", None)
    assert used(engine) == [0] * 6


def test_a_refund_gives_everything_back_once(engine: Threaded) -> None:
    verdict = engine.decide({**ACME, "tokens": "731"}, 5)
    assert engine.refund(verdict)
    assert used(engine) == [0] * 6
    engine.decide(ACME)
    assert not engine.refund(verdict)
    assert used(engine) == [1, 1, 1, 1, 1, 0]


def test_a_refund_of_a_refusal_changes_nothing(engine: Threaded) -> None:
    engine.decide(ACME)
    assert not engine.refund(engine.decide({**ACME, "tokens": "1001"}))
    assert used(engine) == [1, 1, 1, 1, 1, 0]


# Columns: what it was in truth; what is counted then. It was asked for 5, tokens 731, bytes 12.
@pytest.mark.parametrize(
    ("actual", "counted"),
    [
        (3, [1, 3, 731, 731, 12, 0]),
        (8, [1, 8, 731, 731, 12, 0]),
        (0, [1, 0, 731, 731, 12, 0]),
        (5, [1, 5, 731, 731, 12, 0]),
        ({"tokens": 700}, [1, 5, 700, 700, 12, 0]),
        ({"tokens": 800}, [1, 5, 800, 800, 12, 0]),
        ({"tokens": 700, "bytes": 20}, [1, 5, 700, 700, 20, 0]),
        ({"tokens": 20, "bytes": 20}, [1, 5, 20, 20, 20, 0]),
        ({"bytes": 0}, [1, 5, 731, 731, 0, 0]),
        ({}, [1, 5, 731, 731, 12, 0]),
    ],
)
def test_settling_corrects_what_was_estimated_and_nothing_else(
    engine: Threaded, actual: int | dict[str, int], counted: list[int]
) -> None:
    verdict = engine.decide({**ACME, "tokens": "731", "bytes": "12"}, 5)
    changed = counted != [1, 5, 731, 731, 12, 0]
    assert engine.settle(verdict, actual) == changed
    assert used(engine) == counted


def test_settling_corrects_an_attribute_that_was_absent(engine: Threaded) -> None:
    """Nobody knew how many tokens it would take: it was charged at the cost of the request."""
    verdict = engine.decide(ACME, 5)
    assert engine.settle(verdict, {"tokens": 731})
    assert used(engine) == [1, 5, 731, 731, 5, 0]


def test_settling_by_a_number_corrects_what_was_charged_at_the_cost_of_the_request(
    engine: Threaded,
) -> None:
    """Also where a rule names an attribute, and the request had none."""
    verdict = engine.decide(ACME, 5)
    assert engine.settle(verdict, 2)
    assert used(engine)[2] == 2


def test_settling_counts_once(engine: Threaded) -> None:
    verdict = engine.decide({**ACME, "tokens": "731"})
    assert engine.settle(verdict, {"tokens": 700})
    assert not engine.settle(verdict, {"tokens": 600})
    assert used(engine) == [1, 1, 700, 700, 1, 0]


def test_settling_one_attribute_leaves_the_others_to_be_settled(engine: Threaded) -> None:
    verdict = engine.decide({**ACME, "tokens": "731", "bytes": "12"}, 5)
    assert engine.settle(verdict, {"tokens": 700})
    assert engine.settle(verdict, {"bytes": 20})
    assert engine.settle(verdict, 3)
    assert used(engine) == [1, 3, 700, 700, 20, 0]


def test_settling_a_refusal_changes_nothing(engine: Threaded) -> None:
    verdict = engine.decide({**ACME, "tokens": "1001"})
    assert not engine.settle(verdict, {"tokens": 700})
    assert not engine.settle(verdict, 3)
    assert used(engine) == [0] * 6


@pytest.mark.parametrize("actual", [-1, 1.5, "3", None, {"tokens": -1}, {"tokens": "3"}])
def test_settling_to_what_is_no_cost_is_an_error(engine: Threaded, actual: int) -> None:
    verdict = engine.decide({**ACME, "tokens": "731"})
    with pytest.raises(InvalidInput, match="whole number"):
        engine.settle(verdict, actual)
    assert used(engine) == [1, 1, 731, 731, 1, 0]


# A program settles every request that it served, and does not know which rules there are today.
CHANGED = {
    "nobody counts tokens any more": "rules: [{name: a, key: [org], limits: 9/day}]",
    "the rule is off": "rules: [{name: a, cost: tokens, limits: 9/day, mode: off}]",
    "the request is exempt": (
        "rules: [{name: a, cost: tokens, limits: 9/day}]\n"
        "exemptions: [{name: e, match: {org: acme}}]"
    ),
    "its plan is unlimited": (
        "rules: [{name: a, cost: tokens, key: [org],"
        " tiers: {by: plan, limits: {}, default: unlimited}}]"
    ),
    "there are no rules": "rules: []",
}


@pytest.mark.parametrize("why", CHANGED)
def test_settling_is_no_error_because_the_rules_changed(make: Make, why: str) -> None:
    engine = make(CHANGED[why])
    verdict = engine.decide({**ACME, "tokens": "5"})
    assert verdict.allowed
    assert not engine.settle(verdict, {"tokens": 3})


def test_what_was_charged_under_old_rules_is_settled_under_new_ones(engine: Threaded) -> None:
    verdict = engine.decide({**ACME, "tokens": "731"})
    engine.use(COSTS.replace("cost: tokens, ", ""))
    assert engine.settle(verdict, {"tokens": 700})
    assert used(engine) == [1, 1, 700, 700, 1, 0]


def test_a_shadow_is_given_back_and_settled_with_the_rest(make: Make) -> None:
    engine = make(
        """\
rules:
  - {name: watched, key: [org], limits: 10/day, mode: shadow}
  - {name: felt, key: [org], limits: 10/day}
"""
    )
    first, second = engine.decide(ACME, 4), engine.decide(ACME, 4)
    assert left(engine, ACME) == {"watched#1": 2, "felt#1": 2}
    assert engine.settle(first, 1)
    assert left(engine, ACME) == {"watched#1": 5, "felt#1": 5}
    assert engine.refund(second)
    assert left(engine, ACME) == {"watched#1": 9, "felt#1": 9}
