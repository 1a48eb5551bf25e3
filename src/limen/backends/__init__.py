"""What a store can be asked, and the protocol every store speaks.

A backend owns atomicity: what one request reads and writes, no other request sees in between. It
calculates nothing; that is what the algorithms are for.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from limen.model import Check, Limit, Reading, Receipt

__all__ = ["AsyncBackend", "Backend", "Change", "Correct", "Release", "Renew", "Reset"]


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

    def run(self, limit: Limit, key: str, cost: int) -> Reading:
        """Decide one limit on one key, and charge it when it is allowed: the short way."""
        ...

    def run_all(
        self, checks: tuple[Check, ...], charge: bool, holder: str = ""
    ) -> tuple[Reading, ...]:
        """Decide some checks together, all or nothing; return a reading for each.

        Without `charge` it is a peek: say what would happen, change nothing. `holder` takes the
        slot, if one of the checks is of a `Concurrency`.
        """
        ...

    def change(self, change: Change) -> bool:
        """Carry out a change; return whether there was anything to change."""
        ...


class AsyncBackend(Protocol):
    """The same for asyncio, where a short way would not be noticed beside the `await`."""

    async def run_all(
        self, checks: tuple[Check, ...], charge: bool, holder: str = ""
    ) -> tuple[Reading, ...]:
        """Decide some checks together, all or nothing; return a reading for each."""
        ...

    async def change(self, change: Change) -> bool:
        """Carry out a change; return whether there was anything to change."""
        ...
