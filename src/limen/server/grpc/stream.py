"""One call, from its headers to its end: what came of it, and what waits to be sent. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from limen.server.grpc.calls import PREFIX, Call, Code, Failed, Streamed


class Stream:
    """The state of one call."""

    __slots__ = (
        "_data",
        "call",
        "deadline",
        "end",
        "has_begun",
        "is_whole",
        "messages",
        "received",
        "task",
        "waiting",
        "window",
    )

    def __init__(self, call: Call, deadline: float, window: int) -> None:
        self.call = call
        self.deadline = deadline
        """When the client must have sent all."""
        self.window = window
        """What may be sent to the client."""
        self.received = 0
        """How many bytes the client has sent, and may not send again yet."""
        self.is_whole = False
        """Whether the client has sent all."""
        self.has_begun = False
        self.waiting = b""
        """What is to be sent when there is room."""
        self.end: bytes | None = None
        """The trailers, when there is nothing else to come."""
        self.messages: asyncio.Queue[bytes | Failed | None] | None = None
        """Whole messages, for a method that takes several; None is their end."""
        if isinstance(call.method, Streamed):
            self.messages = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None
        self._data: bytes | bytearray = b""

    def take(self, data: bytes) -> None:
        """Take some of a message; most come in one piece."""
        if not self._data:
            self._data = data
        elif isinstance(self._data, bytearray):
            self._data += data
        else:
            self._data = bytearray(self._data + data)

    def message(self) -> bytes | None:
        """Return the one message that was sent; None when it is not one."""
        data = self._data
        if len(data) < PREFIX.size:
            return None
        compressed, size = PREFIX.unpack_from(data)
        return None if compressed or size != len(data) - PREFIX.size else bytes(data[PREFIX.size :])

    def hand_over(self, longest: int) -> int:
        """Hand over messages that are whole; return how many bytes may be sent again."""
        assert self.messages is not None
        while len(self._data) >= PREFIX.size:
            compressed, size = PREFIX.unpack_from(self._data)
            end = PREFIX.size + size
            if compressed or size > longest:
                detail = "a message is compressed, or too long"
                self.messages.put_nowait(Failed(Code.INVALID_ARGUMENT, detail))
                break
            if len(self._data) < end:
                break
            self.messages.put_nowait(bytes(self._data[PREFIX.size : end]))
            self._data = self._data[end:]
        used = self.received - len(self._data)
        self.received = len(self._data)
        return used

    async def incoming(self) -> AsyncIterator[bytes]:
        """Yield the messages of a client, as they come."""
        assert self.messages is not None
        while (message := await self.messages.get()) is not None:
            if isinstance(message, Failed):
                raise message
            yield message

    def cancel(self) -> None:
        """Answer no more."""
        if self.task is not None:
            self.task.cancel()
