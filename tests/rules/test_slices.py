"""Stable slices of keys: the asked share, the same keys everywhere, growing, and independent."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.rules import parse, slices
from limen.rules.rule import Rule

COUNT = 100_000
KEYS = [f"user={n}" for n in range(COUNT)]


def rule(name: str = "a", **fields: object) -> Rule:
    of = {"name": name, "key": ["user"], "limits": "100/minute", **fields}
    return parse({"rules": [of]}).rules[0]


def enforced(percent: object, name: str = "a") -> set[str]:
    of = rule(name, enforce_percent=percent)
    return {key for key in KEYS if of.is_enforced(key)}


def variants(of: Rule) -> dict[str | None, set[str]]:
    found: dict[str | None, set[str]] = {}
    for key in KEYS:
        found.setdefault(of.allowance({}, key, 0.0).variant, set()).add(key)
    return found


@pytest.mark.parametrize("percent", [0, 1, 10, "33.3", 50, 99, 100])
def test_the_enforced_share_is_within_one_percent_of_what_was_asked(percent: object) -> None:
    share = len(enforced(percent)) / COUNT * 100
    assert share == pytest.approx(float(str(percent)), abs=0 if percent in (0, 100) else 1)


def test_variants_are_within_one_percent_of_what_was_asked() -> None:
    asked = {"a": 10, "b": 20, "c": "12.5", "d": 0}
    found = variants(
        rule(variants=[{"name": k, "percent": v, "limits": "9/s"} for k, v in asked.items()])
    )
    shares = {name: len(found.get(name, ())) / COUNT * 100 for name in (*asked, None)}
    assert shares == pytest.approx({"a": 10, "b": 20, "c": 12.5, "d": 0, None: 57.5}, abs=1)
    assert shares["d"] == 0


def test_a_hundred_percent_of_variants_leaves_nobody_out() -> None:
    found = variants(rule(variants=[{"percent": 50, "limits": f"{n}/s"} for n in (1, 2)]))
    assert sorted(map(str, found)) == ["v1", "v2"]


def test_a_slice_that_grows_keeps_who_was_in_it() -> None:
    grown = [enforced(percent) for percent in (0, 1, 10, 20, 50, 90, 100)]
    for smaller, larger in pairwise(grown):
        assert smaller < larger


def test_variants_that_grow_keep_who_was_in_the_first() -> None:
    small, large = (
        variants(rule(variants=[{"percent": percent, "limits": "1/s"}]))["v1"]
        for percent in (10, 20)
    )
    assert small < large


def test_who_is_first_in_one_rule_is_not_first_in_another() -> None:
    """Of two halves drawn apart from each other, a quarter of all lies in both."""
    both = enforced(50, "a") & enforced(50, "b")
    assert len(both) / COUNT == pytest.approx(0.25, abs=0.01)


def test_enforcement_and_variants_of_one_rule_are_drawn_apart() -> None:
    of = rule(enforce_percent=50, variants=[{"percent": 50, "limits": "1/s"}])
    both = [key for key in KEYS if of.is_enforced(key) and of.allowance({}, key, 0.0).variant]
    assert len(both) / COUNT == pytest.approx(0.25, abs=0.01)


def test_other_fields_of_a_rule_do_not_move_its_keys() -> None:
    other = rule(
        enforce_percent=30,
        limits=["5/s", "7/day"],
        match={"path": "/x"},
        description="changed",
        mode="enforce",
    )
    assert {key for key in KEYS if other.is_enforced(key)} == enforced(30)


def test_another_process_with_another_hash_seed_draws_the_same() -> None:
    program = (
        "from limen.rules import slices\n"
        "circle = slices.purpose('variant', 'search-per-user')\n"
        "print([slices.place(circle, f'user={n}') for n in range(20)])"
    )
    circle = slices.purpose("variant", "search-per-user")
    expected = str([slices.place(circle, f"user={n}") for n in range(20)])
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


def test_places_never_change() -> None:
    """Whoever changes the hash moves every key of every experiment: only on purpose."""
    circle = slices.purpose("enforce", "search-per-user")
    assert slices.place(circle, "user=42") == PLACE
    assert slices.share(50) == 2**63


PLACE = 13465402489429313310


@given(key=st.text(), percent=st.floats(0, 100))
def test_any_text_has_a_place_on_the_circle(key: str, percent: float) -> None:
    assert 0 <= slices.place(slices.purpose("enforce", "a"), key) < 2**64
    assert 0 <= slices.share(percent) <= 2**64


def test_half_a_letter_has_a_place_too() -> None:
    assert slices.place(b"x", "\ud800") != slices.place(b"x", "\ud801")
