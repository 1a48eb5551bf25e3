"""HTTP connections to the service, for threads."""

from __future__ import annotations

import socket
import ssl

from limen._internal.connection_pool import ConnectionPool
from limen._internal.deadline import Deadline
from limen._internal.socket_stream import SocketStream
from limen.client.address import Address
from limen.client.http1 import Reader, Response

MAX_CONNECTIONS = 16
"""How many connections a client opens in one process."""


class HttpStream(SocketStream):
    """A connection: a request out, a response in."""

    checked_after_s: float = 0.0

    def __init__(self, opened: socket.socket) -> None:
        super().__init__(opened)
        self._reader = Reader()

    def exchange(self, data: bytes, deadline: Deadline) -> Response:
        """Send a request and return the response to it. Raises `OSError` or `Garbled`."""
        self.write(data, deadline)
        while True:
            received = self.read(deadline)
            response = self._reader.feed(received) if received else self._reader.end()
            if response is not None:
                return response


class Transport:
    """The connections of one client. Safe to share between threads."""

    def __init__(self, address: Address, context: ssl.SSLContext | None, connect_s: float) -> None:
        self._address = address
        self._context = context
        self._connect_s = connect_s
        """How long each step of opening a connection may take."""
        self.pool: ConnectionPool[HttpStream] = ConnectionPool(self._open, MAX_CONNECTIONS)

    def exchange(self, data: bytes, deadline: Deadline) -> Response:
        """Send a request and return the response to it.

        Raises `NotConnected`, `OSError` or `Garbled`.
        """
        stream = self.pool.take(deadline)
        try:
            response = stream.exchange(data, deadline)
        except BaseException:
            self.pool.discard(stream)
            raise
        if response.keeps:
            self.pool.put_back(stream)
        else:
            self.pool.discard(stream)
        return response

    def _open(self) -> HttpStream:
        address = self._address
        opened = socket.create_connection((address.host, address.port), self._connect_s)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                opened = self._context.wrap_socket(opened, server_hostname=address.host)
        except BaseException:
            opened.close()
            raise
        return HttpStream(opened)
