"""Several descriptions of one request: decided all or nothing, and charged once in each place."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from limen import Limiter
from limen.engine.asked import Asked, ask, together
from limen.engine.verdict import Verdict
from limen.errors import InvalidInput
from limen.model import MAX_COST
from limen.rules import parse_text
from limen.rules.ruleset import MAX_CHECKS

RULES = parse_text(
    """
rules:
  - {name: user, key: [user], limits: [5/day, 9/week]}
  - {name: path, key: [path], limits: 3/day}
  - {name: never, match: {agent: robot}, mode: block}
  - {name: seen, key: [seen], limits: 1/day, mode: shadow}
exemptions:
  - {name: friends, match: {user: friend}}
"""
)


def asked(facts: Mapping[str, str], cost: int = 1) -> Asked:
    return ask(RULES, facts, cost, 10**18, slots=False)


class Decider:
    """Decides in memory."""

    def __init__(self) -> None:
        self._limiter = Limiter()

    def __call__(self, *several: Asked) -> Verdict:
        whole = together(several)
        decision = self._limiter.decide(*whole.checks) if whole.checks else None
        return whole.verdict(decision)


def test_one_alone_is_as_if_it_were_alone() -> None:
    one = asked({"user": "1"}, 2)
    whole = together([one])
    assert whole.whole.found is one.found
    assert list(whole.checks) == one.checks
    assert whole.order is None
    assert [part.remaining for part in Decider()(one).parts] == [3, 7]


def test_parts_stand_in_the_order_of_those_who_asked() -> None:
    verdict = Decider()(asked({"path": "/"}), asked({"user": "1"}), asked({"user": "2"}, 2))
    assert [(part.name, part.key, part.remaining) for part in verdict.parts] == [
        ("path#1", "path=/", 2),
        ("user#1", "user=1", 4),
        ("user#2", "user=1", 8),
        ("user#1", "user=2", 3),
        ("user#2", "user=2", 7),
    ]


def test_what_two_count_in_one_place_is_charged_in_one_sum() -> None:
    whole = together([asked({"user": "1"}, 2), asked({"path": "/"}), asked({"user": "1"}, 3)])
    assert [(check.key, check.cost) for check in whole.checks] == [
        ("user=1", 5),
        ("user=1", 5),
        ("path=/", 1),
    ]
    assert whole.order == (0, 1, 2, 0, 1)
    decide = Decider()
    verdict = decide(asked({"user": "1"}, 2), asked({"path": "/"}), asked({"user": "1"}, 3))
    assert [part.remaining for part in verdict.parts] == [0, 4, 2, 0, 4]
    assert not decide(asked({"user": "2"}, 3), asked({"user": "2"}, 3)).allowed
    assert [part.remaining for part in decide(asked({"user": "2"}, 0)).parts] == [5, 9]


def test_a_refusal_of_one_charges_none() -> None:
    decide = Decider()
    decide(asked({"path": "/"}, 3))
    verdict = decide(asked({"user": "1"}), asked({"path": "/"}))
    assert (verdict.allowed, verdict.rule) == (False, "path")
    assert [(part.name, part.allowed) for part in verdict.parts] == [
        ("user#1", True),
        ("user#2", True),
        ("path#1", False),
    ]
    assert [part.remaining for part in decide(asked({"user": "1"}, 0)).parts] == [5, 9]


def test_a_block_of_one_asks_nobody() -> None:
    whole = together([asked({"user": "1"}), asked({"agent": "robot"})])
    assert whole.checks == ()
    verdict = whole.verdict(None)
    assert (verdict.allowed, verdict.rule) == (False, "never")


def test_exemptions_of_one_spare_no_other() -> None:
    verdict = Decider()(asked({"user": "friend"}), asked({"user": "1"}))
    assert verdict.exempt == ("friends",)
    assert [part.key for part in verdict.parts] == ["user=1", "user=1"]


def test_shadows_have_no_say() -> None:
    decide = Decider()
    for _ in range(3):
        verdict = decide(asked({"seen": "x"}), asked({"seen": "x"}))
        assert verdict.allowed
        assert verdict.binding is None


def test_nothing_costs_more_than_anything_may() -> None:
    whole = together([asked({"path": "/"}, MAX_COST)] * 3)
    assert [check.cost for check in whole.checks] == [MAX_COST]


def test_more_than_one_call_takes_is_too_much() -> None:
    many = [asked({"path": str(number)}) for number in range(MAX_CHECKS)]
    assert len(together(many).checks) == MAX_CHECKS
    assert len(together([*many, many[0]]).checks) == MAX_CHECKS
    with pytest.raises(InvalidInput, match="at most 100 limits fit on one request, got 101"):
        together([*many, asked({"path": "one more"})])
