"""What a store can be asked, and the protocol every store speaks.

A backend owns atomicity: what one request reads and writes, no other request sees in between. It
calculates nothing; that is what the algorithms are for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from msgspec import Struct

from limen.backends.histogram import Spread
from limen.model import Check, Reading, Receipt

__all__ = [
    "AsyncBackend",
    "Backend",
    "Change",
    "Correct",
    "Fault",
    "FaultKind",
    "Release",
    "Renew",
    "Reset",
    "Shard",
    "Vitals",
]

FaultKind = Literal[
    "timeout",
    "connection",
    "tls",
    "rights",
    "loading",
    "readonly",
    "memory",
    "busy",
    "cluster",
    "poisoned",
    "script",
    "protocol",
    "internal",
]


_MAY_HAVE_RUN = ("timeout", "connection", "tls", "protocol", "internal")


class Fault(Struct, frozen=True):
    """Why a store could not answer a request. A value: what follows from it is for `guarded`."""

    kind: FaultKind
    message: str
    """One line: which store, without its password, and what happened."""
    advice: str = ""
    """What to do about it; may be empty."""
    unsent: bool = False
    """Whether the request never left this process."""

    @property
    def may_have_run(self) -> bool:
        """Whether the store may have carried it out all the same. Never ask again then."""
        return self.kind in _MAY_HAVE_RUN and not self.unsent

    def __str__(self) -> str:
        return f"{self.message} ({self.advice})" if self.advice else self.message


class Shard(Struct, frozen=True):
    """How one server of the store is doing, as this process sees it."""

    where: str
    """Its address, without a password."""
    state: Literal["closed", "open"]
    """That of its circuit breaker: open means that it is left alone until it answers."""
    opened: int
    """How often that has happened."""
    fault: str
    """The kind of the last fault since all was well; empty without one."""
    faults: dict[str, int]
    """How many there were of each kind. `rights` and `tls` are faults of configuration."""
    trips: Spread = Spread()
    """How long it took to answer, in seconds, by the bounds `limen.backends.histogram.TRIP_S`."""
    batches: Spread = Spread()
    """How many decisions travelled together, by the bounds `limen.backends.histogram.BATCH`."""


class Vitals(Struct, frozen=True):
    """What a server of the store says of itself."""

    memory: int
    """Bytes in use."""
    operations: float
    """Commands a second, lately."""
    ping_s: float
    """How long it took to say so, in seconds."""


class Correct(Struct, frozen=True):
    """Make a charge what it should have been, once for each receipt."""

    receipt: Receipt
    actual_cost: int
    """0 is a refund."""


class Renew(Struct, frozen=True):
    """Lengthen the lease of a holder."""

    check: Check
    holder: str


class Release(Struct, frozen=True):
    """Free the slot of a holder."""

    check: Check
    holder: str


class Reset(Struct, frozen=True):
    """Forget the state of some checks."""

    checks: tuple[Check, ...]


Change = Correct | Renew | Release | Reset


class Backend(Protocol):
    """Where the states are."""

    lost_refunds: int
    """How many reservations could not be given back, and stay charged for their period."""

    def run_all(
        self,
        checks: tuple[Check, ...],
        charge: bool,
        holder: str = "",
        within: float | None = None,
    ) -> tuple[Reading, ...] | Fault:
        """Decide some checks together, all or nothing; return a reading for each, or why not.

        Without `charge` it is a peek: say what would happen, change nothing. `holder` takes the
        slot, if one of the checks is of a `Concurrency`. `within` is for who has less time, in
        seconds, than the store's own deadline.
        """
        ...

    def change(self, change: Change) -> bool | Fault:
        """Carry out a change; return whether there was anything to change, or why not."""
        ...

    def ping(self) -> Fault | None:
        """Connect, and see that decisions can be made there; return why not."""
        ...

    def shards(self) -> tuple[Shard, ...]:
        """Return how each server is doing; nothing when there is none."""
        ...

    def close(self) -> None:
        """Let go of every connection."""
        ...


class AsyncBackend(Protocol):
    """The same for asyncio."""

    lost_refunds: int
    """How many reservations could not be given back, and stay charged for their period."""

    async def run_all(
        self,
        checks: tuple[Check, ...],
        charge: bool,
        holder: str = "",
        within: float | None = None,
    ) -> tuple[Reading, ...] | Fault:
        """Decide some checks together, all or nothing; return a reading for each, or why not."""
        ...

    def prepare(self, checks: tuple[Check, ...]) -> object:
        """Return checks as they are asked, for who asks the same again."""
        ...

    async def run_prepared(
        self, checks: tuple[Check, ...], prepared: Any, within: float | None = None
    ) -> tuple[Reading, ...] | Fault:
        """Decide what was prepared, and charge it, as `run_all` does."""
        ...

    def run_soon(
        self, prepared: Any, tell: Callable[[tuple[Reading, ...] | Fault], object]
    ) -> bool:
        """Do the same; `tell` is called with what `run_prepared` returns.

        At once, or later by the loop; it must not raise. False when only the other can do it.
        """
        ...

    async def change(self, change: Change) -> bool | Fault:
        """Carry out a change; return whether there was anything to change, or why not."""
        ...

    async def ping(self) -> Fault | None:
        """Connect, and see that decisions can be made there; return why not."""
        ...

    def shards(self) -> tuple[Shard, ...]:
        """Return how each server is doing; nothing when there is none."""
        ...

    async def vitals(self) -> dict[str, Vitals]:
        """Return what each server that answers says of itself."""
        ...

    async def close(self) -> None:
        """Let go of every connection."""
        ...
