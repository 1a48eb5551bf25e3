"""Where a request goes: who owns its slot, and who is the primary now. Pure: no I/O.

The finders are flows, see `limen.flow`: they call `ask` with an address and a command, and it gives
the reply or the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from msgspec import structs

from limen.backends import Fault, Reset, Shard, Vitals
from limen.backends.circuit_breaker import CircuitBreaker
from limen.backends.redis.batch import Again, Packer, Request
from limen.backends.redis.protocol import Unfound, fault_of, tls_advice
from limen.chance import CHANCE
from limen.connect import Address, Target, show_address
from limen.flow import Flow
from limen.model import Check, Limit

SLOTS = 16_384
MAX_TRIES = 8
"""How often a request is sent on before it is given up."""
_CONNECT_S = 0.4
_PATIENT_S = 2.0
_FIRST_S = 0.25
"""How long decisions may wait for the first connection to a server. Connecting takes several round
trips, a TLS handshake and an import or two, for which the deadline of a decision is too short."""
_REFRESH_S = 0.25
_NAMED_S = 1.0
"""How often sentinels are asked whom they name. An old primary takes writes for seconds, and nobody
will ever hear of them."""
_LOST_S = 2.0
"""After which one who looks up the shape is taken for lost, with its loop or its process."""
_PROBE = Limit(1_000_000, 1, algorithm="fixed_window")
_PROBES = 100_000
"""Among how many keys to look for one that a node owns. It may own a single slot of 16,384."""
_RESHAPING = ("connection", "timeout", "cluster", "loading", "readonly")


class Router:
    """Knows which server to ask, and when it is time to look for the cluster's new shape.

    Not safe by itself: only one caller at a time may ask `should_refresh`.
    """

    def __init__(self, target: Target, deadline: float) -> None:
        self.target: Target = target
        self._deadline = deadline
        self.connect_s: float = max(_CONNECT_S, deadline)
        """How long a step of opening a connection may take. No caller waits for that long.

        A packet that got lost is sent again after a second, and a new try is sooner there.
        """
        self.patient_s: float = max(_PATIENT_S, 2 * deadline)
        """How long connecting and being answered may take who has time."""
        self._breakers: dict[Address, CircuitBreaker] = {}
        self._probes: dict[Address, Check] = {}
        """A key of each node, once it was looked for."""
        self._met: set[Address] = set()
        self.connected: set[Address] = set()
        """The servers that this process has ever been connected to, as `address` names them."""
        self._first_ends: dict[Address | None, float] = {}
        self.clustered: bool = target.kind == "cluster"
        self.moves: bool = target.kind in ("cluster", "sentinel")
        """Whether another server may have to be asked one day."""
        self.primary: Address | None = None
        """Whom sentinels named, when it was last connected to."""
        self._owners: list[Address | None] = [None] * SLOTS
        self._nodes: dict[Address, None] = {}
        """Who is among the owners. To look through them takes a millisecond."""
        self.is_known: bool = False
        """Whether the shape of the cluster was ever learnt."""
        self._trouble: Fault | None = None
        self._is_stale = True
        self._is_refreshing = False
        self._refreshing_since = self._refreshed_at = float("-inf")

    @property
    def is_unknown_yet(self) -> bool:
        """Whether nothing is known, and somebody is finding out."""
        is_unknown = self.clustered and not self.is_known and self._trouble is None
        return is_unknown and self._is_refreshing

    def address(self, request: Request) -> Address | None:
        """Return whom to ask; None when nobody is known to own the slot."""
        if not self.clustered:
            return self.target.addresses[0]
        return request.address or self._owners[request.slot]

    def breaker(self, address: Address) -> CircuitBreaker:
        """Return the breaker of a server."""
        found = self._breakers.get(address)
        if found is None:
            made = CircuitBreaker(self.where(address), self._deadline)
            found = self._breakers.setdefault(address, made)
        return found

    def shards(self) -> tuple[Shard, ...]:
        """Return how each server is doing that was ever asked."""
        return tuple([breaker.shard for breaker in list(self._breakers.values())])

    def begin(self) -> None:
        """Begin anew, in the child of a fork."""
        self.refreshed(float("-inf"))
        self.connected.clear()
        self._first_ends.clear()
        for breaker in self._breakers.values():
            breaker.begin()

    def is_new(self, address: Address) -> bool:
        """Return whether there never was a connection to a server."""
        return address not in self._met

    def met(self, address: Address) -> None:
        """Take note of a connection."""
        self._met.add(address)
        if self.target.kind == "sentinel":
            self.primary = address
            address = self.target.addresses[0]
        self.connected.add(address)

    def first_s(self, address: Address | None, now: float) -> float:
        """Return how many seconds are left for the first connection to a server.

        They begin with the first call for it, so that all decisions share one wait. Call it only
        for a server that was never connected to; or, for None, while the shape of the cluster was
        never known.
        """
        return max(self._first_ends.setdefault(address, now + _FIRST_S) - now, 0.0)

    def servers(self) -> list[Address]:
        """Return whom decisions are asked of."""
        return list(self._nodes) if self.clustered else [self.target.addresses[0]]

    def probe(self, packer: Packer, address: Address, *, charge: bool) -> Request | None:
        """Return a request that shows whether a server decides; None if it has nothing to decide.

        With `charge` it charges a key that nobody else uses and that is gone after two seconds:
        only who writes learns that the server is full. Without, it leaves nothing behind.
        """
        check: Check | None = Check(_PROBE, "limen probe")
        if self.clustered:
            check = self._probes.get(address)
            if check is None or self._owners[packer.slot_of(check)] != address:
                check = self._own_key(packer, address)
            if check is None:
                return None
            self._probes[address] = check
        assert check is not None
        return packer.checks((check,), True, "") if charge else packer.change(Reset((check,)))

    def _own_key(self, packer: Packer, address: Address) -> Check | None:
        if address not in self._owners:
            return None
        keys = (Check(_PROBE, f"limen probe {number}") for number in range(_PROBES))
        return next((key for key in keys if self._owners[packer.slot_of(key)] == address), None)

    def candidates(self) -> list[Address]:
        """Return whom to ask about the cluster: who is in it, then who was named at first.

        In another order each time: one that is cut off from the others knows an old shape. Who is
        left alone comes last: it may let the question wait for as long as it can.
        """
        nodes, named = list(self._nodes), list(self.target.addresses)
        CHANCE.shuffle(nodes)
        CHANCE.shuffle(named)
        return sorted([*nodes, *named], key=self._is_left_alone)

    def _is_left_alone(self, address: Address) -> bool:
        breaker = self._breakers.get(address)
        return breaker is not None and breaker.is_open

    def learn(self, owners: list[Address | None]) -> None:
        """Take over what a node knows."""
        self._owners = owners
        # Equal ones stand together and are one object: most are passed over without hashing.
        self._nodes = dict.fromkeys(owner for owner, _ in groupby(owners) if owner)
        self.is_known = True
        self._is_stale = False
        known = list(self._breakers.items())
        self._breakers = {each: breaker for each, breaker in known if each in self._nodes}

    def follow(self, request: Request, again: Again, said_by: Address) -> Request:
        """Return what to ask after a redirection; remember a slot that has moved for good."""
        if again.address and not again.address[0]:
            again = Again((said_by[0], again.address[1]), asking=again.asking)
        if again.address and not again.asking:
            self._owners[request.slot] = again.address
            self._nodes[again.address] = None
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
            return structs.replace(self._trouble, unsent=True)
        where = self.target.shown
        advice = "" if self.is_known else tls_advice("timeout", "", where)
        return Fault("cluster", f"{where}: no node is known to serve slot {request.slot}", advice)

    def owns_nothing(self, address: Address) -> Fault:
        """Say that a server has nothing to decide."""
        return Fault("cluster", f"{self.where(address)}: no slot is served there")

    def should_refresh(self, now: float) -> bool:
        """Return whether to look up now whom to ask: one at a time, and not too often."""
        every_s = _REFRESH_S if self.clustered else _NAMED_S
        is_due = self._is_stale if self.clustered else self.primary is not None
        if not is_due or now < self._refreshed_at + every_s:
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
    ask: Callable[..., Any], addresses: Iterable[Address]
) -> Flow[list[Address | None]]:
    """Ask one node after the other who owns what, until one knows."""
    said: object = "there is none"
    for address in dict.fromkeys(addresses):
        said = yield ask(address, "CLUSTER", "SLOTS")
        if isinstance(said, list):
            owners = _owners(said, address)
            if any(owners):
                return owners
            said = "no slot is served"
    alone = "disabled" in str(said)
    advice = "for a server on its own, write redis:// instead of redis+cluster://" if alone else ""
    raise Unfound(f"no node of the cluster tells its shape: {_reason(said)}", said, advice)


def _owners(reply: list[Any], asked: Address) -> list[Address | None]:
    owners: list[Address | None] = [None] * SLOTS
    for first, last, primary, *_ in reply:
        host = _text(primary[0] or "")
        host = asked[0] if host in ("", "?") else host
        owners[first : last + 1] = [(host, primary[1])] * (last + 1 - first)
    return owners


def vitals_of(info: object, ping_s: float) -> Vitals:
    """Read what a server says to INFO. Raises when it says something else."""
    if isinstance(info, Exception):
        raise info
    lines = _text(info).splitlines()
    said = dict(line.split(":", 1) for line in lines if ":" in line)
    return Vitals(
        int(said.get("used_memory", 0)), float(said.get("instantaneous_ops_per_sec", 0)), ping_s
    )


def find_primary(
    ask: Callable[..., Any], sentinels: Iterable[Address], service: str
) -> Flow[Address]:
    """Ask one sentinel after the other for the primary, until one knows."""
    said: object = "there is none"
    # In another order each time: one that is cut off from the others may name an old one.
    shuffled = list(sentinels)
    CHANCE.shuffle(shuffled)
    for address in shuffled:
        said = yield ask(address, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        if isinstance(said, list) and len(said) == 2:
            return _text(said[0]), int(said[1])
    if said is None:
        advice = "check the name of the service, at the end of the address"
        raise Unfound(f"the sentinels know no service {service!r}", said, advice)
    advice = ""
    if isinstance(said, Exception) and fault_of(said, "").kind == "rights":
        advice = "check the login of the sentinels: sentinel_username, sentinel_password"
    raise Unfound(f"no sentinel names the primary: {_reason(said)}", said, advice)


def _reason(said: object) -> str:
    """Return why nobody was found; errors such as TimeoutError have no text of their own."""
    return str(said) or type(said).__name__


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
