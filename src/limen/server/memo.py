"""What was understood before: a bounded memory of questions, for as long as one thing holds.

Callers ask the same again and again: this user, this path. To read such a question and to find its
rules takes longer than to decide it. Knows neither questions nor rules.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

V = TypeVar("V")


class Memo(Generic[V]):
    """Remembers values by what they were made of. When it is full, the older half is forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Hashable, V] = {}
        self._under: object = None

    def get(self, made_of: Hashable, under: object) -> V | None:
        """Return what was made of the same under the same; None when it has to be made."""
        if under is not self._under:
            self._known, self._under = {}, under
        return self._known.get(made_of)

    def keep(self, made_of: Hashable, value: V) -> None:
        """Remember a value, which was made under what `get` was asked for last."""
        if len(self._known) >= self._most:
            # Half at once: to look for the oldest one each time would take longer and longer.
            newer = islice(self._known.items(), self._most // 2, None)
            self._known = dict(newer)
        self._known[made_of] = value
