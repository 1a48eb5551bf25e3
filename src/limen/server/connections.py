"""All connections of one listener: their limit, the timer for deadlines, and the end."""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from limen.backends.sampled import SampledLog

GRACE_S = 1.0
"""How long an idle connection is kept while the server ends: a request may be on its way."""
_CHECK_S = 0.5


class Connection(Protocol):
    """One connection of a client."""

    def check_deadline(self, now: float) -> None:
        """Close the connection if its time is over; `now` is the time of the event loop."""

    def drain(self) -> None:
        """Close the connection as soon as no response is due on it."""

    def abort(self) -> None:
        """Close the connection at once."""


C = TypeVar("C", bound=Connection)


class Connections(Generic[C]):
    """All connections of one listener."""

    def __init__(self, kind: str, max_connections: int, shortest_timeout: float) -> None:
        """Start the timer. `kind` is the plural for the log: `gRPC connections`.

        Timeouts shorter than the default ones are checked more often than twice a second.
        """
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.is_draining: bool = False
        self.check_s: float = max(min(_CHECK_S, shortest_timeout / 4), 0.01)
        self._kind = kind
        self._max_connections = max_connections
        self._all: set[C] = set()
        self._orphans: set[asyncio.Task[None]] = set()
        """Requests in progress whose client has gone."""
        self._log = SampledLog()
        self._check_deadlines()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: C) -> None:
        """Add a new connection; abort it above the connection limit."""
        self._all.add(connection)
        if self.is_draining:
            connection.drain()
        most = self._max_connections
        if len(self._all) > most:
            self._log.warn(self._kind, f"more than {most:,} {self._kind}; new ones are closed")
            connection.abort()

    def discard(self, connection: C, task: asyncio.Task[None] | None = None) -> None:
        """Remove a connection that is closed; `task` is its request in progress."""
        self._all.discard(connection)
        if task is not None:
            self._orphans.add(task)
            task.add_done_callback(self._orphans.discard)

    def drain(self) -> None:
        """Close every connection as soon as no response is due on it."""
        self.is_draining = True
        for connection in self._all:
            connection.drain()

    async def wait_until_done(self) -> None:
        """Return when there are no connections and no requests left."""
        # Polled: a notification would cost every request, for the sake of the last one.
        while self._all or self._orphans:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def cut(self) -> None:
        """Abort all connections, cancel their requests, and stop the timer."""
        for connection in list(self._all):
            connection.abort()
        await asyncio.sleep(0.02)  # connection_lost is called by the loop
        tasks = list(self._orphans)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        self.close()

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _check_deadlines(self) -> None:
        self._timer = self.loop.call_later(self.check_s, self._check_deadlines)
        now = self.loop.time()
        for connection in list(self._all):
            connection.check_deadline(now)
