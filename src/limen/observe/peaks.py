"""How close keys come to their limit, by a fair sample of them. Knows neither rules nor time.

The sample is of the keys with the smallest hashes (bottom-k). A key is in it or not whatever it
does and however often it comes, so shares in the sample are shares of all keys; and how small the
hashes are tells how many keys there are. All processes hash alike, so their samples are of the
same keys, and merge into what one process would have seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

HASHES = 2**32
"""How many hashes there are; each is below."""
REFUSED = 101
"""The percent of a key that was refused."""


def key_hash(key: str) -> int:
    """Return 32 bits of a key, the same in every process and version."""
    # CRC alone is linear: the hashes of user=1, user=2, ... lie in a pattern, and estimates are off
    # by more than twice what chance explains. Multiplying breaks it, and loses no bit.
    return crc32(key.encode("utf-8", "surrogatepass")) * 0x9E3779B1 & 0xFFFFFFFF


class Peaks:
    """A fair sample of the keys (those with the smallest hashes), each with its peak.

    Holds the `room` smallest hashes for certain, and up to twice as many. Not locked: threads that
    share it may lose a peak now and then, and nothing else.
    """

    __slots__ = ("_peaks", "_room", "cutoff")

    cutoff: int
    """Keys with this hash or a higher one are not in the sample, all that came below are. Whoever
    looks first, `if hash_ < peaks.cutoff`, saves the call for nearly all."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._peaks: dict[int, int] = {}
        self.cutoff = HASHES

    def add(self, hash_: int, percent: int) -> None:
        """Note how much of its limit a key has used, 0 to 100, or 101 when it was refused."""
        if hash_ >= self.cutoff:
            return
        peaks = self._peaks
        before = peaks.get(hash_)
        if before is None:
            peaks[hash_] = percent
            if len(peaks) > 2 * self._room:
                sample, self.cutoff = lowest(peaks.copy().items(), self.cutoff, self._room)
                self._peaks = dict(sample)
        elif percent > before:
            peaks[hash_] = percent

    @property
    def sample(self) -> tuple[tuple[int, int], ...]:
        """The keys in the sample: (hash, percent at its peak), smallest hash first."""
        return tuple(sorted(self._peaks.copy().items()))


def lowest(
    entries: Iterable[tuple[int, int]], cutoff: int, most: int
) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return the sample of at most so many keys that entries of some samples make, and its cutoff.

    `cutoff` is the smallest of those samples. A key that is there twice has the higher percent.
    """
    # Sorted, the highest percent of a hash is its last one, and the last one is what a dict keeps.
    peaks = dict(sorted(entries))
    sample = tuple([entry for entry in peaks.items() if entry[0] < cutoff])
    if len(sample) <= most:
        return sample, cutoff
    return sample[:most], sample[most][0]


def distinct(sampled: int, cutoff: int) -> int:
    """Return about how many keys there are when so many have a hash below the cutoff."""
    return round(sampled * HASHES / cutoff) if cutoff else 0
