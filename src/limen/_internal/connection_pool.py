"""A pool of connections to one server, for threads.

A thread takes a connection, uses it and puts it back. Threads that find no free connection wait in
order, and each connection that is put back goes to the first of them. New connections are opened in
the background: opening one takes several round trips, and together they may take longer than any
caller has.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakSet

from limen._internal import background
from limen._internal.deadline import Deadline
from limen._internal.socket_stream import SocketStream

_RETRY_S = 1.0
"""How long to wait before another connection is opened, when one failed and others are open."""


C = TypeVar("C", bound=SocketStream)


class NotConnected(Exception):
    """No connection in time, so that nothing was sent. `cause` has the reason."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause: Exception = cause


class AllInUse(TimeoutError):
    """All connections were in use until the deadline. It says nothing about the server."""


class PoolClosed(ConnectionError):
    """The pool was closed while the thread waited. It says nothing about the server."""


class _Waiter(Generic[C]):
    """A thread that waits for a connection."""

    __slots__ = ("gate", "result")

    def __init__(self) -> None:
        self.gate: threading.Lock = threading.Lock()
        """Released when there is a result."""
        self.gate.acquire()
        self.result: C | Exception | None = None

    def set_result(self, result: C | Exception) -> None:
        self.result = result
        self.gate.release()


class ConnectionPool(Generic[C]):
    """At most `max_connections` connections to one server. Safe to share between threads."""

    def __init__(
        self,
        open_connection: Callable[[], C],
        max_connections: int,
        *,
        on_failure: Callable[[Exception], object] = lambda _: None,
        slow_s: float = float("inf"),
    ) -> None:
        self._open_connection = open_connection
        self._max_connections = max_connections
        self._on_failure = on_failure
        """Called when no connection is open, and opening one failed or takes `slow_s` seconds."""
        self._slow_s = slow_s
        self._connections: WeakSet[C] = WeakSet()
        """All open connections. One that is lost with its thread frees its place."""
        self.reset()

    def reset(self) -> None:
        """Start without connections, also in the child of a fork."""
        connections, self._connections = list(self._connections), WeakSet()
        self._lock = threading.Lock()
        self._free: deque[C] = deque()
        """The next one is on the right. No thread waits while a connection is free."""
        self._waiting: deque[_Waiter[C]] = deque()
        self._openings: set[object] = set()
        """One object for each connection that is being opened."""
        self._slow_since = 0.0
        """When opening the first connection began; later, when that was last reported as slow."""
        self._retry_at = 0.0
        for connection in connections:
            connection.is_current = False
            connection.close()

    def close(self) -> None:
        """Close the free connections, and those in use when they are put back."""
        with self._lock:
            self._retire_connections()
            self._fail_waiting(PoolClosed("the limiter was closed"))
            self._openings.clear()

    def renew(self) -> None:
        """Replace all connections: they may lead to a server that is not the right one any more."""
        with self._lock:
            self._retire_connections()

    def take(self, deadline: Deadline) -> C:
        """Return a connection. Raises `NotConnected`."""
        waiter: _Waiter[C] = _Waiter()
        try:
            with self._lock:
                while self._free:
                    connection = self._free.pop()
                    if connection.is_usable():
                        return connection
                    self._connections.discard(connection)
                    connection.close()
                self._waiting.append(waiter)
                self._open_if_needed()
            deadline.wait(waiter.gate)
        except BaseException:  # of a signal handler, or a time-out of gevent
            result = self._leave(waiter)
            if result is not None and not isinstance(result, Exception):
                self.put_back(result)
            raise
        result = self._leave(waiter)
        if result is None:
            raise NotConnected(self._late())
        if isinstance(result, Exception):
            raise NotConnected(result)
        return result

    def put_back(self, connection: C, *, is_late: bool = False) -> None:
        """Pass a connection to the first thread that waits, or keep it.

        One that `is_late` still has replies to come: others are used before it.
        """
        connection.touch()
        with self._lock:
            if connection.is_current:
                if self._waiting:
                    self._waiting.popleft().set_result(connection)
                elif is_late:
                    self._free.appendleft(connection)
                else:
                    self._free.append(connection)
                return
        self.discard(connection)

    def discard(self, connection: C) -> None:
        """Close a connection that must not be used again."""
        connection.close()
        with self._lock:
            self._connections.discard(connection)
            self._open_if_needed()

    def _leave(self, waiter: _Waiter[C]) -> C | Exception | None:
        """Stop waiting; return the result, if there is one."""
        with self._lock:
            if waiter.result is None and waiter in self._waiting:
                self._waiting.remove(waiter)
            return waiter.result

    def _late(self) -> Exception:
        """Return why there was no connection in time, and report it if the server is slow."""
        with self._lock:
            now = time.monotonic()
            if self._connections:
                return AllInUse()
            is_slow = now - self._slow_since > self._slow_s
            if is_slow:
                self._slow_since = now
        error = TimeoutError()
        if is_slow:
            self._on_failure(error)
        return error

    def _open_if_needed(self) -> None:
        """Open a connection in the background, if a thread waits that no other opening is for."""
        if len(self._openings) >= len(self._waiting):
            return
        count = len(self._connections) + len(self._openings)
        if count >= self._max_connections:
            return
        now = time.monotonic()
        if self._connections and now < self._retry_at:
            return
        if not count:
            self._slow_since = now
        opening = object()
        try:
            background.start(self._open, opening)
        except RuntimeError as error:  # the system has no more threads
            if not count:
                self._fail_waiting(error)
            return
        self._openings.add(opening)

    def _open(self, opening: object) -> None:
        try:
            connection = self._open_connection()
        except Exception as error:
            self._not_opened(opening, error)
            return
        with self._lock:
            # Not if the pool was closed, or replaced in the child of a fork.
            connection.is_current = opening in self._openings
            self._openings.discard(opening)
            if connection.is_current:
                self._connections.add(connection)
        self.put_back(connection)

    def _not_opened(self, opening: object, error: Exception) -> None:
        """Report why a connection was not opened to the waiting threads, if there is no other."""
        with self._lock:
            self._openings.discard(opening)
            self._retry_at = time.monotonic() + _RETRY_S
            if self._connections:
                return
            self._fail_waiting(error)
        self._on_failure(error)

    def _fail_waiting(self, error: Exception) -> None:
        for waiter in self._waiting:
            waiter.set_result(error)
        self._waiting.clear()

    def _retire_connections(self) -> None:
        for connection in self._connections:
            connection.is_current = False
        for connection in self._free:
            self._connections.discard(connection)
            connection.close()
        self._free.clear()
