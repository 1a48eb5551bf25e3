"""All calls of one client: how they begin, are answered, and end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from limen.server.grpc import calls, frames
from limen.server.grpc.bounds import LEAST_ROOM, MOST_CALLS, SMALL, Calm, Room
from limen.server.grpc.calls import Call, Code, Failed, Streamed, Unary
from limen.server.grpc.frames import Broken, Error
from limen.server.grpc.sending import Sending
from limen.server.grpc.stream import Stream, too_long

if TYPE_CHECKING:
    from limen.server.grpc.connection import GrpcConnections

_logger = logging.getLogger("limen.server")


class Streams:
    """The calls of one connection."""

    def __init__(
        self, shared: GrpcConnections, sending: Sending, done: Callable[[], object]
    ) -> None:
        self._loop = shared.loop
        self._done = done
        """Called when the last one of all has ended."""
        self._limits = shared.limits
        self._sending = sending
        self._streams: dict[int, Stream] = {}
        self._running = 0
        """Calls that are being answered, also for clients who do not wait any more."""
        self.last: int = 0
        """The number of the last one that has begun."""
        self.is_last: bool = False
        """Whether that is the last one of all: the client was told that no more are taken."""
        self.longest: int = shared.limits.max_message + calls.PREFIX.size
        """How many bytes may lie here of one call."""
        self.room: Room = Room(max(LEAST_ROOM, 2 * self.longest))
        self.calm: Calm = Calm()

    # Frames in.

    def begin(self, number: int, flags: int, call: Call) -> None:
        """Take headers: of a new call, or behind the last message of one. Raises `Broken`."""
        stream = self._streams.get(number)
        if stream is not None:
            # Trailers: there is nothing in them but the end.
            if not flags & frames.END_STREAM or stream.is_whole:
                raise Broken(Error.PROTOCOL_ERROR, "headers in the middle of a call")
            self._end(number, stream)
            return
        frames.expect(number % 2 == 1, "streams of clients have odd numbers")
        if number <= self.last or self.is_last:
            # Of a call that was refused, reset or not taken; or a mistake of the client.
            self.calm.idle()
            return
        self.last = number
        count = len(self._streams)
        if count >= MOST_CALLS or self._running + count >= 2 * MOST_CALLS:
            self.calm.idle()
            self._sending.write(frames.reset(number, Error.REFUSED_STREAM))
            return
        if call.refusal:
            self.calm.earn()
            self._sending.refuse(number, call.refusal, is_ended=bool(flags & frames.END_STREAM))
            return
        deadline = self._loop.time() + self._limits.read_timeout
        stream = self._streams[number] = Stream(call, deadline, self._sending.first_window)
        if isinstance(call.method, Streamed):
            self._running += 1
            stream.task = self._loop.create_task(self._stream(number, stream, call.method))
            # It may be cancelled before it takes its first step.
            stream.task.add_done_callback(self._count_done)
        if flags & frames.END_STREAM:
            self._end(number, stream)

    def take(self, number: int, flags: int, payload: bytes) -> None:
        """Take some of a message. Raises `Broken`."""
        size = len(payload)
        self.room.hold(size)
        stream = self._streams.get(number)
        if stream is None or stream.is_whole:
            self._expect_begun(number)
            # It was refused, and the client does not know yet.
            self.calm.idle()
            self._release(size)
            return
        stream.received += size
        if flags & frames.PADDED:
            payload = frames.content(payload, frames.PADDED)
        stream.take(payload)
        if flags & frames.END_STREAM and stream.received <= self.longest:
            self._end(number, stream)
            return
        if size < SMALL:
            self.calm.idle()
        if stream.received > self.longest or (
            not stream.is_streamed and stream.is_longer(self._limits.max_message)
        ):
            detail = too_long(self._limits.max_message)
            stream.is_whole = bool(flags & frames.END_STREAM)
            self._fail(number, stream, Failed(Code.RESOURCE_EXHAUSTED, detail))
        stream.stir()

    def reset(self, number: int) -> None:
        """Take the end of a call that the client does not wait for. Raises `Broken`."""
        self._expect_begun(number)
        stream = self._streams.get(number)
        if stream is not None:
            self._drop(number, stream)

    def widen(self, number: int, more: int) -> None:
        """Take more room for answers: of a stream, or of all (0). Raises `Broken`."""
        self.calm.idle()
        frames.expect(more > 0, "a window grows by nothing")
        before = self._sending.sent
        if not number:
            self._sending.window += more
            _expect_window(self._sending.window)
            self._send_waiting()
        else:
            self._expect_begun(number)
            stream = self._streams.get(number)
            if stream is not None:
                stream.window += more
                _expect_window(stream.window)
                if stream.waiting:
                    self._send(number, stream)
        if self._sending.sent - before >= SMALL:
            self.calm.earn()

    def resize(self, window: int) -> None:
        """Take another size of all windows but the common one; they may shrink below nothing."""
        _expect_window(window)
        more, self._sending.first_window = window - self._sending.first_window, window
        for stream in self._streams.values():
            stream.window += more
            _expect_window(stream.window)
        self._send_waiting()

    def _expect_begun(self, number: int) -> None:
        """Raise `Broken` for a stream that nothing can have happened on yet."""
        frames.expect(0 < number <= self.last or (number > 0 and self.is_last), "it has not begun")

    # What the connection calls.

    def expire(self, now: float) -> None:
        """End the calls of a client that does not keep its time."""
        for number, stream in list(self._streams.items()):
            if now >= stream.deadline or now >= stream.send_by:
                self._sending.write(frames.reset(number, Error.CANCEL))
                self._drop(number, stream)

    def take_no_more(self) -> None:
        """Take no new calls, and end those that would go on as long as the client likes."""
        self.is_last = True
        for number, stream in list(self._streams.items()):
            if stream.is_streamed:
                self._fail(number, stream, Failed(Code.UNAVAILABLE, "the service goes away"))
        self._end_if_last()

    def go_on(self) -> None:
        """Let answers be made again, of which there were more than the client takes."""
        for stream in self._streams.values():
            stream.stir()

    def clear(self) -> None:
        """Forget all calls. What is decided for them is decided all the same."""
        for stream in self._streams.values():
            _cancel(stream)
        self._streams.clear()
        # Nobody is told any more; and what holds itself would wait for the collector of garbage.
        self._done = lambda: None

    # Calls.

    def _end(self, number: int, stream: Stream) -> None:
        """Take note that a client has sent all; begin to answer it."""
        stream.deadline = inf
        stream.is_whole = True
        self.calm.earn()
        method = stream.call.method
        if not isinstance(method, Unary):
            stream.stir()
            return
        message = stream.message()
        self._free(stream)
        if message is None:
            detail = "expected one message, uncompressed, and nothing behind it"
            self._fail(number, stream, Failed(Code.INVALID_ARGUMENT, detail))
            return
        self._running += 1
        self._loop.create_task(self._answer(number, stream.call, method, message))

    async def _answer(self, number: int, call: Call, method: Unary, message: bytes) -> None:
        try:
            reply = await method.answer(message, call)
        except Exception as error:
            self._running -= 1
            self._fail(number, self._streams.get(number), error)
            return
        self._running -= 1
        stream = self._streams.get(number)
        if stream is None:
            # The client has given up.
            if method.undelivered is not None:
                method.undelivered(reply)
            return
        if self._sending.answer(number, stream.window, reply):
            del self._streams[number]
            if self.is_last:
                self._end_if_last()
            return
        stream.put(reply)
        stream.end = calls.END
        self._send(number, stream)

    async def _stream(self, number: int, stream: Stream, method: Streamed) -> None:
        def release(size: int) -> None:
            self._release(size)
            if not stream.is_whole:
                self._sending.write(frames.window_update(number, size))

        messages = stream.incoming(self._limits.max_message, release)
        try:
            async for reply in method.answer(messages, stream.call):
                stream.put(reply)
                self._send(number, stream)
                # Others have their turn; and nothing piles up that the client does not take.
                await asyncio.sleep(0)
                while stream.waiting or self._sending.is_paused:
                    await stream.stirred()
        except Exception as error:
            self._fail(number, stream, error)
            return
        stream.end = calls.END
        self._send(number, stream)

    def _count_done(self, task: asyncio.Task[None]) -> None:
        self._running -= 1

    def _send(self, number: int, stream: Stream) -> None:
        """Send what may be sent of what waits."""
        if number not in self._streams:
            return
        if self._sending.send(number, stream):
            if not stream.is_whole:
                self._sending.write(frames.reset(number, Error.NO_ERROR))
            self._drop(number, stream)
        elif not stream.waiting:
            stream.send_by = inf
            stream.stir()
        elif stream.send_by == inf:
            stream.send_by = self._loop.time() + self._limits.write_timeout

    def _send_waiting(self) -> None:
        for number, stream in list(self._streams.items()):
            if stream.waiting:
                self._send(number, stream)

    def _fail(self, number: int, stream: Stream | None, error: Exception) -> None:
        """End a call without an answer, or in the middle of answers."""
        known = _known(error)
        if stream is None or number not in self._streams:
            return  # the client has given up
        make = calls.trailers if stream.has_begun else calls.failure
        headers = make(known.code, str(known))
        self._sending.refuse(number, headers, is_ended=stream.is_whole)
        self._drop(number, stream)

    def _drop(self, number: int, stream: Stream) -> None:
        """Forget a call."""
        del self._streams[number]
        _cancel(stream)
        self._free(stream)
        if self.is_last:
            self._end_if_last()

    def _end_if_last(self) -> None:
        if not self._streams:
            self._done()

    # How much lies here.

    def _free(self, stream: Stream) -> None:
        size, stream.received = stream.received, 0
        self._release(size)

    def _release(self, size: int) -> None:
        """Let the client send as much again as is held no more, if it is worth a frame."""
        more = self.room.free(size)
        if more:
            self._sending.write(frames.window_update(0, more))


def _expect_window(window: int) -> None:
    if window > frames.MAX_WINDOW:
        raise Broken(Error.FLOW_CONTROL_ERROR, "a window is too large")


def _cancel(stream: Stream) -> None:
    task = stream.task
    if task is not None and task is not asyncio.current_task():
        task.cancel()


def _known(error: Exception) -> Failed:
    """Return what a client is told; a mistake is logged."""
    if isinstance(error, Failed):
        return error
    _logger.error("a mistake in the service, while it answered gRPC", exc_info=error)
    # Whoever asks decides as when there is nobody to ask.
    return Failed(Code.UNAVAILABLE, "the service made a mistake, and has logged it")
