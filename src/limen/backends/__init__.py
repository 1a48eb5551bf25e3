"""The protocol of a store: `prepare` encodes checks, `run` decides them, `change` corrects a state.

A backend owns atomicity: the reads and writes of one request are not interleaved with those of
another. It contains no arithmetic; the algorithms do that.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from msgspec import Struct

from limen.backends.histogram import Spread
from limen.model import Check, Reading, Receipt

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


class ShardState(Struct, frozen=True):
    """The state of one server of the store, as this process sees it."""

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


class Shard(ShardState, frozen=True):
    """The state of one server of the store, with its measurements."""

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


class Prepared(Struct, frozen=True, gc=False):
    """Checks in the encoded form of one store. It can be run any number of times."""

    checks: tuple[Check, ...]
    charge: bool
    """False is a peek: the store reports the decision and changes nothing."""
    holder: str
    """The id of the holder that takes the slots, if a check is of a `Concurrency`."""
    request: Any
    """The encoded request of the store; None in memory, and where one call cannot decide."""


class Store(Protocol):
    """What threads and asyncio call alike."""

    lost_refunds: int
    """How many reservations could not be given back, and stay charged for their period."""

    def prepare(self, checks: tuple[Check, ...], charge: bool = True, holder: str = "") -> Prepared:
        """Encode checks for `run`. Does no I/O."""
        ...

    def shards(self) -> tuple[Shard, ...]:
        """Return how each server is doing; nothing when there is none."""
        ...


class Backend(Store, Protocol):
    """A store of states, for threads."""

    def run(self, prepared: Prepared, within: float | None = None) -> tuple[Reading, ...] | Fault:
        """Decide the checks together, all or nothing; return a reading for each, or a fault.

        `within` is a deadline in seconds for this call; None is the deadline of the store.
        """
        ...

    def change(self, change: Change) -> bool | Fault:
        """Carry out a change; return whether there was anything to change, or why not."""
        ...

    def ping(self) -> Fault | None:
        """Connect, and see that decisions can be made there; return why not."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


class AsyncBackend(Store, Protocol):
    """A store of states, for asyncio."""

    async def run(
        self, prepared: Prepared, within: float | None = None
    ) -> tuple[Reading, ...] | Fault:
        """Decide the checks together, all or nothing; return a reading for each, or a fault."""
        ...

    async def change(self, change: Change) -> bool | Fault:
        """Carry out a change; return whether there was anything to change, or why not."""
        ...

    async def ping(self) -> Fault | None:
        """Connect, and see that decisions can be made there; return why not."""
        ...

    async def vitals(self) -> dict[str, Vitals]:
        """Return what each server that answers says of itself."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
