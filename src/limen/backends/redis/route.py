"""Where a request goes: who owns its slot, and who is the primary now. Pure: no I/O.

The finders are generators: they yield whom to ask what, and are sent the reply or the error.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from typing import Any

from limen.backends import Fault, Reset
from limen.backends.redis.batch import Again, Packer, Request
from limen.backends.redis.protocol import Unfound, fault_of
from limen.connect import Address, Target, show_address
from limen.model import Check, Limit

SLOTS = 16_384
MAX_TRIES = 8
"""How often a request is sent on before it is given up."""
_REFRESH_S = 0.25
_LOST_S = 2.0
"""After which one who looks up the shape is taken for lost, with its loop or its process."""
_PROBE = Limit(1, 1)
_RESHAPING = ("connection", "timeout", "cluster", "loading", "readonly")
Question = tuple[Address, tuple[str, ...]]
"""Whom to ask, and the command."""


class Router:
    """Knows which server to ask, and when it is time to look for the cluster's new shape.

    Not safe by itself: only one caller at a time may ask `should_refresh`.
    """

    def __init__(self, target: Target) -> None:
        self.target: Target = target
        self.clustered: bool = target.kind == "cluster"
        self._owners: list[Address | None] = [None] * SLOTS
        self.is_known: bool = False
        """Whether the shape of the cluster was ever learnt."""
        self._trouble: Fault | None = None
        self._is_stale = True
        self._is_refreshing = False
        self._refreshing_since = self._refreshed_at = float("-inf")

    @property
    def is_unknown_yet(self) -> bool:
        """Whether nothing is known, and somebody is finding out."""
        return self._is_refreshing and not self.is_known

    def address(self, request: Request) -> Address | None:
        """Return whom to ask; None when nobody is known to own the slot."""
        if not self.clustered:
            return self.target.addresses[0]
        return request.address or self._owners[request.slot]

    def nodes(self) -> list[Address]:
        """Return every node that owns something."""
        return list(dict.fromkeys(owner for owner in self._owners if owner))

    def probes(self, packer: Packer) -> list[Request]:
        """Return a request for each server: it changes nothing, and needs the rights to."""
        probes: dict[Address | None, Request] = {}
        wanted = len(self.nodes()) if self.clustered else 1
        for number in range(SLOTS):
            request = packer.change(Reset((Check(_PROBE, f"ping {number}"),)))
            probes.setdefault(self.address(request), request)
            if len(probes) >= wanted:
                break
        return list(probes.values())

    def candidates(self) -> list[Address]:
        """Return whom to ask about the cluster: who is in it, then who was named at first.

        In another order each time: one that is cut off from the others knows an old shape.
        """
        nodes, named = self.nodes(), list(self.target.addresses)
        random.shuffle(nodes)
        random.shuffle(named)
        return [*nodes, *named]

    def learn(self, owners: list[Address | None]) -> None:
        """Take over what a node knows."""
        self._owners = owners
        self.is_known = True
        self._is_stale = False

    def follow(self, request: Request, again: Again, said_by: Address) -> Request:
        """Return what to ask after a redirection; remember a slot that has moved for good."""
        if again.address and not again.address[0]:
            again = Again((said_by[0], again.address[1]), asking=again.asking)
        if again.address and not again.asking:
            self._owners[request.slot] = again.address
            self._is_stale = True
        return again.redirect(request)

    def suspect(self, fault: Fault) -> None:
        """Take note of a fault that a new shape of the cluster may explain."""
        if fault.kind in _RESHAPING:
            self._is_stale = True

    def weight(self, again: Again) -> int:
        """Return how much of the patience with redirections one takes."""
        if again.pause_s:
            return 0
        # Only sentinels name another server when this one is a replica.
        return 4 if again.fresh and self.target.kind != "sentinel" else 1

    def where(self, address: Address) -> str:
        """Return how messages name a server."""
        node = f", node {show_address(address)}" if self.clustered else ""
        return f"{self.target.shown}{node}"

    def no_end(self, again: Again) -> Fault:
        """Say why asking again came to no end."""
        if again.fresh:
            return fault_of("READONLY it takes no writes", self.target.shown)
        if again.address and not self.clustered:
            advice = "write its address with redis+cluster://"
            return Fault("cluster", f"{self.target.shown}: it is a node of a cluster", advice)
        return fault_of(
            "TRYAGAIN a slot is on its way, or sent from node to node", self.target.shown
        )

    def nobody_owns(self, request: Request) -> Fault:
        """Say so; and if nothing is known at all, why not."""
        self._is_stale = True
        if self._trouble is not None and not self.is_known:
            return self._trouble
        where = self.target.shown
        return Fault("cluster", f"{where}: no node is known to serve slot {request.slot}")

    def should_refresh(self, now: float) -> bool:
        """Return whether to look up the owners now: one at a time, and not too often."""
        if not (self.clustered and self._is_stale) or now < self._refreshed_at + _REFRESH_S:
            return False
        if self._is_refreshing and now < self._refreshing_since + _LOST_S:
            return False
        self._is_refreshing, self._refreshing_since = True, now
        return True

    def refreshed(self, now: float, trouble: Fault | None = None) -> None:
        """Take note that looking up has ended, and what went wrong."""
        self._is_refreshing = False
        self._refreshed_at = now
        self._trouble = trouble


def find_owners(
    addresses: Iterable[Address],
) -> Generator[Question, object, list[Address | None]]:
    """Ask one node after the other who owns what, until one knows."""
    said: object = "there is none"
    for address in dict.fromkeys(addresses):
        said = yield address, ("CLUSTER", "SLOTS")
        if isinstance(said, list):
            owners = _owners(said, address)
            if any(owners):
                return owners
            said = "no slot is served"
    alone = "disabled" in str(said)
    advice = "for a server on its own, write redis:// instead of redis+cluster://" if alone else ""
    raise Unfound(f"no node of the cluster tells its shape: {said}", said, advice)


def _owners(reply: list[Any], asked: Address) -> list[Address | None]:
    owners: list[Address | None] = [None] * SLOTS
    for first, last, primary, *_ in reply:
        host = _text(primary[0] or "")
        host = asked[0] if host in ("", "?") else host
        for slot in range(first, last + 1):
            owners[slot] = (host, primary[1])
    return owners


def find_primary(
    sentinels: Iterable[Address], service: str
) -> Generator[Question, object, Address]:
    """Ask one sentinel after the other for the primary, until one knows."""
    said: object = "there is none"
    # In another order each time: one that is cut off from the others may name an old one.
    shuffled = list(sentinels)
    random.shuffle(shuffled)
    for address in shuffled:
        said = yield address, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        if isinstance(said, list) and len(said) == 2:
            return _text(said[0]), int(said[1])
    if said is None:
        advice = "check the name of the service, at the end of the address"
        raise Unfound(f"the sentinels know no service {service!r}", said, advice)
    raise Unfound(f"no sentinel names the primary: {said}", said)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
