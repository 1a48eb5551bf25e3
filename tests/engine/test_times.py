"""Rules and exemptions that begin and end; blocks, and keys that are missing."""

from __future__ import annotations

import pytest

from tests.engine.conftest import Make
from tests.engine.drivers import answers, clock_at, left

SALE = """\
rules:
  - name: always
    key: [user]
    limits: 9/day
  - name: sale
    key: [user]
    limits: 2/day
    starts: 2026-11-27
    ends: 2026-11-30T18:00+02:00
"""


@pytest.mark.parametrize(
    ("when", "rules"),
    [
        ("2026-11-26T23:59", ["always"]),
        ("2026-11-27T00:00", ["always", "sale"]),
        ("2026-11-30T15:59", ["always", "sale"]),
        ("2026-11-30T16:00", ["always"]),
    ],
)
def test_a_temporary_rule_is_there_from_its_start_until_before_its_end(
    make: Make, when: str, rules: list[str]
) -> None:
    verdict = make(SALE, clock=clock_at(when)).decide({"user": "42"})
    assert [part.rule for part in verdict.parts] == rules


def test_a_rule_comes_and_goes_while_the_engine_runs(make: Make) -> None:
    clock = clock_at("2026-11-26T23:59")
    engine = make(SALE, clock=clock)
    assert answers(engine, 3, {"user": "42"}) == [True] * 3
    clock.advance(60)
    assert answers(engine, 3, {"user": "42"}) == [True, True, False]
    clock.advance(4 * 86_400)
    assert answers(engine, 2, {"user": "42"}) == [True, True]
    assert left(engine, {"user": "42"}) == {"always#1": 2}


BLOCKS = """\
rules:
  - {name: counted, key: [user], limits: 9/day}
  - {name: bad-network, match: {ip: [203.0.113.0/24, "2001:db8:bad::/48"]}, mode: block}
  - name: pause
    match: {path: /import/*}
    key: [user]
    mode: block
    starts: 2026-12-24
    ends: 2026-12-24T00:05Z
  - {name: longer, match: {path: /import/all}, mode: block, ends: 2026-12-24T01:00Z}
"""


# Columns: the attributes; the rule that refuses; when to come back. It is the first second of the
# 24th.
@pytest.mark.parametrize(
    ("facts", "rule", "retry_after"),
    [
        ({"ip": "203.0.113.9"}, "bad-network", None),
        ({"ip": "::ffff:203.0.113.9"}, "bad-network", None),
        ({"ip": "2001:db8:bad:1::1"}, "bad-network", None),
        ({"path": "/import/x"}, "pause", 300.0),
        ({"path": "/import/all"}, "longer", 3_600.0),
        ({"path": "/import/all", "ip": "203.0.113.9"}, "bad-network", None),
    ],
)
def test_a_block_refuses_without_counting_and_says_when_it_ends(
    make: Make, facts: dict[str, str], rule: str, retry_after: float | None
) -> None:
    engine = make(BLOCKS, clock=clock_at("2026-12-24T00:00"))
    verdict = engine.decide({"user": "42", **facts})
    assert (verdict.allowed, verdict.rule, verdict.retry_after) == (False, rule, retry_after)
    assert (verdict.decision, verdict.receipt, verdict.source) == (None, None, "store")
    assert all((part.mode, part.reason) == ("block", "blocked") for part in verdict.parts)
    assert left(engine, {"user": "42"}) == {"counted#1": 9}


def test_every_block_says_when_it_ends_itself(make: Make) -> None:
    engine = make(BLOCKS, clock=clock_at("2026-12-24T00:00"))
    verdict = engine.decide({"user": "42", "path": "/import/all", "ip": "203.0.113.9"})
    assert {part.rule: part.retry_after for part in verdict.parts} == {
        "bad-network": None,
        "pause": 300.0,
        "longer": 3_600.0,
    }


def test_a_block_lets_pass_when_it_has_ended_or_not_yet_begun(make: Make) -> None:
    clock = clock_at("2026-12-23T23:59")
    engine = make(BLOCKS, clock=clock)
    facts = {"user": "42", "path": "/import/x"}
    found = []
    for _ in range(3):
        found.append(engine.decide(facts).allowed)
        clock.advance(181)
    assert found == [True, False, True]


def test_a_block_for_a_share_of_the_keys_is_a_shadow_for_the_rest(make: Make) -> None:
    engine = make(
        "rules: [{name: b, key: [user], mode: block, enforce_percent: 50, ends: 2026-12-25}]",
        clock=clock_at("2026-12-24T00:00"),
    )
    found = [engine.decide({"user": str(n)}) for n in range(40)]
    by_mode = {(verdict.parts[0].mode, verdict.allowed) for verdict in found}
    assert by_mode == {("block", False), ("shadow", True)}
    shadow = next(verdict for verdict in found if verdict.allowed)
    [part] = shadow.parts
    assert (part.allowed, part.reason, part.retry_after) == (False, "blocked", 86_400.0)
    assert (shadow.rule, shadow.retry_after) == (None, 0.0)


MISSING = """\
rules:
  - {name: skips, key: [org, user], limits: 2/day}
  - {name: denies, match: {path: /login}, key: [account], missing: deny, limits: 2/day,
     ends: 2099-01-01}
  - {name: watches, match: {path: /login}, key: [device], missing: deny, limits: 1/day,
     mode: shadow}
"""


