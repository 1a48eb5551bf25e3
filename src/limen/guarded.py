"""What is decided when the store cannot: the one place where a fault becomes a decision.

Each check says by `on_error` who stands in: `local` counts in this process, at this instance's
share of the limit; `open` lets everybody pass, `closed` nobody. Knows no store and does no I/O.

Local counting starts from the last answer that the store gave for the key, if that still holds.

What was admitted here is owed to the store, and charged there when it is back. It stays counted
here too: a store that comes and goes hands out no fresh share each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from msgspec import structs

from limen import fork
from limen.backends import Change, Correct, Fault, Release, Reset
from limen.backends.memory import MemoryBackend
from limen.backends.sampled import SampledLog
from limen.clock import SteadyClock
from limen.errors import StoreError
from limen.keys import memory_key
from limen.last_readings import LastReadings, StateId, state_id
from limen.model import (
    MAX_COST,
    NEVER_US,
    UNCHARGED,
    Check,
    Concurrency,
    Limit,
    OnError,
    Reading,
    Receipt,
    Source,
    receipt_ids,
)

_MAX_LOCAL_KEYS = 60_000
_MAX_OWED = 20_000
"""Of how many keys it is remembered what they owe. The others are let off."""
_LONGEST_OWED = 1_024
_LOST_S = 5.0
"""After which one who pays is taken for lost, with its loop or its thread."""
_CLOSED_RETRY_US = 1_000_000


class Guard:
    """Stands in for a store that cannot answer, or for a service."""

    def __init__(
        self,
        on_error: OnError,
        instances: int,
        source: str = "the store",
        log_suffix: str = "",
        max_owed: int = _MAX_OWED,
    ) -> None:
        self._on_error = on_error
        self._source = source
        """The name of what does not answer, for the log."""
        self._log_suffix = log_suffix
        """The end of each line of the log, such as the policy that decides."""
        self._max_owed = max_owed
        """Of how many keys local charges are kept for a replay."""
        self.instances = instances
        """Among how many processes a limit is shared while the store is away."""
        self._clock = clock = SteadyClock()
        self._local = MemoryBackend(clock, _MAX_LOCAL_KEYS)
        """Requests that were admitted here."""
        self._continued = MemoryBackend(clock, _MAX_LOCAL_KEYS)
        """States of the store, continued from its last readings."""
        self._last_readings = LastReadings()
        self.record: Callable[[Sequence[Check], Sequence[Reading]], None] = (
            self._last_readings.record
        )
        """Keep the store's readings, to continue from them when it does not answer."""
        self._log = SampledLog()
        self.after_fork()
        fork.watch(self)

    def after_fork(self) -> None:
        """Leave the other process its debts."""
        self._lock = threading.Lock()
        self._counting = threading.RLock()
        self.owed: dict[StateId, Check] = {}
        """What was charged here and nowhere else: a check at the cost of all of it."""
        self._paying_until = float("-inf")
        self._ids = receipt_ids()

    @property
    def tables(self) -> dict[str, int]:
        """The number of keys counted here, of keys with charges that the store does not have yet,
        and of last readings."""
        return {
            "local": len(self._local),
            "owed": len(self.owed),
            "readings": len(self._last_readings),
        }

    def decide(
        self, fault: Fault, checks: Sequence[Check], charge: bool, holder: str
    ) -> tuple[list[Reading], list[Source]]:
        """Return a reading for each check, and who gave it. All or nothing, as the store does."""
        self.warn(fault)
        sources: list[Source] = [check.on_error or self._on_error for check in checks]
        pairs = list(zip(checks, sources, strict=True))
        is_shut = any(source == "closed" and check.enforce for check, source in pairs)
        local = [check for check, source in pairs if source == "local"]
        counted = iter(self._count(local, charge and not is_shut, holder))
        readings: list[Reading] = []
        for check, source in pairs:
            if source == "local":
                readings.append(next(counted))
            else:
                readings.append(_open(check) if source == "open" else _CLOSED)
        if local and charge and not fault.may_have_run:
            self._owe(checks, readings, sources)
        return readings, sources

    def should_pay(self, now: float) -> bool:
        """Return whether the caller is to have paid what is owed, in the background."""
        if not self.owed:
            return False
        with self._lock:
            if now < self._paying_until:
                return False
            self._paying_until = now + _LOST_S
            return True

    def keeps_paying(self, now: float) -> bool:
        """Return whether anything is owed still.

        Who pays asks it again and again: who has not for a while is lost, and another one pays.
        """
        with self._lock:
            self._paying_until = now + _LOST_S if self.owed else float("-inf")
            return bool(self.owed)

    def stop_paying(self) -> None:
        """Leave what is owed still to the next who asks whether to pay."""
        with self._lock:
            self._paying_until = float("-inf")

    def debts(self) -> Iterator[Correct]:
        """Take out what is owed now, one by one: what the store has to charge.

        No more than is still counted here: what is older would burden a later period.
        """
        for _ in range(len(self.owed)):
            with self._lock:
                if not self.owed:
                    return
                check = self.owed.pop(next(iter(self.owed)))
            units = min(check.cost, self._used(check))
            if units > 0:
                receipt = Receipt(f"{next(self._ids):016x}", ((_at(check, 0), 0),))
                yield Correct(receipt, units)

    def owe_again(self, debt: Correct, fault: Fault) -> None:
        """Take note that a debt was not paid; unless that is not certain."""
        if not fault.may_have_run:
            for check, _ in debt.receipt.charges:
                self._add(_at(check, debt.actual_cost))

    def _count(self, checks: Sequence[Check], charge: bool, holder: str) -> tuple[Reading, ...]:
        """Decide checks by local counting, at this instance's share.

        A request must fit twice: beside all that was admitted here, and beside all that the store
        had counted when it was last read. The first keeps the bound when the store comes and goes,
        the second keeps a used-up key refused.
        """
        shares = tuple([self._share(check) for check in checks])
        with self._counting:
            for check in checks:
                self._continue(check)
            known = tuple([share for share in shares if share in self._continued])
            # One time for both: a receipt names it, and a correction has to find both charges.
            now_us = self._clock.time_ns() // 1_000
            peek = self._continued.prepare(known, False, holder)
            continued = self._continued.run(peek, now_us=now_us)
            fits = _all_allowed(known, continued)
            prepared = self._local.prepare(shares, charge and fits, holder)
            counted = self._local.run(prepared, now_us=now_us)
            if charge and fits and _all_allowed(shares, counted):
                prepared = self._continued.prepare(known, True, holder)
                continued = self._continued.run(prepared, now_us=now_us)
        others = dict(zip(map(memory_key, known), continued, strict=True))
        pairs = zip(shares, counted, strict=True)
        return tuple(
            [_stricter(reading, others.get(memory_key(share))) for share, reading in pairs]
        )

    def _continue(self, check: Check) -> None:
        last = self._last_readings.take(check)
        if last is not None:
            share = _share_of(last.limit, self.instances)
            assert isinstance(share, Limit)
            self._continued.continue_from(check, last, share, self.instances)

    def _owe(
        self, checks: Sequence[Check], readings: Sequence[Reading], sources: Sequence[Source]
    ) -> None:
        for check, reading, source in zip(checks, readings, sources, strict=True):
            if source == "local" and reading[5] != UNCHARGED:
                self._add(check)

    def _add(self, check: Check) -> None:
        key = state_id(check)
        with self._lock:
            known = self.owed.get(key)
            if known is not None:
                check = _at(check, min(known.cost + check.cost, MAX_COST))
            elif len(self.owed) >= self._max_owed or len(check.key) > _LONGEST_OWED:
                return
            self.owed[key] = check

    def _let_off(self, check: Check, units: int) -> None:
        """Owe so many units less."""
        key = state_id(check)
        with self._lock:
            known = self.owed.get(key)
            if known is not None and known.cost > units:
                self.owed[key] = _at(known, known.cost - units)
            else:
                self.owed.pop(key, None)

    def _amend(self, change: Correct) -> None:
        """Owe what a correction has made of a charge."""
        for check, _ in change.receipt.charges:
            more = change.actual_cost - check.cost
            if more > 0:
                self._add(_at(check, more))
            else:
                self._let_off(check, -more)

    def _used(self, check: Check) -> int:
        """Return how much of its share a key has used."""
        share = self._share(_at(check, 0))
        [reading] = self._local.run(self._local.prepare((share,), False))
        return share.limit.capacity - reading[1] if isinstance(share.limit, Limit) else 0

    def change(self, change: Change) -> bool | None:
        """Carry out a change of what is counted here; None when it is the store's to change."""
        if isinstance(change, Correct):
            receipt = change.receipt
            if receipt.source != "local":
                return None
            shares = [(self._share(check), stamp_us) for check, stamp_us in receipt.charges]
            continued = [
                (share, self._continued.stamp_in(share, stamp_us))
                for share, stamp_us in shares
                if share in self._continued
            ]
            self._continued.change(_with_charges(change, continued))
            changed = self._local.change(_with_charges(change, shares))
            if changed:
                self._amend(change)
            return changed
        if isinstance(change, Reset):
            for check in change.checks:
                self._last_readings.take(check)
                self._let_off(check, MAX_COST)
            reset = Reset(tuple([self._share(check) for check in change.checks]))
            self._local.change(reset)
            self._continued.change(reset)
            return None
        # A slot does not tell who granted it.
        local = structs.replace(change, check=self._share(change.check))
        return self._local.change(local) or None

    def give_up(self, fault: Fault, change: Change) -> bool:
        """Bear that a change was not carried out. Where nobody could bear that, raise."""
        if isinstance(change, Correct | Release):
            # What was charged stays charged, what is held is held: until the period, or the lease,
            # is over. Not worth an error in a program whose real work is done.
            self.warn(fault)
            return False
        raise StoreError(str(fault))

    def warn(self, fault: Fault) -> None:
        """Log a fault, once a second of each kind."""
        line = f"{self._source} did not answer ({fault.kind}): {fault}{self._log_suffix}"
        self._log.warn(fault.kind, line)

    def _share(self, check: Check) -> Check:
        if self.instances == 1:
            return check
        return structs.replace(check, limit=_share_of(check.limit, self.instances))


