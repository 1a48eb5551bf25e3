"""Who gets which limits: tiers, and overrides of single keys."""

from __future__ import annotations

import pytest

from tests.engine.conftest import Make
from tests.engine.drivers import clock_at, left

TIERS = """\
rules:
  - name: search
    key: [user]
    limits: 2/day
    tiers:
      by: plan
      limits: {free: 3/day, pro: [6/day, 8/week], enterprise: unlimited}
      default: 4/day
"""


# Columns: the plan; what each limit has left; the tier that the verdict names.
@pytest.mark.parametrize(
    ("plan", "remaining", "tier"),
    [
        ("free", [3], "free"),
        ("pro", [6, 8], "pro"),
        ("enterprise", [None], "enterprise"),
        ("gold", [4], None),
        ("Free", [4], None),
        ("", [2], None),
        (None, [2], None),
    ],
)
def test_a_tier_has_its_own_limits(
    make: Make, plan: str | None, remaining: list[int | None], tier: str | None
) -> None:
    engine = make(TIERS)
    facts = {"user": "42"} | ({} if plan is None else {"plan": plan})
    parts = engine.peek(facts).parts
    assert [part.remaining for part in parts] == remaining
    assert [part.tier for part in parts] == [tier] * len(remaining)
    asked = [engine.decide(facts).allowed for _ in range(9)]
    least = min((each for each in remaining if each is not None), default=9)
    assert asked == [True] * least + [False] * (9 - least)


def test_who_is_unlimited_is_named_and_not_asked_for(make: Make) -> None:
    verdict = make(TIERS).decide({"user": "42", "plan": "enterprise"})
    [part] = verdict.parts
    assert (part.rule, part.tier, part.allowed, part.limit) == ("search", "enterprise", True, None)
    assert (part.mode, part.retry_after, part.remaining) == ("enforce", 0.0, None)
    assert (verdict.decision, verdict.rule, verdict.retry_after) == (None, None, 0.0)
    assert verdict.receipt is None


def test_without_limits_of_the_rule_the_default_holds_for_who_has_no_tier(make: Make) -> None:
    engine = make(
        """\
rules:
  - name: search
    key: [user]
    tiers: {by: plan, limits: {pro: 6/day}, default: 4/day}
"""
    )
    assert left(engine, {"user": "42"}) == {"search#1": 4}
    assert left(engine, {"user": "42", "plan": "gold"}) == {"search#1": 4}


def test_without_a_default_the_limits_of_the_rule_hold_for_an_unknown_tier(make: Make) -> None:
    engine = make(
        """\
rules:
  - name: search
    key: [user]
    limits: 2/day
    tiers: {by: plan, limits: {pro: 6/day}}
"""
    )
    assert left(engine, {"user": "42", "plan": "gold"}) == {"search#1": 2}
    assert left(engine, {"user": "42"}) == {"search#1": 2}


def test_who_moves_to_another_tier_keeps_what_was_used(make: Make) -> None:
    engine = make(TIERS)
    for _ in range(3):
        engine.decide({"user": "42", "plan": "free"})
    assert left(engine, {"user": "42", "plan": "free"}) == {"search#1": 0}
    assert left(engine, {"user": "42", "plan": "pro"}) == {"search#1": 3, "search#2": 8}
    assert left(engine, {"user": "43", "plan": "free"}) == {"search#1": 3}


OVERRIDES = """\
rules:
  - name: search
    key: [org, user]
    limits: 2/day
    tiers: {by: plan, limits: {pro: 3/day}}
    overrides:
      - key: {user: 42}
        limits: 5/day
        ends: 2026-12-25T12:00Z
      - key: {org: acme, user: 42}
        limits: 7/day
        starts: 2026-12-24
        ends: 2026-12-26
      - key: {org: root}
        limits: unlimited
      - key: {org: closed}
        limits: 9/day
        starts: 2027-01-01
      - key: {org: closed}
        limits: 8/day
"""

# Columns: what day and hour it is; org and user; what is left; whether it is the key's own.
AT = [
    ("2026-12-23T12:00", "acme", "42", 5, True),
    ("2026-12-24T00:00", "acme", "42", 7, True),
    ("2026-12-25T23:59", "acme", "42", 7, True),
    ("2026-12-26T00:00", "acme", "42", 2, False),
    ("2026-12-25T11:59", "other", "42", 5, True),
    ("2026-12-25T12:00", "other", "42", 2, False),
    ("2026-12-25T11:59", "acme", "43", 2, False),
    ("2026-12-25T11:59", "root", "43", None, True),
    ("2026-12-31T23:59", "closed", "43", 8, True),
    ("2027-01-01T00:00", "closed", "43", 9, True),
]


@pytest.mark.parametrize(("when", "org", "user", "remaining", "is_override"), AT)
def test_an_override_holds_for_its_keys_and_its_time(
    make: Make, when: str, org: str, user: str, remaining: int | None, is_override: bool
) -> None:
    engine = make(OVERRIDES, clock=clock_at(when))
    [part] = engine.decide({"org": org, "user": user}, 0).parts
    assert (part.remaining, part.is_override, part.tier) == (remaining, is_override, None)


def test_an_override_beats_the_tier(make: Make) -> None:
    engine = make(OVERRIDES, clock=clock_at("2026-12-24T00:00"))
    facts = {"org": "acme", "user": "42", "plan": "pro"}
    assert left(engine, facts) == {"search#1": 7}
    assert left(engine, {**facts, "user": "43"}) == {"search#1": 3}


def test_an_override_beats_the_variant(make: Make) -> None:
    engine = make(
        """\
rules:
  - name: search
    key: [user]
    limits: 2/day
    variants: [{percent: 100, limits: 9/day}]
    overrides: [{key: {user: 42}, limits: 5/day}]
"""
    )
    assert left(engine, {"user": "42"}) == {"search#1": 5}
    assert left(engine, {"user": "43"}) == {"search#1": 9}


def test_when_an_override_ends_what_was_used_stays_used(make: Make) -> None:
    clock = clock_at("2026-12-25T11:59")
    engine = make(OVERRIDES, clock=clock)
    facts = {"org": "other", "user": "42"}
    for _ in range(4):
        assert engine.decide(facts).allowed
    clock.advance(60)
    verdict = engine.decide(facts)
    assert (verdict.allowed, verdict.parts[0].is_override) == (False, False)


def test_of_two_overrides_that_name_as_many_attributes_the_first_in_the_file_holds(
    make: Make,
) -> None:
    engine = make(OVERRIDES, clock=clock_at("2026-12-25T11:59"))
    assert left(engine, {"org": "root", "user": "42"}) == {"search#1": 5}
