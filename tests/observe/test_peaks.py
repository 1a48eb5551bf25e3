"""A fair sample of keys: of which keys it is, and what it says of all the others."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.observe.peaks import HASHES, Peaks, distinct, key_hash, lowest

SEEN = st.lists(st.tuples(st.integers(0, 60) | st.integers(0, HASHES - 1), st.integers(0, 101)))


@pytest.mark.parametrize(
    ("key", "expected"),
    [("user=1", 780_525_749), ("schlüssel", 1_199_784_982), ("\ud800", 2_996_705_448)],
)
def test_a_hash_is_the_same_in_every_process_and_version(key: str, expected: int) -> None:
    assert key_hash(key) == expected


@given(st.text(st.characters()))
def test_any_text_has_a_hash_of_32_bits(key: str) -> None:
    assert 0 <= key_hash(key) < HASHES


PATTERNS = [
    start + "{}" + end
    for start in ("", "user=", "u", "ip=10.0.0.", "key:", "tenant=7/user=", "a" * 40)
    for end in ("", "/x", ".local", ":a", "=")
]


@pytest.mark.parametrize("keys", [500, 2_000])
def test_keys_in_a_row_are_sampled_as_fairly_as_any(keys: int) -> None:
    errors = []
    for pattern in PATTERNS:
        peaks = Peaks(128)
        for n in range(1, keys + 1):
            peaks.add(key_hash(pattern.format(n)), 0)
        errors.append(distinct(len(peaks.sample), peaks.cutoff) / keys - 1)
    spread = sqrt(sum(error * error for error in errors) / len(errors))
    assert spread <= 1.3 / sqrt(128)
    assert abs(sum(errors) / len(errors)) <= 0.05


@given(st.integers(1, 8), SEEN)
def test_the_sample_is_of_all_keys_below_the_cutoff_each_with_its_peak(
    room: int, seen: list[tuple[int, int]]
) -> None:
    peaks, true = Peaks(room), dict[int, int]()
    for hash_, percent in seen:
        peaks.add(hash_, percent)
        true[hash_] = max(true.get(hash_, 0), percent)
        assert len(peaks.sample) <= 2 * room
    below = {hash_: percent for hash_, percent in true.items() if hash_ < peaks.cutoff}
    assert peaks.sample == tuple(sorted(below.items()))
    assert len(peaks.sample) >= min(room, len(true))
    if len(true) <= 2 * room:
        assert (peaks.cutoff, distinct(len(peaks.sample), peaks.cutoff)) == (HASHES, len(true))


def test_a_key_keeps_its_peak() -> None:
    peaks = Peaks(4)
    for percent in (10, 101, 20):
        peaks.add(7, percent)
    assert peaks.sample == ((7, 101),)


def test_the_share_of_refused_keys_is_that_of_all_keys() -> None:
    peaks = Peaks(128)
    for n in range(20_000):
        # Those that are refused come often, and count once all the same.
        for _ in range(20 if n % 4 == 0 else 1):
            peaks.add(key_hash(f"user={n}"), 101 if n % 4 == 0 else 30)
    refused = sum(percent == 101 for _, percent in peaks.sample) / len(peaks.sample)
    assert 0.25 * 0.6 < refused < 0.25 * 1.4
    assert 20_000 * 0.75 < distinct(len(peaks.sample), peaks.cutoff) < 20_000 * 1.25


@given(SEEN, SEEN, st.integers(1, 10))
def test_samples_of_two_make_the_sample_of_one_that_saw_all(
    seen: list[tuple[int, int]], more: list[tuple[int, int]], room: int
) -> None:
    one, other = Peaks(room), Peaks(room)
    for hash_, percent in seen:
        one.add(hash_, percent)
    for hash_, percent in more:
        other.add(hash_, percent)
    entries = one.sample + other.sample
    sample, cutoff = lowest(entries, min(one.cutoff, other.cutoff), room)
    true: dict[int, int] = {}
    for hash_, percent in seen + more:
        true[hash_] = max(true.get(hash_, 0), percent)
    assert sample == tuple(sorted(true.items()))[: len(sample)]
    assert len(sample) == min(room, len(true))
    assert all(hash_ < cutoff for hash_, _ in sample)
    assert all(hash_ >= cutoff for hash_ in true.keys() - dict(sample).keys())


def test_without_a_sample_nothing_is_known_of_keys() -> None:
    assert distinct(0, 0) == 0
    assert distinct(0, Peaks(4).cutoff) == 0
