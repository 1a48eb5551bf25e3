"""All HTTP connections of a worker: limits, the timer for deadlines, and the drain at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from email.utils import formatdate

from msgspec import Struct

from limen.backends.sampled import SampledLog
from limen.server.http.connection import HttpConnection
from limen.server.http.message import Handler, Request, Response

GRACE_S = 1.0
"""How long an idle connection is kept while the server ends: a request may be on its way."""
_MAX_CONNECTIONS, _OTHER_FILES = 100_000, 300
"""The most connections, and open files that are reserved for the control plane and the rest."""
_CHECK_S = 0.5
_logger = logging.getLogger("limen.server")


class HttpLimits(Struct, frozen=True):
    """Limits on the time and the bytes of one client."""

    max_header: int = 16_384
    """The bytes of the request line and the headers together; more is answered by 431."""
    max_body: int = 1_048_576
    """The bytes of a body; more is answered by 413."""
    read_timeout: float = 10.0
    """Seconds from the first byte of a request to its last; then 408."""
    keep_alive: float = 75.0
    """How many seconds a connection may be idle between two requests."""
    write_timeout: float = 30.0
    """How many seconds a client may leave a response unread."""
    drain_timeout: float = 30.0
    """How many seconds requests in progress may take when the server ends."""


class HttpConnections:
    """All connections of the data plane."""

    def __init__(self, handler: Handler, limits: HttpLimits) -> None:
        self.handler: Handler = handler
        self.limits: HttpLimits = limits
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.date: bytes = b""
        """The `Date` header, as a line."""
        self.is_draining: bool = False
        self.idle_s: float = limits.keep_alive
        """How long an idle connection is kept."""
        # Deadlines shorter than the default ones are checked more often.
        shortest = min(limits.read_timeout, limits.keep_alive, limits.write_timeout)
        self.check_s: float = max(min(_CHECK_S, shortest / 4), 0.01)
        self._all: set[HttpConnection] = set()
        self._orphans: set[asyncio.Task[None]] = set()
        """Requests in progress whose client has gone."""
        self._unwritten: list[tuple[HttpConnection, Request, Response]] = []
        self._max_connections = _max_connections()
        self._log = SampledLog()
        self._check_deadlines()

    def __len__(self) -> int:
        return len(self._all)

    def make(self) -> HttpConnection:
        """Return the protocol of a new connection; the event loop calls it."""
        return HttpConnection(self)

    def add(self, connection: HttpConnection) -> None:
        """Add a new connection; abort it above the connection limit."""
        self._all.add(connection)
        if self.is_draining:
            connection.drain()
        most = self._max_connections
        if len(self._all) > most:
            self._log.warn("connections", f"more than {most:,} connections; new ones are closed")
            connection.transport.abort()

    def discard(self, connection: HttpConnection, task: asyncio.Task[None] | None) -> None:
        """Remove a connection that is closed; `task` is its request in progress."""
        self._all.discard(connection)
        if task is not None:
            self._orphans.add(task)
            task.add_done_callback(self._orphans.discard)

    def finish_soon(self, connection: HttpConnection, request: Request, response: Response) -> None:
        """Write a response after all decisions of this turn of the event loop.

        To decide and to write alternately takes a quarter more CPU time: Python and the kernel
        evict each other from the CPU caches.
        """
        if not self._unwritten:
            self.loop.call_soon(self._finish_all)
        self._unwritten.append((connection, request, response))

    def _finish_all(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for connection, request, response in unwritten:
            try:
                connection.finish(request, response)
            except Exception:  # a bug; the other connections still get their responses
                _logger.exception("a response was not written")
                connection.transport.abort()

    def drain(self) -> None:
        """Close every connection as soon as no response is due on it."""
        self.is_draining = True
        self.idle_s = min(self.idle_s, GRACE_S)
        for connection in self._all:
            connection.drain()

    async def wait_until_done(self) -> None:
        """Return when there are no connections and no requests left."""
        # Polled: a notification would cost every request, for the sake of the last one.
        while self._all or self._orphans:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def cut(self) -> None:
        """Abort all connections, and cancel their requests."""
        for connection in list(self._all):
            connection.transport.abort()
        await asyncio.sleep(0.02)  # connection_lost is called by the loop
        tasks = list(self._orphans)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def _check_deadlines(self) -> None:
        self._timer = self.loop.call_later(self.check_s, self._check_deadlines)
        self.date = b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
        now = self.loop.time()
        for connection in list(self._all):
            connection.check_deadline(now)


def _max_connections() -> int:
    """Return the connection limit: the limit on open files minus a reserve."""
    try:
        import resource
    except ImportError:  # on Windows
        return _MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(min(soft - _OTHER_FILES, _MAX_CONNECTIONS), 1)
