"""Packed window: an exact window in 4 to 5 bytes per request, 8 to 10 for periods above 71 minutes.

Decides exactly like `rolling_window` (both share `exact_window`); this file only keeps the stamps,
as their low-order digits in one piece of memory.

Why low-order digits are enough. All stamps that are kept lie within one period of the newest: every
charge drops what has expired before it adds itself, and the period is part of the key, so it never
changes under a state. With 32 bits for periods below 2**32 microseconds, the distance to the newest
stamp is known, and so is the stamp.

Stamps leave in the order they came. Expiry moves `start`, and with 100,000 stamps expiring at once
it is found by halving, not by walking. What lies before `start` is cut off when it is a quarter of
the whole, so that memory follows use, and each stamp is moved a few times at most.
"""

from __future__ import annotations

from array import array

from msgspec import field

from limen.algorithms.exact_window import ExactWindow

_NARROW = 2**32 - 1
_WIDE = 2**64 - 1


class PackedWindowState(ExactWindow, gc=False):
    """What is kept for one key."""

    stamps: array[int] = field(default_factory=lambda: array("I"))
    start: int = 0
    mask: int = _NARROW

    def __post_init__(self) -> None:
        if self.limit.period_us > _NARROW and self.mask == _NARROW:
            self.stamps, self.mask = array("Q"), _WIDE

    def at(self, index: int) -> int:
        """Return the stamp at `index`, counted from the oldest."""
        newest_us = self.newest_us
        return newest_us - ((newest_us - self.stamps[self.start + index]) & self.mask)

    def up_to(self, t_us: int) -> int:
        """Return how many stamps are not later than `t_us`.

        In steady traffic that is one or two, so the steps begin small and double; then the last
        step is halved until the border is found. In terms of the distance to the newest stamp,
        which is what is kept: not later than `t_us` is at least `far` away.
        """
        stamps, start, count, newest_us = self.stamps, self.start, self.count, self.newest_us
        mask, far = self.mask, newest_us - t_us
        if far <= 0 or self.oldest_us > t_us:
            return count if far <= 0 else 0
        below, step = start, 1
        end = start + count
        while below + step < end and (newest_us - stamps[below + step]) & mask >= far:
            below += step
            step *= 2
        above = min(below + step, end)
        while above - below > 1:
            middle = (below + above) // 2
            if (newest_us - stamps[middle]) & mask >= far:
                below = middle
            else:
                above = middle
        return above - start

    def write(self, t_us: int, units: int, drop: int) -> None:
        """Drop the `drop` oldest stamps and add `units` stamps of `t_us`."""
        stamps = self.stamps
        if drop:
            self.start += drop
            if 4 * self.start > len(stamps):
                del stamps[: self.start]
                self.start = 0
        if units == 1:
            stamps.append(t_us & self.mask)
        else:
            stamps.extend(array(stamps.typecode, [t_us & self.mask]) * units)

    def cut(self, first: int, units: int) -> None:
        """Take out `units` stamps from the one at index `first`."""
        first += self.start
        del self.stamps[first : first + units]