# Columns: the attributes; who refuses; and which rules have a part.
@pytest.mark.parametrize(
    ("facts", "rule", "parts"),
    [
        ({"org": "acme"}, None, []),
        ({"org": "acme", "user": "42"}, "skips", ["skips"]),
        ({"path": "/login", "account": "a", "device": "d"}, "denies", ["denies", "watches"]),
        ({"path": "/login", "account": "a"}, "denies", ["denies", "watches"]),
    ],
)
def test_a_missing_key_skips_the_rule_and_a_shadow_only_reports_it(
    make: Make, facts: dict[str, str], rule: str | None, parts: list[str]
) -> None:
    verdict = make(MISSING).decide(facts)
    assert (verdict.allowed, verdict.rule) == (True, rule)
    assert [part.rule for part in verdict.parts] == parts


@pytest.mark.parametrize("account", [{}, {"account": ""}])
def test_a_missing_key_denies_where_it_must_be_there(make: Make, account: dict[str, str]) -> None:
    engine = make(MISSING)
    verdict = engine.decide({"path": "/login", "org": "acme", "user": "42", **account})
    assert (verdict.allowed, verdict.rule, verdict.retry_after) == (False, "denies", None)
    assert [(part.rule, part.mode, part.allowed, part.reason) for part in verdict.parts] == [
        ("denies", "enforce", False, "missing"),
        ("watches", "shadow", False, "missing"),
    ]
    assert left(engine, {"org": "acme", "user": "42"}) == {"skips#1": 2}


def test_a_cost_that_must_be_there_denies_when_it_is_missing(make: Make) -> None:
    engine = make("rules: [{name: tokens, key: [org], missing: deny, cost: tokens, limits: 9/day}]")
    verdict = engine.decide({"org": "acme"})
    assert (verdict.allowed, verdict.rule, verdict.retry_after) == (False, "tokens", None)
    assert [part.reason for part in verdict.parts] == ["missing"]
    assert engine.decide({"org": "acme", "tokens": "2"}).remaining == 7


EXEMPTIONS = """\
rules:
  - {name: per-ip, key: [ip], limits: 1/day}
  - {name: per-user, key: [user], limits: 1/day}
  - {name: closed, match: {path: /closed}, mode: block}
exemptions:
  - {name: office, match: {ip: [10.0.0.0/8, "2001:db8::/32", 192.0.2.7]}}
  - {name: root, match: {user: [root, "ops-*"]}}
  - {name: partner, match: {api_key: k-123}, rules: [per-ip]}
  - {name: both, match: {api_key: k-123, user: u-7}, rules: [per-user]}
  - {name: launch, match: {path: /launch}, starts: 2026-12-24, ends: 2026-12-25}
"""


# Columns: the attributes; the exemptions; the rules that are left.
@pytest.mark.parametrize(
    ("facts", "exempt", "rules"),
    [
        ({"ip": "10.9.9.9"}, ["office"], []),
        ({"ip": "::ffff:10.9.9.9"}, ["office"], []),
        ({"ip": "::FFFF:0A09:0909"}, ["office"], []),
        ({"ip": "2001:db8:1::1"}, ["office"], []),
        ({"ip": "192.0.2.7"}, ["office"], []),
        ({"ip": "192.0.2.8"}, [], ["per-ip"]),
        ({"ip": "2001:db9::1"}, [], ["per-ip"]),
        ({"ip": "10.9.9"}, [], ["per-ip"]),
        ({"ip": "10.9.9.9:80"}, [], ["per-ip"]),
        ({"user": "root"}, ["root"], []),
        ({"user": "ops-7"}, ["root"], []),
        ({"user": "rooty"}, [], ["per-user"]),
        ({"user": "u", "ip": "1.1.1.1", "api_key": "k-123"}, ["partner"], ["per-user"]),
        ({"user": "u-7", "ip": "1.1.1.1", "api_key": "k-123"}, ["partner", "both"], []),
        ({"user": "u-7", "ip": "1.1.1.1"}, [], ["per-ip", "per-user"]),
        ({"user": "u", "path": "/launch"}, ["launch"], []),
        ({"path": "/closed", "ip": "10.1.1.1"}, ["office"], []),
    ],
)
def test_who_is_exempt_is_under_no_rule_or_not_under_some(
    make: Make, facts: dict[str, str], exempt: list[str], rules: list[str]
) -> None:
    engine = make(EXEMPTIONS, clock=clock_at("2026-12-24T12:00"))
    verdict = engine.decide(facts)
    assert verdict.allowed
    assert list(verdict.exempt) == exempt
    assert [part.rule for part in verdict.parts] == rules
    # Whoever is exempt from all may come as often as he likes.
    assert engine.decide(facts).allowed == (not rules)


@pytest.mark.parametrize(
    ("when", "exempt"),
    [
        ("2026-12-23T23:59", ()),
        ("2026-12-24T00:00", ("launch",)),
        ("2026-12-24T23:59", ("launch",)),
        ("2026-12-25T00:00", ()),
    ],
)
def test_an_exemption_ends(make: Make, when: str, exempt: tuple[str, ...]) -> None:
    engine = make(EXEMPTIONS, clock=clock_at(when))
    facts = {"user": "u", "path": "/launch"}
    assert engine.decide(facts).exempt == exempt
    assert engine.decide(facts).allowed == bool(exempt)


def test_an_exemption_counts_nothing(make: Make) -> None:
    engine = make(EXEMPTIONS)
    assert answers(engine, 5, {"ip": "10.1.1.1", "user": "u"}) == [True] * 5
    assert left(engine, {"ip": "1.1.1.1", "user": "u"}) == {"per-ip#1": 1, "per-user#1": 1}
