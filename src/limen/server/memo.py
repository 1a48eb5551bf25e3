"""What was understood before: a bounded memory of questions, for as long as one thing holds.

Callers ask the same again and again: this user, this path. To read such a question and to find its
rules takes longer than to decide it. Knows neither questions nor rules.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

V = TypeVar("V")
_MOST_CHECKS = 10


class Memo(Generic[V]):
    """Remembers values by what they were made of. When it is full, the older half is forgotten.

    `most` is how many; `longest` is of how many letters. Who is longer, or has many checks, is not
    remembered: what strangers send must not fill the memory.
    """

    def __init__(self, most: int, longest: int) -> None:
        self._most = most
        self._longest = longest
        self._known: dict[Hashable, V] = {}
        self._under: object = None

    def get(self, made_of: Hashable, under: object) -> V | None:
        """Return what was made of the same under the same; None when it has to be made."""
        if under is not self._under:
            self._known, self._under = {}, under
        return self._known.get(made_of)

    def keep(self, made_of: Hashable, value: V, *, letters: int, checks: int) -> None:
        """Remember a value, which was made under what `get` was asked for last; if it is small."""
        if letters > self._longest or checks > _MOST_CHECKS:
            return
        if len(self._known) >= self._most:
            # Half at once: to look for the oldest one each time would take longer and longer.
            newer = islice(self._known.items(), self._most // 2, None)
            self._known = dict(newer)
        self._known[made_of] = value
