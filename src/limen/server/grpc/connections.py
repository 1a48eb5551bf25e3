"""All gRPC connections of a worker: the one timer that looks after them, and how they end."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from limen.backends.sampled import SampledLog
from limen.chance import CHANCE
from limen.server.grpc.calls import Methods
from limen.server.grpc.connection import Connection

_LOOK_S = 0.5
_MOST = 10_000
"""How many connections there may be: a few for every thread of every Envoy."""


class GrpcLimits(Struct, frozen=True):
    """What a client may take: seconds and bytes."""

    max_message: int = 1_048_576
    read_timeout: float = 10.0
    """From the beginning of a call to the last byte of it."""
    write_timeout: float = 30.0
    """How long a client may leave lie what was sent to it."""
    max_age: float = 1_800.0
    """After how long a client is asked to connect anew."""
    grace: float = 1.0
    """How long calls are taken from a client that was asked to leave: one may be on its way."""


class GrpcConnections:
    """All connections, from the first to the last."""

    def __init__(self, methods: Methods, limits: GrpcLimits) -> None:
        self.methods: Methods = methods
        self.limits: GrpcLimits = limits
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._all: set[Connection] = set()
        self._log = SampledLog()
        self._is_draining = False
        shortest = min(limits.read_timeout, limits.write_timeout, limits.max_age, limits.grace)
        self._look_s = max(min(_LOOK_S, shortest / 4), 0.01)
        self._timer = self.loop.call_later(self._look_s, self._look_round)

    def __len__(self) -> int:
        return len(self._all)

    def make(self) -> Connection:
        """Return what speaks gRPC on a new connection; a loop calls it."""
        return Connection(self)

    def add(self, connection: Connection) -> None:
        """Look after a connection, or end it when there are too many."""
        self._all.add(connection)
        if len(self._all) > _MOST:
            self._log.warn("grpc", f"more than {_MOST:,} gRPC connections; new ones are closed")
            connection.abort()
        if self._is_draining:
            connection.leave()

    def discard(self, connection: Connection) -> None:
        """Look after it no longer."""
        self._all.discard(connection)

    def age(self) -> float:
        """Return how long a connection may last; not all the same, lest all come back at once."""
        return self.limits.max_age * CHANCE.uniform(0.9, 1.1)

    def drain(self) -> None:
        """Let every connection end as soon as nobody waits for an answer on it."""
        self._is_draining = True
        for connection in self._all:
            connection.leave()

    async def wait_until_done(self) -> None:
        """Return when there are no connections left."""
        # To be told of it would cost every request something, for the sake of the last.
        while self._all:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def cut(self) -> None:
        """End every connection now."""
        for connection in list(self._all):
            connection.abort()
        await asyncio.sleep(0)

    def close(self) -> None:
        """Look after them no longer."""
        self._timer.cancel()

    def _look_round(self) -> None:
        now = self.loop.time()
        for connection in list(self._all):
            connection.look(now)
        self._timer = self.loop.call_later(self._look_s, self._look_round)
