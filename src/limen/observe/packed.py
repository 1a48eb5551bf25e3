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


_FULL = _Lengths(MOST_TOP, MOST_TOP, MOST_TOP, MOST_PEAKS)
# What is told of a rule as far as there is room, in this order. Who is refused comes first: that is
# what people ask first. A sample begins with several keys at once, because a merge can only go as
# far as the smallest sample in it.
_LEAST_PEAKS = 16
_WORST, _REFUSED, _TOLD = (
    _Lengths(3, 0, 0, 0),
    _Lengths(10, 0, 0, 0),
    _Lengths(10, 1, 1, _LEAST_PEAKS),
)
_LADDER = (
    _WORST,
    _REFUSED,
    _TOLD,
    _Lengths(10, 2, 2, 16),
    _Lengths(25, 5, 5, 16),
    _Lengths(50, 10, 10, 32),
    _Lengths(50, 25, 25, 64),
    _FULL,
)


def _steps() -> tuple[_Lengths, ...]:
    """Return the ladder key by key, each step longer by one; before it nothing."""
    steps = [_Lengths(0, 0, 0, 0)]
    for rung in _LADDER:
        for field, most in rung._asdict().items():
            while getattr(steps[-1], field) < most:
                length = getattr(steps[-1], field) + 1
                if field == "peaks":
                    length = max(length, _LEAST_PEAKS)
                steps.append(steps[-1]._replace(**{field: length}))
    return tuple(steps)


_STEPS = _steps()
_LAST = len(_STEPS) - 1
_LEAST_ENTRY = 3  # bytes: a list of two, an empty text, a small number
_LONGEST_SUMS = RuleSlice(2**53, 2**53, 2**53, 2**53, cutoff=0)
_write = msgpack.Encoder().encode
_read = msgpack.Decoder(Slice).decode


def encode(slice_: Slice, most_bytes: int) -> bytes:
    """Return a slice as bytes, at most so many; `most_bytes` is at least 1,000.

    What is too long loses the ends of its lists. The room goes first to the keys that are refused
    most, of the rules with the most refusals first; then to a little of all else of each rule, in
    the same order; then to all rules alike. If even the bare sums of all rules are too long, the
    rules with the fewest refusals are summed up as `(others)`. All sums stay exact. What is kept
    does not depend on the order of the rules.
    """
    most_bytes = min(most_bytes, MOST_BYTES)
    slice_ = replace(
        slice_,
        rules={
            name: rule if _is_short(rule) else _shortened(rule, _FULL)
            for name, rule in slice_.rules.items()
        },
    )
    try:
        data = _write(slice_)
    except UnicodeEncodeError:
        slice_ = _writable(slice_)
        data = _write(slice_)
    if len(data) <= most_bytes and len(slice_.rules) <= MOST_RULES:
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


