"""Rolling window: the plain form of an exact window, one full stamp for each unit in a sorted list.

Easy to read and to inspect; `packed_window` decides alike in a fraction of the memory. What both
decide is in `exact_window`; this file only keeps the stamps.
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec import field

from limen.algorithms.exact_window import ExactWindow


class RollingWindowState(ExactWindow, gc=False):
    """What is kept for one key."""

    stamps: list[int] = field(default_factory=list)

    def at(self, index: int) -> int:
        """Return the stamp at `index`, counted from the oldest."""
        return self.stamps[index]

    def up_to(self, t_us: int) -> int:
        """Return how many stamps are not later than `t_us`."""
        return bisect_right(self.stamps, t_us)

    def write(self, t_us: int, units: int, drop: int) -> None:
        """Drop the `drop` oldest stamps and add `units` stamps of `t_us`."""
        if drop:
            del self.stamps[:drop]
        if units == 1:
            self.stamps.append(t_us)
        else:
            self.stamps.extend([t_us] * units)

    def cut(self, first: int, units: int) -> None:
        """Take out `units` stamps from the one at index `first`."""
        del self.stamps[first : first + units]
