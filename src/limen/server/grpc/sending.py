"""What goes out to one client: within the windows that it gives, and in few packets.

What is answered within one turn of the loop goes out at once.
"""

from __future__ import annotations

import asyncio
from math import inf

from limen.server.grpc import calls, frames
from limen.server.grpc.stream import Stream

_NO_TABLE = b"\x20"
"""What headers begin with to say that none of them will be kept in a table."""
LAST: int = frames.END_HEADERS | frames.END_STREAM
"""The flags of headers behind which nothing comes."""
_BEGIN_SIZE, _END_SIZE = len(calls.BEGIN), len(calls.END)


class Sending:
    """Everything that is sent on one connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._out: list[bytes] = []
        self._unsent_since = inf
        self._has_table = True
        self._before_headers = b""
        self.window: int = frames.WINDOW
        """What may be sent on this connection; each stream has its own beside it."""
        self.first_window: int = frames.WINDOW
        """What may be sent on a stream that begins."""
        self.frame_size: int = frames.FRAME_SIZE
        self.sent: int = 0
        """How many bytes went out of those that had to wait for room."""
        self.is_paused: bool = False
        """Whether the client does not even take what it has given room for."""

    def write(self, data: bytes) -> None:
        """Send with all else that is sent in this turn of the loop."""
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(data)

    def flush(self) -> None:
        """Send now."""
        out, self._out = self._out, []
        if out and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    def answer(self, number: int, window: int, reply: bytes) -> bool:
        """Send all of a call that is answered by one message; say whether there was room."""
        size = calls.PREFIX.size + len(reply)
        if size > self.window or size > window or size > self.frame_size or self._before_headers:
            return False
        self.window -= size
        self.write(_answered(number, size, reply))
        return True

    def send(self, number: int, stream: Stream) -> bool:
        """Send what may be sent of what waits; say whether that was the end of the call."""
        if not stream.has_begun:
            stream.has_begun = True
            self._headers(number, frames.END_HEADERS, calls.BEGIN)
        while stream.waiting:
            room = min(self.window, stream.window, self.frame_size, len(stream.waiting))
            if room <= 0:
                return False
            self.window -= room
            self.sent += room
            self.write(frames.frame(frames.DATA, 0, number, stream.part(room)))
        if stream.end is None:
            return False
        self._headers(number, LAST, stream.end)
        return True

    def refuse(self, number: int, headers: bytes, *, is_ended: bool) -> None:
        """Send the end of a call; what the client still has to send, nobody will read."""
        self._headers(number, LAST, headers)
        if not is_ended:
            self.write(frames.reset(number, frames.Error.NO_ERROR))

    def drop_table(self) -> None:
        """Keep to a smaller table of headers: to none, since nothing is put into it here anyway.

        The client has to be told, by the next headers; once is enough, for none stays none.
        """
        if self._has_table:
            self._has_table, self._before_headers = False, _NO_TABLE

    def _headers(self, number: int, flags: int, block: bytes) -> None:
        before, self._before_headers = self._before_headers, b""
        self.write(frames.frame(frames.HEADERS, flags, number, before + block))

    def is_stuck(self, now: float, timeout: float) -> bool:
        """Say whether the client has left lie for too long what was sent to it."""
        if not self._transport.get_write_buffer_size():
            self._unsent_since = inf
            return False
        self._unsent_since = min(self._unsent_since, now)
        return now >= self._unsent_since + timeout


def _answered(number: int, size: int, reply: bytes) -> bytes:
    """Return all frames of a call that was answered by one message."""
    pack = frames.HEADER.pack
    return b"".join(
        (
            pack(0, _BEGIN_SIZE, frames.HEADERS, frames.END_HEADERS, number),
            calls.BEGIN,
            pack(size >> 8, size & 0xFF, frames.DATA, 0, number),
            calls.PREFIX.pack(0, len(reply)),
            reply,
            pack(0, _END_SIZE, frames.HEADERS, LAST, number),
            calls.END,
        )
    )
