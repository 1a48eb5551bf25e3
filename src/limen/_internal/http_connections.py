"""HTTP/1.1 connections to one server: for threads, and for one event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import NamedTuple

from limen._internal.connection_pool import ConnectionPool
from limen._internal.deadline import Deadline
from limen._internal.http1 import Reader, Response
from limen._internal.socket_stream import SocketStream

_CHUNK = 65_536


class Server(NamedTuple):
    """Where to connect to."""

    host: str
    port: int
    context: ssl.SSLContext | None
    """None for plain HTTP."""
    connect_s: float
    """How long opening a connection may take."""


class HttpStream(SocketStream):
    """A connection for one thread at a time: a request out, a response in."""

    checked_after_s: float = 0.0

    def __init__(self, opened: socket.socket) -> None:
        super().__init__(opened)
        self._reader = Reader()

    def exchange(self, data: bytes, deadline: Deadline) -> Response:
        """Send a request and return the response to it. Raises `OSError` or `Garbled`."""
        self.write(data, deadline)
        while (response := self._reader.feed(self.read(deadline))) is None:
            pass
        return response


class HttpTransport:
    """At most `max_connections` connections. Safe to share between threads."""

    def __init__(self, server: Server, max_connections: int) -> None:
        self._server = server
        self.pool: ConnectionPool[HttpStream] = ConnectionPool(self._open, max_connections)

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
        server = self._server
        opened = socket.create_connection((server.host, server.port), server.connect_s)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if server.context is not None:
                opened = server.context.wrap_socket(opened, server_hostname=server.host)
        except BaseException:
            opened.close()
            raise
        return HttpStream(opened)


class AsyncHttpStream:
    """A connection for one task at a time: a request out, a response in."""

    # Without a `StreamWriter`, whose finalizer in the child of a fork would remove the socket from
    # the selector that the child shares with its parent.

    def __init__(self, stream: asyncio.StreamReader, transport: asyncio.Transport) -> None:
        self._stream = stream
        self._transport = transport
        self._reader = Reader()

    async def is_usable(self) -> bool:
        """Return whether it is open, and no unexpected bytes have arrived."""
        try:
            async with asyncio.timeout(0):
                await self._stream.read(1)
        except TimeoutError:
            return True  # nothing to read, as it should be
        except OSError:
            return False
        return False

    async def exchange(self, data: bytes) -> Response:
        """Send a request and return the response to it. Raises `OSError` or `Garbled`."""
        self._transport.write(data)
        while (response := self._reader.feed(await self._stream.read(_CHUNK))) is None:
            pass
        return response

    def close(self) -> None:
        """Close at once."""
        self._transport.abort()


class AsyncHttpTransport:
    """The connections of one event loop. Each caller has one of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server, max_idle: int) -> None:
        self._loop = loop
        self._server = server
        self._max_idle = max_idle
        self.idle: list[AsyncHttpStream] = []
        """Open connections that no caller uses, at most `max_idle`."""
        self._openings: set[asyncio.Task[AsyncHttpStream]] = set()
        self._abandoned: list[asyncio.Task[AsyncHttpStream]] = []
        """Openings whose callers were cancelled. The next caller takes one of them."""
        self._is_closed = False

    async def exchange(self, data: bytes) -> Response:
        """Send a request and return the response to it. Has no deadline: cancel it.

        Raises `OSError`, `Garbled`, or `UnicodeError` for a host that cannot be looked up.
        """
        stream = self.idle.pop() if self.idle else await self._opened()
        try:
            while not await stream.is_usable():
                stream.close()
                stream = self.idle.pop() if self.idle else await self._opened()
            response = await stream.exchange(data)
        except BaseException:
            stream.close()
            raise
        if response.keeps:
            self._put_back(stream)
        else:
            stream.close()
        return response

    def close(self) -> None:
        """Close the idle connections, and those in use when they are put back."""
        self._is_closed = True
        while self.idle:
            self.idle.pop().close()
        for opening in self._openings:
            opening.cancel()

    async def _opened(self) -> AsyncHttpStream:
        """Open a connection, by a task of its own.

        To look up the host, connect and shake hands may together take longer than any caller has.
        If the caller is cancelled, the next one waits for the same task.
        """
        opening = self._abandoned.pop() if self._abandoned else self._start_opening()
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            self._abandoned.append(opening)
            opening.add_done_callback(self._keep)
            raise
        return opening.result()

    def _start_opening(self) -> asyncio.Task[AsyncHttpStream]:
        opening = self._loop.create_task(self._open())
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)
        return opening

    async def _open(self) -> AsyncHttpStream:
        server = self._server
        stream = asyncio.StreamReader(loop=self._loop)
        async with asyncio.timeout(server.connect_s):
            transport, _ = await self._loop.create_connection(
                lambda: asyncio.StreamReaderProtocol(stream, loop=self._loop),
                server.host,
                server.port,
                ssl=server.context,
                server_hostname=server.host if server.context is not None else None,
            )
        return AsyncHttpStream(stream, transport)

    def _keep(self, opening: asyncio.Task[AsyncHttpStream]) -> None:
        """Keep the connection of an opening, unless a caller waits for it again."""
        if opening not in self._abandoned:
            return
        self._abandoned.remove(opening)
        if not opening.cancelled() and opening.exception() is None:
            self._put_back(opening.result())

    def _put_back(self, stream: AsyncHttpStream) -> None:
        if self._is_closed or len(self.idle) >= self._max_idle:
            stream.close()
        else:
            self.idle.append(stream)
