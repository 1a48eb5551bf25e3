"""Facts about a store, as they were collected and before they are judged. Plain values."""

from __future__ import annotations

from msgspec import Struct

from limen.connect import Target


class ServerProblem(Struct, frozen=True):
    """The reason why a server cannot be used."""

    where: str
    """The server: `"10.0.0.5:6379"`."""
    kind: str
    """A `FaultKind`, or `"service"` for sentinels that do not know the service."""
    text: str
    """The error, without a password."""
    sentinel: bool = False
    """Whether the error is from a sentinel."""


class Node(Struct, frozen=True):
    """The settings of one server, and the results of the tests on it."""

    where: str
    info: dict[str, str] = {}
    """The fields of INFO, CONFIG GET and CLUSTER INFO. Without the right, they are absent."""
    refused: dict[str, str] = {}
    """Commands that a limiter needs and this user may not run, and the error of each."""
    ahead_s: float | None = None
    """The difference to the clock of this machine; None without the right to TIME."""
    decided: bool = False
    """Whether a real decision was made there."""
    undecided: ServerProblem | None = None
    """The reason why a decision failed; None also if none was tried."""
    round_trips_ms: tuple[float, ...] = ()
    slots: int = 0
    """The number of slots in a cluster."""
    replicas: int = 0
    """The number of its replicas in a cluster."""


class SentinelView(Struct, frozen=True):
    """The replies of the sentinels about the service."""

    primaries: dict[str, str]
    """The primary that each sentinel of the URL names."""
    silent: tuple[str, ...] = ()
    """The sentinels of the URL that name no primary."""
    known: int | None = None
    """The number of sentinels that know each other."""
    quorum: str = ""
    """The reply to SENTINEL CKQUORUM; empty without the right to it."""


class Facts(Struct, frozen=True):
    """The state of a store."""

    target: Target
    namespace: str
    commands: tuple[str, ...]
    """The commands that a limiter runs: `("EVALSHA", ..., "ZSCORE")`."""
    nodes: tuple[Node, ...] = ()
    """The server; or the primary; or every master of the cluster that answers."""
    problems: tuple[ServerProblem, ...] = ()
    """The servers that cannot be used."""
    sentinels: SentinelView | None = None
    max_connections: int = 0
    """The connections that the limiters of all processes may open to a server; 0 is unknown."""

    @property
    def user(self) -> str:
        """The user of the address."""
        user: str = self.target.options.get("username", "default")
        return user
