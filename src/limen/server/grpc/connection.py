"""The connections of gRPC clients: bytes in, frames out, deadlines, and the limits for a client.

Raises no error that a client could cause: who does not keep to the protocol is told so (GOAWAY),
and is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from math import inf

from msgspec import Struct

from limen.chance import CHANCE
from limen.server.connections import Connections
from limen.server.grpc import frames
from limen.server.grpc.bounds import MAX_HEADERS, MOST_CALLS
from limen.server.grpc.calls import Headers, Methods
from limen.server.grpc.frames import Broken, Error, Setting
from limen.server.grpc.sending import Sending
from limen.server.grpc.streams import Streams

_HTTP_1 = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port speaks gRPC; HTTP is spoken on another one.\n"
)
_MAX_CONNECTIONS = 10_000
"""How many connections there may be: a few for every thread of every Envoy."""
_logger = logging.getLogger("limen.server")


class GrpcLimits(Struct, frozen=True):
    """What a client may take: seconds and bytes."""

    max_message: int = 1_048_576
    read_timeout: float = 10.0
    """From the beginning of a call to the last byte of it."""
    write_timeout: float = 30.0
    """How long a client may leave lie what was sent to it."""
    max_age: float = 1_800.0
    """After how long a client is asked to connect anew."""
    grace: float = 1.0
    """How long calls are taken from a client that was asked to leave: one may be on its way."""


class Connection(asyncio.Protocol):
    """Speaks with one client."""

    _transport: asyncio.Transport
    _sending: Sending
    _streams: Streams

    def __init__(self, shared: GrpcConnections) -> None:
        self._shared = shared
        self._loop = shared.loop
        self._headers = Headers(shared.methods, MAX_HEADERS)
        self._rest = b""
        self._has_begun = self._is_over = False
        self._block: tuple[int, int, bytes] | None = None
        """Headers that are not whole yet: their stream, its flags, and what is there."""
        self._is_leaving = False
        self._leave_at = inf
        self._deadline = inf
        """When the client must have sent the rest of what it has begun to say."""

    # What the loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a stream
        """Begin."""
        self._transport = transport
        self._sending = Sending(self._loop, transport)
        self._streams = Streams(self._shared, self._sending, self._close)
        # Who has gone without a word is noticed, if late.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        now = self._loop.time()
        self._deadline = now + self._shared.limits.read_timeout
        self._leave_at = now + self._shared.age()
        self._shared.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._is_over = True
        self._shared.discard(self)
        self._streams.clear()

    def data_received(self, data: bytes) -> None:
        """Take what came, frame by frame."""
        if self._is_over:
            return
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            if not self._has_begun:
                if not self._begins(data):
                    return
                data = data[len(frames.PREFACE) :]
            at, end = 0, len(data)
            while end - at >= frames.HEADER_SIZE:
                high, low, kind, flags, stream = frames.HEADER.unpack_from(data, at)
                first = at + frames.HEADER_SIZE
                at = first + (high << 8 | low)
                if at - first > frames.FRAME_SIZE:
                    raise Broken(Error.FRAME_SIZE_ERROR, "a frame is too large")
                if at > end:
                    at = first - frames.HEADER_SIZE
                    break
                self._take(kind, flags, stream & frames.LAST_STREAM, data[first:at])
            self._rest = data[at:]
            self._heed_time(has_moved=at > 0)
        except Broken as error:
            self._break(error)

    def pause_writing(self) -> None:
        """Hear no more from a client that does not take what was sent to it."""
        self._sending.is_paused = True
        if not self._is_over:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Hear again."""
        self._sending.is_paused = False
        if not self._is_over:
            self._transport.resume_reading()
            self._streams.go_on()

    # What the owner of all connections calls.

    def drain(self) -> None:
        """Let the client go elsewhere: calls that come all the same are answered for a while."""
        if not self._is_leaving:
            self._is_leaving = True
            self._leave_at = self._loop.time() + self._shared.limits.grace
            if self._has_begun:
                self._say_leave()

    def abort(self) -> None:
        """End now."""
        self._is_over = True
        self._transport.abort()

    def check_deadline(self, now: float) -> None:
        """Look whether the client keeps its time."""
        if self._sending.is_stuck(now, self._shared.limits.write_timeout):
            self.abort()
        if self._is_over:
            return
        if now >= self._deadline:
            self._break(Broken(Error.ENHANCE_YOUR_CALM, "the rest did not come in time"))
            return
        self._streams.expire(now)
        if now >= self._leave_at:
            if not self._is_leaving:
                self.drain()
            elif not self._streams.is_last:
                if self._has_begun:
                    self._sending.write(frames.goaway(self._streams.last, Error.NO_ERROR))
                self._streams.take_no_more()

    # Frames in.

    def _begins(self, data: bytes) -> bool:
        """Return whether the client has said how it speaks; raise `Broken` if it does otherwise."""
        size = len(frames.PREFACE)
        if data[:size] != frames.PREFACE[: len(data)]:
            if data[:1].isalpha():
                self._transport.write(_HTTP_1)
            raise Broken(Error.PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < size:
            self._rest = data
            return False
        self._has_begun = True
        # Not before: whoever speaks HTTP/1 would not know what to make of it.
        self._say_hello()
        return True

    def _say_hello(self) -> None:
        taken = {
            Setting.MAX_CONCURRENT_STREAMS: MOST_CALLS,
            Setting.INITIAL_WINDOW_SIZE: self._streams.longest,
            Setting.MAX_HEADER_LIST_SIZE: MAX_HEADERS,
        }
        more = self._streams.room.most - frames.WINDOW
        self._sending.write(frames.settings(taken) + frames.window_update(0, more))
        if self._is_leaving:
            self._say_leave()

    def _say_leave(self) -> None:
        # No number yet: a call may be on its way.
        self._sending.write(frames.goaway(frames.LAST_STREAM, Error.NO_ERROR))

    def _heed_time(self, *, has_moved: bool) -> None:
        """Set the time for what has begun; to send a little of it every now and then is no help."""
        if not self._rest and self._block is None:
            self._deadline = inf
        elif self._deadline == inf or (has_moved and self._block is None):
            self._deadline = self._loop.time() + self._shared.limits.read_timeout

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and kind != frames.CONTINUATION:
            raise Broken(Error.PROTOCOL_ERROR, "headers are not continued")
        if kind == frames.DATA:
            self._streams.take(number, flags, payload)
        elif kind == frames.HEADERS:
            block = frames.content(payload, flags) if flags & ~0x5 else payload
            if flags & frames.END_HEADERS:
                self._streams.begin(number, flags, self._headers.read(block))
            else:
                self._block = (number, flags, block)
        elif kind == frames.CONTINUATION:
            self._take_continuation(number, flags, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._streams.widen(number, frames.number(payload) & frames.MAX_WINDOW)
        else:
            self._streams.calm.idle()
            self._take_rest(kind, flags, number, payload)

    def _take_continuation(self, number: int, flags: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise Broken(Error.PROTOCOL_ERROR, "nothing is to be continued")
        self._streams.calm.idle()
        _, first_flags, block = self._block
        block += payload
        if len(block) > MAX_HEADERS:
            raise Broken(Error.ENHANCE_YOUR_CALM, "the headers are too long")
        if flags & frames.END_HEADERS:
            self._block = None
            self._streams.begin(number, first_flags, self._headers.read(block))
        else:
            self._block = (number, first_flags, block)

    def _take_rest(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == frames.RST_STREAM:
            frames.number(payload)
            self._streams.reset(number)
        elif kind == frames.SETTINGS:
            frames.expect(number == 0, "settings of a stream")
            if not flags & frames.ACK:
                self._take_settings(frames.read_settings(payload))
            elif payload:
                raise Broken(Error.FRAME_SIZE_ERROR, "thanks for settings, and more")
        elif kind == frames.PING:
            frames.expect(number == 0, "a ping of a stream")
            if len(payload) != frames.PING_SIZE:
                raise Broken(Error.FRAME_SIZE_ERROR, "a ping of a wrong length")
            if not flags & frames.ACK:
                self._sending.write(frames.frame(frames.PING, frames.ACK, 0, payload))
        else:
            frames.expect(kind != frames.PUSH_PROMISE, "clients promise nothing")

    def _take_settings(self, values: list[tuple[int, int]]) -> None:
        if any(n == Setting.HEADER_TABLE_SIZE and size < frames.TABLE_SIZE for n, size in values):
            self._sending.drop_table()
        # Of the others the last word counts: to go by each would be much work for few bytes.
        said = dict(values)
        size = said.get(Setting.MAX_FRAME_SIZE, self._sending.frame_size)
        frames.expect(frames.FRAME_SIZE <= size < 2**24, "there is no such size of frames")
        self._sending.frame_size = size
        # The client keeps to its word when it has heard this, and not before.
        self._sending.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        window = said.get(Setting.INITIAL_WINDOW_SIZE)
        if window is not None:
            self._streams.resize(window)

    # The end.

    def _break(self, error: Broken) -> None:
        """End with a client that does not keep to the protocol."""
        _logger.debug("a gRPC client is cut off: %s", error)
        if self._has_begun:
            self._sending.write(frames.goaway(self._streams.last, error.error, str(error)))
        self._close()

    def _close(self) -> None:
        """End when all is sent that was said."""
        self._is_over = True
        self._sending.flush()
        self._transport.close()
        self._streams.clear()


class GrpcConnections(Connections[Connection]):
    """All gRPC connections of a worker."""

    def __init__(self, methods: Methods, limits: GrpcLimits) -> None:
        self.methods: Methods = methods
        self.limits: GrpcLimits = limits
        shortest = min(limits.read_timeout, limits.write_timeout, limits.max_age, limits.grace)
        super().__init__("gRPC connections", _MAX_CONNECTIONS, shortest)

    def make(self) -> Connection:
        """Return the protocol of a new connection; the event loop calls it."""
        return Connection(self)

    def age(self) -> float:
        """Return how long a connection may last; not all the same, lest all come back at once."""
        return self.limits.max_age * CHANCE.uniform(0.9, 1.1)
