"""A slice as bytes, never more than asked for, and back, with distrust. Pure.

What does not fit loses the ends of its lists, in the order in which people would miss them least.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Raw, msgpack
from msgspec.structs import astuple, replace

from limen.observe.cells import OTHERS
from limen.observe.slices import (
    MOST_BYTES,
    MOST_PEAKS,
    MOST_RULES,
    MOST_TOP,
    RuleSlice,
    Slice,
    merged_rule,
)


class _Lengths(NamedTuple):
    denied: int
    allowed: int
    nearest: int
    peaks: int


_BARE = _Lengths(0, 0, 0, 0)
_FULL = _Lengths(MOST_TOP, MOST_TOP, MOST_TOP, MOST_PEAKS)
# The lengths of the lists of a rule, step by step. Refused keys come first: people ask for them
# first. A sample begins with several keys at once, because a merge can only go as far as the
# smallest sample in it.
_STEPS = (
    _Lengths(3, 0, 0, 0),
    _Lengths(10, 0, 0, 0),
    _Lengths(10, 1, 1, 16),
    _Lengths(10, 2, 2, 16),
    _Lengths(25, 5, 5, 16),
    _Lengths(25, 10, 10, 16),
    _Lengths(50, 10, 10, 32),
    _Lengths(50, 25, 25, 64),
    _FULL,
)
_LONGEST_SUMS = RuleSlice(2**53, 2**53, 2**53, 2**53, cutoff=0)
_write = msgpack.Encoder().encode
_read = msgpack.Decoder(Slice).decode


def encode(slice_: Slice, most_bytes: int) -> bytes:
    """Return a slice as bytes, at most so many; `most_bytes` is at least 1,000.

    What is too long loses the ends of its lists. All rules take the same steps to longer lists,
    those with the most refusals first, as long as there is room. If even the bare sums of all rules
    are too long, the rules with the fewest refusals are added up as `(others)`. All sums stay
    exact. What is kept does not depend on the order of the rules.
    """
    most_bytes = min(most_bytes, MOST_BYTES)
    rules = {name: _shortened(rule, _FULL) for name, rule in slice_.rules.items()}
    slice_ = replace(slice_, rules=rules)
    data = _write(slice_)
    if len(data) <= most_bytes and len(rules) <= MOST_RULES:
        return data
    return _fitted(slice_, most_bytes)


def decode(data: bytes) -> Slice | None:
    """Return the slice that was encoded; None for what is none, or is wrong or too long."""
    if len(data) > MOST_BYTES:
        return None
    try:
        return _read(data)
    except (ValueError, RecursionError):
        return None


def _shortened(rule: RuleSlice, lengths: _Lengths) -> RuleSlice:
    """Return a rule with the beginnings of its lists; its bare sums when they are all empty."""
    peaks, cutoff = rule.peaks, rule.cutoff
    if not lengths.peaks:
        peaks, cutoff = (), 0
    elif len(peaks) > lengths.peaks:
        peaks, cutoff = peaks[: lengths.peaks], peaks[lengths.peaks][0]
    # A list without keys has no counts that could be too high.
    error = (rule.error[0] if lengths.allowed else 0, rule.error[1] if lengths.denied else 0)
    return replace(
        rule,
        top_allowed=rule.top_allowed[: lengths.allowed],
        top_denied=rule.top_denied[: lengths.denied],
        error=error,
        nearest=rule.nearest[: lengths.nearest],
        peaks=peaks,
        cutoff=cutoff,
    )


def _fitted(slice_: Slice, most_bytes: int) -> bytes:
    # The head has an empty map, whose length takes one byte; that of a full one takes up to five.
    room = most_bytes - len(_write(replace(slice_, rules={}))) - 4
    rules = _folded(slice_.rules, room)
    written = {name: _write(_shortened(rule, _BARE)) for name, rule in rules.items()}
    room -= sum(len(_write(name)) + len(each) for name, each in written.items())
    growing = rules
    for lengths in _STEPS:
        fitting: dict[str, RuleSlice] = {}
        for name, rule in growing.items():
            longer = _write(_shortened(rule, lengths))
            growth = len(longer) - len(written[name])
            # A rule takes no further step after one that did not fit.
            if growth <= room:
                room -= growth
                written[name] = longer
                fitting[name] = rule
        growing = fitting
    raw = {name: Raw(each) for name, each in written.items()}
    return _write((*astuple(slice_)[:-1], raw))


def _folded(rules: dict[str, RuleSlice], room: int) -> dict[str, RuleSlice]:
    """Return the rules whose bare sums fit into so many bytes; the last ones as `(others)`.

    Those with the most refusals come first.
    """
    sizes = {
        name: len(_write(name)) + len(_write(_shortened(rule, _BARE)))
        for name, rule in rules.items()
    }
    ordered = sorted(rules, key=lambda name: (_weight(rules[name]), name))
    if sum(sizes.values()) <= room and len(rules) <= MOST_RULES:
        return {name: rules[name] for name in ordered}
    room -= len(_write(OTHERS)) + len(_write(_LONGEST_SUMS))
    kept: dict[str, RuleSlice] = {}
    for name in ordered:
        if name == OTHERS:
            continue
        room -= sizes[name]
        if room < 0 or len(kept) == MOST_RULES - 1:
            break
        kept[name] = rules[name]
    rest = [(0, _shortened(rule, _BARE)) for name, rule in rules.items() if name not in kept]
    return kept | {OTHERS: merged_rule(rest)}


def _weight(rule: RuleSlice) -> tuple[int, int]:
    return -(rule.denied + rule.shadow_denied + rule.degraded), -rule.allowed
