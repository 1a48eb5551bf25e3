"""The store in this process: states in a dict that forgets, and one lock around it.

At `max_keys`, a new key pushes another out. What has expired goes first; then, of a small sample,
the state with the most left to use, because forgetting it changes least: to forget a key that is
being refused would let it through.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from threading import Lock
from types import CodeType, FrameType
from typing import Any

from msgspec import Struct

from limen import fork
from limen.algorithms import STATES, Leases
from limen.algorithms.last_reading import LastReading, continued, stamp_in
from limen.backends import Change, Correct, Renew, Reset, Shard, Vitals
from limen.backends.expiring import Expiring
from limen.clock import Clock
from limen.errors import StoreError
from limen.keys import memory_key
from limen.model import Check, Concurrency, Limit, Reading

_LONGEST_WAIT_S = 0.2
_LOOK_S = 0.004
_LOOKS_FOR_WAITERS = 1_000
"""After so many, who waits for the lock is not taken any more for one who has just got it."""


class Marker(Struct, gc=False):
    """Says that a receipt was used, as long as its charge could still be found."""

    expires_us: int
    offset_us: int


class MemoryBackend:
    """Keeps states in this process. Safe to share between threads and tasks."""

    def __init__(self, clock: Clock, max_keys: int) -> None:
        self.lost_refunds: int = 0
        self._time_ns = clock.time_ns
        self._max_keys = max_keys
        self._begin()
        self._forget_all()
        fork.watch(self)

    def _begin(self) -> None:
        lock = Lock()
        # Looked up here and not at every decision, of which that would be a twentieth.
        self._lock, self._unlock = lock.acquire, lock.release
        self._inside = False
        self._mending = Lock()

    def _forget_all(self) -> None:
        self._states: Expiring[Any] = Expiring(self._max_keys, _share_left)
        self._entries = self._states.entries
        # Apart, so that refunds push out no state that is being refused.
        self._markers: Expiring[Marker] = Expiring(self._max_keys, lambda marker, now_us: 0.0)

    def after_fork(self) -> None:
        """Let nobody wait for a thread that did not come along. Not for you to call."""
        was_inside = self._inside
        self._begin()
        if was_inside:
            # It was in the middle of a change, and what it left half done cannot be told apart.
            self._forget_all()

    def __len__(self) -> int:
        return len(self._entries)

    def run(self, limit: Limit, key: str, cost: int) -> Reading:
        """Decide one limit on one key, and charge it when it is allowed: the short way."""
        # Not `with`, which takes twice as long.
        if not self._lock(False):
            self._wait_for_lock()
        self._inside = True
        try:
            now_us = self._time_ns() // 1_000
            if now_us >= self._states.next_due_us:
                self._states.forget(now_us)
            state = self._entries.get(limit.identity + key)
            if state is None:
                # A new key, or one so long that it is kept by its digest.
                return self._decide(Check(limit, key, cost), now_us, True, "")
            return state.decide(limit, now_us, cost, True)  # type: ignore[no-any-return]  # a Reading
        finally:
            self._inside = False
            self._unlock()

    def run_all(
        self,
        checks: tuple[Check, ...],
        charge: bool,
        holder: str = "",
        within: float | None = None,
        *,
        now_us: int | None = None,
    ) -> tuple[Reading, ...]:
        """Decide some checks together, all or nothing; return a reading for each.

        Every check is asked without charging, then all of them are charged or none. A shadow
        (`enforce=False`) has no say, and is charged if it would have admitted alone. A refusal is
        charged only where a limit asks for that by `count_denied`. `now_us` is the time of the
        clock, for a caller that has read it.
        """
        self._wait_for_lock()
        self._inside = True
        try:
            if now_us is None:
                now_us = self._time_ns() // 1_000
            if now_us >= self._states.next_due_us:
                self._states.forget(now_us)
            if len(checks) == 1:
                return (self._decide(checks[0], now_us, charge, holder),)
            readings = [self._decide(check, now_us, False, holder) for check in checks]
            if not charge:
                return tuple(readings)
            admitted = all(
                reading[0] for check, reading in zip(checks, readings, strict=True) if check.enforce
            )
            for index, check in enumerate(checks):
                if admitted or (check.enforce and not readings[index][0]):
                    readings[index] = self._decide(check, now_us, True, holder)
            return tuple(readings)
        finally:
            self._inside = False
            self._unlock()

    def change(self, change: Change) -> bool:
        """Carry out a change; return whether there was anything to change."""
        self._wait_for_lock()
        self._inside = True
        try:
            now_us = self._time_ns() // 1_000
            self._markers.forget(now_us)
            if isinstance(change, Correct):
                charges = change.receipt.charges
                changed = [self._correct(change, *charge, now_us) for charge in charges]
                return any(changed)
            if isinstance(change, Reset):
                changed = [self._reset(check) for check in change.checks]
                return any(changed)
            leases = self._entries.get(memory_key(change.check))
            if leases is None:
                return False
            if isinstance(change, Renew):
                return bool(leases.renew(change.check.limit, now_us, change.holder))
            return bool(leases.release(now_us, change.holder))
        finally:
            self._inside = False
            self._unlock()

    def continue_from(self, check: Check, last: LastReading, share: Limit, instances: int) -> None:
        """Replace the state of a key by one that continues from another store's last reading.

        `share` is this instance's share of the reading's limit.
        """
        self._wait_for_lock()
        self._inside = True
        try:
            now_us, key = self._time_ns() // 1_000, memory_key(check)
            state = continued(last, share, instances, now_us)
            if key in self._entries:
                self._entries[key] = state
            else:
                self._states.add(key, state, now_us)
        finally:
            self._inside = False
            self._unlock()

    def stamp_in(self, check: Check, stamp_us: int) -> int:
        """Return the stamp here of a charge that has `stamp_us` in another backend."""
        return stamp_in(self._entries.get(memory_key(check)), stamp_us)

    def __contains__(self, check: Check) -> bool:
        return memory_key(check) in self._entries

    def ping(self) -> None:
        """Do nothing: it is always there."""

    def shards(self) -> tuple[Shard, ...]:
        """Return nothing: there is no server."""
        return ()

    def close(self) -> None:
        """Do nothing: a store in this process needs no closing."""

    def _wait_for_lock(self) -> None:
        """Take the lock. It is held for microseconds; when it is not to be had, find out why.

        Either a signal handler or a finalizer has interrupted a decision of its own thread: to let
        it in would damage the state that is being changed. Or an exception of a signal handler has
        fallen between the taking of the lock and the `try` behind it: then nobody is inside, nobody
        will ever open it, and the first to notice takes it over.
        """
        while not self._lock(timeout=_LONGEST_WAIT_S):
            if self._is_inside_itself():
                raise StoreError(
                    "the memory store was asked from inside a decision of the same thread; "
                    "ask for no decision in signal handlers and finalizers"
                )
            if self._take_over():
                return

    def _is_inside_itself(self) -> bool:
        return sum(code in _DOORS for code in self._codes(sys._getframe())) > 1

    def _take_over(self) -> bool:
        """Return whether the lock is ours now: got, or taken from nobody."""
        with self._mending:
            for look in itertools.count():
                if self._lock(timeout=_LOOK_S):
                    return True
                if self._inside:
                    return False
                if not self._may_be_held(is_late=look > _LOOKS_FOR_WAITERS):
                    self._inside = True
                    return True
        return False

    def _may_be_held(self, *, is_late: bool) -> bool:
        """Return whether a thread may hold the lock that has not come to say so.

        On a busy machine it may take a thread a second to get there. Its stack tells: it is in one
        of the doors. Who only waits is there too; but it waits with us soon, behind `_mending`.
        """
        here = threading.get_ident()
        for thread, frame in sys._current_frames().items():
            codes = self._codes(frame)
            if thread == here or not any(code in _DOORS for code in codes):
                continue
            waits = MemoryBackend._take_over.__code__ in codes
            if not waits and is_late:
                waits = MemoryBackend._wait_for_lock.__code__ in codes
            if not waits:
                return True
        return False

    def _codes(self, frame: FrameType | None) -> list[CodeType]:
        """Return what of this store a thread is in the middle of."""
        found: list[CodeType] = []
        while frame is not None:
            if frame.f_code in _OURS and frame.f_locals.get("self") is self:
                found.append(frame.f_code)
            frame = frame.f_back
        return found

    def _decide(self, check: Check, now_us: int, charge: bool, holder: str) -> Reading:
        key, limit = memory_key(check), check.limit
        known = self._entries.get(key)
        state = _fresh(limit) if known is None else known
        what = holder if isinstance(limit, Concurrency) else check.cost
        reading: Reading = state.decide(limit, now_us, what, charge)
        if known is None and state.expires_us > now_us:
            self._states.add(key, state, now_us)
        return reading

    def _correct(self, change: Correct, check: Check, stamp_us: int, now_us: int) -> bool:
        key, limit = memory_key(check), check.limit
        marker_key = f"{change.receipt.id}{key}"
        if marker_key in self._markers.entries or not isinstance(limit, Limit):
            return False
        more = change.actual_cost - check.cost
        has_room = self._markers.has_room(now_us)
        if more <= 0 and not has_room:
            # Without a marker it could be repeated: too strict, never too generous.
            return False
        known = self._entries.get(key)
        state = _fresh(limit) if known is None else known
        # Measured before a refund, which may take out what the marker has to outlive.
        marker = Marker(state.expires_us, state.offset_us)
        if more > 0:
            state.debit(now_us, more)
            marker = Marker(state.expires_us, state.offset_us)
            if known is None:
                self._states.add(key, state, now_us)
            changed = True
        else:
            changed = state.refund(now_us, -more, stamp_us) > 0
        if has_room and marker.expires_us - marker.offset_us > now_us:
            self._markers.add(marker_key, marker, now_us)
        return changed

    def _reset(self, check: Check) -> bool:
        """Make the state as good as new. It is forgotten when the old one would have been."""
        key = memory_key(check)
        if key not in self._entries:
            return False
        self._entries[key] = _fresh(check.limit)
        return True


class AsyncMemoryBackend:
    """The same for asyncio: nothing in it waits."""

    def __init__(self, memory: MemoryBackend) -> None:
        self.memory: MemoryBackend = memory
        """What it is the same as."""
        self.lost_refunds: int = 0

    async def run_all(
        self,
        checks: tuple[Check, ...],
        charge: bool,
        holder: str = "",
        within: float | None = None,
    ) -> tuple[Reading, ...]:
        """Decide some checks together, all or nothing; return a reading for each."""
        return self.memory.run_all(checks, charge, holder)

    def prepare(self, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """Return checks as they are asked."""
        return checks

    async def run_prepared(
        self,
        checks: tuple[Check, ...],
        prepared: tuple[Check, ...],
        within: float | None = None,
    ) -> tuple[Reading, ...]:
        """Decide what was prepared, and charge it."""
        return self.memory.run_all(checks, True)

    def run_soon(
        self, prepared: tuple[Check, ...], tell: Callable[[tuple[Reading, ...]], object]
    ) -> bool:
        """Decide what was prepared, and charge it; tell at once."""
        tell(self.memory.run_all(prepared, True))
        return True

    async def change(self, change: Change) -> bool:
        """Carry out a change; return whether there was anything to change."""
        return self.memory.change(change)

    async def ping(self) -> None:
        """Do nothing: it is always there."""

    def shards(self) -> tuple[Shard, ...]:
        """Return nothing: there is no server."""
        return ()

    async def vitals(self) -> dict[str, Vitals]:
        """Return nothing: there is no server."""
        return {}

    async def close(self) -> None:
        """Do nothing: a store in this process needs no closing."""


def _fresh(limit: Limit | Concurrency) -> Any:
    return Leases(limit) if isinstance(limit, Concurrency) else STATES[limit.algorithm](limit)


def _share_left(state: Any, now_us: int) -> float:
    limit = state.limit
    if isinstance(limit, Concurrency):
        return float(state.decide(limit, now_us, "", False)[1] / limit.slots)
    return float(state.decide(limit, now_us, 0, False)[1] / limit.capacity)


_DOORS = frozenset(
    method.__code__
    for method in (
        MemoryBackend.run,
        MemoryBackend.run_all,
        MemoryBackend.change,
        MemoryBackend.continue_from,
    )
)
_OURS = _DOORS | {MemoryBackend._wait_for_lock.__code__, MemoryBackend._take_over.__code__}
