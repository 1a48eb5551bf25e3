"""One client over HTTP/2: frames in, calls answered, frames out.

Every bound that a client could lean on is here: how many calls run at once, how long a message and
its headers are, how much lies here unread, how many frames come that ask for nothing. What is
answered within one turn of the loop goes out in one packet.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from math import inf
from typing import TYPE_CHECKING

from limen.server.grpc import calls, frames
from limen.server.grpc.calls import Call, Code, Failed, Headers, Streamed, Unary
from limen.server.grpc.frames import Broken, Error, Setting
from limen.server.grpc.stream import Stream

if TYPE_CHECKING:
    from limen.server.grpc.connections import GrpcConnections

_MOST_CALLS = 1_000
_MAX_HEADERS = 16_384
_SMALL = 256
_MOST_IDLE_FRAMES = 10_000
"""How many frames a client may send that ask for nothing, beyond ten for every call."""
_HTTP_1 = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port speaks gRPC; HTTP is spoken on another one.\n"
)
_logger = logging.getLogger("limen.server")


class Connection(asyncio.Protocol):
    """Speaks with one client."""

    def __init__(self, shared: GrpcConnections) -> None:
        self._shared = shared
        self._loop = shared.loop
        self._longest = shared.limits.max_message + calls.PREFIX.size
        self._most_held = max(4 * 2**20, 2 * self._longest)
        """How many bytes of messages may lie here that are not whole yet."""
        self._headers = Headers(shared.methods, _MAX_HEADERS)
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._has_begun = False
        self._streams: dict[int, Stream] = {}
        self._running = 0
        """Calls that are being answered, also for clients who do not wait any more."""
        self._last = 0
        self._block: tuple[int, int, bytes] | None = None
        """Headers that are not whole yet: their stream, its flags, and what is there."""
        self._window = frames.WINDOW
        """What may be sent on this connection; each stream has its own beside it."""
        self._first_window = frames.WINDOW
        self._frame_size = frames.FRAME_SIZE
        self._held = self._owed = 0
        """Bytes of messages that are not whole yet, and bytes that may be sent again."""
        self._idle_frames = 0
        self._out: list[bytes] = []
        self._is_leaving = self._is_last_said = False
        self._leave_at = inf
        self._deadline = inf
        self._unsent_since = inf

    # What the loop calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a stream
        """Begin, and say what is taken here."""
        self._transport = transport
        # Who has gone without a word is noticed, if late.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        now = self._loop.time()
        self._deadline = now + self._shared.limits.read_timeout
        self._leave_at = now + self._shared.age()
        self._shared.add(self)
        self._write(
            frames.settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: _MOST_CALLS,
                    Setting.INITIAL_WINDOW_SIZE: self._longest,
                    Setting.MAX_HEADER_LIST_SIZE: _MAX_HEADERS,
                }
            )
            + frames.window_update(0, self._most_held - frames.WINDOW)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client. What is decided for it is decided all the same."""
        self._shared.discard(self)
        self._transport = None
        for stream in self._streams.values():
            stream.cancel()
        self._streams.clear()

    def data_received(self, data: bytes) -> None:
        """Take what came, frame by frame."""
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
            self._deadline = (
                self._loop.time() + self._shared.limits.read_timeout
                if self._rest or self._block
                else inf
            )
        except Broken as error:
            self._break(error)

    def pause_writing(self) -> None:
        """Hear no more from a client that does not take what was sent to it."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Hear again."""
        if self._transport is not None:
            self._transport.resume_reading()

    # What the owner of all connections calls.

    def leave(self) -> None:
        """Let the client go elsewhere: calls that come all the same are answered for a while."""
        if not self._is_leaving and self._transport is not None:
            self._is_leaving = True
            self._leave_at = self._loop.time() + self._shared.limits.grace
            self._write(frames.goaway(frames.LAST_STREAM, Error.NO_ERROR))

    def abort(self) -> None:
        """End now."""
        if self._transport is not None:
            self._transport.abort()

    def look(self, now: float) -> None:
        """Look whether the client keeps its time."""
        if self._transport is None:
            return
        if self._is_stuck(now) or now >= self._deadline:
            self._transport.abort()
        elif now >= self._leave_at:
            if not self._is_leaving:
                self.leave()
            elif not self._is_last_said:
                self._is_last_said = True
                self._write(frames.goaway(self._last, Error.NO_ERROR))
                self._end_watching()
                self._close_if_done()
        for number, stream in list(self._streams.items()):
            if now >= stream.deadline:
                self._drop(number, stream)
                self._write(frames.reset(number, Error.CANCEL))

    def _end_watching(self) -> None:
        """End the calls that would go on as long as the client likes."""
        for number, stream in list(self._streams.items()):
            if stream.messages is not None:
                self._drop(number, stream)
                self._write(frames.reset(number, Error.REFUSED_STREAM))

    # Frames in.

    def _begins(self, data: bytes) -> bool:
        """Return whether the client has said how it speaks; raise `Broken` if it does otherwise."""
        size = len(frames.PREFACE)
        if data[:size] != frames.PREFACE[: len(data)]:
            if self._transport is not None and data[:1].isalpha():
                self._transport.write(_HTTP_1)
            raise Broken(Error.PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < size:
            self._rest = data
            return False
        self._has_begun = True
        return True

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and kind != frames.CONTINUATION:
            raise Broken(Error.PROTOCOL_ERROR, "headers are not continued")
        if kind == frames.DATA:
            self._take_data(number, flags, payload)
        elif kind == frames.HEADERS:
            block = frames.content(payload, flags) if flags & ~0x5 else payload
            if flags & frames.END_HEADERS:
                self._take_headers(number, flags, block)
            else:
                self._block = (number, flags, block)
        elif kind == frames.CONTINUATION:
            self._take_continuation(number, flags, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._take_window(number, frames.number(payload) & frames.MAX_WINDOW)
        else:
            self._idle()
            self._take_rest(kind, flags, number, payload)

    def _take_rest(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == frames.SETTINGS:
            if not flags & frames.ACK:
                self._take_settings(frames.read_settings(payload))
                self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        elif kind == frames.PING:
            if len(payload) != 8 or number:
                raise Broken(Error.FRAME_SIZE_ERROR, "a ping of a wrong length, or of a stream")
            if not flags & frames.ACK:
                self._write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.RST_STREAM:
            if not 0 < number <= self._last:
                raise Broken(Error.PROTOCOL_ERROR, "the end of a stream that never began")
            stream = self._streams.get(number)
            if stream is not None:
                self._drop(number, stream)
                self._close_if_done()
        elif kind == frames.PUSH_PROMISE:
            raise Broken(Error.PROTOCOL_ERROR, "clients promise nothing")

    def _take_settings(self, values: list[tuple[int, int]]) -> None:
        for name, value in values:
            if name == Setting.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise Broken(Error.FLOW_CONTROL_ERROR, "a window is too large")
                more, self._first_window = value - self._first_window, value
                for stream in self._streams.values():
                    stream.window += more
                self._send_waiting()
            elif name == Setting.MAX_FRAME_SIZE:
                if not frames.FRAME_SIZE <= value < 2**24:
                    raise Broken(Error.PROTOCOL_ERROR, "there is no such size of frames")
                self._frame_size = value

    def _take_window(self, number: int, more: int) -> None:
        self._idle()
        stream = self._streams.get(number)
        if not number:
            self._window += more
        elif stream is not None:
            stream.window += more
        if not more or max(self._window, stream.window if stream else 0) > frames.MAX_WINDOW:
            raise Broken(Error.FLOW_CONTROL_ERROR, "a window of no size, or too large")
        self._send_waiting()

    def _take_continuation(self, number: int, flags: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise Broken(Error.PROTOCOL_ERROR, "nothing is to be continued")
        self._idle()
        _, first_flags, block = self._block
        block += payload
        if len(block) > _MAX_HEADERS:
            raise Broken(Error.ENHANCE_YOUR_CALM, "the headers are too long")
        if flags & frames.END_HEADERS:
            self._block = None
            self._take_headers(number, first_flags, block)
        else:
            self._block = (number, first_flags, block)

    def _take_headers(self, number: int, flags: int, block: bytes) -> None:
        call = self._headers.read(block)
        stream = self._streams.get(number)
        if stream is not None:
            # Trailers: there is nothing in them but the end.
            if not flags & frames.END_STREAM or stream.is_whole:
                raise Broken(Error.PROTOCOL_ERROR, "headers in the middle of a call")
            self._end(number, stream)
            return
        if number <= self._last:
            # Of a call that was refused or reset meanwhile; or a mistake of the client.
            self._idle()
            return
        if not number % 2:
            raise Broken(Error.PROTOCOL_ERROR, "streams of clients have odd numbers")
        if self._is_last_said:
            return
        self._last = number
        if self._running + len(self._streams) >= 2 * _MOST_CALLS or (
            len(self._streams) >= _MOST_CALLS
        ):
            self._idle()
            self._write(frames.reset(number, Error.REFUSED_STREAM))
            return
        if self._idle_frames > 0:
            self._idle_frames -= 10
        if call.refusal:
            self._refuse(number, call.refusal, is_ended=bool(flags & frames.END_STREAM))
            return
        deadline = self._loop.time() + self._shared.limits.read_timeout
        stream = self._streams[number] = Stream(call, deadline, self._first_window)
        if isinstance(call.method, Streamed):
            self._running += 1
            stream.task = self._loop.create_task(self._stream(number, stream, call.method))
        if flags & frames.END_STREAM:
            self._end(number, stream)

    def _take_data(self, number: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        if self._held + self._owed + size > self._most_held:
            raise Broken(Error.FLOW_CONTROL_ERROR, "more data than was asked for")
        stream = self._streams.get(number)
        if stream is None or stream.is_whole:
            if number > self._last or not number:
                raise Broken(Error.PROTOCOL_ERROR, "data of a stream that never began")
            # It was refused, and the client does not know yet.
            self._idle()
            self._release(size)
            return
        self._held += size
        stream.received += size
        if stream.received > self._longest:
            detail = f"a message is longer than {self._shared.limits.max_message:,} bytes"
            self._drop(number, stream)
            self._refuse(number, calls.failure(Code.RESOURCE_EXHAUSTED, detail), is_ended=False)
            return
        stream.take(frames.content(payload, flags) if flags & frames.PADDED else payload)
        if stream.messages is not None:
            used = stream.hand_over(self._shared.limits.max_message)
            if used:
                self._release_held(used)
                self._write(frames.window_update(number, used))
        if flags & frames.END_STREAM:
            self._end(number, stream)
        elif size < _SMALL:
            self._idle()

    def _end(self, number: int, stream: Stream) -> None:
        """Take note that a client has sent all; begin to answer it."""
        stream.deadline = inf
        stream.is_whole = True
        method = stream.call.method
        if stream.messages is not None:
            stream.messages.put_nowait(None)
            return
        message = stream.message()
        self._release_held(stream.received)
        if message is None:
            del self._streams[number]
            detail = "expected one message, uncompressed, and nothing behind it"
            self._refuse(number, calls.failure(Code.INVALID_ARGUMENT, detail), is_ended=True)
            return
        assert isinstance(method, Unary)
        self._running += 1
        self._loop.create_task(self._answer(number, stream.call, method, message))

    def _idle(self) -> None:
        """Count a frame that asks for nothing."""
        self._idle_frames += 1
        if self._idle_frames > _MOST_IDLE_FRAMES:
            raise Broken(Error.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def _release_held(self, size: int) -> None:
        self._held -= size
        self._release(size)

    def _release(self, size: int) -> None:
        """Let the client send as much again as is held no more, if it is worth a frame."""
        self._owed += size
        if self._owed > self._most_held // 4:
            self._write(frames.window_update(0, self._owed))
            self._owed = 0

    # Answers out.

    async def _answer(self, number: int, call: Call, method: Unary, message: bytes) -> None:
        try:
            reply = await method.answer(message, call)
        except Exception as error:
            headers = _failure(error)
            self._running -= 1
            if self._streams.pop(number, None) is not None:
                self._write(frames.frame(frames.HEADERS, _LAST, number, headers))
                self._close_if_done()
            return
        self._running -= 1
        stream = self._streams.get(number)
        if stream is None:
            return  # the client has given up
        size = calls.PREFIX.size + len(reply)
        if size <= self._window and size <= stream.window and size <= self._frame_size:
            self._window -= size
            del self._streams[number]
            self._write(_answered(number, reply))
            if self._is_last_said:
                self._close_if_done()
        else:
            stream.waiting += calls.PREFIX.pack(0, len(reply)) + reply
            stream.end = calls.END
            self._send(number, stream)

    async def _stream(self, number: int, stream: Stream, method: Streamed) -> None:
        end = calls.END
        try:
            async for reply in method.answer(stream.incoming(), stream.call):
                stream.waiting += calls.PREFIX.pack(0, len(reply)) + reply
                self._send(number, stream)
        except asyncio.CancelledError:
            return
        except Exception as error:
            end = _failure(error)[len(calls.BEGIN) :]
        finally:
            self._running -= 1
        stream.end = end
        self._send(number, stream)

    def _send(self, number: int, stream: Stream) -> None:
        """Send what may be sent of what waits."""
        if number not in self._streams:
            return
        if not stream.has_begun:
            stream.has_begun = True
            self._write(frames.frame(frames.HEADERS, frames.END_HEADERS, number, calls.BEGIN))
        while stream.waiting and min(self._window, stream.window) > 0:
            size = min(len(stream.waiting), self._window, stream.window, self._frame_size)
            part, stream.waiting = stream.waiting[:size], stream.waiting[size:]
            self._window -= size
            stream.window -= size
            self._write(frames.frame(frames.DATA, 0, number, part))
        if stream.end is not None and not stream.waiting:
            del self._streams[number]
            self._write(frames.frame(frames.HEADERS, _LAST, number, stream.end))
            if not stream.is_whole:
                self._write(frames.reset(number, Error.NO_ERROR))
            self._close_if_done()

    def _send_waiting(self) -> None:
        for number, stream in list(self._streams.items()):
            if stream.waiting:
                self._send(number, stream)

    def _refuse(self, number: int, headers: bytes, *, is_ended: bool) -> None:
        self._write(frames.frame(frames.HEADERS, _LAST, number, headers))
        if not is_ended:
            # What the client still has to send, nobody will read.
            self._write(frames.reset(number, Error.NO_ERROR))

    def _drop(self, number: int, stream: Stream) -> None:
        """Forget a call."""
        del self._streams[number]
        stream.cancel()
        if not stream.is_whole:
            self._release_held(stream.received)

    def _write(self, data: bytes) -> None:
        """Send with all else that is sent in this turn of the loop."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and out:
            self._transport.write(b"".join(out))

    def _break(self, error: Broken) -> None:
        """End with a client that does not keep to the protocol."""
        _logger.debug("a gRPC client is cut off: %s", error)
        if self._transport is not None:
            self._write(frames.goaway(self._last, error.error, str(error)))
            self._flush()
            self._transport.close()

    def _close_if_done(self) -> None:
        if self._is_last_said and not self._streams and self._transport is not None:
            self._flush()
            self._transport.close()

    def _is_stuck(self, now: float) -> bool:
        """Say whether the client has left lie for too long what was sent to it."""
        assert self._transport is not None
        if not self._transport.get_write_buffer_size():
            self._unsent_since = inf
            return False
        self._unsent_since = min(self._unsent_since, now)
        return now >= self._unsent_since + self._shared.limits.write_timeout


_LAST = frames.END_HEADERS | frames.END_STREAM
_BEGIN_SIZE, _END_SIZE = len(calls.BEGIN), len(calls.END)


def _answered(number: int, reply: bytes) -> bytes:
    """Return all frames of a call that was answered by one message."""
    size = calls.PREFIX.size + len(reply)
    pack = frames.HEADER.pack
    return b"".join(
        (
            pack(0, _BEGIN_SIZE, frames.HEADERS, frames.END_HEADERS, number),
            calls.BEGIN,
            pack(size >> 8, size & 0xFF, frames.DATA, 0, number),
            calls.PREFIX.pack(0, len(reply)),
            reply,
            pack(0, _END_SIZE, frames.HEADERS, _LAST, number),
            calls.END,
        )
    )


def _failure(error: Exception) -> bytes:
    if isinstance(error, Failed):
        return calls.failure(error.code, str(error))
    _logger.error("a mistake in the service, while it answered gRPC", exc_info=error)
    # Whoever asks decides as when there is nobody to ask.
    return calls.failure(Code.UNAVAILABLE, "the service made a mistake, and has logged it")
