"""The store's last answer for each key, in a table of bounded size.

The fallback starts from it. Writing costs one dictionary assignment per check, because every
decision of a shared store is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from limen.algorithms.last_reading import LastReading
from limen.keys import MAX_PLAIN, memory_key
from limen.model import Check, Limit, Reading
from limen.model.text import digest

_MAX_RECENT = 10_000
"""How many keys one generation holds. There are two, so up to twice as many are remembered."""

StateId = str | tuple[str, ...]
_Entry = tuple[float, Limit, int, Reading]


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
        """Keep the store's reading of each check. Slots are not kept."""
        now_s, recent = time.monotonic(), self._recent
        for check, reading in zip(checks, readings, strict=True):
            limit = check.limit
            # Without a time to reset, nothing is counted, or a shadow check could not be read.
            if type(limit) is Limit and reading[3]:
                recent[state_id(check)] = (now_s, limit, check.cost, reading)
        if len(recent) >= _MAX_RECENT and self._recent is recent:
            self._recent, self._older = {}, recent

    def take(self, check: Check) -> LastReading | None:
        """Remove and return the last reading of a check; None without one."""
        key = state_id(check)
        older = self._older.pop(key, None)
        entry = self._recent.pop(key, None) or older
        if entry is None:
            return None
        read_s, limit, cost, reading = entry
        age_us = int((time.monotonic() - read_s) * 1e6)
        return LastReading(limit, cost, reading, age_us)


def state_id(check: Check) -> StateId:
    """Return the identity of a check's state in one namespace of a store.

    Long text is replaced by its digest, as in `memory_key`.
    """
    subject = check.subject
    if subject is None or subject == check.key:
        return memory_key(check)
    if len(subject) > MAX_PLAIN:
        return memory_key(check), "", digest(subject)
    return memory_key(check), subject