def _all_allowed(checks: Sequence[Check], readings: Sequence[Reading]) -> bool:
    """Return whether all checks that are enforced allow the request."""
    pairs = zip(checks, readings, strict=True)
    return all(reading[0] for check, reading in pairs if check.enforce)


def _stricter(local: Reading, continued: Reading | None) -> Reading:
    """Return one reading for both counts of a key; the charge is the local one."""
    if continued is None:
        return local
    retry_us = NEVER_US if NEVER_US in (local[2], continued[2]) else max(local[2], continued[2])
    return (
        local[0] and continued[0],
        min(local[1], continued[1]),
        retry_us,
        max(local[3], continued[3]),
        max(local[4], continued[4]),
        local[5],
    )


def _with_charges(change: Correct, charges: Sequence[tuple[Check, int]]) -> Correct:
    receipt = structs.replace(change.receipt, charges=tuple(charges))
    return structs.replace(change, receipt=receipt)


def _at(check: Check, cost: int) -> Check:
    return structs.replace(check, cost=cost)


@lru_cache(maxsize=4_096)
def _share_of(limit: Limit | Concurrency, instances: int) -> Limit | Concurrency:
    return limit.share(instances)


def _open(check: Check) -> Reading:
    return (True, check.limit.capacity, 0, 0, 0, UNCHARGED)


_CLOSED: Reading = (False, 0, _CLOSED_RETRY_US, 0, 0, UNCHARGED)
