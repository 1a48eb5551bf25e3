"""The store's last answer for each key, in a table of bounded size.

The fallback starts from it. Writing costs one dictionary assignment per check, because every
decision of a shared store is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from limen.algorithms.last_reading import LastReading
from limen.model import Check, Limit, Reading

_MAX_RECENT = 10_000
"""How many keys one generation holds. There are two, so up to twice as many are remembered."""
_MAX_KEY = 1_024
"""Longer keys are not remembered, so that the table takes a bounded amount of memory."""

StateId = str | tuple[str, str]
_Entry = tuple[float, Check, Reading]


class LastReadings:
    """The last reading of each key. Safe to share between threads and event loops.

    Entries live in two generations. When the recent one is full, it becomes the older one, and the
    older one is dropped. A key that is still in use is written again and so stays.
    """

    def __init__(self) -> None:
        self._recent: dict[StateId, _Entry] = {}
        self._older: dict[StateId, _Entry] = {}

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def record(self, checks: Sequence[Check], readings: Sequence[Reading]) -> None:
        """Keep what the store said about each check. Slots are not kept."""
        now_s, recent = time.monotonic(), self._recent
        for check, reading in zip(checks, readings, strict=True):
            limit, key, subject = check.limit, check.key, check.subject
            # Without a time to reset, nothing is counted, or a shadow check could not be read.
            if type(limit) is Limit and reading[3] and len(key) <= _MAX_KEY:
                # As `state_id` does, without the call: this runs at every decision.
                state = limit.identity + key
                recent[state if subject is None else (state, subject)] = (now_s, check, reading)
        if len(recent) >= _MAX_RECENT:
            self._recent, self._older = {}, recent

    def take(self, check: Check) -> LastReading | None:
        """Remove and return the last reading of a check; None without one that still holds."""
        key = state_id(check)
        older = self._older.pop(key, None)
        entry = self._recent.pop(key, None) or older
        if entry is None:
            return None
        read_s, asked, reading = entry
        age_us = int((time.monotonic() - read_s) * 1e6)
        if age_us >= reading[3]:
            return None
        capacity = asked.limit.capacity if isinstance(asked.limit, Limit) else 0
        return LastReading(age_us, capacity - reading[1], reading, asked.cost)


def state_id(check: Check) -> StateId:
    """Return what identifies the state of a check in one namespace of a store."""
    state = check.limit.identity + check.key
    return state if check.subject is None else (state, check.subject)
