"""The keys that come most often, in fixed memory. Knows neither rules nor time.

Space-saving, in its lazy form. The books keep a fixed number of counters and, for each new key,
give it the smallest one. To find the smallest one each time is slow in Python, so this one lets
twice the room fill up, and then drops the smaller half at once. What must stay true:

- every count that is held is above the floor; a key that is not held came at most `floor` times;
- a new key begins at the floor, since it may have come so often before and been dropped. So a count
  is never too low, and too high by at most what the floor was then; and the floor only rises.

How high the floor gets: take `count - floor` of all that are held. Their sum grows by what is
added. A cut that raises the floor by d lowers it by d for each of the `room + 1` largest at least,
and it is never negative. So after N in all the floor is at most `N // (room + 1)`, and whoever came
more often than that is held for certain. A few heavy keys keep it much lower: what they have above
the floor never comes off.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter


class Heavy(dict[str, int]):
    """The keys that come most often, each with about how often it came; the others are forgotten.

    `heavy[key] += n` counts a key; `n` is at least 1. Not locked: threads that share it may lose a
    count now and then, and nothing else.
    """

    __slots__ = ("_room", "floor")

    floor: int
    """A key that is not here came at most so often; every count is too high by at most this."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self.floor = 0

    def __missing__(self, key: str) -> int:
        if len(self) >= 2 * self._room:
            self._cut()
        return self.floor

    def _cut(self) -> None:
        # At least `room` go, all of them when all are equal: so each cut is paid for by as many
        # new keys. Works on a copy, which another thread cannot change meanwhile.
        counts = self.copy()
        if len(counts) <= self._room:
            return
        floor = sorted(counts.values())[-self._room - 1]
        self.floor = floor
        self.clear()
        self.update({key: count for key, count in counts.items() if count > floor})

    def top(self, most: int) -> list[tuple[str, int]]:
        """Return the keys that came most often with their counts; largest first, ties by key."""
        return largest(self.copy(), most)


def largest(counts: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    """Return the `most` entries with the largest numbers; largest first, ties by key."""
    if most < 1:
        return []
    entries = list(counts.items())
    if len(entries) > most:
        least = sorted(counts.values())[-most]
        entries = [entry for entry in entries if entry[1] >= least]
    entries.sort()
    entries.sort(key=itemgetter(1), reverse=True)
    return entries[:most]
