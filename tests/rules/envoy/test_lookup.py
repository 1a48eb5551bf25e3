"""Imported rules find the limit that envoyproxy/ratelimit finds, and count as it counts."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from limen import Limiter
from limen.engine import Engine
from limen.model import Limit
from limen.rules import parse, parse_text
from limen.rules.envoy import attributes_of, import_files
from limen.rules.text import write
from limen.testing import ManualClock
from tests.rules.envoy.reference import SECONDS, Entries, Found, Reference

# No '_' in keys, by which that service joins keys and values, and may take one for the other.
# Few keys and values that fit many patterns, so that entries get into each other's way.
KEYS = st.sampled_from(["a", "a", "a", "a", "ip", ":path"])
EXACT = ["x", "xy", "xyz", "y", "10.0.0.1", "∅", "a\\b\n"]
PATTERNS = ["x*", "xy*", "*y", "x*z", "*y*", "x**z", "*z", "*"]
VALUES = st.sampled_from(["", "x", "xy", "xyz", "y", "xyyz", "xz", "10.0.0.1", "∅", "a\\b\n"])
FILLING = st.sampled_from(["", "x", "y", "yz"])
DOMAINS = st.sampled_from(["one", "two*", "\\*"])


# Made once, and not anew for every example: that takes longer than to draw from them.
UNITS = st.sampled_from(sorted(SECONDS))
VALUES_OF_NODES = st.sampled_from([None, *EXACT, *PATTERNS])
SHADOWS = st.sampled_from([False, False, True])


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    if draw(st.booleans()) and draw(st.booleans()):
        return {"unlimited": True}
    return {"unit": draw(UNITS), "requests_per_unit": draw(st.integers(0, 3))}


LIMITS = limits()


@st.composite
def nodes(draw: st.DrawFn, depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"key": draw(KEYS)}
    value = draw(VALUES_OF_NODES)
    if value is not None:
        node["value"] = value
        if "*" in value:
            node["share_threshold"] = draw(st.booleans())
    if draw(st.integers(0, 3)):
        node["rate_limit"] = draw(LIMITS)
        node["shadow_mode"] = draw(SHADOWS)
    if depth > 1 and draw(st.booleans()):
        node["descriptors"] = draw(levels(depth - 1))
    return node


@cache
def levels(depth: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(
        nodes(depth),
        min_size=1,
        max_size=8 if depth == 3 else 4,
        unique_by=lambda node: (node["key"], node.get("value")),
    )


CONFIGS = st.lists(
    st.fixed_dictionaries({"domain": DOMAINS, "descriptors": levels(3)}),
    min_size=1,
    max_size=2,
    unique_by=lambda config: str(config["domain"]),
)
ENTRIES = st.lists(st.tuples(KEYS, VALUES), max_size=4)


@st.composite
def near(draw: st.DrawFn, configs: list[dict[str, Any]]) -> tuple[str, Entries]:
    """A descriptor that follows a way through the tree, with values that fit or nearly do."""
    config = draw(st.sampled_from(configs))
    level, entries = config["descriptors"], []
    while level:
        node = draw(st.sampled_from(level))
        value = str(node.get("value", draw(VALUES))).replace("*", draw(FILLING))
        entries.append((node["key"], value if draw(st.integers(0, 3)) else draw(VALUES)))
        level = node.get("descriptors", []) if draw(st.integers(0, 4)) else []
    return config["domain"], entries


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[str, Entries]]]:
    configs = draw(CONFIGS)
    one = st.one_of(near(configs), near(configs), st.tuples(DOMAINS, ENTRIES))
    return configs, draw(st.lists(one, min_size=1, max_size=12))


def imported(configs: list[dict[str, Any]]) -> dict[str, Any]:
    files = [(f"{n}.yaml", json.dumps(config).encode()) for n, config in enumerate(configs)]
    found = import_files(files)
    assert not found.problems
    note(repr(found.document))
    return found.document


@given(cases())
def test_at_most_one_rule_fits_and_it_is_the_one_that_would_be_found(
    case: tuple[list[dict[str, Any]], list[tuple[str, Entries]]],
) -> None:
    configs, requests = case
    reference, rules = Reference(configs), parse(imported(configs))
    counters: dict[tuple[str, ...], tuple[str, str]] = {}
    for domain, entries in requests:
        expected = reference.find(domain, entries)
        found = rules.resolve(attributes_of(domain, entries), 1, 0.0)
        if expected is None or expected.unlimited or (expected.shadow and not expected.requests):
            assert not found.applied
            continue
        [applied] = found.applied
        if expected.requests == 0:
            assert applied.refusal == "blocked"
            continue
        [check] = found.checks
        assert isinstance(check.limit, Limit)
        assert applied.rule.mode == ("shadow" if expected.shadow else "enforce")
        assert (check.limit.quota, check.limit.period) == (expected.requests, expected.seconds)
        assert check.limit.algorithm == "fixed_window"
        # A counter of the one is a counter of the other: each has one, and no two have the same.
        assert counters.setdefault(expected.counter, _counter(check.limit, check.key)) == _counter(
            check.limit, check.key
        )
    assert len(set(counters.values())) == len(counters)


def _counter(limit: Limit, key: str) -> tuple[str, str]:
    return limit.identity, key


@given(cases(), st.lists(st.tuples(st.integers(0, 11), st.sampled_from([0, 0.4, 31, 90_000]))))
def test_requests_pass_and_are_refused_as_there(
    case: tuple[list[dict[str, Any]], list[tuple[str, Entries]]],
    steps: list[tuple[int, float]],
) -> None:
    configs, requests = case
    clock = ManualClock(start=1_700_000_000.5)
    now = 1_700_000_000.5
    reference = Reference(configs)
    with Limiter(clock=clock) as limiter:
        engine = Engine(parse_text(write(imported(configs))), limiter, clock=clock)
        for number, seconds in steps:
            clock.advance(seconds)
            now += seconds
            domain, entries = requests[number % len(requests)]
            allowed = engine.decide(attributes_of(domain, entries)).allowed
            assert allowed == reference.admits(domain, entries, now)


def test_the_reference_is_as_documented() -> None:
    tree = [
        {"key": "a", "rate_limit": {"unit": "day", "requests_per_unit": 1}},
        {"key": "a", "value": "x", "descriptors": [{"key": "b"}]},
    ]
    reference = Reference([{"domain": "d", "descriptors": tree}])
    assert reference.find("d", [("a", "y")]) == Found(1, 86_400, False, False, ("d", "a", "y"))
    assert reference.find("d", [("a", "x")]) is None
    assert reference.find("d", [("a", "y"), ("b", "z")]) is None
    assert reference.find("other", [("a", "y")]) is None
    assert reference.find("d", []) is None
