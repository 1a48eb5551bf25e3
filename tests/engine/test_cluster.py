"""Rules on a cluster: several subjects on several nodes, all or nothing, and slots."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from redis.crc import key_slot

from limen.engine import RequestRefused
from tests.conformance.stores import Store
from tests.engine.drivers import Threaded, answers, left
from tests.servers import SLOTS

NODES = 3
RULES = """\
rules:
  - {name: per-user, key: [user], limits: [5/day, 9/week]}
  - {name: per-user-and-path, key: [user, path], limits: 2/day}
  - {name: per-ip, key: [ip], limits: 4/day token_bucket}
  - {name: per-org, key: [org], limits: 3/day, mode: shadow}
  - {name: exports, match: {path: /export}, key: [user], concurrency: {slots: 2, lease: 60}}
  - {name: lines, match: {path: /export}, key: [ip], concurrency: {slots: 1, lease: 60}}
"""


def value_on(node: int, name: str) -> str:
    """Return a value of an attribute that lives on a node."""
    for number in count():
        if key_slot(f"{name}={number}".encode()) * NODES // SLOTS == node:
            return str(number)
    raise AssertionError


APART = {
    "user": value_on(0, "user"),
    "ip": value_on(1, "ip"),
    "org": value_on(2, "org"),
    "path": "/search",
}
EXPORT = {**APART, "path": "/export"}


@pytest.fixture
def engine(make_on: Callable[..., Threaded], cluster: Store) -> Threaded:
    return make_on(cluster, RULES)


def test_subjects_on_three_nodes_are_decided_together(engine: Threaded) -> None:
    verdict = engine.decide(APART)
    assert verdict.allowed
    assert [(part.name, part.remaining) for part in verdict.parts] == [
        ("per-user#1", 4),
        ("per-user#2", 8),
        ("per-user-and-path#1", 1),
        ("per-ip#1", 3),
        ("per-org#1", 2),
    ]


# Whose quota is used up first, by requests that share nothing else with the one that is refused.
@pytest.mark.parametrize(("attribute", "rule"), [("ip", "per-ip"), ("user", "per-user")])
def test_a_refusal_on_one_node_charges_none(engine: Threaded, attribute: str, rule: str) -> None:
    for number in range(5):
        others = {name: f"{name}-{number}" for name in APART}
        engine.decide({**others, attribute: APART[attribute]})
    untouched = left(engine, APART)
    verdict = engine.decide(APART)
    assert (verdict.allowed, verdict.rule) == (False, rule)
    assert left(engine, APART) == untouched


def test_a_shadow_on_another_node_refuses_nobody_and_counts(engine: Threaded) -> None:
    found = [engine.decide({**APART, "user": f"u{n}", "ip": f"i{n}"}) for n in range(4)]
    assert [verdict.allowed for verdict in found] == [True] * 4
    shadows = [verdict.parts[-1] for verdict in found]
    assert [(part.rule, part.allowed, part.remaining) for part in shadows] == [
        ("per-org", True, 2),
        ("per-org", True, 1),
        ("per-org", True, 0),
        ("per-org", False, 0),
    ]


def test_a_refund_reaches_every_node(engine: Threaded) -> None:
    whole = left(engine, APART)
    verdict = engine.decide(APART, 2)
    assert engine.settle(verdict, 1)
    assert [part.remaining for part in engine.peek(APART).parts] == [4, 8, 1, 3, 2]
    second = engine.decide(APART)
    assert engine.refund(second)
    assert [part.remaining for part in engine.peek(APART).parts] == [4, 8, 1, 3, 2]
    assert list(whole.values()) == [5, 9, 2, 4, 3]


def test_slots_on_two_nodes_are_held_together_or_not_at_all(engine: Threaded) -> None:
    elsewhere = {**EXPORT, "ip": "i"}
    with engine.slot(EXPORT):
        assert left(engine, EXPORT)["exports#1"] == 1
        assert left(engine, EXPORT)["lines#1"] == 0
        before = left(engine, EXPORT)
        with pytest.raises(RequestRefused, match="refused by rule lines"):
            engine.slot(EXPORT).__enter__()
        # The place on the user's node was given back, and nothing charged.
        assert left(engine, EXPORT) == before
        with engine.slot(elsewhere):
            assert left(engine, EXPORT)["exports#1"] == 0
    assert left(engine, EXPORT)["exports#1"] == 2
    assert left(engine, EXPORT)["lines#1"] == 1


def test_counters_survive_a_change_of_rules(engine: Threaded) -> None:
    assert answers(engine, 2, APART) == [True, True]
    engine.use(RULES.replace("5/day", "50/day").replace("2/day", "20/day"))
    found = left(engine, APART)
    assert (found["per-user#1"], found["per-user-and-path#1"]) == (48, 18)
