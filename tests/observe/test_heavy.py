"""The keys that come most often: what is said of them holds, and it takes no more room."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen.observe.heavy import Heavy, largest
from limen.observe.peaks import Peaks, distinct, key_hash

ROOMS = st.integers(1, 6)
STREAMS = st.lists(
    st.tuples(st.integers(0, 30).map(str), st.integers(1, 5)), max_size=300
) | st.lists(st.tuples(st.integers(0, 1_000).map(str), st.just(1)), max_size=300)


def fed(room: int, stream: list[tuple[str, int]]) -> tuple[Heavy, Counter[str]]:
    heavy, true = Heavy(room), Counter[str]()
    for key, n in stream:
        heavy[key] += n
        true[key] += n
    return heavy, true


@given(ROOMS, STREAMS)
def test_a_count_is_never_too_low_and_too_high_by_at_most_the_floor(
    room: int, stream: list[tuple[str, int]]
) -> None:
    heavy, true = fed(room, stream)
    for key, count in true.items():
        estimate = heavy.get(key, heavy.floor)
        assert count <= estimate <= count + heavy.floor
    assert heavy.keys() <= true.keys()


@given(ROOMS, STREAMS)
def test_the_floor_stays_within_its_bound(room: int, stream: list[tuple[str, int]]) -> None:
    heavy, true = fed(room, stream)
    above = sum(count - heavy.floor for count in heavy.values())
    assert heavy.floor * (room + 1) <= true.total() - above
    assert heavy.floor <= true.total() // (room + 1)
    assert all(count > heavy.floor for count in heavy.values())


@given(ROOMS, STREAMS)
def test_holds_at_most_twice_its_room(room: int, stream: list[tuple[str, int]]) -> None:
    heavy = Heavy(room)
    for key, n in stream:
        heavy[key] += n
        assert len(heavy) <= 2 * room


@given(STREAMS)
def test_is_exact_while_all_keys_fit(stream: list[tuple[str, int]]) -> None:
    heavy, true = fed(1_000, stream)
    assert heavy.floor == 0
    assert heavy == true


@pytest.mark.parametrize("n", [1, 7])
def test_keys_that_all_come_equally_often_are_dropped_together(n: int) -> None:
    heavy = Heavy(10)
    for key in range(20):
        heavy[str(key)] += n
    assert (len(heavy), heavy.floor) == (20, 0)
    heavy["one more"] += n
    assert heavy == {"one more": 2 * n}
    assert heavy.floor == n


def test_a_key_that_comes_back_begins_at_the_floor() -> None:
    heavy = Heavy(1)
    for key in ("a", "b", "c", "a"):
        heavy[key] += 1
    assert heavy.floor == 1
    assert heavy == {"c": 2, "a": 2}


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_cuts_at_most_once_for_as_many_new_keys_as_it_has_room_for(repeats: int) -> None:
    class Counted(Heavy):
        cuts = 0

        def _cut(self) -> None:
            self.cuts += 1
            super()._cut()

    heavy = Counted(50)
    for key in range(10_000):
        for _ in range(1 + key % repeats):
            heavy[str(key)] += 1
    assert 10_000 / 101 - 1 <= heavy.cuts <= 10_000 / 50


def test_adding_in_place_is_adding() -> None:
    heavy, same = Heavy(2), Heavy(2)
    for key in "abcabdaefgaah":
        heavy[key] += 2
        same[key] += 2
    assert heavy == same
    assert heavy.floor == same.floor > 0


def test_the_largest_come_first_and_equal_ones_by_key() -> None:
    counts = {"d": 2, "a": 1, "c": 2, "b": 3, "e": 1}
    heavy, _ = fed(10, list(counts.items()))
    assert heavy.top(2) == [("b", 3), ("c", 2)]
    assert heavy.top(9) == [("b", 3), ("c", 2), ("d", 2), ("a", 1), ("e", 1)]
    assert heavy.top(0) == []


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 5)), st.integers(0, 10))
def test_the_largest_are_what_sorting_all_gives(counts: dict[str, int], most: int) -> None:
    expected = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
    assert largest(counts, most) == expected


def test_threads_that_share_one_raise_nothing_and_hold_no_more() -> None:
    heavy = Heavy(4)

    def use(thread: int) -> int:
        longest = 0
        for n in range(20_000):
            heavy[f"{thread}:{n % 100}"] += 1
            longest = max(longest, len(heavy.top(100)))
        return longest

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            longest = max(pool.map(use, range(4)))
    finally:
        sys.setswitchinterval(before)
    # Each thread may have found room just before it was gone, or put back what it kept in a cut.
    assert longest <= 8 + 4 * 5


DISTINCT = 1_000_000
HEAD = [(f"head={rank:07}", 60_000 // rank) for rank in range(1, 1_001)]


def stream() -> Iterator[tuple[int, list[str]]]:
    """A head that falls as 1/rank, spread evenly by chance over a tail of which each comes once."""
    keys, counts = zip(*HEAD, strict=True)
    tail = DISTINCT - len(HEAD)
    draws = Random(7).sample(keys, counts=counts, k=sum(counts))
    blocks = tail // 100
    for block in range(blocks):
        head = draws[len(draws) * block // blocks : len(draws) * (block + 1) // blocks]
        yield block * 100, head + [f"user={n:07}" for n in range(block * 100, block * 100 + 100)]


def size(held: Mapping[Any, int]) -> int:
    return sum(map(sys.getsizeof, [held, *held.keys(), *held.values()]))


def test_a_million_keys_take_no_more_memory_than_a_few_and_the_top_ten_are_found() -> None:
    heavy, peaks = Heavy(512), Peaks(128)
    largest_heavy: dict[int, int] = {}
    largest_peaks = 0
    for start, keys in stream():
        for key in keys:
            heavy[key] += 1
            peaks.add(key_hash(key), 10)
        # They grow and are cut again and again: what counts is the most that they take. Peaks are
        # cut each time that the number of keys has doubled, so their most is that of all times.
        if start % 100_000 >= 95_000:
            mark = start // 100_000
            largest_heavy[mark] = max(largest_heavy.get(mark, 0), size(heavy))
        if start % 1_000 == 0:
            largest_peaks = max(largest_peaks, size(peaks._peaks))
            assert len(heavy) <= 1_024
            assert len(peaks.sample) <= 256
    assert len(largest_heavy) == 10
    assert max(largest_heavy.values()) <= 1.03 * min(largest_heavy.values())
    assert largest_heavy[9] < 150_000
    assert largest_peaks < 30_000
    assert [key for key, _ in heavy.top(10)] == [key for key, _ in HEAD[:10]]
    assert all(true <= heavy[key] <= true + heavy.floor for key, true in HEAD[:10])
    assert abs(distinct(len(peaks.sample), peaks.cutoff) - DISTINCT) <= 0.25 * DISTINCT
