"""The store in this process: a dict, one lock, and a calendar of what expires when.

Forgetting. Every state is entered once in `_due`, in the slice of time (65 ms) in which it was to
expire when it was entered. Each call looks at a few entries of slices that have passed: what has
expired is deleted, what was used since is entered again under its new time. So forgetting costs a
little at each call, needs no thread, and whether anything has expired is known without a search.

Bound. At `max_keys`, a new key pushes another out: an expired one if there is any. If not, of a
small sample the one with the most left to use goes, because forgetting it changes least, and
forgetting a key that is being refused would let it through.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import islice
from random import randrange
from threading import RLock
from typing import Any

from msgspec import Struct

from limen.algorithms import STATES, Leases
from limen.backends import Change, Correct, Renew, Reset
from limen.clock import Clock
from limen.keys import memory_key
from limen.model import Check, Concurrency, Limit, Reading

_SLICE_BITS = 16
_NEVER_DUE_US = 2**63
_ENTRIES_PER_CALL = 8
_ENTRIES_FOR_ROOM = 256
_SAMPLE = 8


class Marker(Struct, gc=False):
    """Says that a receipt was used, as long as its charge could still be found."""

    limit: Limit
    expires_us: int
    offset_us: int


class MemoryBackend:
    """Keeps states in this process. Safe to share between threads and tasks."""

    def __init__(self, clock: Clock, max_keys: int) -> None:
        self._time_ns = clock.time_ns
        self._max_keys = max_keys
        # Reentrant, because a signal handler or a finalizer that asks for a decision runs in the
        # very thread that may be inside one.
        self._lock = RLock()
        self._states: dict[str, Any] = {}
        self._due: dict[int, list[str]] = {}
        self._slices: list[int] = []
        self._next_due_us = _NEVER_DUE_US

    def __len__(self) -> int:
        return len(self._states)

    def run(self, checks: tuple[Check, ...], charge: bool, holder: str = "") -> tuple[Reading, ...]:
        """Decide some checks together, all or nothing; return a reading for each."""
        # Not `with`, which takes twice as long.
        self._lock.acquire()
        try:
            now_us = self._time_ns() // 1_000
            if now_us >= self._next_due_us:
                self._forget(now_us)
            if len(checks) == 1:
                check = checks[0]
                limit = check.limit
                # The usual case: one limit on a key that is neither new nor long.
                state = self._states.get(limit.identity + check.key)
                if state is not None:
                    return (state.decide(limit, now_us, holder or check.cost, charge),)
                return (self._decide(check, now_us, charge, holder),)
            return self._decide_all(checks, now_us, charge, holder)
        finally:
            self._lock.release()

    def change(self, change: Change) -> bool:
        """Carry out a change; return whether there was anything to change."""
        with self._lock:
            now_us = self._time_ns() // 1_000
            if isinstance(change, Correct):
                charges = change.receipt.charges
                changed = [self._correct(change, *charge, now_us) for charge in charges]
                return any(changed)
            if isinstance(change, Reset):
                changed = [self._reset(check) for check in change.checks]
                return any(changed)
            leases = self._states.get(memory_key(change.check))
            if leases is None:
                return False
            if isinstance(change, Renew):
                return bool(leases.renew(change.check.limit, now_us, change.holder))
            return bool(leases.release(now_us, change.holder))

    def _decide_all(
        self, checks: tuple[Check, ...], now_us: int, charge: bool, holder: str
    ) -> tuple[Reading, ...]:
        """Ask every check without charging, then charge all of them or none.

        A shadow (`enforce=False`) has no say, and is charged if it would have admitted alone. A
        refusal is charged only where a limit asks for that by `count_denied`.
        """
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

    def _decide(self, check: Check, now_us: int, charge: bool, holder: str) -> Reading:
        key, limit = memory_key(check), check.limit
        known = key in self._states
        state = self._states[key] if known else _fresh(limit)
        what = holder if isinstance(limit, Concurrency) else check.cost
        reading: Reading = state.decide(limit, now_us, what, charge)
        if not known and state.expires_us > now_us:
            self._enter(key, state, now_us)
        return reading

    def _correct(self, change: Correct, check: Check, stamp_us: int, now_us: int) -> bool:
        key, limit = memory_key(check), check.limit
        marker_key = f"{key}\0{change.receipt.id}"
        if marker_key in self._states or not isinstance(limit, Limit):
            return False
        known = key in self._states
        state = self._states[key] if known else _fresh(limit)
        # Measured before a refund, which may take out what the marker has to outlive.
        expires_us, offset_us = state.expires_us, state.offset_us
        more = change.actual_cost - check.cost
        if more > 0:
            state.debit(now_us, more)
            expires_us, offset_us = state.expires_us, state.offset_us
            if not known:
                self._enter(key, state, now_us)
            changed = True
        else:
            changed = state.refund(now_us, -more, stamp_us) > 0
        if expires_us - offset_us > now_us:
            self._enter(marker_key, Marker(limit, expires_us, offset_us), now_us)
        return changed

    def _reset(self, check: Check) -> bool:
        """Make the state as good as new. Its entry in `_due` stays, and takes it out later."""
        key = memory_key(check)
        if key not in self._states:
            return False
        self._states[key] = _fresh(check.limit)
        return True

    def _enter(self, key: str, state: Any, now_us: int) -> None:
        if len(self._states) >= self._max_keys:
            self._make_room(now_us)
        self._states[key] = state
        self._enter_due(key, state)

    def _enter_due(self, key: str, state: Any) -> None:
        slice_ = ((state.expires_us - state.offset_us) >> _SLICE_BITS) + 1
        entries = self._due.get(slice_)
        if entries is None:
            self._due[slice_] = [key]
            heappush(self._slices, slice_)
            self._next_due_us = self._slices[0] << _SLICE_BITS
        else:
            entries.append(key)

    def _forget(self, now_us: int, most: int = _ENTRIES_PER_CALL) -> bool:
        """Look at a few entries whose time has come; return whether a state was deleted."""
        deleted = False
        for _ in range(most):
            if now_us < self._next_due_us:
                break
            entries = self._due[self._slices[0]]
            key = entries.pop()
            if not entries:
                self._drop(self._slices[0])
            state = self._states[key]
            if state.expires_us - state.offset_us <= now_us:
                del self._states[key]
                deleted = True
            else:
                self._enter_due(key, state)
        return deleted

    def _drop(self, slice_: int) -> None:
        """Take an empty slice out of `_due`; out of the heap once it is on top."""
        del self._due[slice_]
        while self._slices and self._slices[0] not in self._due:
            heappop(self._slices)
        self._next_due_us = self._slices[0] << _SLICE_BITS if self._slices else _NEVER_DUE_US

    def _make_room(self, now_us: int) -> None:
        if self._forget(now_us, _ENTRIES_FOR_ROOM):
            return
        # From the oldest slices and the newest, so that a flood of new keys is always in it.
        slices = {*islice(self._due, _SAMPLE // 2), *islice(reversed(self._due), _SAMPLE // 2)}
        sample = [
            (slice_, randrange(len(self._due[slice_])))
            for slice_ in slices
            for _ in range(_SAMPLE // len(slices))
        ]
        slice_, place = max(sample, key=lambda where: self._share_left(where, now_us))
        entries = self._due[slice_]
        entries[place], entries[-1] = entries[-1], entries[place]
        del self._states[entries.pop()]
        if not entries:
            self._drop(slice_)

    def _share_left(self, where: tuple[int, int], now_us: int) -> float:
        slice_, place = where
        state = self._states[self._due[slice_][place]]
        if isinstance(state, Marker):
            return -1.0
        nothing = "" if isinstance(state, Leases) else 0
        return float(state.decide(state.limit, now_us, nothing, False)[1] / state.limit.quota)


class AsyncMemoryBackend:
    """The same for asyncio: nothing in it waits."""

    def __init__(self, memory: MemoryBackend) -> None:
        self._memory = memory

    async def run(
        self, checks: tuple[Check, ...], charge: bool, holder: str = ""
    ) -> tuple[Reading, ...]:
        """Decide some checks together, all or nothing; return a reading for each."""
        return self._memory.run(checks, charge, holder)

    async def change(self, change: Change) -> bool:
        """Carry out a change; return whether there was anything to change."""
        return self._memory.change(change)


def _fresh(limit: Limit | Concurrency) -> Any:
    return Leases(limit) if isinstance(limit, Concurrency) else STATES[limit.algorithm](limit)
