"""A dict whose entries end: each at its own time, or sooner when there are too many.

Forgetting. Every entry is noted once in `_due`, in the slice of time (65 ms) in which it was to
expire when it was noted. Each call looks at a few entries of slices that have passed: what has
expired is deleted, what was used since is noted again under its new time. So forgetting costs a
little at each call, needs no thread, and whether anything has expired is known without a search.

Bound. When it is full, a new entry pushes another out: an expired one if there is any. If not, of
a small sample the one that `spare` gives the highest number goes.

Not safe by itself: the caller lets one thread in at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from random import Random
from typing import Generic, Protocol, TypeVar

_SLICE_BITS = 16
_NEVER_DUE_US = 2**63
_ENTRIES_PER_CALL = 8
_ENTRIES_FOR_ROOM = 1_024
_SAMPLE = 8


class Ending(Protocol):
    """What says when it ends, on a time of its own that may be ahead of the clock."""

    @property
    def expires_us(self) -> int:
        """Its own time from which on it is as good as gone."""
        ...

    @property
    def offset_us(self) -> int:
        """How far its time is ahead of the clock."""
        ...


Entry = TypeVar("Entry", bound=Ending)


class Expiring(Generic[Entry]):
    """At most `most` entries, by key."""

    def __init__(self, most: int, spare: Callable[[Entry, int], float]) -> None:
        self.entries: dict[str, Entry] = {}
        """To look into. What is added goes through `add`."""
        self.next_due_us: int = _NEVER_DUE_US
        """The clock's time from which on `forget` has something to do."""
        self._most = most
        self._spare = spare
        # Of its own: a program that seeds the shared one must not choose who goes.
        self._random = Random()
        self._due: dict[int, list[str]] = {}
        self._slices: list[int] = []

    def add(self, key: str, entry: Entry, now_us: int) -> None:
        """Put in a new entry, and make room for it first where there is none."""
        if not self.has_room(now_us):
            self._push_one_out(now_us)
        self.entries[key] = entry
        self._note(key, entry)

    def has_room(self, now_us: int) -> bool:
        """Return whether one more fits without pushing out what has not expired.

        Looks at no more than a thousand entries whose time may have come, so that no call has to
        pay for a long silence.
        """
        return len(self.entries) < self._most or self.forget(now_us, _ENTRIES_FOR_ROOM)

    def forget(self, now_us: int, most: int = _ENTRIES_PER_CALL) -> bool:
        """Look at a few entries whose time has come; return whether any was deleted."""
        deleted = False
        for _ in range(most):
            if now_us < self.next_due_us:
                break
            slice_ = self._slices[0]
            key = self._due[slice_].pop()
            self._drop_if_empty(slice_)
            entry = self.entries[key]
            if entry.expires_us - entry.offset_us <= now_us:
                del self.entries[key]
                deleted = True
            else:
                self._note(key, entry)
        return deleted

    def _note(self, key: str, entry: Entry) -> None:
        slice_ = ((entry.expires_us - entry.offset_us) >> _SLICE_BITS) + 1
        keys = self._due.get(slice_)
        if keys is None:
            self._due[slice_] = [key]
            heappush(self._slices, slice_)
            if len(self._slices) > 2 * len(self._due) + _SAMPLE:
                # Too many that were emptied in the middle. What is sorted is a heap.
                self._slices = sorted(self._due)
            self.next_due_us = self._slices[0] << _SLICE_BITS
        else:
            keys.append(key)

    def _drop_if_empty(self, slice_: int) -> None:
        if self._due[slice_]:
            return
        del self._due[slice_]
        # A slice that was emptied in the middle of the heap leaves it when it gets to the top.
        while self._slices and self._slices[0] not in self._due:
            heappop(self._slices)
        self.next_due_us = self._slices[0] << _SLICE_BITS if self._slices else _NEVER_DUE_US

    def _push_one_out(self, now_us: int) -> None:
        # From the oldest slices and the newest, so that a flood of new keys is always in it.
        slices = {*islice(self._due, _SAMPLE // 2), *islice(reversed(self._due), _SAMPLE // 2)}
        sample = [
            (slice_, self._random.randrange(len(self._due[slice_])))
            for slice_ in slices
            for _ in range(_SAMPLE // len(slices))
        ]

        def spare(where: tuple[int, int]) -> float:
            slice_, place = where
            return self._spare(self.entries[self._due[slice_][place]], now_us)

        slice_, place = max(sample, key=spare)
        keys = self._due[slice_]
        keys[place], keys[-1] = keys[-1], keys[place]
        del self.entries[keys.pop()]
        self._drop_if_empty(slice_)
