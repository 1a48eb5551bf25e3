"""Packed window: an exact window in 4 bytes per request, 8 for periods above 71 minutes.

Decides exactly like `rolling_window` (both share `exact_window`); this file only keeps the stamps,
as a ring of their low-order digits.

Why low-order digits are enough. All stamps in the ring lie within one period of the newest: every
charge drops what has expired before it adds itself, and the period is part of the key, so it never
changes under a ring. With 32 bits for periods below 2**32 microseconds, the distance to the newest
stamp is known, and so is the stamp.

Why a ring. Stamps leave in the order they came. Expiry moves `start`, and with 100,000 stamps
expiring at once it is found by halving, not by walking, and nothing is moved.

The ring grows with use, not with the limit: it doubles from four places up to the quota. Stamps
that came by `debit` may lie above that.
"""

from __future__ import annotations

from array import array

from msgspec import field

from limen.algorithms.exact_window import ExactWindow

_NARROW = 2**32 - 1
_WIDE = 2**64 - 1
_FIRST_PLACES = 4


class Ring(ExactWindow, gc=False):
    """What is kept for one key."""

    ring: array[int] = field(default_factory=lambda: array("I"))
    start: int = 0
    mask: int = 0

    def __post_init__(self) -> None:
        if self.mask:
            return  # a copy brings its own
        code, self.mask = ("I", _NARROW) if self.limit.period_us <= _NARROW else ("Q", _WIDE)
        self.ring = array(code, [0]) * min(_FIRST_PLACES, self.limit.quota)

    def at(self, index: int) -> int:
        """Return the stamp at `index`, counted from the oldest."""
        ring, newest_us = self.ring, self.newest_us
        return newest_us - ((newest_us - ring[(self.start + index) % len(ring)]) & self.mask)

    def up_to(self, t_us: int) -> int:
        """Return how many stamps are not later than `t_us`.

        In steady traffic that is one or two, so the steps begin small and double; then the last
        step is halved until the border is found. In terms of distance to the newest stamp, which
        is what the ring holds: not later than `t_us` is at least `far` away.
        """
        ring, start, count, newest_us, mask = (
            self.ring,
            self.start,
            self.count,
            self.newest_us,
            self.mask,
        )
        size, far = len(ring), newest_us - t_us
        if far <= 0 or not count or self.oldest_us > t_us:
            return count if far <= 0 else 0
        below, step = 0, 1
        while (
            below + step < count and (newest_us - ring[(start + below + step) % size]) & mask >= far
        ):
            below += step
            step *= 2
        above = min(below + step, count)
        while above - below > 1:
            middle = (below + above) // 2
            if (newest_us - ring[(start + middle) % size]) & mask >= far:
                below = middle
            else:
                above = middle
        return above

    def write(self, t_us: int, units: int, drop: int) -> None:
        """Drop the `drop` oldest stamps and add `units` stamps of `t_us`."""
        kept = self.count - drop
        if drop:
            self.start = (self.start + drop) % len(self.ring)
        if kept + units > len(self.ring):
            self.grow(kept, kept + units)
        ring = self.ring
        size = len(ring)
        place = (self.start + kept) % size
        if units == 1:
            ring[place] = t_us & self.mask
            return
        stamps = array(ring.typecode, [t_us & self.mask]) * units
        to_end = min(units, size - place)
        ring[place : place + to_end] = stamps[:to_end]
        ring[: units - to_end] = stamps[to_end:]

    def cut(self, first: int, units: int) -> None:
        """Take out `units` stamps from the one at index `first`."""
        straight = self.straight(self.count)
        del straight[first : first + units]
        self.ring = straight or array(straight.typecode, [0])
        self.start = 0

    def grow(self, kept: int, count: int) -> None:
        """Make room for `count` stamps, and straighten the ring that holds `kept`."""
        size = max(count, min(2 * len(self.ring), self.limit.quota))
        self.ring = self.straight(kept) + array(self.ring.typecode, [0]) * (size - kept)
        self.start = 0

    def straight(self, kept: int) -> array[int]:
        """Return the stamps from `start` on in one piece."""
        ring, start = self.ring, self.start
        return ring[start : start + kept] + ring[: max(start + kept - len(ring), 0)]
