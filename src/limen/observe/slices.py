"""What happened in a stretch of time, rule by rule: to merge, to send, and to judge. Pure.

A slice is made by one process; merged, it speaks for many processes or for a longer time. Knows
neither where slices are kept nor what time it is, and trusts nothing that it decodes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, zip_longest
from typing import Annotated, Literal

from msgspec import Meta, Struct

from limen.backends.histogram import TRIP_S
from limen.observe.heavy import largest
from limen.observe.peaks import HASHES, REFUSED, distinct, lowest

MOST_TOP = 50
"""How many entries a list of keys has after merging."""
MOST_PEAKS = 128
"""How many keys a sample has after merging."""
MOST_RULES = 10_000
"""How many rules a slice may have."""
MOST_BYTES = 2**22
"""How long an encoded slice may be."""

# What is decoded may have longer lists than what is encoded: another version may think otherwise.
_LONGEST = Meta(max_length=1_000)
# Exact in every language; and a few thousand of them still fit into what msgpack can write.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Percent = Annotated[int, Meta(ge=0, le=REFUSED)]
Hash = Annotated[int, Meta(ge=0, lt=HASHES)]
Counts = Annotated[tuple[Count, ...], Meta(max_length=len(TRIP_S) + 1)]
Tops = Annotated[tuple[tuple[str, Count], ...], _LONGEST]


class RuleSlice(Struct, array_like=True, frozen=True):
    """What happened to one rule. Its decisions are each counted once, as one of the first four."""

    allowed: Count = 0
    denied: Count = 0
    shadow_denied: Count = 0
    degraded: Count = 0
    """Decided without the store, whichever way."""
    top_allowed: Tops = ()
    """The keys that were allowed most often: (key, count), largest first."""
    top_denied: Tops = ()
    """The keys that were refused most often: (key, count), largest first."""
    error: tuple[Count, Count] = (0, 0)
    """By how much counts of top_allowed and of top_denied may be too high."""
    nearest: Annotated[tuple[tuple[str, Percent], ...], _LONGEST] = ()
    """The keys nearest their limit: (key, percent used when last seen), largest first."""
    peaks: Annotated[tuple[tuple[Hash, Percent], ...], _LONGEST] = ()
    """A fair sample of the keys: (hash, percent at its peak), smallest hash first; 101 is a key
    that was refused."""
    cutoff: Annotated[int, Meta(ge=0, le=HASHES)] = HASHES
    """Keys with this hash or a higher one are not in the sample. 0: there is no sample."""


class Slice(Struct, array_like=True, frozen=True):
    """What happened from `start` on, for so many seconds."""

    start: Count
    """Unix seconds, a multiple of `seconds`."""
    seconds: Annotated[int, Meta(ge=1, le=2**31)]
    allowed: Count
    denied: Count
    degraded: Count
    """Requests, of which the degraded ones are in allowed or denied too."""
    trips: Counts
    """Round trips to the store by the bounds of TRIP_S, then those above all of them."""
    durations: Counts
    """Requests of the service by the same bounds."""
    rules: Annotated[dict[str, RuleSlice], Meta(max_length=MOST_RULES)]


def merged(slices: Iterable[Slice], start: int, seconds: int) -> Slice:
    """Return what happened in all of the slices, in whichever order they come.

    Sums are exact. A key's count is the sum over the lists that name it: too high by at most
    `error`, which is the sum too; and too low by what the key had where a list does not name it.
    That is at most the error of that slice; or, where the list was full, its last count.
    """
    allowed = denied = degraded = 0
    trips = durations = (0,) * (len(TRIP_S) + 1)
    parts: dict[str, list[tuple[int, RuleSlice]]] = {}
    for each in slices:
        allowed += each.allowed
        denied += each.denied
        degraded += each.degraded
        trips = _added(trips, each.trips)
        durations = _added(durations, each.durations)
        end = each.start + each.seconds
        for name, rule in each.rules.items():
            parts.setdefault(name, []).append((end, rule))
    rules = {name: merged_rule(parts[name]) for name in sorted(parts)}
    return Slice(start, seconds, allowed, denied, degraded, trips, durations, rules)


def _added(these: tuple[int, ...], those: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(these, those, fillvalue=0))


def merged_rule(parts: list[tuple[int, RuleSlice]]) -> RuleSlice:
    """Return one rule of several slices, each with when its slice ended."""
    rules = [rule for _, rule in parts]
    peaks, cutoff = _merged_peaks(rules)
    return RuleSlice(
        allowed=sum(rule.allowed for rule in rules),
        denied=sum(rule.denied for rule in rules),
        shadow_denied=sum(rule.shadow_denied for rule in rules),
        degraded=sum(rule.degraded for rule in rules),
        top_allowed=_merged_tops(rule.top_allowed for rule in rules),
        top_denied=_merged_tops(rule.top_denied for rule in rules),
        error=(sum(rule.error[0] for rule in rules), sum(rule.error[1] for rule in rules)),
        nearest=_merged_nearest(parts),
        peaks=peaks,
        cutoff=cutoff,
    )


def _merged_tops(lists: Iterable[tuple[tuple[str, int], ...]]) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for top in lists:
        for key, count in top:
            counts[key] = counts.get(key, 0) + count
    return tuple(largest(counts, MOST_TOP))


def _merged_nearest(parts: list[tuple[int, RuleSlice]]) -> tuple[tuple[str, int], ...]:
    # The newest word on a key stands, even when it is the lower one. Several processes may have
    # seen it in the same stretch: then nobody knows who was last, and the higher one stands.
    last: dict[str, int] = {}
    for end, rule in parts:
        for key, percent in rule.nearest:
            word = end << 7 | percent
            if word > last.get(key, -1):
                last[key] = word
    return tuple(largest({key: word & 127 for key, word in last.items()}, MOST_TOP))


def _merged_peaks(rules: list[RuleSlice]) -> tuple[tuple[tuple[int, int], ...], int]:
    # Below the smallest cutoff every slice has named all of its keys, so what is there is what
    # one process would have sampled. A slice that has no sample says nothing about keys, and must
    # not take the others' away.
    cutoff = min((rule.cutoff for rule in rules if rule.cutoff), default=0)
    entries = chain.from_iterable(rule.peaks for rule in rules)
    return lowest(entries, cutoff, MOST_PEAKS)


def percentile(times: Sequence[int], percent: int) -> float | None:
    """Return the bound of TRIP_S that so many percent of the times lie within.

    None without any times; infinite when it is above all bounds.
    """
    total = sum(times)
    if not total:
        return None
    # In whole numbers: the first bucket that, with those below it, takes in enough of them.
    bucket = bisect_left(list(accumulate(times)), -(-total * percent // 100))
    return TRIP_S[bucket] if bucket < len(TRIP_S) else math.inf


BANDS = (10, 25, 50, 75, 90, 100)
"""Percents of a limit, the highest that each band takes in; a last band is of refused keys."""
Word = Literal["refuses many", "tight", "fitting", "loose", "never reached", "unknown"]
_MANY = 0.1


class Band(Struct, frozen=True):
    """The share of keys in a band of utilisation."""

    up_to: int
    """Percent of the limit; above that of the band before."""
    share: float
    """Of all keys, from 0 to 1."""


class Utilisation(Struct, frozen=True):
    """How close the keys of a rule come to its limit."""

    word: Word
    """`refuses many`: a tenth of the keys or more was refused. `tight`: a tenth or more came above
    90 %. `fitting`: some were refused, or came above 75 %. `loose`: none did. `never reached`: none
    even came above 25 %. `unknown`: there were decisions, but there is no sample of their keys."""
    keys: int
    """The number of different keys, approximately."""
    sampled: int
    """The number of keys in the sample for the shares."""
    refused: float
    """The share of keys that were refused at least once, 0 to 1."""
    histogram: tuple[Band, ...]
    """The share of keys whose peak lies in each of BANDS. With `refused`, all of them."""


def utilisation(rule: RuleSlice) -> Utilisation:
    """Return how close the keys of a rule came to its limit, with a word for it."""
    peaks = [percent for hash_, percent in rule.peaks if hash_ < rule.cutoff]
    counts = [0] * (len(BANDS) + 1)
    for percent in peaks:
        counts[sum(percent > band for band in BANDS)] += 1
    *shares, refused = [round(count / max(1, len(peaks)), 4) for count in counts]
    return Utilisation(
        word=_word(rule, peaks),
        keys=distinct(len(peaks), rule.cutoff),
        sampled=len(peaks),
        refused=refused,
        histogram=tuple(Band(up_to, share) for up_to, share in zip(BANDS, shares, strict=True)),
    )


def _word(rule: RuleSlice, peaks: list[int]) -> Word:
    if not peaks:
        decided = rule.allowed + rule.denied + rule.shadow_denied + rule.degraded
        return "unknown" if decided else "never reached"
    many = _MANY * len(peaks)
    if sum(percent >= REFUSED for percent in peaks) >= many:
        return "refuses many"
    if sum(percent > 90 for percent in peaks) >= many:
        return "tight"
    # The few that are refused need not be in the sample, but the sums know of them.
    if rule.denied or rule.shadow_denied or max(peaks) > 75:
        return "fitting"
    return "loose" if max(peaks) > 25 else "never reached"
