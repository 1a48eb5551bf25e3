"""Rules that change: which counters survive, and one version for each request."""

from __future__ import annotations

from itertools import count

import pytest

from limen.rules import parse
from tests.engine.conftest import Make
from tests.engine.drivers import answers, left

ONE = "rules: [{name: api, key: [user], limits: 5/day}]"
FACTS = {"user": "42", "org": "acme", "plan": "pro"}

# What is put in force after 3 of 5 a day were used, and what each limit has left then.
KEPT = {
    "nothing changed": (ONE, {"api#1": 2}),
    "more": ("rules: [{name: api, key: [user], limits: 10/day}]", {"api#1": 7}),
    "less": ("rules: [{name: api, key: [user], limits: 3/day}]", {"api#1": 0}),
    "another before it": (
        "rules: [{name: api, key: [user], limits: [9/hour, 5/day]}]",
        {"api#1": 9, "api#2": 2},
    ),
    "another after it": (
        "rules: [{name: api, key: [user], limits: [5/day, 9/hour]}]",
        {"api#1": 2, "api#2": 9},
    ),
    "moved": (
        "rules: [{name: a, key: [user], limits: 1/day}, {name: api, key: [user], limits: 5/day}]",
        {"a#1": 1, "api#1": 2},
    ),
    "the period in other words": (
        "rules: [{name: api, key: [user], limits: 5 per 24 hours}]",
        {"api#1": 2},
    ),
    "the algorithm by name": (
        "rules: [{name: api, key: [user], algorithm: packed_window, limits: 5/day}]",
        {"api#1": 2},
    ),
    "match": (
        "rules: [{name: api, match: {user: '4*'}, key: [user], limits: 5/day}]",
        {"api#1": 2},
    ),
    "shadow": ("rules: [{name: api, key: [user], limits: 5/day, mode: shadow}]", {"api#1": 2}),
    "a tier": (
        "rules: [{name: api, key: [user],"
        " tiers: {by: plan, limits: {pro: 9/day}, default: 1/day}}]",
        {"api#1": 6},
    ),
    "an override": (
        "rules: [{name: api, key: [user], limits: 5/day,"
        " overrides: [{key: {user: 42}, limits: 8/day}]}]",
        {"api#1": 5},
    ),
    "a variant of other limits": (
        "rules: [{name: api, key: [user], limits: 5/day,"
        " variants: [{percent: 100, limits: 8/day}]}]",
        {"api#1": 5},
    ),
    "cost, on_error and description": (
        "rules: [{name: api, key: [user], limits: 5/day, cost: 2, on_error: open, description: x}]",
        {"api#1": 2},
    ),
    "a slot beside it": (
        "rules: [{name: api, key: [user], limits: 5/day, concurrency: {slots: 1, lease: 60}}]",
        {"api#1": 1, "api#2": 2},
    ),
}
AFRESH = {
    "the name": ("rules: [{name: other, key: [user], limits: 5/day}]", {"other#1": 5}),
    "the key": ("rules: [{name: api, key: [org], limits: 5/day}]", {"api#1": 5}),
    "more of a key": ("rules: [{name: api, key: [user, org], limits: 5/day}]", {"api#1": 5}),
    "no key": ("rules: [{name: api, limits: 5/day}]", {"api#1": 5}),
    "the algorithm": (
        "rules: [{name: api, key: [user], limits: 5/day fixed_window}]",
        {"api#1": 5},
    ),
    "the rule's algorithm": (
        "rules: [{name: api, key: [user], algorithm: token_bucket, limits: 5/day}]",
        {"api#1": 5},
    ),
    "the period": ("rules: [{name: api, key: [user], limits: 5/week}]", {"api#1": 5}),
    "a variant by another algorithm": (
        "rules: [{name: api, key: [user], limits: 5/day,"
        " variants: [{percent: 100, algorithm: token_bucket}]}]",
        {"api#1": 5},
    ),
}


@pytest.mark.parametrize("change", KEPT)
def test_counters_survive_a_change_of(make: Make, change: str) -> None:
    rules, expected = KEPT[change]
    engine = make(ONE)
    assert answers(engine, 3, FACTS) == [True] * 3
    engine.use(rules)
    assert left(engine, FACTS) == expected
    engine.use(ONE)
    assert left(engine, FACTS) == {"api#1": 2}


@pytest.mark.parametrize("change", AFRESH)
def test_counters_start_afresh_with(make: Make, change: str) -> None:
    rules, expected = AFRESH[change]
    engine = make(ONE)
    assert answers(engine, 3, FACTS) == [True] * 3
    engine.use(rules)
    assert left(engine, FACTS) == expected
    # And who goes back finds what was there.
    engine.use(ONE)
    assert left(engine, FACTS) == {"api#1": 2}


def test_slots_survive_a_change_of_their_number(make: Make) -> None:
    text = "rules: [{{name: exports, key: [user], concurrency: {{slots: {0}, lease: 60}}}}]"
    engine = make(text.format(1))
    with engine.slot(FACTS):
        assert not engine.peek(FACTS).allowed
        engine.use(text.format(2))
        with engine.slot(FACTS) as second:
            assert second.verdict is not None
            assert second.verdict.remaining == 0


def test_a_set_that_cannot_be_read_leaves_the_rules_in_force(make: Make) -> None:
    engine = make(ONE)
    with pytest.raises(ValueError, match="unknown field 'limit'"):
        engine.use("rules: [{name: api, key: [user], limit: 9/day}]")
    assert left(engine, FACTS) == {"api#1": 5}


def test_every_verdict_is_wholly_by_one_version_while_rules_change(make: Make) -> None:
    """Each version has its own number of rules, of limits and of quota: a mixture would show."""
    sets = [
        parse(
            {
                "rules": [
                    {
                        "name": f"rule-{n}-of-{version}",
                        "key": ["user"],
                        "limits": f"{version}00/day",
                    }
                    for n in range(version)
                ]
            },
            version=str(version),
        )
        for version in (1, 2, 3, 5, 8)
    ]
    engine = make("rules: []")
    turns = count()
    engine.use(sets[0])

    def change() -> None:
        engine.use(sets[next(turns) % len(sets)])

    verdicts = engine.decide_all([{"user": str(n % 50)} for n in range(600)], change)
    assert len(verdicts) == 600
    for verdict in verdicts:
        version = int(verdict.version)
        names = [f"rule-{n}-of-{version}" for n in range(version)]
        assert [part.rule for part in verdict.parts] == names
        assert [part.limit.quota for part in verdict.parts if part.limit] == [
            100 * version
        ] * version
        assert verdict.rule in names
        assert verdict.decision is not None
        assert len(verdict.decision.parts) == version
    assert len({verdict.version for verdict in verdicts}) == len(sets)
