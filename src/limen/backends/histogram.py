"""How often something was how large, in a few numbers. Knows nothing of what it measures."""

from __future__ import annotations

from bisect import bisect_left

from msgspec import Struct

TRIP_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
"""Bounds for the time that a server, or a decision, takes; in seconds."""
BATCH = (1, 2, 4, 8, 16, 32, 64, 128)
"""Bounds for how many decisions share a call."""


class Spread(Struct, frozen=True):
    """What a histogram held at one moment."""

    counts: tuple[int, ...] = ()
    """How many values each bound takes in, those of the bounds below it left out; the last number
    is of those above all bounds. None when nothing was measured."""
    total: float = 0.0
    """The sum of all values."""


class Histogram:
    """Counts values by bounds that are fixed. Who adds pays a fraction of a microsecond."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    @property
    def spread(self) -> Spread:
        """What it holds now."""
        return Spread(tuple(self._counts), self._total)
