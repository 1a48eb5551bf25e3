"""Why a rule applies or not: said condition by condition, and never at odds with `resolve`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.rules import RuleSet, parse
from limen.rules.explain import Account, attributes, conditions, explain, moment_text

NOW = 1_790_000_000.0
"""2026-09-21T14:13:20Z"""


def rule(**fields: Any) -> dict[str, Any]:
    return {"name": "r", "limits": "10/minute", **fields}


def account_of(of: dict[str, Any], *exemptions: dict[str, Any], **facts: str) -> Account:
    rules = parse({"rules": [of], "exemptions": list(exemptions)})
    [found] = explain(rules, facts, NOW).accounts
    return found


@pytest.mark.parametrize(
    ("match", "facts", "said"),
    [
        ({"path": "/search/*"}, {"path": "/login"}, "path is /search/* : got /login"),
        ({"path": "/search/*"}, {}, "path is /search/* : absent"),
        ({"method": ["GET", "POST"]}, {"method": "PUT"}, "method is GET or POST : got PUT"),
        ({"method": {"not": "GET"}}, {"method": "GET"}, "method is not GET : got GET"),
        ({"user": {"present": True}}, {}, "user is present : absent"),
        ({"user": {"present": False}}, {"user": "7"}, "user is absent : got 7"),
        ({"ip": "10.0.0.0/8"}, {"ip": "11.0.0.1"}, "ip is 10.0.0.0/8 : got 11.0.0.1"),
        ({"a": "1"}, {"a": "x\ny"}, "a is 1 : got 'x\\ny'"),
        ({"a": "1"}, {"a": " "}, "a is 1 : got ' '"),
        ({"a": "1"}, {"a": "x" * 200}, f"a is 1 : got {'x' * 77}..."),
        ({"a": "1", "b": "2", "c": "3"}, {"a": "1", "c": "4"}, "b is 2 : absent"),
    ],
)
def test_the_first_condition_that_fails_is_said_with_what_the_request_had(
    match: dict[str, Any], facts: dict[str, str], said: str
) -> None:
    found = account_of(rule(match=match), **facts)
    assert found.obstacle == said
    assert not found.applies


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mode": "off"}, "mode is off"),
        ({"starts": "2026-12-24T18:00Z"}, "starts at 2026-12-24T18:00Z"),
        ({"ends": "2026-09-01"}, "ended at 2026-09-01"),
        ({"key": ["user", "org"]}, "counted by org : absent"),
    ],
)
def test_what_else_stands_against_a_rule_is_said(fields: dict[str, Any], said: str) -> None:
    assert account_of(rule(**fields), user="7").obstacle == said


def test_an_empty_attribute_is_absent() -> None:
    assert account_of(rule(key="user"), user="").obstacle == "counted by user : absent"


def test_a_rule_that_refuses_who_has_no_key_applies() -> None:
    assert account_of(rule(key="user", missing="deny")).applies


def test_a_rule_that_applies_tells_each_condition_that_holds() -> None:
    found = account_of(rule(match={"path": "/a*", "user": {"not": "7"}}), path="/ab")
    assert found.applies
    assert [str(test) for test in found.tests] == [
        "path is /a* : got /ab",
        "user is not 7 : absent",
    ]
    assert all(test.holds for test in found.tests)


def test_an_exemption_stands_against_the_rules_it_is_for() -> None:
    exemption = {"name": "friends", "match": {"user": "7"}}
    assert account_of(rule(), exemption, user="7").obstacle == "exempt by friends"
    assert account_of(rule(), exemption, user="8").applies
    assert account_of(rule(), {**exemption, "ends": "2026-01-01"}, user="7").applies


def test_what_a_request_is_exempt_by_is_told() -> None:
    exemptions = [
        {"name": "friends", "match": {"user": "7"}, "rules": ["r"]},
        {"name": "later", "match": {"user": "7"}, "starts": "2027-01-01"},
        {"name": "others", "match": {"user": "8"}},
    ]
    found = explain(parse({"rules": [rule()], "exemptions": exemptions}), {"user": "7"}, NOW)
    assert [exemption.name for exemption in found.exempt] == ["friends"]
    assert (len(found.applying), len(found.others)) == (0, 1)


def test_every_attribute_that_anything_looks_at_is_known() -> None:
    variant = {"percent": 1, "tiers": {"by": "grade", "limits": {}, "default": "1/s"}}
    rules = parse(
        {
            "rules": [
                rule(
                    match={"path": "/a"},
                    key=["user", "org"],
                    cost="tokens",
                    tiers={"by": "plan", "limits": {"free": "1/s"}},
                    variants=[variant],
                ),
                rule(name="off", mode="off", match={"agent": "x"}),
                rule(name="fixed", cost=3),
            ],
            "exemptions": [{"name": "e", "match": {"ip": "10.0.0.0/8"}}],
        }
    )
    assert attributes(rules) == {"path", "user", "org", "tokens", "plan", "grade", "agent", "ip"}


def test_conditions_are_written_in_the_order_of_the_rule() -> None:
    rules = parse({"rules": [rule(match={"path": "/a*", "method": ["PUT", "GET"]})]})
    assert conditions(rules.rules[0].conditions) == ["path is /a*", "method is GET or PUT"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1_798_135_200.0, "2026-12-24T18:00Z"),
        (1_798_070_400.0, "2026-12-24"),
        (1_798_135_201.0, "2026-12-24T18:00:01Z"),
        (1_798_135_200.25, "2026-12-24T18:00:00.250000Z"),
    ],
)
def test_a_moment_is_written_as_a_rule_would(seconds: float, text: str) -> None:
    assert moment_text(seconds) == text


VALUES = st.sampled_from(["1", "2", "12", "10.0.0.1"])
TEXTS = st.sampled_from(["1", "2", "1*", "*2", "*"])
CONDITIONS = st.one_of(
    TEXTS,
    st.lists(TEXTS, min_size=1, max_size=2),
    st.fixed_dictionaries({"not": TEXTS}),
    st.fixed_dictionaries({"present": st.booleans()}),
)
NAMES = st.sampled_from(["a", "b", "c"])
MATCHES = st.dictionaries(NAMES, CONDITIONS, max_size=2)
TIMES = st.sampled_from(["2026-01-01", "2027-01-01"])
RULES = st.fixed_dictionaries(
    {"match": MATCHES, "key": st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True)},
    optional={
        "mode": st.sampled_from(["enforce", "shadow", "off", "block"]),
        "missing": st.sampled_from(["skip", "deny"]),
        "starts": TIMES,
        "concurrency": st.just({"slots": 1, "lease": 1}),
    },
)
EXEMPTIONS = st.fixed_dictionaries(
    {"match": st.dictionaries(NAMES, CONDITIONS, min_size=1, max_size=2)},
    optional={"rules": st.just(["r0"]), "ends": TIMES},
)


def named(items: list[dict[str, Any]], letter: str) -> list[dict[str, Any]]:
    return [{"name": f"{letter}{number}", **item} for number, item in enumerate(items)]


def rules_of(items: list[dict[str, Any]], exemptions: list[dict[str, Any]]) -> RuleSet:
    rules = [{"limits": "10/minute", **item} for item in named(items, "r")]
    for item in rules:
        if not item["key"]:
            item.pop("missing", None)  # nothing can be
    return parse({"rules": rules, "exemptions": named(exemptions, "e")})


@given(
    st.lists(RULES, min_size=1, max_size=8),
    st.lists(EXEMPTIONS, max_size=2),
    st.dictionaries(NAMES, VALUES | st.just("")),
)
def test_an_explanation_is_never_at_odds_with_what_is_decided(
    items: list[dict[str, Any]], exemptions: list[dict[str, Any]], facts: dict[str, str]
) -> None:
    rules = rules_of(items, exemptions)
    found, decided = explain(rules, facts, NOW), rules.resolve(facts, 1, NOW, slots=True)
    assert [of.rule.name for of in found.applying] == [of.rule.name for of in decided.applied]
    if all(exemption.rules for exemption in found.exempt):
        assert [exemption.name for exemption in found.exempt] == decided.exempt
    for account in found.others:
        assert account.obstacle
