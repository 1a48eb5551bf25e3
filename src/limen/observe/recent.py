"""The decisions of late, for "why was this refused?": few of many, and never more than there is
room for. Knows no clock and no store: a second is what lies between two ticks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from math import log1p
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from limen.chance import CHANCE
from limen.observe.hiding import LEAST, MOST, cut

MAX_BYTES = 2_048
"""How long a decision is at most as others read it."""

_NEVER = 2**62

# Bounds for what is read. It was written by another process, or by anybody.
_Text = Annotated[str, Meta(max_length=MOST)]
_Count = Annotated[int, Meta(ge=-(2**62), le=2**62)]
_Seconds = Annotated[float, Meta(ge=0, le=1e11)]


class DecisionRecord(Struct, frozen=True):
    """One decision, as it is kept, logged and told."""

    at: _Seconds
    """The time in seconds since 1970: `1763228743.25`."""
    id: _Text
    """The id of the request: `9f86d081`."""
    allowed: bool
    """Whether the request was let pass."""
    rule: _Text | None
    """The rule that decided: `login`; null when no rule applies, or the request has its own limits.
    """
    limit: _Text | None
    """The limit of it that decided: `100/minute`."""
    key: _Text | None
    """The key: `user:42`; redacted if the settings say so."""
    remaining: _Count | None
    """The number that was left afterwards."""
    retry_after: _Seconds | None
    """After how many seconds it would have been allowed; null for never, and for an allowed one."""
    cost: _Count
    """The number that was charged, or would have been: `1`."""
    reason: _Text
    """Why, in a few words: `over 100/minute`."""
    version: _Text
    """The version of the rules: `17`."""
    source: _Text
    """The source of the decision: `store`; or `local`, `open`, `closed` without the store."""
    fault: _Text
    """The fault of the store: `timeout`; empty without one."""
    instance: _Text
    """The process that decided."""
    surface: _Text
    """The interface: `check`, `slots`, `auth` or `envoy`."""
    shadow: bool = False
    """Whether a shadow rule would have refused it."""


class Recent:
    """The decisions of this process of late. For one thread.

    Bounded in number (`most`), in each second (`a_second`), and for each rule and key in a second
    (`of_one`), so that one key which floods does not crowd out the others. Of those that were
    allowed it takes a share (`sample`, 0 to 1), and leaves half of each second to the refused.
    """

    def __init__(
        self, most: int = 2_000, a_second: int = 100, of_one: int = 3, sample: float = 0.01
    ) -> None:
        self._kept: deque[DecisionRecord] = deque(maxlen=most)
        self._a_second, self._of_one, self._sample = a_second, of_one, sample
        self._reserved = a_second // 2
        self._begin()

    def _begin(self) -> None:
        self._fresh: list[DecisionRecord] = []
        self._times: dict[int, int] = {}
        """By whom it was, as a hash: how many were kept in this second."""
        self._room = self._a_second
        # Anew each second: how long one waited already says nothing of how long one has to wait.
        self._gap = _gap(self._sample)

    def wants_passed(self) -> bool:
        """Return whether to `add` the decision that was just made, to let pass. Cheap."""
        if self._gap > 1:
            self._gap -= 1
            return False
        if self._room <= self._reserved:
            return False
        self._gap = _gap(self._sample)
        return True

    def wants_refused(self, rule: str | None, key: str | None) -> bool:
        """Return whether to `add` the decision that was just made, to refuse. Cheap."""
        if self._room <= 0:
            return False
        whose = hash((rule, key))
        times = self._times.get(whose, 0)
        if times >= self._of_one:
            return False
        self._times[whose] = times + 1
        return True

    def add(self, seen: DecisionRecord) -> None:
        """Keep a decision that was wanted."""
        if self._room <= 0:
            return
        key = None if seen.key is None else cut(seen.key)
        id_ = cut(seen.id)
        if key != seen.key or id_ != seen.id:
            seen = msgspec.structs.replace(seen, key=key, id=id_)
        self._room -= 1
        self._kept.append(seen)
        self._fresh.append(seen)

    def tick(self) -> list[DecisionRecord]:
        """Return what came since the last tick, the oldest first, and begin another second."""
        fresh = self._fresh
        self._begin()
        return fresh

    def newest(self, most: int = 100) -> list[DecisionRecord]:
        """Return the newest ones, the newest first."""
        return list(islice(reversed(self._kept), most))


def found(
    seen: Iterable[DecisionRecord],
    key: str | None = None,
    id: str | None = None,
    rule: str | None = None,
    allowed: bool | None = None,
    most: int = 100,
) -> list[DecisionRecord]:
    """Return those that fit all that is given, the newest first, and each one once.

    `key` is hidden as those of the decisions are. Neither it nor `id` need be cut.
    """
    fitting = [
        one
        for one in seen
        if (allowed is None or one.allowed is allowed)
        and (rule is None or _is_same(one.rule, rule))
        and (id is None or _is_same(one.id, id))
        and (key is None or _is_same(one.key, key))
    ]
    fitting.sort(key=lambda one: -one.at)
    # What this process keeps and what it told the others is the same.
    return list(islice(dict.fromkeys(fitting), max(most, 0)))


def encode(seen: DecisionRecord) -> bytes:
    """Return a decision as others read it: JSON, at most 2,048 bytes.

    For that, texts are cut: whoever asks may choose a key and an id as long as can be.
    """
    written = msgspec.json.encode(_cut(seen, MOST))
    if len(written) <= MAX_BYTES:
        return written
    # A letter may take six bytes.
    return msgspec.json.encode(_cut(seen, LEAST))


def decode(data: bytes) -> DecisionRecord | None:
    """Return a decision that somebody told; None for anything else."""
    if len(data) > MAX_BYTES:
        return None
    try:
        return msgspec.json.decode(data, type=DecisionRecord)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _gap(sample: float) -> int:
    """Draw how many there are up to the next one, if each is taken with the same probability."""
    if sample >= 1:
        return 1
    if sample <= 0:
        return _NEVER
    return 1 + int(min(log1p(-CHANCE.random()) / log1p(-sample), _NEVER))


def _cut(seen: DecisionRecord, most: int) -> DecisionRecord:
    fields = msgspec.structs.asdict(seen)
    texts = {name: cut(value, most) for name, value in fields.items() if isinstance(value, str)}
    return msgspec.structs.replace(seen, **texts)


def _is_same(kept: str | None, sought: str) -> bool:
    """Return whether a text, which may have been cut, and cut again, is the one sought."""
    return kept is not None and kept == cut(cut(sought), max(len(kept), LEAST))
