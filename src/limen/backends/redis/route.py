"""Where a request goes: who owns its slot, and who is the primary now. Pure: no I/O.

The finders are generators: they yield whom to ask what, and are sent the reply or the error.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from limen.backends import Fault
from limen.backends.redis.batch import Again, Request
from limen.backends.redis.protocol import fault_of
from limen.connect import Address, Target
from limen.errors import StoreError

SLOTS = 16_384
_REFRESH_S = 0.25
_RESHAPING = ("connection", "timeout", "cluster", "loading", "readonly")
Question = tuple[Address, tuple[str, ...]]
"""Whom to ask, and the command."""


class Router:
    """Knows which server to ask, and when it is time to look for the cluster's new shape.

    Not safe by itself: only one caller at a time may ask `should_refresh`.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.clustered = target.kind == "cluster"
        self._owners: list[Address | None] = [None] * SLOTS
        self.is_known = False
        """Whether the shape of the cluster was ever learnt."""
        self._is_stale = True
        self._is_refreshing = False
        self._refreshed_at = float("-inf")

    def address(self, request: Request) -> Address | None:
        """Return whom to ask; None when nobody is known to own the slot."""
        if not self.clustered:
            return self.target.addresses[0]
        return request.address or self._owners[request.slot]

    def nodes(self) -> list[Address]:
        """Return every node that owns something."""
        return list(dict.fromkeys(owner for owner in self._owners if owner))

    def candidates(self) -> list[Address]:
        """Return whom to ask about the cluster: who is in it, then who was named at first."""
        return [*self.nodes(), *self.target.addresses]

    def learn(self, owners: list[Address | None]) -> None:
        """Take over what a node knows."""
        self._owners = owners
        self.is_known = True
        self._is_stale = False

    def follow(self, request: Request, again: Again) -> Request:
        """Return what to ask after a redirection; remember a slot that has moved for good."""
        if again.address and not again.asking:
            self._owners[request.slot] = again.address
            self._is_stale = True
        return again.redirect(request)

    def suspect(self, fault: Fault) -> None:
        """Take note of a fault that a new shape of the cluster may explain."""
        if fault.kind in _RESHAPING:
            self._is_stale = True

    def no_end(self, again: Again) -> Fault:
        """Say why asking again came to no end."""
        if again.fresh:
            return fault_of("READONLY it takes no writes", self.target.shown)
        if again.address and not self.clustered:
            advice = "write its address with redis+cluster://"
            return Fault("cluster", f"{self.target.shown}: it is a node of a cluster", advice)
        return Fault("cluster", f"{self.target.shown}: asked {again!r} again and again, in vain")

    def nobody_owns(self, request: Request) -> Fault:
        """Say so."""
        self._is_stale = True
        where = self.target.shown
        return Fault("cluster", f"{where}: no node is known to serve slot {request.slot}")

    def should_refresh(self, now: float) -> bool:
        """Return whether to look up the owners now: one at a time, and not too often."""
        if not (self.clustered and self._is_stale) or self._is_refreshing:
            return False
        if now < self._refreshed_at + _REFRESH_S:
            return False
        self._is_refreshing = True
        return True

    def refreshed(self, now: float) -> None:
        """Take note that looking up has ended, well or not."""
        self._is_refreshing = False
        self._refreshed_at = now


def find_owners(
    addresses: Iterable[Address],
) -> Generator[Question, object, list[Address | None]]:
    """Ask one node after the other who owns what, until one knows."""
    trouble: object = "no node is known"
    for address in dict.fromkeys(addresses):
        reply = yield address, ("CLUSTER", "SLOTS")
        if isinstance(reply, list):
            owners = _owners(reply, address)
            if any(owners):
                return owners
            reply = "it owns no slots"
        trouble = f"{address[0]}:{address[1]}: {reply}"
    raise StoreError(f"no node of the cluster says who owns its slots; the last: {trouble}")


def _owners(reply: list[Any], asked: Address) -> list[Address | None]:
    owners: list[Address | None] = [None] * SLOTS
    for first, last, primary, *_ in reply:
        host = _text(primary[0]) if primary[0] else asked[0]
        for slot in range(first, last + 1):
            owners[slot] = (host, primary[1])
    return owners


def find_primary(
    sentinels: Iterable[Address], service: str
) -> Generator[Question, object, Address]:
    """Ask one sentinel after the other for the primary, until one knows."""
    trouble: object = "none is known"
    for address in sentinels:
        reply = yield address, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        if isinstance(reply, list) and len(reply) == 2:
            return _text(reply[0]), int(reply[1])
        reply = f"it knows no service {service!r}" if reply is None else reply
        trouble = f"{address[0]}:{address[1]}: {reply}"
    raise StoreError(f"no sentinel names the primary; the last: {trouble}")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
