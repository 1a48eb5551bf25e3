"""One call, from its headers to its end: what came of it, and what waits to be sent. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from math import inf

from msgspec import Struct

from limen.server.grpc.calls import PREFIX, Call, Code, Failed, Streamed


class Stream(Struct, eq=False):
    """The state of one call."""

    call: Call
    deadline: float
    """When the client must have sent all."""
    window: int
    """What may be sent to the client."""
    send_by: float = inf
    """When the client must have let itself be sent what waits; it gives the room for it."""
    received: int = 0
    """How many bytes the client has sent, and may not send again yet."""
    is_whole: bool = False
    """Whether the client has sent all."""
    has_begun: bool = False
    waiting: bytes | bytearray = b""
    """What is to be sent when there is room."""
    end: bytes | None = None
    """The trailers, when there is nothing else to come."""
    task: asyncio.Task[None] | None = None
    _data: bytes | bytearray = b""
    _stirred: asyncio.Event | None = None

    def __post_init__(self) -> None:
        if isinstance(self.call.method, Streamed):
            self._stirred = asyncio.Event()

    def __repr__(self) -> str:
        # Without the token and the messages.
        return f"<Stream: received {self.received} bytes>"

    # One message.

    def take(self, data: bytes) -> None:
        """Take some of a message; most come in one piece."""
        if not self._data:
            self._data = data
        elif isinstance(self._data, bytearray):
            self._data += data
        else:
            self._data = bytearray(self._data + data)

    def is_longer(self, longest: int) -> bool:
        """Say whether the message that comes says so itself. There is no room for all of it."""
        data = self._data
        return len(data) >= PREFIX.size and PREFIX.unpack_from(data)[1] > longest

    def message(self) -> bytes | None:
        """Return the one message that was sent; None when it is not one."""
        data = self._data
        if len(data) < PREFIX.size:
            return None
        compressed, size = PREFIX.unpack_from(data)
        return None if compressed or size != len(data) - PREFIX.size else bytes(data[PREFIX.size :])

    # Several messages.

    @property
    def is_streamed(self) -> bool:
        """Whether several messages may come and go."""
        return self._stirred is not None

    def stir(self) -> None:
        """Let go on who waits for the client: it has sent something, or taken something."""
        if self._stirred is not None:
            self._stirred.set()

    async def stirred(self) -> None:
        """Wait for the client."""
        assert self._stirred is not None
        self._stirred.clear()
        await self._stirred.wait()

    async def incoming(
        self, longest: int, release: Callable[[int], object]
    ) -> AsyncIterator[bytes]:
        """Yield the messages of a client as they are asked for; raise `Failed` for what is none.

        `release` is told how many bytes are held no more.
        """
        while True:
            message = self._next(longest)
            if message is not None:
                used = self.received - len(self._data)
                self.received -= used
                release(used)
                yield message
            elif not self.is_whole:
                await self.stirred()
            elif self._data:
                raise Failed(Code.INVALID_ARGUMENT, "the last message is not whole")
            else:
                return

    def _next(self, longest: int) -> bytes | None:
        if len(self._data) < PREFIX.size:
            return None
        compressed, size = PREFIX.unpack_from(self._data)
        if compressed:
            raise Failed(Code.INVALID_ARGUMENT, "messages must not be compressed")
        if size > longest:
            raise Failed(Code.RESOURCE_EXHAUSTED, too_long(longest))
        end = PREFIX.size + size
        if len(self._data) < end:
            return None
        if not isinstance(self._data, bytearray):
            self._data = bytearray(self._data)
        message = bytes(self._data[PREFIX.size : end])
        # Of this kind of bytes the first ones go without a copy of the rest.
        del self._data[:end]
        return message

    # Answers.

    def put(self, reply: bytes) -> None:
        """Let a message wait to be sent."""
        message = PREFIX.pack(0, len(reply)) + reply
        if self.waiting:
            self.waiting += message
        else:
            self.waiting = bytearray(message)

    def part(self, size: int) -> bytes:
        """Return the first bytes of what waits, which are sent now."""
        found = bytes(self.waiting[:size])
        if isinstance(self.waiting, bytearray):
            del self.waiting[:size]
        self.window -= size
        return found


def too_long(longest: int) -> str:
    """Return what is said of a message for which there is no room."""
    return f"a message is longer than {longest:,} bytes"
