"""For asyncio: what belongs to one loop: its connections, and the line of those who wait.

At most two calls are under way; what comes meanwhile shares the next. Calls are made by tasks of
their own, so to cancel a waiter cancels nothing else.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from limen.client.address import Address
from limen.client.http1 import Garbled, Reader, Response
from limen.client.questions import Asked
from limen.client.tickets import MAX_CALLS, MAX_IDLE, MAX_OTHERS, Answer, Away, late, take

_IDLE_S = 1.0


class Wire(asyncio.Protocol):
    """A connection: a request out, a response in. One request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = Reader()
        self._waiting: asyncio.Future[Response] | None = None
        self.used_at: float = 0.0

    @property
    def is_fresh(self) -> bool:
        """Whether it is open still, and has said nothing that it was not asked."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, data: bytes) -> Response:
        """Send a request and return the response to it. Raises `OSError` or `Garbled`."""
        if self._transport is None:
            raise ConnectionResetError("the connection was closed")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        opened = transport.get_extra_info("socket")
        if opened is not None:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Give the response to who waits, when it is whole."""
        if self._waiting is None or self._waiting.done():
            # It says more than it was asked: the next caller would be told that.
            self.close()
            return
        try:
            response = self._reader.feed(data)
        except Garbled as error:
            self._waiting.set_exception(error)
            return
        if response is not None:
            self._waiting.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        self._transport = None
        if self._waiting is None or self._waiting.done():
            return
        try:
            if exc is not None:
                raise exc
            self._waiting.set_result(self._reader.end())
        except Exception as error:
            self._waiting.set_exception(error)


class Ticket:
    """A caller's place in the line."""

    __slots__ = ("asked", "ends", "future")

    def __init__(self, asked: Asked, ends: float, future: asyncio.Future[Answer]) -> None:
        self.asked: Asked = asked
        self.ends: float = ends
        self.future: asyncio.Future[Answer] = future

    @property
    def is_done(self) -> bool:
        """Whether there is an answer, or nobody waits for one any more."""
        return self.future.done()

    def tell(self, answer: Answer) -> None:
        """Give the answer to whoever still waits."""
        if not self.future.done():
            self.future.set_result(answer)


Call = Callable[["Home", list[Ticket], float], Awaitable[None]]


class Home:
    """What belongs to one loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        context: ssl.SSLContext | None,
        patience_s: float,
        call: Call,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self._address = address
        self._context = context
        self._patience_s = patience_s
        self._call = call
        self._waiting: deque[Ticket] = deque()
        self._calls = 0
        self._idle: list[Wire] = []
        self._used: set[Wire] = set()
        self._left: list[asyncio.Task[Wire]] = []
        """Connections that are being opened, for which nobody waits any more."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._others = asyncio.Semaphore(MAX_OTHERS)
        self._is_closed = False

    async def ask(self, asked: Asked, ends: float) -> Answer:
        """Return the answer to a question, when it is there or its time is over."""
        ticket = Ticket(asked, ends, self.loop.create_future())
        self._waiting.append(ticket)
        if self._calls < MAX_CALLS:
            self._start_call()
        timer = self.loop.call_at(ends, ticket.tell, late())
        try:
            return await ticket.future
        finally:
            timer.cancel()

    async def exchange(self, data: bytes, ends: float) -> Response:
        """Send a request and return the response to it. Raises `OSError` or `Garbled`."""
        async with asyncio.timeout_at(ends):
            wire = await self._take()
            self._used.add(wire)
            try:
                response = await wire.exchange(data)
            except BaseException:
                wire.close()
                raise
            finally:
                self._used.discard(wire)
        if response.keeps:
            self._give(wire)
        else:
            wire.close()
        return response

    async def exchange_alone(self, data: bytes, ends: float) -> Response:
        """Do the same for what shares no call with others, of which there may be many."""
        async with asyncio.timeout_at(ends):
            await self._others.acquire()
        try:
            return await self.exchange(data, ends)
        finally:
            self._others.release()

    def close(self) -> None:
        """Let go of every connection. Who still waits is told so."""
        self._is_closed = True
        for wire in [*self._idle, *self._used]:
            wire.close()
        self._idle.clear()
        for task in [*self._left, *self._tasks]:
            task.cancel()
        for ticket in self._waiting:
            ticket.tell(Away("connection", "the client was closed", proves=False))

    def _start_call(self) -> None:
        self._calls += 1
        self._leave(self._lead())

    async def _lead(self) -> None:
        """Take everybody who waits along in one call, and again while somebody does.

        A task begins at the loop's next turn: what else is ready to ask by then comes along.
        """
        batch: list[Ticket] = []
        try:
            while batch := take(self._waiting):
                ends = max([ticket.ends for ticket in batch])
                await self._call(self, batch, ends)
                # Those who were just told may have something else to ask, and share the next.
                await asyncio.sleep(0)
        finally:
            for ticket in batch:
                ticket.tell(late())
            self._calls -= 1
            if self._waiting and not self._is_closed and self._calls < MAX_CALLS:
                self._start_call()

    def _leave(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if self.loop.time() - wire.used_at > _IDLE_S:
                # The loop may have stood still meanwhile, and not know yet that it was closed.
                try:
                    await asyncio.sleep(0)
                except BaseException:
                    wire.close()
                    raise
            if wire.is_fresh:
                return wire
        opening = self._left.pop() if self._left else self._open()
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # Whoever gives up leaves it to the next.
            if not opening.done():
                self._left.append(opening)
            elif not opening.cancelled() and opening.exception() is None:
                self._give(opening.result())
            raise

    def _give(self, wire: Wire) -> None:
        if self._is_closed or len(self._idle) >= MAX_IDLE or not wire.is_fresh:
            wire.close()
        else:
            wire.used_at = self.loop.time()
            self._idle.append(wire)

    def _open(self) -> asyncio.Task[Wire]:
        """Open a connection in a task of its own.

        To find the host, to connect and to shake hands may together take longer than any caller
        has.
        """
        opening = self.loop.create_task(self._connect())
        opening.add_done_callback(self._opened)
        return opening

    async def _connect(self) -> Wire:
        async with asyncio.timeout(self._patience_s):
            _, wire = await self.loop.create_connection(
                Wire,
                self._address.host,
                self._address.port,
                ssl=self._context,
                server_hostname=self._address.host if self._context is not None else None,
            )
        return wire

    def _opened(self, opening: asyncio.Task[Wire]) -> None:
        """Keep a connection for which nobody waits any more."""
        if opening not in self._left:
            return
        self._left.remove(opening)
        if not opening.cancelled() and opening.exception() is None:
            self._give(opening.result())
