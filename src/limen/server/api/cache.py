"""A bounded cache of parsed requests, valid for one rule set.

Clients send the same request again and again. To parse it and to find its rules takes longer than
to decide it.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

V = TypeVar("V")


class Memo(Generic[V]):
    """A cache by the bytes that were parsed. When it is full, the older half is dropped.

    `room` is its size in bytes, estimated. It holds at least `least` values: a value that takes a
    larger share is not kept, so that one client cannot evict the requests of others.
    """

    def __init__(self, room: int, least: int = 2_000) -> None:
        self._room = room
        self._most = room // least
        self._used = 0
        self._known: dict[Hashable, V] = {}
        self._under: object = None

    def get(self, made_of: Hashable, under: object) -> V | None:
        """Return what was made of the same under the same; None when it has to be made."""
        if under is not self._under:
            self._known, self._used, self._under = {}, 0, under
        return self._known.get(made_of)

    def keep(self, made_of: Hashable, value: V, size: int) -> None:
        """Remember a value of some bytes, made under what `get` was asked for last; if small."""
        if size > self._most or made_of in self._known:
            return
        if self._used + size > self._room:
            # Half at once: to look for the oldest one each time would take longer and longer.
            count = len(self._known)
            self._known = dict(islice(self._known.items(), count // 2, None))
            self._used = self._used * len(self._known) // count
        self._known[made_of] = value
        self._used += size
