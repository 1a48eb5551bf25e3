"""A door before limen, at a port that stays: it leads there, is shut, says nothing, or says noise.

A gateway is told of the door and never of limen, so that a test can take limen away from one of
them and leave it to the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

from tests.gateways.places import new_port
from tests.servers import HOST

NOISE = b"\x00\xff\x13\x37 neither HTTP nor gRPC \r\n\r\n\x00"

_Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@contextmanager
def hall() -> Iterator[Callable[[], Door]]:
    """Yield what makes doors, shut at first; all of them live in one thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="doors", daemon=True)
    thread.start()
    made: list[Door] = []

    def make() -> Door:
        made.append(Door(loop))
        return made[-1]

    try:
        yield make
    finally:
        for door in made:
            door.shut()
        asyncio.run_coroutine_threadsafe(_rest(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


class Door:
    """What it does is in force when the call returns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.port = new_port()
        self._loop = loop
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_silent = False

    def lead_to(self, port: int) -> None:
        """Forward everything, both ways."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                inner, to_inner = await asyncio.open_connection(HOST, port)
                self._writers.add(to_inner)
                await asyncio.gather(self._pump(reader, to_inner), self._pump(inner, writer))

        self._do(self._open(serve))

    def shut(self) -> None:
        """Cut all connections; nobody listens here any more."""
        self._do(self._close())

    def fall_silent(self) -> None:
        """Accept, read, and never answer; also on connections that there are already."""
        self._is_silent = True

    def make_noise(self, noise: bytes = NOISE) -> None:
        """Cut all connections; answer what comes on new ones with these bytes, and hang up."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                await reader.read(65_536)
                writer.write(noise)
                await writer.drain()

        self._do(self._open(serve))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _open(self, serve: _Serve) -> None:
        await self._close()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            try:
                await serve(reader, writer)
            finally:
                writer.close()

        self._listener = await asyncio.start_server(accept, HOST, self.port, backlog=1_024)

    async def _close(self) -> None:
        self._is_silent = False
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if not self._is_silent:
                    writer.write(data)
                    await writer.drain()
        writer.close()


async def _rest() -> None:
    """Let what is left come to its end: nothing of a closed loop may be heard of later."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
