"""Several rules on one request: all or nothing, who binds, and what the verdict tells."""

from __future__ import annotations

import pickle

import pytest

from limen.errors import InvalidInput
from limen.rules import parse_text
from tests.engine.conftest import Make
from tests.engine.drivers import answers, left

SEVERAL = """\
rules:
  - {name: everybody, limits: 50/day}
  - {name: per-user, key: [user], limits: [5/day, 20/week token_bucket]}
  - {name: per-path, match: {path: /s*}, key: [user, path], limits: 2/day fixed_window}
  - {name: elsewhere, match: {path: /x}, limits: 1/day}
"""
SEARCH = {"user": "42", "path": "/search"}


def test_a_refusal_by_one_charges_none(make: Make) -> None:
    engine = make(SEVERAL)
    # The day of a fixed window may end meanwhile, in 2 of 86,400 seconds: then the first of the
    # new day is not refused.
    assert answers(engine, 4, SEARCH) == [True, True, False, False]
    assert left(engine, SEARCH) == {
        "everybody#1": 48,
        "per-user#1": 3,
        "per-user#2": 18,
        "per-path#1": 0,
    }


def test_the_first_rule_refuses_for_the_last_too(make: Make) -> None:
    engine = make(SEVERAL)
    assert not engine.decide(SEARCH, 51).allowed
    assert left(engine, SEARCH) == {
        "everybody#1": 50,
        "per-user#1": 5,
        "per-user#2": 20,
        "per-path#1": 2,
    }


def test_parts_stand_in_the_order_of_the_file_with_all_that_was_said(make: Make) -> None:
    verdict = make(SEVERAL).decide(SEARCH, 2)
    assert [
        (part.rule, part.name, str(part.limit), part.key, part.cost, part.remaining)
        for part in verdict.parts
    ] == [
        ("everybody", "everybody#1", "50/day", "@everybody", 2, 48),
        ("per-user", "per-user#1", "5/day", "user=42", 2, 3),
        ("per-user", "per-user#2", "20/week token_bucket", "user=42", 2, 18),
        ("per-path", "per-path#1", "2/day fixed_window", "user=42|path=/search", 2, 0),
    ]
    assert [(part.mode, part.allowed, part.retry_after) for part in verdict.parts] == [
        ("enforce", True, 0.0)
    ] * 4


# Columns: who asks and at what cost; whether it is allowed; the rule and the limit that bind.
@pytest.mark.parametrize(
    ("facts", "cost", "allowed", "rule", "limit"),
    [
        ({}, 1, True, "everybody", "50/day"),
        ({"user": "42"}, 1, True, "per-user", "5/day"),
        (SEARCH, 1, True, "per-path", "2/day fixed_window"),
        (SEARCH, 3, False, "per-path", "2/day fixed_window"),
        (SEARCH, 6, False, "per-user", "5/day"),
        ({}, 51, False, "everybody", "50/day"),
    ],
)
def test_the_binding_rule_is_named(
    make: Make, facts: dict[str, str], cost: int, allowed: bool, rule: str, limit: str
) -> None:
    verdict = make(SEVERAL).decide(facts, cost)
    assert (verdict.allowed, verdict.rule, str(verdict.limit)) == (allowed, rule, limit)
    assert bool(verdict) == allowed
    assert verdict.retry_after == (0.0 if allowed else None)


def test_of_several_refusals_the_longest_to_wait_for_binds(make: Make) -> None:
    engine = make(
        """\
rules:
  - {name: day, key: [user], limits: 1/day}
  - {name: week, key: [user], limits: [1/week, 1/hour]}
  - {name: minute, key: [user], limits: 1/minute}
"""
    )
    answers(engine, 1, SEARCH)
    verdict = engine.decide(SEARCH)
    assert (verdict.rule, str(verdict.limit)) == ("week", "1/week")
    assert verdict.retry_after == pytest.approx(604_800, abs=60)
    waits = [part.retry_after for part in verdict.parts]
    assert waits == pytest.approx([86_400, 604_800, 3_600, 60], abs=30)


def test_a_second_limit_of_the_same_period_is_named_after_its_rule(make: Make) -> None:
    engine = make("rules: [{name: twice, key: [user], limits: [9/day, 1/day]}]")
    assert engine.decide(SEARCH).rule == "twice"
    verdict = engine.decide(SEARCH)
    assert (verdict.allowed, verdict.rule, str(verdict.limit)) == (False, "twice", "1/day")
    assert left(engine, SEARCH) == {"twice#1": 8, "twice#2": 0}


def test_a_leaky_bucket_delays_all_of_it(make: Make) -> None:
    engine = make(
        """\
rules:
  - {name: smooth, key: [user], limits: 10/day leaky_bucket}
  - {name: strict, key: [user], limits: 2/day}
"""
    )
    delays = [engine.decide(SEARCH).delay for _ in range(3)]
    assert delays == pytest.approx([0, 8_640, 0], abs=10)


def test_a_request_without_rules_is_allowed_by_nobody(make: Make) -> None:
    engine = make("rules: []")
    verdict = engine.decide(SEARCH)
    assert (verdict.allowed, verdict.rule, verdict.parts) == (True, None, ())
    assert (verdict.limit, verdict.remaining, verdict.reset_after) == (None, None, 0.0)
    assert (verdict.retry_after, verdict.delay, verdict.degraded) == (0.0, 0.0, False)
    assert not engine.refund(verdict)
    assert not engine.settle(verdict, 5)


