"""What was found out about a store, before anybody judges it. Pure values, without I/O."""

from __future__ import annotations

from msgspec import Struct

from limen.connect.address import Kind


class Trouble(Struct, frozen=True):
    """Why a server could not be used."""

    where: str
    """Which server: `"10.0.0.5:6379"`."""
    kind: str
    """A `FaultKind`, or `"service"` for sentinels that do not know the service."""
    text: str
    """What it said, without a password."""
    sentinel: bool = False
    """Whether a sentinel said it."""


class Node(Struct, frozen=True):
    """What one server says of itself, and what came of trying it."""

    where: str
    told: dict[str, str] = {}
    """What INFO, CONFIG GET and CLUSTER INFO say, by the names they use; what is missing
    was not told."""
    refused: dict[str, str] = {}
    """Commands that a limiter needs and this user may not run, with what the server said."""
    ahead_s: float | None = None
    """How far its clock is ahead of this machine's; None when it does not tell the time."""
    decided: bool = False
    """Whether a real decision was made there."""
    undecided: Trouble | None = None
    """Why none was, if it was tried."""
    round_trips_ms: tuple[float, ...] = ()
    slots: int = 0
    """How many slots of a cluster it owns."""
    replicas: int = 0
    """How many replicas it has, as the cluster sees it."""


class Watch(Struct, frozen=True):
    """What sentinels say of the servers they watch."""

    named: dict[str, str]
    """Each sentinel of the URL that answers, and the primary it names."""
    silent: tuple[str, ...] = ()
    """The sentinels of the URL that name none."""
    known: int | None = None
    """How many sentinels know of each other."""
    quorum: str = ""
    """The reply to SENTINEL CKQUORUM; empty when it could not be asked."""


class Facts(Struct, frozen=True):
    """All that was found out about a store."""

    kind: Kind
    where: str
    """The address, without a password."""
    namespace: str
    commands: tuple[str, ...]
    """What a limiter runs there: `("EVALSHA", ..., "ZSCORE")`."""
    user: str = "default"
    has_password: bool = False
    nodes: tuple[Node, ...] = ()
    """The server; or the primary; or every master of the cluster that answers."""
    troubles: tuple[Trouble, ...] = ()
    """Who should have answered, and did not."""
    watch: Watch | None = None
    max_connections: int = 0
    """How many connections the limiters of all processes may open to one server; 0 is unknown."""
