"""Slices of time: merged, sent within a bound, read with distrust, and judged by a word."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from limen.backends.histogram import TRIP_S
from limen.observe.cells import OTHERS
from limen.observe.heavy import Heavy
from limen.observe.packed import decode, encode
from limen.observe.peaks import HASHES, Peaks, key_hash
from limen.observe.slices import (
    BANDS,
    MOST_BYTES,
    MOST_PEAKS,
    MOST_RULES,
    MOST_TOP,
    RuleSlice,
    Slice,
    merged,
    utilisation,
)

COUNTS = st.integers(0, 10**6)
PERCENTS = st.integers(0, 101)
TIMES = tuple(range(len(TRIP_S) + 1))


def tops(keys: st.SearchStrategy[str], numbers: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    def ranked(entries: dict[str, int]) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(entries.items(), key=lambda entry: (-entry[1], entry[0])))

    return st.dictionaries(keys, numbers, max_size=5).map(ranked)


# Made once, and not anew for every example: that takes longer than to draw from them.
KEYS = st.sampled_from("abcdefghij") | st.text(st.characters(codec="utf-8"), max_size=5)
TOPS = tops(KEYS, COUNTS)
NEAREST = tops(KEYS, PERCENTS)
CUTOFFS = st.just(HASHES) | st.integers(1, 40)


@cache
def peaks_below(cutoff: int) -> st.SearchStrategy[dict[int, int]]:
    return st.dictionaries(st.integers(0, min(50, cutoff - 1)), PERCENTS, max_size=8)


@st.composite
def rule_slices(draw: st.DrawFn) -> RuleSlice:
    cutoff = draw(CUTOFFS)
    peaks = draw(peaks_below(cutoff))
    return RuleSlice(
        draw(COUNTS),
        draw(COUNTS),
        draw(COUNTS),
        draw(COUNTS),
        top_allowed=draw(TOPS),
        top_denied=draw(TOPS),
        error=(draw(COUNTS), draw(COUNTS)),
        nearest=draw(NEAREST),
        peaks=tuple(sorted(peaks.items())),
        cutoff=cutoff,
    )


TWELVE = COUNTS.map(lambda n: tuple(n * time % 1_009 for time in TIMES))
SLICES = st.builds(
    Slice,
    st.integers(0, 10).map(lambda n: n * 5),
    st.just(5),
    COUNTS,
    COUNTS,
    COUNTS,
    TWELVE,
    TWELVE,
    st.dictionaries(st.sampled_from(["search", "login", "export"]), rule_slices(), max_size=2),
)


def slice_of(rules: dict[str, RuleSlice] | None = None, start: int = 0) -> Slice:
    return Slice(start, 5, 1, 2, 3, TIMES, TIMES, rules or {})


def busy(keys: int = 50, width: int = 8, seed: int = 1) -> RuleSlice:
    """A rule with lists that are as full as they get."""
    chance = Random(seed)
    names = [f"{n}".rjust(width, "k") for n in range(keys)]
    top = tuple((name, 10_000 - n) for n, name in enumerate(names))
    hashes = sorted(chance.sample(range(2**24), 200))
    return RuleSlice(
        700,
        80,
        9,
        1,
        top_allowed=top,
        top_denied=top,
        error=(3, 4),
        nearest=tuple((name, 100 - n) for n, name in enumerate(names)),
        peaks=tuple((hash_, chance.randrange(102)) for hash_ in hashes),
        cutoff=2**24,
    )


def sums(slice_: Slice) -> list[int]:
    rules = slice_.rules.values()
    return [
        sum(rule.allowed for rule in rules),
        sum(rule.denied for rule in rules),
        sum(rule.shadow_denied for rule in rules),
        sum(rule.degraded for rule in rules),
    ]


# Merging


@given(st.lists(SLICES, max_size=4), st.randoms(use_true_random=False))
def test_merging_is_the_same_in_any_order(slices: list[Slice], chance: Random) -> None:
    shuffled = slices.copy()
    chance.shuffle(shuffled)
    assert encode(merged(slices, 0, 60), 10**6) == encode(merged(shuffled, 0, 60), 10**6)


@given(SLICES)
def test_merging_one_slice_with_empty_ones_changes_nothing(slice_: Slice) -> None:
    start, seconds = slice_.start, slice_.seconds
    nothing = merged([], start, seconds)
    nobody = replace(nothing, rules={name: RuleSlice() for name in slice_.rules})
    assert merged([slice_], start, seconds) == slice_
    assert merged([nothing, slice_, nobody], start, seconds) == slice_


@given(st.lists(SLICES, max_size=3), st.lists(SLICES, max_size=3))
def test_merging_what_was_merged_is_merging_all_at_once(
    some: list[Slice], others: list[Slice]
) -> None:
    def without_times(slice_: Slice) -> Slice:
        # Which word on a key is the newest is known only of the slices themselves.
        rules = {name: replace(rule, nearest=()) for name, rule in slice_.rules.items()}
        return replace(slice_, rules=rules)

    parts = [merged(some, 0, 60), merged(others, 0, 60)]
    assert without_times(merged(parts, 0, 60)) == without_times(merged(some + others, 0, 60))


@given(st.lists(SLICES, max_size=4))
def test_sums_are_exact(slices: list[Slice]) -> None:
    whole = merged(slices, 0, 60)
    assert (whole.start, whole.seconds) == (0, 60)
    assert whole.allowed == sum(each.allowed for each in slices)
    assert whole.denied == sum(each.denied for each in slices)
    assert whole.degraded == sum(each.degraded for each in slices)
    for n in range(len(TIMES)):
        assert whole.trips[n] == sum(each.trips[n] for each in slices)
        assert whole.durations[n] == sum(each.durations[n] for each in slices)
    assert sums(whole) == [sum(each) for each in zip([0] * 4, *map(sums, slices), strict=True)]
    for name, rule in whole.rules.items():
        parts = [each.rules[name] for each in slices if name in each.rules]
        denied = Counter[str]()
        for part in parts:
            denied.update(dict(part.top_denied))
        assert dict(rule.top_denied) == denied
        assert rule.error[1] == sum(part.error[1] for part in parts)


@given(st.lists(st.lists(st.integers(0, 40).map(str), max_size=120), min_size=1, max_size=4))
def test_a_merged_count_is_wrong_by_no_more_than_is_said(streams: list[list[str]]) -> None:
    slices, true = [], Counter[str]()
    for stream in streams:
        heavy = Heavy(4)
        for key in stream:
            heavy[key] += 1
        true.update(stream)
        rule = RuleSlice(top_denied=tuple(heavy.top(MOST_TOP)), error=(0, heavy.floor))
        slices.append(slice_of({"search": rule}))
    rule = merged(slices, 0, 5).rules["search"]
    for key, count in rule.top_denied:
        parts = [each.rules["search"] for each in slices]
        missed = sum(part.error[1] for part in parts if key not in dict(part.top_denied))
        assert true[key] - missed <= count <= true[key] + rule.error[1]


def test_a_slice_without_any_times_merges_with_one_that_has_them() -> None:
    untimed = replace(slice_of(), trips=(), durations=(5,))
    whole = merged([untimed, slice_of()], 0, 5)
    assert whole.trips == TIMES
    assert whole.durations == (5, *TIMES[1:])
    assert merged([], 0, 5).trips == (0,) * len(TIMES)


def test_lists_stay_short_however_many_are_merged() -> None:
    slices = []
    for n in range(8):
        keys = tuple((f"{n}:{key}", 1_000 - key - n) for key in range(50))
        peaks = tuple((n + 8 * hash_, 50) for hash_ in range(100))
        rule = RuleSlice(
            top_allowed=keys,
            top_denied=keys,
            nearest=tuple((key, rank % 101) for key, rank in keys),
            peaks=peaks,
            cutoff=2**20,
        )
        slices.append(slice_of({"search": rule}))
    rule = merged(slices, 0, 5).rules["search"]
    assert len(rule.top_allowed) == len(rule.top_denied) == len(rule.nearest) == MOST_TOP
    assert rule.top_denied[:3] == (("0:0", 1_000), ("0:1", 999), ("1:0", 999))
    assert [hash_ for hash_, _ in rule.peaks] == list(range(MOST_PEAKS))
    assert rule.cutoff == MOST_PEAKS


@pytest.mark.parametrize("turned", [False, True])
def test_the_newest_word_on_how_near_a_key_is_stands(turned: bool) -> None:
    def near(start: int, **percents: int) -> Slice:
        return slice_of({"search": RuleSlice(nearest=tuple(percents.items()))}, start)

    slices = [near(5, ann=20, bob=40), near(0, ann=99, cid=60), near(5, bob=45)]
    rule = merged(slices[::-1] if turned else slices, 0, 10).rules["search"]
    assert rule.nearest == (("cid", 60), ("bob", 45), ("ann", 20))


def test_a_merged_sample_is_what_one_process_would_have_sampled() -> None:
    processes, one = [Peaks(128) for _ in range(3)], Peaks(128)
    for n in range(30_000):
        hash_ = key_hash(f"user={n % 10_000}")
        processes[n % 3].add(hash_, n % 102)
        one.add(hash_, n % 102)
    slices = [
        slice_of({"search": RuleSlice(peaks=each.sample, cutoff=each.cutoff)}) for each in processes
    ]
    rule = merged(slices, 0, 5).rules["search"]
    assert len(rule.peaks) == MOST_PEAKS
    assert rule.peaks == tuple(each for each in one.sample if each[0] < rule.cutoff)
    assert 7_500 < utilisation(rule).keys < 12_500


def test_a_slice_without_a_sample_takes_no_other_sample_away() -> None:
    known = RuleSlice(peaks=((1, 50), (2, 101)), cutoff=100)
    unknown = RuleSlice(allowed=5, cutoff=0)
    rule = merged([slice_of({"a": unknown}), slice_of({"a": known})], 0, 5).rules["a"]
    assert (rule.peaks, rule.cutoff) == (known.peaks, 100)
    assert merged([slice_of({"a": unknown})] * 2, 0, 5).rules["a"].cutoff == 0


# Sending


@given(SLICES)
def test_what_is_encoded_is_decoded(slice_: Slice) -> None:
    assert decode(encode(slice_, 10**6)) == slice_


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 300)), max_size=40),
    st.integers(1_000, 60_000),
)
def test_an_encoded_slice_is_never_longer_than_allowed_and_its_sums_stay(
    shapes: list[tuple[int, int]], most_bytes: int
) -> None:
    rules = {
        f"rule-{n}".ljust(width, "-"): busy(keys, width, n)
        for n, (keys, width) in enumerate(shapes)
    }
    slice_ = slice_of(rules)
    data = encode(slice_, most_bytes)
    assert len(data) <= most_bytes
    read = decode(data)
    assert read is not None
    assert sums(read) == sums(slice_)
    assert replace(read, rules={}) == replace(slice_, rules={})
    for name in read.rules.keys() - {OTHERS}:
        was, now = slice_.rules[name], read.rules[name]
        assert now.top_denied == was.top_denied[: len(now.top_denied)]
        assert now.top_allowed == was.top_allowed[: len(now.top_allowed)]
        assert now.nearest == was.nearest[: len(now.nearest)]
        assert now.peaks == tuple(each for each in was.peaks if each[0] < now.cutoff)


def test_lists_are_cut_to_their_lengths_even_when_there_is_room() -> None:
    read = decode(encode(slice_of({"search": busy(60)}), 10**6))
    assert read is not None
    rule, was = read.rules["search"], busy(60)
    lengths = [len(rule.top_denied), len(rule.top_allowed), len(rule.nearest), len(rule.peaks)]
    assert lengths == [MOST_TOP, MOST_TOP, MOST_TOP, MOST_PEAKS]
    assert rule.cutoff == was.peaks[MOST_PEAKS][0]


def test_who_is_refused_is_what_is_left_out_last() -> None:
    slice_ = slice_of({"search": busy()})
    before = (MOST_TOP + 1,) * 4
    for most_bytes in range(4_000, 1_000, -50):
        read = decode(encode(slice_, most_bytes))
        assert read is not None
        rule = read.rules["search"]
        lengths = (
            len(rule.top_denied),
            len(rule.top_allowed),
            len(rule.nearest),
            min(len(rule.peaks), MOST_TOP),
        )
        assert all(now <= then for now, then in zip(lengths, before, strict=True))
        assert lengths[0] >= max(lengths[1:3])
        before = lengths
    assert before[0] > before[1]


def test_a_rule_with_long_lists_takes_nothing_from_those_with_short_ones() -> None:
    long, short = busy(50, 256), busy(20)  # no key is longer
    rules = {"long": long, **{f"short-{n}": short for n in range(10)}}
    read = decode(encode(slice_of(rules), 44_000))
    assert read is not None
    for n in range(10):
        assert read.rules[f"short-{n}"].top_denied == short.top_denied
        assert read.rules[f"short-{n}"].nearest == short.nearest
        assert len(read.rules[f"short-{n}"].peaks) == MOST_PEAKS
    assert 0 < len(read.rules["long"].top_allowed) < MOST_TOP


def quiet(number: int, keys: int = 20) -> RuleSlice:
    """A rule that refuses nobody, with so many keys."""
    chance = Random(number)
    top = tuple((f"user={number}-{key:04}", 100 - key) for key in range(keys))
    hashes = sorted(chance.sample(range(HASHES), keys))
    return RuleSlice(
        1_000 + number,
        top_allowed=top,
        nearest=top,
        peaks=tuple((hash_, chance.randrange(101)) for hash_ in hashes),
    )


def attacked(number: int, refusals: int, keys: int = 1) -> RuleSlice:
    denied = tuple((f"attacker-{number}-{key}", refusals - key) for key in range(keys))
    return replace(quiet(number), denied=refusals, top_denied=denied)


@pytest.mark.parametrize("count", [100, 200, 300, 700, 1_000])
def test_of_many_rules_the_one_that_is_attacked_names_who_does_it(count: int) -> None:
    rules = {f"rule-{n}": quiet(n) for n in range(count)}
    rules["login"] = attacked(0, 5_000)
    data = encode(slice_of(rules), 32_768)
    assert 32_768 * 0.99 < len(data) <= 32_768
    read = decode(data)
    assert read is not None
    assert read.rules.keys() == rules.keys()
    assert read.rules["login"].top_denied == (("attacker-0-0", 5_000),)
    # And of some others it is known how their limits fit: of those that are used most.
    known = [name for name, rule in read.rules.items() if utilisation(rule).word != "unknown"]
    assert len(known) >= min(count, 50)
    assert {"login", f"rule-{count - 1}"} <= {*known}


@pytest.mark.parametrize(("count", "most", "least"), [(600, 3, 0), (200, 10, 3)])
def test_when_many_rules_are_attacked_the_worst_come_first(
    count: int, most: int, least: int
) -> None:
    rules = {f"rule-{n:03}": attacked(n, 100 + n, keys=20) for n in range(count)}
    data = encode(slice_of(rules), 32_768)
    read = decode(data)
    assert read is not None
    assert len(data) > 32_768 * 0.99
    lengths = [len(read.rules[name].top_denied) for name in sorted(rules, reverse=True)]
    told = lengths.count(most)
    assert lengths[:told] == [most] * told
    # One has a part of it; for those behind there was no room.
    assert told > 100
    assert set(lengths[told + 1 :]) == {least}


@given(st.integers(1_000, 20_000), st.randoms(use_true_random=False))
def test_what_is_left_out_does_not_depend_on_the_order_of_rules(
    most_bytes: int, chance: Random
) -> None:
    rules = {f"rule-{n}": attacked(n, n % 7, keys=n % 30) for n in range(60)}
    names = [*rules]
    chance.shuffle(names)
    shuffled = {name: rules[name] for name in names}
    assert encode(slice_of(rules), most_bytes) == encode(slice_of(shuffled), most_bytes)


def test_a_sample_is_left_out_rather_than_tiny() -> None:
    rules = {f"rule-{n}": quiet(n, keys=100) for n in range(100)}
    for most_bytes in range(2_000, 30_000, 500):
        read = decode(encode(slice_of(rules), most_bytes))
        assert read is not None
        assert all(
            len(rule.peaks) >= 16 or (rule.peaks, rule.cutoff) == ((), 0)
            for rule in read.rules.values()
        )


def test_rules_that_find_no_room_are_summed_up_and_those_with_refusals_stay() -> None:
    rules = {f"rule-{n}": RuleSlice(allowed=n, top_allowed=(("a", n),)) for n in range(1_000)}
    rules["tight"] = RuleSlice(allowed=1, denied=5)
    rules["failing"] = RuleSlice(degraded=3)
    rules[OTHERS] = RuleSlice(allowed=7, denied=10**6)
    slice_ = slice_of(rules)
    data = encode(slice_, 2_000)
    read = decode(data)
    assert read is not None
    assert 1_800 < len(data) <= 2_000
    assert sums(read) == sums(slice_)
    assert list(read.rules)[:3] == ["tight", "failing", "rule-999"]
    assert read.rules[OTHERS].denied == 10**6
    assert read.rules[OTHERS].allowed > 7


def test_the_bound_holds_to_the_byte() -> None:
    rules = {f"{n:03}": RuleSlice(denied=1) for n in range(200)}
    slice_ = slice_of({**rules, OTHERS: RuleSlice(2**40, 2**40, 2**40, 2**40)})
    lengths = {most_bytes: len(encode(slice_, most_bytes)) for most_bytes in range(1_000, 1_060)}
    assert all(length <= most_bytes for most_bytes, length in lengths.items())
    assert any(length >= most_bytes - 2 for most_bytes, length in lengths.items())


def test_more_rules_than_may_be_are_summed_up() -> None:
    slice_ = slice_of({f"{n}": RuleSlice(allowed=1) for n in range(MOST_RULES + 5)})
    read = decode(encode(slice_, MOST_BYTES))
    assert read is not None
    assert len(read.rules) == MOST_RULES
    assert read.rules[OTHERS].allowed == 6


# Distrust


def written(**changes: Any) -> bytes:
    """A slice as somebody may have written it, with fields of it or of its rule changed."""
    rule = {
        name: changes.pop(name, value) for name, value in msgspec.structs.asdict(busy()).items()
    }
    whole = msgspec.structs.asdict(slice_of()) | {"rules": {"search": [*rule.values()]}} | changes
    return msgspec.msgpack.encode([*whole.values()])


def test_what_another_wrote_is_read() -> None:
    assert decode(written()) == slice_of({"search": busy()})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\x90",
        b"{}",
        written()[:-1],
        written() + b"\x00",
        written(start=-1),
        written(start=2**60),
        written(start="0"),
        written(seconds=0),
        written(trips=[-1]),
        written(trips=[0] * 13),
        written(durations=[1.5]),
        written(durations=None),
        written(rules=[]),
        written(rules={1: []}),
        written(rules={"a": [-1]}),
        written(rules={"a": [True]}),
        written(rules={"a": {}}),
        written(rules={str(n): [] for n in range(MOST_RULES + 1)}),
        written(shadow_denied=-1),
        written(degraded=2**64 - 1),
        written(top_allowed=[["a", 1, 2]]),
        written(top_denied=[["a", -1]]),
        written(top_denied=[[b"a", 1]]),
        written(top_denied=[["a", 1]] * 1_001),
        written(error=[1]),
        written(error=[1, -1]),
        written(nearest=[["a", 102]]),
        written(nearest=[["a", -1]]),
        written(peaks=[[2**32, 1]]),
        written(peaks=[[-1, 1]]),
        written(peaks=[[1, 102]]),
        written(peaks=[[n, 1] for n in range(1_001)]),
        written(cutoff=2**32 + 1),
        written(cutoff=-1),
        written(rules={"a" * MOST_BYTES: []}),
        written().replace(b"search", b"\xff\xfe\xfd\xfc\xfb\xfa"),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x99" + written()[1:] + b"\x91" * 100_000,
    ],
    ids=range(41),
)
def test_what_is_wrong_in_any_way_is_none(data: bytes) -> None:
    assert decode(data) is None


@given(st.binary(max_size=300))
def test_garbage_is_none(data: bytes) -> None:
    assert decode(data) is None


@given(SLICES, st.data())
def test_a_damaged_slice_is_none_or_can_be_worked_with(slice_: Slice, data: st.DataObject) -> None:
    damaged = bytearray(encode(slice_, 10**6))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    read = decode(bytes(damaged))
    if read is not None:
        whole = merged([read, slice_, read], 0, 60)
        assert len(encode(whole, 2_000)) <= 2_000
        for rule in whole.rules.values():
            assert utilisation(rule).keys >= 0


# A word on limits


def rule_with(percents: list[int], **fields: Any) -> RuleSlice:
    return RuleSlice(peaks=tuple(enumerate(percents)), **fields)


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        (rule_with([5] * 90 + [101] * 10), "refuses many"),
        (rule_with([5] * 91 + [101] * 9), "fitting"),
        (rule_with([5] * 90 + [95] * 5 + [101] * 5), "tight"),
        (rule_with([5] * 90 + [91] * 10), "tight"),
        (rule_with([5] * 90 + [90] * 10), "fitting"),
        (rule_with([5] * 99 + [76]), "fitting"),
        (rule_with([5] * 99 + [75]), "loose"),
        (rule_with([5] * 99 + [26]), "loose"),
        (rule_with([25] * 100), "never reached"),
        (rule_with([25] * 100, denied=1), "fitting"),
        (rule_with([25] * 100, shadow_denied=1), "fitting"),
        (RuleSlice(), "never reached"),
        (RuleSlice(allowed=1, cutoff=0), "unknown"),
    ],
)
def test_a_word_says_how_a_limit_fits(rule: RuleSlice, word: str) -> None:
    assert utilisation(rule).word == word


def test_shares_are_by_band_and_the_last_is_of_those_refused() -> None:
    found = utilisation(rule_with([0, 10, 11, 25, 50, 60, 90, 100, 101, 101]))
    assert [band.up_to for band in found.histogram] == [*BANDS]
    assert [band.share for band in found.histogram] == [0.2, 0.2, 0.1, 0.1, 0.1, 0.1]
    assert (found.keys, found.sampled, found.refused) == (10, 10, 0.2)


def test_keys_beyond_the_sample_are_estimated() -> None:
    found = utilisation(RuleSlice(peaks=((1, 5), (2, 101), (HASHES // 4, 7)), cutoff=HASHES // 4))
    assert (found.keys, found.sampled, found.refused) == (8, 2, 0.5)


def test_without_keys_there_are_no_shares() -> None:
    found = utilisation(RuleSlice(cutoff=0))
    assert (found.keys, found.sampled, found.refused) == (0, 0, 0)
    assert {band.share for band in found.histogram} == {0}
