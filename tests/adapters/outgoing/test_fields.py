"""Structured fields are read as strictly as RFC 9651 wants it, and by no more work than a bound."""

from __future__ import annotations

import time
from typing import Any

import http_sf
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limen.adapters.outgoing.fields import MAX_FIELD, Bare, Item, read_dictionary, read_list

KEYS = st.from_regex(r"[a-z*][a-z0-9_.*-]{0,8}", fullmatch=True)
INTEGERS = st.integers(-(10**15) + 1, 10**15 - 1)
BARE = st.one_of(
    INTEGERS,
    st.decimals(-(10**11), 10**11, places=2),
    st.booleans(),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12),
    st.from_regex(r"[A-Za-z*][A-Za-z0-9:/!_-]{0,8}", fullmatch=True).map(http_sf.Token),
    st.binary(max_size=12),
    st.text(st.characters(codec="utf-8"), max_size=6).map(http_sf.DisplayString),
)
ITEMS = st.tuples(BARE, st.dictionaries(KEYS, BARE, max_size=4))
# What may stand in a field, and what may break it.
NOISE = st.text(st.sampled_from('"\\;,=:?@%*-.0123456789abrtw \t()é\x00'), max_size=60)


def integers_of(item: Item) -> tuple[int | None, dict[str, int]]:
    """Return what is a number of an item: all that anybody asks of it."""
    found = {name: value for name, value in item.parameters.items() if isinstance(value, int)}
    return item.value if isinstance(item.value, int) else None, found


def integers_of_oracle(item: Any) -> tuple[int | None, dict[str, int]]:
    value, parameters = item if isinstance(item, tuple) else (item, {})

    def is_integer(value: object) -> bool:
        return type(value) is int

    found = {name: value for name, value in parameters.items() if is_integer(value)}
    return value if is_integer(value) else None, found


@given(st.lists(ITEMS, min_size=1, max_size=5))
def test_reads_every_list_as_the_oracle_does(items: list[Any]) -> None:
    text = http_sf.ser(items)
    oracle = http_sf.parse(text.encode(), tltype="list")
    assert isinstance(oracle, list)
    found = read_list(text)
    assert found is not None
    assert [integers_of(item) for item in found] == list(map(integers_of_oracle, oracle))


@given(st.dictionaries(KEYS, ITEMS, min_size=1, max_size=5))
def test_reads_every_dictionary_as_the_oracle_does(members: dict[str, Any]) -> None:
    text = http_sf.ser(members)
    oracle = http_sf.parse(text.encode(), tltype="dictionary")
    assert isinstance(oracle, dict)
    found = read_dictionary(text)
    assert found is not None
    assert {name: integers_of(item) for name, item in found.items()} == {
        name: integers_of_oracle(item) for name, item in oracle.items()
    }


@given(NOISE)
@example('"a";r=0;t=1,')
@example('"a" ,\t"b"')
@example("1.")
@example("a;b;c=1")
def test_takes_nothing_that_the_oracle_refuses(text: str) -> None:
    for read, kind in ((read_list, "list"), (read_dictionary, "dictionary")):
        try:
            http_sf.parse(text.encode(), tltype=kind)
        except Exception:  # it has kinds of its own for what it refuses
            # It looks into bytes, dates and texts, which nobody here asks for.
            opaque = any(sign in text for sign in ":@%")
            assert opaque or not read(text), (kind, text)


@given(st.text(max_size=200))
def test_no_text_is_too_strange(text: str) -> None:
    read_list(text)
    read_dictionary(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ('"a";r=0;t=30', [('"a"', {"r": 0, "t": 30})]),
        ('"a"; r=0;  t=30 , b', [('"a"', {"r": 0, "t": 30}), ("b", {})]),
        ('"a;b,c\\"";r=1', [('"a;b,c\\""', {"r": 1})]),
        ("a;x;r=1;r=2", [("a", {"x": "?1", "r": 2})]),
        ("1.5;r=-0", [("1.5", {"r": 0})]),
        ('"a";pk=:c2Vj:;r=0', [('"a"', {"pk": ":c2Vj:", "r": 0})]),
    ],
)
def test_a_list(text: str, expected: list[tuple[Bare, dict[str, Bare]]]) -> None:
    assert read_list(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '"a',
        '"a";',
        '"a";r=',
        '"a";R=0',
        '"a",',
        ',"a"',
        '"a" "b"',
        '"a" ;r=0',
        "(a b);r=0",
        "1234567890123456",
        "1.2345",
        "1.",
        "-",
        "?2",
        '"\x7f"',
        '"é"',
        '"a\\b"',
        ":not base64!:",
    ],
)
def test_a_list_with_one_mistake_says_nothing(text: str) -> None:
    assert read_list(text) is None


def test_a_field_that_is_too_long_says_nothing() -> None:
    item = '"a";r=0;t=1'
    fits = ",".join([item] * (MAX_FIELD // (len(item) + 1)))
    assert read_list(fits) is not None
    assert read_list(f"{fits},{item},{item}") is None


@pytest.mark.parametrize("piece", ['"', '"\\', "a;", "a,", "a=", "%", '%"', ":", " ", "*", "1"])
def test_no_field_takes_long(piece: str) -> None:
    began = time.process_time()
    for _ in range(10):
        read_list(piece * (MAX_FIELD // len(piece)))
        read_dictionary(piece * (MAX_FIELD // len(piece)))
    # It takes less than a hundredth of that. Were it to go back, it would take hours.
    assert time.process_time() - began < 2
