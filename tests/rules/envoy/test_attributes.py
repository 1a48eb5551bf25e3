"""`attributes_of`: what a descriptor looks like to rules."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.rules.envoy import attributes_of, import_files

KEYS = st.one_of(
    st.sampled_from(
        ["a", "a.2", "a.3", "a/a", "a%2Fa", "domain", "descriptor", "ip", "entry.1", "A", "_"]
    ),
    st.text(min_size=1, max_size=70),
    st.integers(60, 70).map(lambda length: "k" * length),
)
VALUES = st.one_of(st.sampled_from(["", "∅", "∅∅", " ", "x"]), st.text(max_size=5))
ENTRIES = st.lists(st.tuples(KEYS, VALUES), max_size=6)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], {"descriptor": ""}),
        ([("user", "42")], {"descriptor": "user", "user": "42"}),
        ([("kind", "a"), ("to", "b")], {"descriptor": "kind/to", "kind": "a", "to": "b"}),
        ([("to", "b"), ("kind", "a")], {"descriptor": "to/kind", "kind": "a", "to": "b"}),
        ([("a", "1"), ("a", "2")], {"descriptor": "a/a", "a": "1", "a.2": "2"}),
        ([("a.2", "1"), ("a", "2")], {"descriptor": "a.2/a", "a.2.1": "1", "a": "2"}),
        ([("a", "1"), ("a", "2"), ("a.2", "3")], {"a": "1", "a.2": "2", "a.2.3": "3"}),
        ([(":path", "/x")], {"descriptor": ":path", "path.1": "/x"}),
        ([("tenant/1", "x")], {"descriptor": "tenant%2F1", "tenant_1.1": "x"}),
        ([("50%", "x")], {"descriptor": "50%25", "entry.1": "x"}),
        ([("日本", "x")], {"descriptor": "日本", "entry.1": "x"}),
        ([("ip", "10.0.0.1")], {"descriptor": "ip", "ip.1": "10.0.0.1"}),
        ([("domain", "x"), ("descriptor", "y")], {"domain.1": "x", "descriptor.2": "y"}),
        ([("k" * 64, "x")], {"k" * 64: "x"}),
        ([("k" * 65, "x")], {"k" * 62 + ".1": "x"}),
        ([("user", "")], {"user": "∅"}),
        ([("user", "∅")], {"user": "∅∅"}),
        ([("user", "∅x")], {"user": "∅x"}),
        ([("user", "\t4 2 \t")], {"user": "4 2"}),
        ([("user", " \t")], {"user": "∅"}),
    ],
)
def test_a_descriptor_becomes_attributes(
    entries: list[tuple[str, str]], expected: dict[str, str]
) -> None:
    found = attributes_of("edge", entries)
    assert found["domain"] == "edge"
    assert expected.items() <= found.items()
    assert len(found) == len(entries) + 2


@given(ENTRIES)
def test_every_entry_is_an_attribute_that_rules_can_name(entries: list[tuple[str, str]]) -> None:
    found = attributes_of("edge", entries)
    assert len(found) == len(entries) + 2
    for name in found:
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", name)
    values = [value for name, value in found.items() if name not in ("domain", "descriptor")]
    assert all(values)


@given(ENTRIES, ENTRIES)
def test_different_descriptors_are_different_attributes(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    same = attributes_of("edge", one) == attributes_of("edge", other)
    assert same == (stripped(one) == stripped(other))


def test_whitespace_around_a_configured_value_is_not_part_of_it() -> None:
    text = """
domain: edge
descriptors:
  - {key: plan, value: " pro\\t", rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: path, value: " /api/*", rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: blank, value: "  ", rate_limit: {unit: day, requests_per_unit: 2}}
"""
    imported = import_files([("edge.yaml", text.encode())])
    conditions = [rule["match"] for rule in imported.document["rules"]]
    assert [list(each.values())[2] for each in conditions] == ["pro", "/api/*", "∅"]


def stripped(entries: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(key, value.strip(" \t")) for key, value in entries]


@given(ENTRIES, ENTRIES)
def test_entries_that_follow_change_no_name(
    entries: list[tuple[str, str]], more: list[tuple[str, str]]
) -> None:
    names = list(attributes_of("edge", entries))
    assert list(attributes_of("edge", entries + more))[: len(names)] == names


def test_what_is_too_long_to_be_remembered_is_laid_out_the_same() -> None:
    keys = [(f"key{number}", "x") for number in range(400)]
    found = attributes_of("edge", [*keys, *keys])
    assert found["key7"] == "x"
    assert found["key7.408"] == "x"
    assert len(found) == 802
