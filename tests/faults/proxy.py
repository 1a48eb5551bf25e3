"""A TCP proxy that misbehaves on demand: late, unsteady, in crumbs, silent, one-way, cut, garbled.

Its event loop runs in a thread of its own, so that blocking and asyncio tests use it alike. It
moves bytes and knows no protocol: a "reply" is a chunk that came from the server.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from threading import Thread

HOST = "127.0.0.1"
_TURNS, _MOST_TURNS = 10, 1_000
"""How often the loop goes round in the end, for all connections to be closed: at least, at most."""

# Close with a reset instead of a goodbye, and forget what is still to be sent.
_RESET = struct.pack("ii", 1, 0)

# Chunks with the time of their arrival, so that those behind one another are late by the same
# delay and not by the sum; an empty one is the end.
_Chunks = asyncio.Queue[tuple[float, bytes]]


def _precise_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


@contextmanager
def proxy(target_port: int, *, precise: bool = False) -> Iterator[Proxy]:
    """Listen on a free port and forward to `target_port`, well-behaved until told otherwise.

    Delays are rounded up to whole milliseconds, as epoll does, unless they are `precise`. Then the
    process may have 1,000 open files at most.
    """
    made = Proxy(target_port)

    def run() -> None:
        with asyncio.Runner(loop_factory=_precise_loop if precise else None) as runner:
            runner.run(made._run())

    thread = Thread(target=run, name="proxy", daemon=True)
    thread.start()
    try:
        made._started.result(10)
        yield made
    finally:
        made._in_loop(made._stop.set)
        thread.join(10)


class Proxy:
    """The switches; each is in force when its call returns, for live connections too."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.delay = 0.0
        """Seconds by which each chunk is late, in each direction."""
        self.jitter = 0.0
        """Seconds by which a chunk is late at most beyond that, by chance; none passes another."""
        self.random = Random(0)
        """The chance in it; seed it for other numbers."""
        self.connect_delay = 0.0
        """Seconds after which a new connection is forwarded; it is accepted at once."""
        self.slices = 0
        """How many bytes are sent at once, as a packet of their own; 0 is as many as there are."""
        self.connections = 0
        """How many were accepted so far, those refused among them."""
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._dropping = False
        self._garbage: bytes | None = None
        self._last_bytes: int | None = None
        self._flowing = asyncio.Event()
        self._stop = asyncio.Event()
        self._started: Future[asyncio.AbstractEventLoop] = Future()

    @property
    def live(self) -> int:
        """How many connections are open now."""
        return len(self._links)

    def stall(self) -> None:
        """Hold all bytes, in both directions; accept and keep connections."""
        self._in_loop(self._flowing.clear)

    def flow(self) -> None:
        """End a stall: what was held is delivered, even for a client that has since left."""
        self._in_loop(self._flowing.set)

    def drop_replies(self, on: bool = True) -> None:
        """Let requests reach the server and swallow what it answers."""
        self._dropping = on

    def refuse(self, on: bool = True) -> None:
        """Close new connections at once; those that live go on."""
        self._refusing = on

    def cut(self) -> None:
        """Reset every live connection, towards client and server, and drop what was held."""
        self._in_loop(self._cut)

    def garbage(self, data: bytes) -> None:
        """Replace the next reply by these bytes, once."""
        self._garbage = data

    def cut_reply_after(self, count: int) -> None:
        """Forward only so many bytes of the next reply, then reset its connection, once."""
        self._last_bytes = count

    def _in_loop(self, call: Callable[[], None]) -> None:
        """Call it in the proxy's own thread; return when it is done."""

        async def work() -> None:
            call()

        asyncio.run_coroutine_threadsafe(work(), self._started.result(10)).result(10)

    async def _run(self) -> None:
        self._flowing.set()
        try:
            listener = await asyncio.start_server(self._accept, HOST, 0, backlog=1_024)
        except OSError as error:
            self._started.set_exception(error)
            return
        self.port = listener.sockets[0].getsockname()[1]
        self._started.set_result(asyncio.get_running_loop())
        await self._stop.wait()
        # Whoever was accepted a moment ago is still to come, as is the end of those who are cut.
        # Until then the listener may not be closed: it counts them.
        self._refusing = True
        asyncio.get_running_loop().remove_reader(listener.sockets[0].fileno())
        self._cut()
        for turn in range(_MOST_TURNS):
            await asyncio.sleep(0)
            if turn >= _TURNS and not self._serving and not self._links:
                break
        listener.close()

    def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refusing:
            to_client.transport.abort()
            return
        link = _Link([to_client])
        self._links.add(link)
        link.task = asyncio.create_task(self._serve(client, to_client, link))
        self._serving.add(link.task)
        link.task.add_done_callback(self._serving.discard)

    async def _serve(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter, link: _Link
    ) -> None:
        """Forward in both directions until one of them ends."""
        tasks: list[asyncio.Task[None]] = []
        try:
            await asyncio.sleep(self.connect_delay)
            server, to_server = await asyncio.open_connection(HOST, self.target_port)
            link.writers.append(to_server)
            requests, replies = _Chunks(), _Chunks()
            forward = [self._requests(requests, to_server), self._replies(replies, to_client, link)]
            read = [_read(client, requests), _read(server, replies)]
            tasks = [asyncio.create_task(work) for work in (*forward, *read)]
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # nobody listens at the target: to the client it is a closed connection
        finally:
            for task in tasks:
                task.cancel()
            for writer in link.writers:
                writer.close()
            self._links.discard(link)

    async def _requests(self, chunks: _Chunks, to_server: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await self._next(chunks):
                await self._send(data, to_server)

    async def _replies(self, chunks: _Chunks, to_client: asyncio.StreamWriter, link: _Link) -> None:
        with suppress(ConnectionError):
            while data := await self._next(chunks):
                if self._dropping:
                    continue
                if self._garbage is not None:
                    data, self._garbage = self._garbage, None
                if self._last_bytes is not None:
                    count, self._last_bytes = self._last_bytes, None
                    to_client.write(data[:count])
                    link.reset()
                    return
                await self._send(data, to_client)

    async def _send(self, data: bytes, to: asyncio.StreamWriter) -> None:
        """Send it whole or in slices; asyncio's sockets send each write at once (TCP_NODELAY)."""
        size = self.slices or len(data)
        for start in range(0, len(data), size):
            to.write(data[start : start + size])
            await to.drain()
            await asyncio.sleep(0)

    async def _next(self, chunks: _Chunks) -> bytes:
        """Return the next chunk when its time has come; an empty one at the end."""
        arrived, data = await chunks.get()
        due = arrived + self.delay + self.jitter * self.random.random()
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        await self._flowing.wait()
        return data

    def _cut(self) -> None:
        for link in self._links:
            link.reset()
        self._links.clear()


@dataclass(eq=False)
class _Link:
    """One connection: the ways out to its client and its server, and the task between them."""

    writers: list[asyncio.StreamWriter]
    task: asyncio.Task[None] | None = None

    def reset(self) -> None:
        for writer in self.writers:
            with suppress(OSError):  # it has just been closed from the other side
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _RESET
                )
            writer.transport.abort()
        if self.task:
            self.task.cancel()


async def _read(source: asyncio.StreamReader, chunks: _Chunks) -> None:
    now = asyncio.get_running_loop().time
    with suppress(ConnectionError):
        while data := await source.read(65_536):
            chunks.put_nowait((now(), data))
    chunks.put_nowait((now(), b""))
