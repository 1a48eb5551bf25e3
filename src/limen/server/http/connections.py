"""All HTTP connections of a worker: their limits, and responses that are written together."""

from __future__ import annotations

import contextlib
import logging
import time
from email.utils import formatdate

from msgspec import Struct

from limen.server.connections import GRACE_S, Connections
from limen.server.http.connection import HttpConnection
from limen.server.http.message import Handler, Request, Response

_MAX_CONNECTIONS, _OTHER_FILES = 100_000, 300
"""The most connections, and open files that are reserved for the control plane and the rest."""
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


class HttpConnections(Connections[HttpConnection]):
    """All connections of the data plane."""

    def __init__(self, handler: Handler, limits: HttpLimits) -> None:
        self.handler: Handler = handler
        self.limits: HttpLimits = limits
        self.idle_s: float = limits.keep_alive
        """How long an idle connection is kept."""
        self.date: bytes = b""
        """The `Date` header, as a line."""
        self._unwritten: list[tuple[HttpConnection, Request, Response]] = []
        shortest = min(limits.read_timeout, limits.keep_alive, limits.write_timeout)
        super().__init__("connections", _max_connections(), shortest)

    def make(self) -> HttpConnection:
        """Return the protocol of a new connection; the event loop calls it."""
        return HttpConnection(self)

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
                connection.abort()

    def drain(self) -> None:
        """Close every connection as soon as no response is due on it."""
        self.idle_s = min(self.idle_s, GRACE_S)
        super().drain()

    def _check_deadlines(self) -> None:
        self.date = b"date: %b\r\n" % formatdate(time.time(), usegmt=True).encode()
        super()._check_deadlines()


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