def _writable(slice_: Slice) -> Slice:
    """Return a slice with what UTF-8 has no place for, in its keys and names, spelt out."""

    def spelt(text: str) -> str:
        return text.encode("utf-8", "backslashreplace").decode()

    def spelt_all(entries: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
        return tuple((spelt(key), number) for key, number in entries)

    parts: dict[str, list[tuple[int, RuleSlice]]] = {}
    for name, rule in slice_.rules.items():
        spelt_rule = replace(
            rule,
            top_allowed=spelt_all(rule.top_allowed),
            top_denied=spelt_all(rule.top_denied),
            nearest=spelt_all(rule.nearest),
        )
        parts.setdefault(spelt(name), []).append((0, spelt_rule))
    # Two names may be one when they are spelt out.
    rules = {
        name: merged_rule(same) if len(same) > 1 else same[0][1] for name, same in parts.items()
    }
    return replace(slice_, rules=rules)


def _is_short(rule: RuleSlice) -> bool:
    return (
        len(rule.top_denied) <= MOST_TOP
        and len(rule.top_allowed) <= MOST_TOP
        and len(rule.nearest) <= MOST_TOP
        and len(rule.peaks) <= MOST_PEAKS
    )


def _shortened(rule: RuleSlice, lengths: _Lengths) -> RuleSlice:
    """Return a rule with the beginnings of its lists; its bare sums when they are all empty."""
    denied, allowed, nearest, most_peaks = lengths
    peaks, cutoff = rule.peaks, rule.cutoff
    if not most_peaks:
        peaks, cutoff = (), 0
    elif len(peaks) > most_peaks:
        peaks, cutoff = peaks[:most_peaks], peaks[most_peaks][0]
    top_allowed, top_denied = rule.top_allowed[:allowed], rule.top_denied[:denied]
    # Who names no key is not wrong about any.
    error = (rule.error[0] if top_allowed else 0, rule.error[1] if top_denied else 0)
    return RuleSlice(
        rule.allowed,
        rule.denied,
        rule.shadow_denied,
        rule.degraded,
        top_allowed,
        top_denied,
        error,
        rule.nearest[:nearest],
        peaks,
        cutoff,
    )


def _bare(rule: RuleSlice) -> RuleSlice:
    return _shortened(rule, _STEPS[0])


class _Part:
    """One rule in what is written: how many of the steps it has taken, and what that makes."""

    __slots__ = ("_full", "rule", "step", "written")

    def __init__(self, rule: RuleSlice) -> None:
        self.rule = rule
        self.step = 0
        self.written = _write(_bare(rule))
        self._full = b""

    @property
    def full(self) -> bytes:
        # Not before it is needed: of many rules with long lists it never is, and it takes longest.
        if not self._full:
            self._full = _write(self.rule)
        return self._full

    @property
    def wanted(self) -> int:
        return len(self.full) - len(self.written)

    def grow(self, room: int, last: int = _LAST) -> int:
        """Take as many steps as there is room for, up to the last; return how many bytes it took.

        Steps are never left out: so a rule that has more room tells no less of anything.
        """
        before = len(self.written)
        most = before + room
        if last == _LAST and 0 < len(self._full) <= most:
            self.step, self.written = _LAST, self._full
            return len(self.written) - before
        # Long strides while they fit, then shorter ones: most rules take few steps, or all.
        stride, fits = max(last - self.step, 0) if last < _LAST else 1, True
        while stride:
            step = min(self.step + stride, last)
            written = self.full if step == _LAST else _write(_shortened(self.rule, _STEPS[step]))
            if len(written) <= most:
                self.step, self.written = step, written
                if step == last:
                    break
            else:
                fits = False
            if fits:
                stride *= 2
            else:
                stride = (stride + 1) // 2 if stride > 1 else 0
        return len(self.written) - before


def _fitted(slice_: Slice, most_bytes: int) -> bytes:
    # The head has an empty map, whose length takes one byte; that of a full one takes up to five.
    room = most_bytes - len(_write(replace(slice_, rules={}))) - 4
    rules = _folded(slice_.rules, room)
    parts = {name: _Part(rule) for name, rule in rules.items()}
    room -= sum(len(_write(name)) + len(part.written) for name, part in parts.items())
    _share_out(list(parts.values()), room)
    written = {name: Raw(part.written) for name, part in parts.items()}
    return _write((*astuple(slice_)[:-1], written))


def _share_out(parts: list[_Part], room: int) -> None:
    """Let parts grow until the room is used; those with the most refusals are the first of them."""
    refused = [part for part in parts if part.rule.top_denied]
    for lengths, some in ((_WORST, refused), (_REFUSED, refused), (_TOLD, parts)):
        last = _STEPS.index(lengths)
        for part in some:
            if room < _LEAST_ENTRY:
                return
            room -= part.grow(room, last)
    # The same for all, except that who wants less leaves it to the others.
    if room >= _LEAST_ENTRY * len(parts):
        share = _fair_share([part.wanted for part in parts], room)
        room -= sum(part.grow(share) for part in parts)
    # What was too little for the next step of one is of use to another.
    for part in parts:
        if room < _LEAST_ENTRY:
            return
        room -= part.grow(room)


def _folded(rules: dict[str, RuleSlice], room: int) -> dict[str, RuleSlice]:
    """Return the rules whose bare sums fit into so many bytes; the last ones as `(others)`.

    Those with the most refusals come first.
    """
    sizes = {name: len(_write(name)) + len(_write(_bare(rule))) for name, rule in rules.items()}
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
    rest = [(0, _bare(rule)) for name, rule in rules.items() if name not in kept]
    return kept | {OTHERS: merged_rule(rest)}


def _weight(rule: RuleSlice) -> tuple[int, int]:
    return -(rule.denied + rule.shadow_denied + rule.degraded), -rule.allowed


def _fair_share(wanted: list[int], room: int) -> int:
    """Return how much each may have at most, so that all together have no more than the room."""
    wanted.sort()
    for index, want in enumerate(wanted):
        each = room // (len(wanted) - index)
        if want > each:
            return each
        room -= want
    return wanted[-1] if wanted else 0
