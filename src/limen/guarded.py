"""What is decided when the store cannot: the one place where a fault becomes a decision.

Each check says by `on_error` who stands in: `local` counts in this process, at this instance's
share of the limit; `open` lets everybody pass, `closed` nobody. Knows no store and does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from msgspec import structs

from limen.backends import Change, Correct, Fault, Release, Renew
from limen.backends.memory import MemoryBackend
from limen.backends.sampled import SampledLog
from limen.clock import SystemClock
from limen.errors import StoreError
from limen.model import UNCHARGED, Check, Concurrency, Limit, OnError, Reading, Source

_MAX_LOCAL_KEYS = 100_000
_CLOSED_RETRY_US = 1_000_000


class Guard:
    """Stands in for a store that cannot answer."""

    def __init__(self, on_error: OnError, instances: int) -> None:
        self._on_error = on_error
        self.instances = instances
        """Among how many processes a limit is shared while the store is away."""
        self._local = MemoryBackend(SystemClock(), _MAX_LOCAL_KEYS)
        self._log = SampledLog()

    def decide(
        self, fault: Fault, checks: Sequence[Check], charge: bool, holder: str
    ) -> tuple[list[Reading], list[Source]]:
        """Return a reading for each check, and who gave it. All or nothing, as the store does."""
        self._warn(fault)
        sources: list[Source] = [check.on_error or self._on_error for check in checks]
        pairs = list(zip(checks, sources, strict=True))
        is_shut = any(source == "closed" and check.enforce for check, source in pairs)
        local = [self._share(check) for check, source in pairs if source == "local"]
        counted = iter(self._local.run_all(tuple(local), charge and not is_shut, holder))
        readings: list[Reading] = []
        for check, source in pairs:
            if source == "local":
                readings.append(next(counted))
            else:
                readings.append(_open(check) if source == "open" else _CLOSED)
        return readings, sources

    def change(self, change: Change) -> bool | None:
        """Carry out a change of what is counted here; None when it is the store's to change."""
        if isinstance(change, Correct):
            receipt = change.receipt
            if receipt.source != "local":
                return None
            shares = [(self._share(check), stamp_us) for check, stamp_us in receipt.charges]
            receipt = structs.replace(receipt, charges=tuple(shares))
            return self._local.change(structs.replace(change, receipt=receipt))
        if isinstance(change, Renew | Release):
            # A slot does not tell who granted it.
            local = structs.replace(change, check=self._share(change.check))
            return self._local.change(local) or None
        return None

    def give_up(self, fault: Fault, change: Change) -> bool:
        """Bear that a change was not carried out. Where nobody could bear that, raise."""
        if isinstance(change, Correct | Release):
            # What was charged stays charged, what is held is held: until the period, or the lease,
            # is over. Not worth an error in a program whose real work is done.
            self._warn(fault)
            return False
        raise StoreError(str(fault))

    def _warn(self, fault: Fault) -> None:
        self._log.warn(fault.kind, f"the store did not answer ({fault.kind}): {fault}")

    def _share(self, check: Check) -> Check:
        if self.instances == 1:
            return check
        return structs.replace(check, limit=_share_of(check.limit, self.instances))


@lru_cache(maxsize=4_096)
def _share_of(limit: Limit | Concurrency, instances: int) -> Limit | Concurrency:
    return limit.share(instances)


def _open(check: Check) -> Reading:
    limit = check.limit
    whole = limit.slots if isinstance(limit, Concurrency) else limit.capacity
    return (True, whole, 0, 0, 0, UNCHARGED)


_CLOSED: Reading = (False, 0, _CLOSED_RETRY_US, 0, 0, UNCHARGED)
