"""Who uses a rule, and how far: what is seen of it since the slice of time began.

All of it is of a fixed size, whatever comes. Told of each decision, so every line here counts.
"""

from __future__ import annotations

from limen.model import Concurrency, Limit
from limen.observe.cells import Cell
from limen.observe.heavy import Heavy, largest
from limen.observe.hiding import Hider, cut
from limen.observe.peaks import REFUSED, Peaks, key_hash
from limen.observe.slices import MOST_PEAKS, MOST_TOP, RuleSlice

_NEAR = 50
"""From how many percent of its limit on a key is told of as near to it."""
_LONG = 256
AT_ONCE = 64
"""How many wait before they are taken note of."""
Admitted = tuple[str, Limit | Concurrency, int]
"""A key, the limit it came nearest to, and what was left of it."""


class Usage:
    """What is seen of one rule in a slice, with room for so many keys.

    It counts in a cell, which goes on when the slice is over.
    """

    __slots__ = (
        "_after",
        "_before",
        "_room",
        "allowed",
        "cell",
        "denied",
        "near",
        "peaks",
        "waiting",
    )

    def __init__(self, cell: Cell, room: int) -> None:
        self.cell: Cell = cell
        self.allowed: Heavy = Heavy(room)
        self.denied: Heavy = Heavy(room)
        self.near: dict[str, int] = {}
        """How many percent of its limit a key had used when it was last seen."""
        self.peaks: Peaks = Peaks(min(room, MOST_PEAKS))
        self.waiting: list[Admitted] = []
        """What was let pass, and is taken note of later: some at once cost half as much."""
        self._room = room
        self._before = cell.counts
        self._after: list[int] | None = None

    def settle(self) -> None:
        """Take note of what waits. Not while another thread lets more wait."""
        allowed, peaks = self.allowed, self.peaks
        for key, limit, remaining in self.waiting:
            if len(key) > _LONG:
                key = cut(key)
            allowed[key] += 1
            percent = percent_used(limit, remaining)
            hash_ = key_hash(key)
            if hash_ < peaks.cutoff:
                peaks.add(hash_, percent)
            if percent >= _NEAR or key in self.near:
                self._approach(key, percent)
        self.waiting.clear()

    def refuse(self, key: str) -> None:
        """Take note of a request that this rule refused, or would have."""
        self.settle()  # in the order in which they came: it is near its limit now
        if len(key) > _LONG:
            key = cut(key)
        self.denied[key] += 1
        self.peaks.add(key_hash(key), REFUSED)
        self._approach(key, 100)

    def _approach(self, key: str, percent: int) -> None:
        near = self.near
        near[key] = percent
        if len(near) > 2 * self._room:
            self.near = dict(largest(near, self._room))

    def end(self) -> None:
        """Take note that the slice is over: what the cell counts from now on is for the next."""
        self._after = self.cell.counts

    def taken(self, hide: Hider) -> RuleSlice:
        """Return what was seen so far. May be called in another thread: it looks at copies.

        When it is over, that thread is the only one that still knows it.
        """
        if self._after is not None:
            self.settle()
        after = self._after or self.cell.counts
        counts = [now - then for now, then in zip(after, self._before, strict=True)]
        allowed, denied, shadow_denied, degraded = counts
        nearest = largest(self.near.copy(), MOST_TOP)
        return RuleSlice(
            allowed,
            denied,
            shadow_denied,
            degraded,
            top_allowed=_hidden(self.allowed.top(MOST_TOP), hide),
            top_denied=_hidden(self.denied.top(MOST_TOP), hide),
            error=(self.allowed.floor, self.denied.floor),
            nearest=_hidden(nearest, hide),
            peaks=tuple(self.peaks.sample),
            cutoff=self.peaks.cutoff,
        )


def percent_used(limit: Limit | Concurrency, remaining: int) -> int:
    """Return how much of a limit is used, in whole percent, rounded down."""
    capacity = limit.capacity
    return 100 * (capacity - remaining) // capacity if capacity > 0 else 100


def _hidden(pairs: list[tuple[str, int]], hide: Hider) -> tuple[tuple[str, int], ...]:
    return tuple([(hide(key), number) for key, number in pairs])