def test_a_peek_says_what_decide_would_say_and_charges_nothing(make: Make) -> None:
    engine = make(SEVERAL)
    for _ in range(3):
        peeked = [engine.peek(SEARCH) for _ in range(3)]
        decided = engine.decide(SEARCH)
        for verdict in peeked:
            assert verdict.allowed == decided.allowed
            assert verdict.allowed or verdict.rule == decided.rule == "per-path"
            assert [part.rule for part in verdict.parts] == [part.rule for part in decided.parts]
            assert verdict.receipt is None


def test_the_version_of_the_rules_stands_in_the_verdict(make: Make) -> None:
    engine = make(SEVERAL)
    assert engine.decide(SEARCH).version == engine.version == parse_text(SEVERAL).version
    engine.use(parse_text("rules: []", version="7"))
    assert engine.decide(SEARCH).version == "7"


def test_a_verdict_and_a_refusal_travel_between_processes(make: Make) -> None:
    verdict = make(SEVERAL).decide(SEARCH, 3)
    copy = pickle.loads(pickle.dumps(verdict))
    assert (copy.rule, copy.retry_after, copy.version) == ("per-path", None, verdict.version)
    assert copy.parts == verdict.parts


def test_no_key_stands_in_what_is_printed(make: Make) -> None:
    verdict = make(SEVERAL).decide({"user": "secret", "path": "/search"})
    for printed in (repr(verdict), repr(verdict.parts)):
        assert "secret" not in printed


def test_attributes_that_are_not_text_charge_nobody(make: Make) -> None:
    engine = make(SEVERAL)
    for ask in (engine.decide, engine.peek, engine.slot):
        with pytest.raises(InvalidInput, match="the attribute 'user' must be text, got int"):
            ask({"user": 42, "path": "/search"})  # type: ignore[dict-item]  # that is the point
    assert left(engine, {}) == {"everybody#1": 50}


@pytest.mark.parametrize(
    "spellings",
    [
        ("10.0.0.1", "::ffff:10.0.0.1", "::FFFF:0a00:1"),
        ("2001:db8::1", "2001:DB8:0:0::1", "2001:0db8:0000:0000:0000:0000:0000:0001"),
    ],
)
def test_one_address_is_counted_once_however_it_is_spelt(
    make: Make, spellings: tuple[str, ...]
) -> None:
    rule = "{name: per-ip, key: [ip], limits: 3/day, overrides: [{key: {ip: IP}, limits: 9/day}]}"
    for override in spellings:
        engine = make(f"rules: [{rule.replace('IP', repr(override))}]")
        before = engine.peek({"ip": spellings[0]}, 0).remaining
        assert before is not None
        left_over = [engine.decide({"ip": ip}).remaining for ip in spellings]
        assert left_over == [before - 1, before - 2, before - 3]
        assert engine.peek({"ip": "10.0.0.2"}).remaining == 3


HOSTILE = ["|", "%7C", "a|path=/search", "{", "}", "{x}", "a\nb", "é", "𝄞", "\ud800", "x" * 5_000]


@pytest.mark.parametrize("user", HOSTILE, ids=lambda user: user[:8].encode("unicode_escape"))
def test_whatever_a_key_holds_it_is_counted_for_itself(make: Make, user: str) -> None:
    engine = make(SEVERAL)
    others = [other for other in HOSTILE if other != user]
    assert answers(engine, 3, {"user": user, "path": "/search"}) == [True, True, False]
    for other in others[:4]:
        facts = {"user": other, "path": "/search"}
        assert left(engine, facts)["per-path#1"] == 2


def many(count: int, last: str = "") -> str:
    lines = [f"  - {{name: r{n}, key: [user], limits: 9/day}}\n" for n in range(count)]
    return "rules:\n" + "".join(lines) + last


def test_a_hundred_limits_are_decided_together(make: Make) -> None:
    engine = make(many(100))
    verdict = engine.decide(SEARCH)
    assert [part.remaining for part in verdict.parts] == [8] * 100
    assert verdict.not_applicable == ()


def test_what_does_not_fit_on_a_request_is_named_and_the_rest_holds(make: Make) -> None:
    last = (
        "  - {name: two, key: [user], limits: [1/day, 2/day]}\n"
        "  - {name: one, key: [user], limits: 1/day}\n"
        "  - {name: none, key: [user], limits: 1/day}\n"
    )
    engine = make(many(99, last))
    verdicts = [engine.decide(SEARCH) for _ in range(2)]
    assert [verdict.allowed for verdict in verdicts] == [True, False]
    assert verdicts[0].not_applicable == ("two", "none")
    assert len(verdicts[0].parts) == 100
    assert verdicts[1].rule == "one"
    assert left(engine, SEARCH)["r0#1"] == 8


def test_a_block_holds_however_many_limits_stand_before_it(make: Make) -> None:
    engine = make(many(120, "  - {name: closed, mode: block}\n"))
    assert engine.decide(SEARCH).rule == "closed"
