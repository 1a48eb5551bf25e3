"""Suggestions for misspelt names: useful, and bounded in time."""

from __future__ import annotations

import time
from random import Random

import pytest

from limen.errors import did_you_mean

LONG = "".join(Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=10_000_000))
RULES = [
    f"{prefix}-limit-for-the-endpoint-number-{n:06d}-of-the-shop"
    for prefix in "abcdefgh"
    for n in range(2_500)
]


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("limts", ["limits", "match"], " (did you mean 'limits'?)"),
        ("Enforce_Percent", ["enforce-percent"], " (did you mean 'enforce-percent'?)"),
        ("zzz", ["limits", "match"], ""),
        (7, ["limits"], ""),
        ("x" * 101, ["x" * 101], ""),
    ],
)
def test_suggests_the_nearest_name(word: object, known: list[str], expected: str) -> None:
    assert did_you_mean(word, known) == expected


def test_suggests_among_thousands_of_names_with_the_same_first_letters() -> None:
    names = [*RULES, "search-per-user"]
    assert did_you_mean("serch-per-user", names) == " (did you mean 'search-per-user'?)"


@pytest.mark.parametrize("word", ["a-limit-for-the-endpoint-number-x-of-the-shop", LONG])
def test_suggestion_takes_little_time(word: str) -> None:
    start = time.process_time()
    did_you_mean(word, RULES)
    # Comparing with all names took two seconds, and the long word six.
    assert time.process_time() - start < 0.5
