"""The store in this process: states in a dict that forgets, and one lock around it.

At `max_keys`, a new key pushes another out. What has expired goes first; then, of a small sample,
the state with the most left to use, because forgetting it changes least: to forget a key that is
being refused would let it through.
"""

from __future__ import annotations

from threading import RLock
from typing import Any

from msgspec import Struct

from limen import fork
from limen.algorithms import STATES, Leases
from limen.algorithms.last_reading import LastReading, continued, stamp_in
from limen.backends import Change, Correct, Prepared, Renew, Reset, Shard, Vitals
from limen.backends.expiring import Expiring
from limen.clock import Clock
from limen.keys import memory_key
from limen.model import Check, Concurrency, Limit, Reading


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
        self._lock = RLock()
        self._forget_all()
        fork.watch(self)

    def _forget_all(self) -> None:
        self._states: Expiring[Any] = Expiring(self._max_keys, _share_left)
        self._entries = self._states.entries
        # Apart, so that refunds push out no state that is being refused.
        self._markers: Expiring[Marker] = Expiring(self._max_keys, lambda marker, now_us: 0.0)

    def after_fork(self) -> None:
        """Replace the lock, which another thread of the parent process may hold."""
        if not self._lock.acquire(blocking=False):
            # That thread was changing a state, which may be incomplete.
            self._forget_all()
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def prepare(self, checks: tuple[Check, ...], charge: bool = True, holder: str = "") -> Prepared:
        """Return the checks as they are: memory needs no encoding."""
        return Prepared(checks, charge, holder, None)

    def run_one(self, check: Check) -> Reading:
        """Decide and charge one check of a `Limit`. Only for `Limiter.check`; see `run`."""
        with self._lock:
            now_us = self._time_ns() // 1_000
            if now_us >= self._states.next_due_us:
                self._states.forget(now_us)
            limit = check.limit
            state = self._entries.get(limit.identity + check.key)
            if state is None:  # a new key, or one that is kept by its digest
                return self._decide(check, now_us, True, "")
            return state.decide(limit, now_us, check.cost, True)  # type: ignore[no-any-return]

    def run(
        self, prepared: Prepared, within: float | None = None, *, now_us: int | None = None
    ) -> tuple[Reading, ...]:
        """Decide the checks together, all or nothing; return a reading for each.

        Every check is read without charging, then all of them are charged or none. A shadow
        (`enforce=False`) cannot refuse, and is charged if it would have admitted alone. A refusal
        is charged only by a limit with `count_denied`. `now_us` is the time of the clock, for a
        caller that has read it.
        """
        checks, charge, holder = prepared.checks, prepared.charge, prepared.holder
        with self._lock:
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

    def change(self, change: Change) -> bool:
        """Carry out a change; return whether there was anything to change."""
        with self._lock:
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

    def continue_from(self, check: Check, last: LastReading, share: Limit, instances: int) -> None:
        """Replace the state of a key by one that continues from another store's last reading.

        `share` is this instance's share of the reading's limit.
        """
        with self._lock:
            now_us, key = self._time_ns() // 1_000, memory_key(check)
            state = continued(last, share, instances, now_us)
            if key in self._entries:
                self._entries[key] = state
            else:
                self._states.add(key, state, now_us)

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

    def _decide(self, check: Check, now_us: int, charge: bool, holder: str) -> Reading:
        key, limit = memory_key(check), check.limit
        what = holder if isinstance(limit, Concurrency) else check.cost
        state = self._entries.get(key)
        if state is not None:
            return state.decide(limit, now_us, what, charge)  # type: ignore[no-any-return]
        state = _fresh(limit)
        reading: Reading = state.decide(limit, now_us, what, charge)
        if state.expires_us > now_us:
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

    def prepare(self, checks: tuple[Check, ...], charge: bool = True, holder: str = "") -> Prepared:
        """Return the checks as they are: memory needs no encoding."""
        return Prepared(checks, charge, holder, None)

    async def run(self, prepared: Prepared, within: float | None = None) -> tuple[Reading, ...]:
        """Decide the checks together, all or nothing; return a reading for each."""
        return self.memory.run(prepared)

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
    nothing = "" if isinstance(limit, Concurrency) else 0
    return float(state.decide(limit, now_us, nothing, False)[1] / limit.capacity)
