"""What a rule set makes of one request: which checks, on which keys, under which names. Pure."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from types import MappingProxyType
from typing import Any

import pytest

from limen.errors import InvalidInput
from limen.rules import RuleSet, parse, parse_text
from limen.rules.ruleset import Resolution


def rule_set(*rules: dict[str, Any], **document: Any) -> RuleSet:
    return parse({"rules": list(rules), **document}, version="7")


def resolve(
    rules: RuleSet, facts: Any, cost: int = 1, now: float = 0.0, *, slots: bool = False
) -> Resolution:
    return rules.resolve(facts, cost, now, slots=slots)


def shape(found: Resolution) -> list[tuple[str, str, int, str | None]]:
    """Return what is asked: limit, key, cost, and what lives together with it."""
    return [(str(of.limit), of.key, of.cost, of.subject) for of in found.checks]


def test_all_rules_that_match_apply_in_the_order_of_the_file() -> None:
    rules = rule_set(
        {"name": "c", "match": {"path": "/*"}, "limits": "3/s"},
        {"name": "a", "match": {"path": "/x"}, "key": ["user"], "limits": ["1/s", "10/minute"]},
        {"name": "none", "match": {"path": "/y"}, "limits": "9/s"},
        {"name": "b", "key": ["user", "path"], "limits": "2/s"},
    )
    found = resolve(rules, {"user": "42", "path": "/x"}, cost=5)
    assert shape(found) == [
        ("3/second", "@c", 5, "@c"),
        ("1/second", "user=42", 5, "user=42"),
        ("10/minute", "user=42", 5, "user=42"),
        ("2/second", "user=42|path=/x", 5, "user=42"),
    ]
    assert [(of.rule.name, of.checks) for of in found.applied] == [("c", 1), ("a", 2), ("b", 1)]


def test_what_one_user_does_lives_together_whatever_else_it_is_counted_by() -> None:
    rules = rule_set(
        {"name": "a", "key": ["user"], "limits": "1/s"},
        {"name": "b", "key": ["user", "path"], "limits": "1/s"},
        {"name": "c", "key": ["path", "user"], "limits": "1/s"},
    )
    found = resolve(rules, {"user": "42", "path": "/x"})
    assert [of.subject for of in found.checks] == ["user=42", "user=42", "path=/x"]


def test_rules_of_equal_limits_on_one_key_count_apart() -> None:
    rules = rule_set(*({"name": name, "key": ["user"], "limits": "5/s"} for name in "ab"))
    places = {(of.limit.identity, of.key) for of in resolve(rules, {"user": "42"}).checks}
    assert len(places) == 2


def test_limits_of_one_rule_that_would_share_a_state_count_apart() -> None:
    limits = ["5/s", "10/s", "10/s burst 20", "10/s token_bucket burst 30", "5/minute"]
    rules = rule_set({"name": "a", "limits": limits})
    found = resolve(rules, {}).checks
    assert len({of.limit.identity for of in found}) == len(limits)


@pytest.mark.parametrize("empty", [{}, {"user": ""}])
def test_an_empty_attribute_is_an_absent_one(empty: dict[str, str]) -> None:
    rules = rule_set(
        {"name": "skipped", "key": ["user"], "limits": "1/s"},
        {"name": "absent", "match": {"user": {"present": False}}, "limits": "1/s"},
        {"name": "present", "match": {"user": {"present": True}}, "limits": "1/s"},
        {"name": "any", "match": {"user": "*"}, "limits": "1/s"},
    )
    assert [of.rule.name for of in resolve(rules, empty).applied] == ["absent"]


class Plan(str, Enum):  # noqa: UP042  # a StrEnum prints as its value, and this one does not
    PRO = "pro"


@pytest.mark.parametrize(
    "facts",
    [
        MappingProxyType({"plan": "pro"}),
        OrderedDict(plan="pro"),
        {"plan": Plan.PRO},
        {"plan": type("Text", (str,), {"__str__": lambda self: "changed"})("pro")},
    ],
    ids=["proxy", "ordered", "enum", "subclass"],
)
def test_any_mapping_of_any_text_means_the_same(facts: Any) -> None:
    rules = rule_set(
        {"name": "a", "match": {"plan": "pro"}, "key": ["plan"], "limits": "1/s"},
        {"name": "b", "key": ["plan", "plan2"], "limits": "1/s"},
    )
    assert shape(resolve(rules, facts)) == [("1/second", "plan=pro", 1, "plan=pro")]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"user": 42}, "the attribute 'user' must be text, got int"),
        ({"user": None}, "the attribute 'user' must be text, got NoneType"),
        ({"user": b"42"}, "the attribute 'user' must be text, got bytes"),
        ({1: 42}, "the attribute '1' must be text, got "),
        (["user"], "attributes must be a mapping of text to text, got"),
        (None, "attributes must be a mapping of text to text, got None"),
    ],
)
def test_attributes_that_are_not_text_are_an_error_that_does_not_show_them(
    facts: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        resolve(rule_set(), facts)
    assert "42" not in str(caught.value)


# Columns: what the rule says of cost, the attributes, and what one request of cost 3 counts.
COSTS: list[tuple[Any, dict[str, str], int]] = [
    (None, {}, 3),
    (0, {}, 0),
    (7, {}, 7),
    ("tokens", {"tokens": "731"}, 731),
    ("tokens", {"tokens": "0"}, 0),
    ("tokens", {"tokens": "0000000012"[:10]}, 12),
    ("tokens", {"tokens": "1000000000"}, 10**9),
    ("tokens", {}, 3),
    ("tokens", {"tokens": ""}, 3),
]


@pytest.mark.parametrize(("cost", "facts", "counted"), COSTS)
def test_a_request_counts_what_the_rule_says(
    cost: Any, facts: dict[str, str], counted: int
) -> None:
    rules = rule_set({"name": "a", "limits": "5/s", **({} if cost is None else {"cost": cost})})
    assert [of.cost for of in resolve(rules, facts, cost=3).checks] == [counted]


@pytest.mark.parametrize(
    "tokens", ["-1", "1.5", "1e3", "abc", " 1", "1_0", "٣", "1000000001", "9" * 5_000, "+1"]
)
def test_an_attribute_that_is_no_cost_is_an_error(tokens: str) -> None:
    rules = rule_set({"name": "a", "limits": "5/s", "cost": "tokens"})
    with pytest.raises(InvalidInput, match=r"'tokens' is the cost in rule 'a'.*whole number"):
        resolve(rules, {"tokens": tokens})


def test_a_rule_that_does_not_match_does_not_look_at_its_cost() -> None:
    rules = rule_set({"name": "a", "match": {"path": "/x"}, "limits": "5/s", "cost": "tokens"})
    assert resolve(rules, {"tokens": "abc", "path": "/y"}).checks == []


def test_a_shadow_that_cannot_read_its_cost_harms_nobody() -> None:
    rules = rule_set(
        {"name": "new", "limits": "5/s", "cost": "tokens", "mode": "shadow"},
        {"name": "old", "limits": "5/s"},
    )
    found = resolve(rules, {"tokens": "abc"})
    assert [of.limit.name for of in found.checks if of.enforce] == ["old"]


def test_a_rule_s_rolling_window_is_packed_where_it_would_be_too_long() -> None:
    """Packed, the same window decides the same; alone, the text would have to say so."""
    rules = rule_set(
        {"name": "a", "algorithm": "rolling_window", "limits": ["10000/day", "10001/week"]}
    )
    found = [of.limit for of in resolve(rules, {}).checks]
    assert [str(limit) for limit in found] == [
        "10000/day rolling_window",
        "10001/week packed_window",
    ]


def limits(count: int) -> list[str]:
    return [f"{n}/{n}s" for n in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 50, 99, 100])
def test_a_hundred_limits_fit_on_one_request(count: int) -> None:
    rules = rule_set(
        *({"name": f"r{n}", "key": ["user"], "limits": "1/s"} for n in range(count)),
        {"name": "blocked", "match": {"path": "/x"}, "mode": "block"},
    )
    found = resolve(rules, {"user": "42"})
    assert len(found.checks) == count
    assert found.not_applicable == []
    assert resolve(rules, {"user": "42", "path": "/x"}).refused


def test_what_is_beyond_a_hundred_limits_is_named_and_whole() -> None:
    rules = rule_set(
        {"name": "sixty", "limits": limits(60)},
        {"name": "fifty", "limits": limits(50)},
        {"name": "forty", "limits": limits(40)},
        {"name": "one", "limits": "1/s"},
        {"name": "unlimited", "tiers": {"by": "p", "limits": {}, "default": "unlimited"}},
    )
    found = resolve(rules, {})
    assert [of.rule.name for of in found.applied] == ["sixty", "forty", "unlimited"]
    assert found.not_applicable == ["fifty", "one"]
    assert len(found.checks) == 100


def test_a_slot_counts_among_the_hundred() -> None:
    rules = rule_set(
        {"name": "most", "limits": limits(99)},
        {"name": "both", "concurrency": {"slots": 1, "lease": 60}, "limits": "1/s"},
        {"name": "slot", "concurrency": {"slots": 1, "lease": 60}},
    )
    found = resolve(rules, {}, slots=True)
    assert [of.rule.name for of in found.applied] == ["most", "slot"]
    assert found.not_applicable == ["both"]


def test_a_version_names_what_a_file_says_and_not_how() -> None:
    one = parse_text("rules: [{name: a, limits: 1/s}]")
    same = parse_text('{"rules": [{"limits": "1/s", "name": "a"}]}', is_json=True)
    other = parse_text("rules: [{name: a, limits: 2/s}]")
    assert one.version == same.version != other.version
    assert len(one.version) == 12
    assert parse_text("rules: []", version="7").version == "7"


def test_a_rule_set_does_not_change_with_the_data_it_was_read_from() -> None:
    document: dict[str, Any] = {"rules": [{"name": "a", "limits": "1/s"}]}
    rules = parse(document)
    document["rules"][0]["limits"] = "9/s"
    document["rules"].append({"name": "b", "limits": "1/s"})
    assert len(rules.rules) == 1
    assert rules.document == {"rules": [{"name": "a", "limits": "1/s"}]}


def test_repr_tells_the_version_and_how_many_rules() -> None:
    assert repr(rule_set({"name": "a", "limits": "1/s"})) == "<RuleSet 7: 1 rules>"


def test_shadows_give_way_when_there_are_too_many_limits() -> None:
    rules = rule_set(
        *({"name": f"s{n}", "limits": "1/s", "mode": "shadow"} for n in range(100)),
        {"name": "real", "limits": "1/s"},
    )
    found = resolve(rules, {})
    assert found.not_applicable == ["s99"]
    assert found.applied[-1].rule.name == "real"
    assert len(found.checks) == 100


def test_a_block_is_met_with_and_without_its_key() -> None:
    rules = rule_set({"name": "b", "key": "user", "match": {"path": "/x"}, "mode": "block"})
    assert resolve(rules, {"path": "/x"}).refused
    assert resolve(rules, {"path": "/x", "user": "1"}).refused
    assert not resolve(rules, {"path": "/y"}).refused


def test_whoever_is_blocked_is_blocked_whatever_else_is_wrong_with_the_request() -> None:
    cost = {"name": "c", "limits": "9/s", "cost": "tokens"}
    with pytest.raises(InvalidInput, match="'tokens' is the cost in rule 'c'"):
        resolve(rule_set(cost), {"tokens": "abc"})
    assert resolve(rule_set(cost, {"name": "b", "mode": "block"}), {"tokens": "abc"}).refused


def test_every_exemption_that_fits_is_named() -> None:
    fits = {"match": {"user": "1"}}
    rules = rule_set(
        {"name": "r", "limits": "1/s"},
        exemptions=[{"name": "a", **fits}, {"name": "b", **fits, "rules": ["r"]}],
    )
    found = resolve(rules, {"user": "1"})
    assert (found.exempt, found.checks) == (["a", "b"], [])


@pytest.mark.parametrize("name", ["rules", "version", "anything"])
def test_a_rule_set_never_changes(name: str) -> None:
    rules = rule_set({"name": "r", "limits": "1/s"})
    with pytest.raises(AttributeError, match="a RuleSet never changes"):
        setattr(rules, name, ())
