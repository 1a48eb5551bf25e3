"""Requests to one Redis server, for threads: they share a connection for one exchange."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs
from redis.exceptions import RedisError

from limen._internal.connection_pool import ConnectionPool, NotConnected
from limen._internal.deadline import Deadline
from limen._internal.socket_stream import SocketStream
from limen.backends import Fault
from limen.backends.circuit_breaker import CircuitBreaker
from limen.backends.redis.batch import Again, Answer, Call, Request, calls_of, is_suspicious
from limen.backends.redis.protocol import NO_REPLY, fault_of, late, new_reader, pack_command
from limen.connect import Address

CONNECTION_ERRORS = (OSError, RedisError)
"""What opening, writing and reading raise when the server or the network fails."""


class RedisConnection(SocketStream):
    """An open connection. Replies that came too late for their caller are skipped by the next."""

    def __init__(self, opened: socket.socket) -> None:
        super().__init__(opened)
        self._reader = new_reader()
        self._unread = 0
        """The number of replies that have not been read."""
        self._unread_since = 0.0

    def send(self, packet: bytes, deadline: Deadline, replies: int = 1) -> None:
        """Write all of a packet. Raises `TimeoutError` when the deadline has passed."""
        if not self._unread:
            self._unread_since = time.monotonic()
        self._unread += replies
        self.write(packet, deadline)

    def skip_late_replies(self, deadline: Deadline, expected: int) -> None:
        """Read the replies to earlier calls, before the `expected` replies of the last one."""
        while self._unread > expected:
            self.receive(deadline)
            self._unread_since = time.monotonic()

    def receive(self, deadline: Deadline) -> object:
        """Return the next reply; an error of the server is a value. Raises `TimeoutError`."""
        while (reply := self._reader.gets()) is NO_REPLY:
            data = self.read(deadline)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        self._unread -= 1
        return reply

    def late_s(self) -> float:
        """Return for how many seconds the oldest unread reply has been missing."""
        return time.monotonic() - self._unread_since if self._unread else 0.0

    def has_extra_data(self) -> bool:
        """Return whether the server sent more than was asked for, though every reply was read."""
        return not self._unread and bool(self._reader.has_data())

    def is_usable(self) -> bool:
        """Return whether an idle connection can be used. Late replies may be on their way."""
        if self._unread:
            return self.late_s() < self.checked_after_s
        return super().is_usable()

    def ask(self, *command: str, seconds: float) -> object:
        """Send one command and return its reply. Raises `TimeoutError`."""
        deadline = Deadline(seconds)
        self.send(pack_command(command), deadline)
        return self.receive(deadline)


class RedisServer:
    """A server with its connection pool and its circuit breaker."""

    def __init__(
        self,
        open_connection: Callable[[], RedisConnection],
        address: Address,
        where: str,
        breaker: CircuitBreaker,
        on_open: Callable[[RedisServer], object],
        max_connections: int,
    ) -> None:
        self.address: Address = address
        self.where: str = where
        """The name of the server in messages."""
        self.breaker: CircuitBreaker = breaker
        self._on_open = on_open
        """Called when the circuit breaker opens."""
        self._usual_s = 0.0
        self._max_needed_s = breaker.slow_s / 2
        self.pool: ConnectionPool[RedisConnection] = ConnectionPool(
            open_connection,
            max_connections,
            on_failure=lambda error: self.failed(self.unsent(error)),
            slow_s=breaker.slow_s,
        )

    def close(self) -> None:
        """Close all connections."""
        self.pool.close()

    @property
    def needed_s(self) -> float:
        """How many seconds a request needs: as long as others took, at most half of a deadline.

        A request that is sent later is charged, and its caller decides without the reply.
        """
        return min(self._usual_s, self._max_needed_s)

    def unsent(self, error: Exception) -> Fault:
        """Return the fault of requests that were not sent."""
        return structs.replace(fault_of(error, self.where), unsent=True)

    def failed(self, fault: Fault) -> None:
        """Count a failure for the circuit breaker."""
        if self.breaker.failed(time.monotonic(), fault):
            self._on_open(self)

    def answered(self, took_s: float) -> None:
        """Count a reply for the circuit breaker. `took_s` does not include pauses."""
        breaker = self.breaker
        breaker.trips.add(took_s)
        self._usual_s += (took_s - self._usual_s) / 8
        is_slow = took_s > breaker.slow_s
        if (is_slow or breaker.is_alert) and breaker.answered(time.monotonic(), is_slow):
            self._on_open(self)


class Pending(Struct, gc=False):
    """A request, and the answer to it when there is one."""

    request: Request
    answer: Answer | None = None


class Exchange:
    """Requests of one caller to one server. After `receive` or `cancel`, each has an answer."""

    __slots__ = ("_calls", "_connection", "_deadline", "_left_s", "pending", "server")

    def __init__(self, server: RedisServer, pending: list[Pending], deadline: Deadline) -> None:
        self.server: RedisServer = server
        self.pending: list[Pending] = pending
        self._deadline = deadline
        self._connection: RedisConnection | None = None
        self._calls: list[Call[Pending]] = []
        self._left_s = 0.0
        """The seconds that were left of the deadline when the requests were sent."""

    def take(self) -> bool:
        """Take a connection; return False if there was none in time for a reply."""
        try:
            self._connection = self.server.pool.take(self._deadline)
        except NotConnected as error:
            self._answer_all(self.server.unsent(error.cause))
            return False
        if self._deadline.left() < self.server.needed_s:
            self.cancel(late(self.server.where, unsent=True))
            return False
        return True

    def cancel(self, fault: Fault) -> None:
        """Put the connection back before anything was sent; the fault is the answer."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self.server.pool.put_back(connection, is_late=connection.late_s() > 0)
        self._answer_all(fault)

    def send(self) -> None:
        """Send the requests, if there is a connection. On a fault, that is their answer."""
        connection = self._connection
        if connection is None:
            return
        self._calls = calls_of(self.pending)
        packet = b"".join([call.encode() for call in self._calls])
        self._left_s = self._deadline.left()
        try:
            connection.send(packet, self._deadline, _replies(self._calls))
        except CONNECTION_ERRORS as error:
            # Perhaps half of a command was sent: nobody else can use the connection.
            self._break(fault_of(error, self.server.where))

    def receive(self, *, is_measured: bool = True) -> None:
        """Read the replies and put the connection back.

        The time that it took tells something about the server only if no other one was waited for.
        """
        connection, deadline = self._connection, self._deadline
        if connection is None:
            return
        strange: Fault | Again | None = None
        try:
            connection.skip_late_replies(deadline, _replies(self._calls))
            for call in self._calls:
                reply = connection.receive(deadline)
                if call.asks_first:
                    reply = connection.receive(deadline)
                for pending, answer in call.answers(reply, self.server.where):
                    pending.answer = answer
                    if not isinstance(answer, bytes) and not is_suspicious(strange):
                        strange = answer
        except CONNECTION_ERRORS as error:
            self._not_received(connection, fault_of(error, self.server.where))
            return
        if is_suspicious(strange) or connection.has_extra_data():
            # The wrong server, or one that sends more than was asked for: the next caller would
            # take that for the reply to its own call.
            self.abandon()
        else:
            self._connection = None
            self.server.pool.put_back(connection)
        self._count(strange, is_measured)

    def abandon(self) -> None:
        """Close the connection, if the requests were not answered yet."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self.server.pool.discard(connection)

    def _not_received(self, connection: RedisConnection, fault: Fault) -> None:
        """Keep a connection that is only slow: the next caller skips the replies.

        A call that was sent late in its caller's time says nothing about its connection. Without
        that, a busy server would lose all connections.
        """
        if fault.kind == "timeout" and connection.late_s() <= self.server.breaker.slow_s:
            self._connection = None
            self._answer_all(fault)
            self.server.pool.put_back(connection, is_late=True)
        else:
            self._break(fault)

    def _break(self, fault: Fault) -> None:
        """Close the connection; the fault is the answer."""
        connection, server = self._connection, self.server
        is_current = connection is not None and connection.is_current
        self._answer_all(fault)
        self.abandon()
        if fault.kind == "connection" and is_current:
            # Perhaps the server was restarted: then its other connections are closed, too.
            server.pool.renew()
        server.failed(fault)

    def _answer_all(self, fault: Fault) -> None:
        for pending in self.pending:
            if pending.answer is None:
                pending.answer = fault

    def _count(self, strange: Fault | Again | None, is_measured: bool) -> None:
        """Count the replies for the circuit breaker: once, because they came together."""
        server = self.server
        server.breaker.batches.add(len(self.pending))
        if isinstance(strange, Fault):
            server.failed(strange)
        elif is_suspicious(strange):
            server.failed(Fault("readonly", f"{server.where}: it takes no writes any more"))
        elif is_measured:
            server.answered(self._left_s - self._deadline.left())


def _replies(calls: list[Call[Any]]) -> int:
    return sum([1 + call.asks_first for call in calls])
