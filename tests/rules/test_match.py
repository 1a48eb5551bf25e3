"""What one attribute is asked: globs against a slow definition, networks, and hostile values."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limen.errors import InvalidInput
from limen.model.network import read_address
from limen.rules.match import Condition, Glob, Values

MEGABYTE = 2**20

# Few letters, so that parts repeat and overlap; some of them not in one byte.
letters = st.text(st.sampled_from("ab/é\n𝄞"), max_size=12)
patterns = st.text(st.sampled_from("aab/é\n𝄞***\\"), max_size=14)


def slow(pattern: str) -> re.Pattern[str]:
    """Return what a pattern means: `*` is anything, `\\*` a star, all else itself."""
    parts, at = [], 0
    while at < len(pattern):
        if pattern.startswith("\\*", at):
            parts.append(re.escape("*"))
            at += 2
        else:
            parts.append(".*" if pattern[at] == "*" else re.escape(pattern[at]))
            at += 1
    return re.compile("".join(parts), re.DOTALL)


@given(pattern=patterns, value=letters)
@example(pattern="a*a", value="a")
@example(pattern="ab*ba", value="aba")
@example(pattern="*ab*ab*", value="abab")
@example(pattern="*aab", value="aaab")
@example(pattern="*ab*b/", value="aaab/")
@example(pattern="\\**", value="*x")
@example(pattern="\\\\*", value="\\*")
@example(pattern="**", value="")
def test_a_glob_holds_for_what_its_slow_definition_holds_for(pattern: str, value: str) -> None:
    assert Values([pattern]).holds(value) == bool(slow(pattern).fullmatch(value))


@given(pieces=st.lists(letters, min_size=2, max_size=6), fill=st.lists(letters, max_size=6))
def test_a_glob_holds_for_every_text_made_of_its_parts(pieces: list[str], fill: list[str]) -> None:
    between = (fill + [""] * len(pieces))[: len(pieces) - 1]
    value = "".join(a + b for a, b in zip(pieces, [*between, ""], strict=True))
    assert Glob("*".join(pieces)).holds(value)


@given(texts=st.lists(patterns.filter(bool), min_size=1, max_size=5), value=letters)
def test_of_several_values_one_has_to_fit(texts: list[str], value: str) -> None:
    assert Values(texts).holds(value) == any(slow(text).fullmatch(value) for text in texts)


def test_sixteen_stars_fit_and_runs_of_stars_are_one() -> None:
    assert Glob("a*" * 16).holds("a" * 16)
    assert Glob("a" + "*" * 100 + "b").holds("ab")
    with pytest.raises(InvalidInput, match="at most 16"):
        Glob("a*" * 17)


# For each: a pattern, and a value of any length that makes a matcher which goes back go back.
HOSTILE: dict[str, tuple[str, Callable[[int], str]]] = {
    "every part everywhere": ("*a" * 15 + "*b", lambda size: "a" * size),
    "nearly the last part": ("*" + "a" * 50 + "b*", lambda size: "a" * size),
    "nearly every part": ("*" + "*".join(["aaab"] * 15) + "*", lambda size: "aab" * (size // 3)),
    "a long part": ("*" + "ab" * 450 + "c*", lambda size: "ab" * (size // 2)),
    "parts of one letter": ("a*" * 16, lambda size: "a" * size),
    "wide letters": ("*é𝄞" * 15 + "*x", lambda size: "é𝄞" * (size // 2)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_takes_no_longer_than_reading_it_a_few_times(name: str) -> None:
    pattern, make = HOSTILE[name]
    glob = Glob(pattern)
    small, large = make(MEGABYTE // 64), make(MEGABYTE)
    # A matcher that goes back takes 4,096 times as long for 64 times the text.
    assert shortest(glob, large) < max(64 * 20 * shortest(glob, small), 1.0)


def shortest(of: Glob | Values, value: str) -> float:
    """Return the seconds of the quickest of some tries: the others were disturbed."""

    def measure() -> float:
        start = process_time()
        of.holds(value)
        return process_time() - start

    return min(measure() for _ in range(3))


addresses = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.ip_addresses(v=4).map(lambda address: f"::ffff:{address}"),
    # Near each other, so that short networks hold some.
    st.integers(0, 2**10).map(lambda number: str(ip_address(0x0A00_0000 + number))),
    st.integers(0, 2**10).map(lambda number: str(ip_address((0x2001_0DB8 << 96) + number))),
    st.sampled_from(["", "10.0.0", "10.0.0.256", "::g", "10.0.0.1/32", " 10.0.0.1", "٣.0.0.1"]),
)
networks = st.one_of(
    st.builds(
        lambda number, bits: str(ip_network((0x0A00_0000 + number, bits), strict=False)),
        st.integers(0, 2**10),
        st.integers(0, 32),
    ),
    st.builds(
        lambda number, bits: str(ip_network(((0x2001_0DB8 << 96) + number, bits), strict=False)),
        st.integers(0, 2**10),
        st.integers(0, 128),
    ),
)


@given(texts=st.lists(networks, min_size=1, max_size=6), value=addresses)
def test_networks_hold_what_the_standard_library_says_is_in_them(
    texts: list[str], value: str
) -> None:
    try:
        address = ip_address(value.removeprefix("::ffff:") if "." in value else value)
    except ValueError:
        expected = False
    else:
        expected = any(address in ip_network(text) for text in texts)
    assert Values(texts, are_addresses=True).holds(value) == expected


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("10.0.0.1", 4),
        ("::ffff:10.0.0.1", 4),
        ("::FFFF:0a00:0001", 4),
        ("2001:db8::1", 6),
        ("2001:0DB8:0:0:0:0:0:1", 6),
        ("fe80::1%eth0", 6),
        ("10.0.0.1:80", None),
        ("010.0.0.1", None),
        ("10.0.0.1, 10.0.0.2", None),
        ("1" * MEGABYTE, None),
    ],
)
def test_one_address_is_one_number_however_it_is_written(text: str, version: int | None) -> None:
    found = read_address(text)
    numbers = {4: 0x0A00_0001, 6: (0x2001_0DB8 << 96) + 1}
    if version is None:
        assert found is None
    elif text.startswith("fe80"):
        assert found == (6, (0xFE80 << 112) + 1)
    else:
        assert found == (version, numbers[version])


def test_texts_that_are_no_address_are_not_remembered() -> None:
    """Whoever sends a new text as its address each time must not fill the memory with them."""
    office = Values(["10.0.0.0/8"], are_addresses=True)
    tracemalloc.start()
    try:
        for number in range(200):
            assert not office.holds(f"{number}" + "x" * 100_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < MEGABYTE


# Columns: what is asked of the attribute; then the values for which it holds, and does not.
CONDITIONS = [
    ({"is_": ["a", "b*"]}, ["a", "b", "bc"], ["c", "ab", None]),
    ({"not_": ["a", "b*"]}, ["c", None], ["a", "bx"]),
    ({"is_": ["a*"], "not_": ["ab*"]}, ["a", "ac"], ["ab", "abc", "b", None]),
    ({"present": True}, ["a"], [None]),
    ({"present": False}, [None], ["a"]),
    ({"present": True, "not_": ["a"]}, ["b"], ["a", None]),
    ({"present": True, "is_": ["a"]}, ["a"], ["b", None]),
    ({"is_": ["\\*"]}, ["*"], ["a", "", "\\*"]),
    ({"is_": ["*"]}, ["a", "*", "\n"], [None]),
]


@pytest.mark.parametrize(("asked", "good", "bad"), CONDITIONS)
def test_a_condition_holds_for_some_values_and_not_for_others(
    asked: dict[str, object], good: list[str | None], bad: list[str | None]
) -> None:
    condition = condition_of(asked)
    assert [value for value in good if not condition.holds(value)] == []
    assert [value for value in bad if condition.holds(value)] == []


def condition_of(asked: dict[str, object]) -> Condition:
    values = {name: Values(asked[name]) for name in ("is_", "not_") if name in asked}  # type: ignore[arg-type]  # a list
    present = asked.get("present")
    assert present is None or isinstance(present, bool)
    return Condition(values.get("is_"), values.get("not_"), present)
