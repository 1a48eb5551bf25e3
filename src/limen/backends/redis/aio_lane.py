"""A lane for asyncio: one connection to a server, and the requests that share it.

At most two packets are in flight. A lane is a protocol on the loop's own transport: no task stands
between a reply and its callers. A lane belongs to one loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from msgspec import structs

from limen._internal.batcher import NEVER_S, Batcher, QueuedRequest
from limen._internal.deadline import ActiveClock
from limen.backends import Fault
from limen.backends.circuit_breaker import CircuitBreaker
from limen.backends.redis.batch import (
    MAX_REQUESTS,
    Again,
    Answer,
    Call,
    Request,
    calls_of,
    is_suspicious,
)
from limen.backends.redis.protocol import NO_REPLY, Reader, fault_of, late, new_reader
from limen.connect import Address, Opened

_MAX_PACKETS = 2
_WORTH_TWO = 32

Queued = QueuedRequest[Request, Answer]


class Lane(Batcher[Request, Answer], asyncio.Protocol):
    """The way to one server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_stream: Callable[[], Awaitable[Opened]],
        address: Address,
        where: str,
        deadline: float,
        clock: ActiveClock,
        breaker: CircuitBreaker,
        on_open: Callable[[Lane], object],
    ) -> None:
        super().__init__(loop, clock, _MAX_PACKETS, partial(late, where))
        self.address: Address = address
        self.breaker: CircuitBreaker = breaker
        self._on_open = on_open
        self._open_stream = open_stream
        self._where = where
        self._deadline = deadline
        self._calls: deque[Call[Queued]] = deque()
        """What was sent and not answered, in that order."""
        self._writer: asyncio.StreamWriter | None = None
        self._is_stale = False
        """Whether the connection leads to who was the primary."""
        self._reader: Reader = new_reader()
        self._connecting: asyncio.Task[None] | None = None
        self._connecting_since = 0.0

    def renew(self) -> None:
        """Have another connection opened as soon as nobody waits for a reply of this one."""
        self._is_stale = True

    def close(self) -> None:
        """Let go of the connection. Who still waits is told so."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._stop_timer()
        self._lose(Fault("connection", f"{self._where}: the limiter was closed"), everybody=True)

    def _flush(self) -> None:
        """Send what waits, as one packet."""
        if self._is_stale:
            if self._calls:
                return
            self._is_stale = False
            if self._writer is not None:
                self._writer.transport.abort()
                self._writer = None
        if self._writer is None:
            if self._queue and self._connecting is None:
                self._connecting_since = self._clock.now()
                self._connecting = self._loop.create_task(self._connect())
            return
        # In two halves: the server works on one while this process works on the other. What is
        # under way counts too, or else behind a packet of one all the others would be the next.
        most, waiting = MAX_REQUESTS, len(self._queue)
        together = waiting + sum([len(call.waiters) for call in self._calls])
        if together >= _WORTH_TWO:
            most = min(most, (together + 1) // 2)
            if waiting > most and not self._in_flight:
                self._flush_soon()
        batch = self._take(most)
        if batch:
            calls, now = calls_of(batch), self._clock.now()
            for call in calls:
                call.sent_at = now
            calls[-1].ends_packet = True
            self._in_flight += 1
            self.breaker.batches.add(len(batch))
            self._calls.extend(calls)
            self._writer.write(b"".join([call.encode() for call in calls]))

    def data_received(self, data: bytes) -> None:
        """Tell those who wait what the server replied."""
        reader = self._reader
        try:
            reader.feed(data)
            while self._calls and (reply := reader.gets()) is not NO_REPLY:
                if self._calls[0].asks_first:
                    self._calls[0].asks_first = False
                    continue
                call, now = self._calls[0], self._clock.now()
                answers = call.answers(reply, self._where)
                self._calls.popleft()
                self._in_flight -= call.ends_packet
                strange: Fault | Again | None = None
                for queued, answer in answers:
                    if not isinstance(answer, bytes) and not is_suspicious(strange):
                        strange = answer
                    queued.set_answer(answer)
                self._take_note(call, strange, now)
                if is_suspicious(strange):
                    return
            if not self._calls and reader.has_data():
                # It says more than it was asked: the next caller would be told that.
                self._lose(Fault("protocol", f"{self._where}: more replies than requests"))
                return
        except Exception as error:
            self._lose(fault_of(error, self._where))
            return
        # Behind the callers that were just answered: their next requests share the packet.
        self._flush_soon()

    def _take_note(self, call: Call[Queued], strange: Fault | Again | None, now: float) -> None:
        """See what a reply says of the server, and of the connection that brought it.

        Once for each packet: what came together failed together.
        """
        if not call.ends_packet and not is_suspicious(strange):
            return
        if isinstance(strange, Fault):
            if is_suspicious(strange):
                self._lose(strange)
            else:
                self._failed(strange)
        elif is_suspicious(strange):
            # Not what those behind it are told: another one may have taken their writes.
            wrong = Fault("connection", f"{self._where}: it led to a wrong server")
            self._lose(wrong, counts=False)
            self._failed(Fault("readonly", f"{self._where}: it takes no writes any more"))
        else:
            breaker, took_s = self.breaker, now - call.sent_at
            breaker.trips.add(took_s)
            is_slow = took_s > breaker.slow_s
            if (is_slow or breaker.is_alert) and breaker.answered(self._loop.time(), is_slow):
                self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell those whose call was under way."""
        if self._writer is not None:
            error = exc or ConnectionError("the server closed the connection")
            self._lose(fault_of(error, self._where))

    def _lose(self, fault: Fault, *, everybody: bool = False, counts: bool = True) -> None:
        """Give up the connection: the replies to what was sent will never be known."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()
        calls, self._calls, self._in_flight = self._calls, deque(), 0
        for call in calls:
            for queued in call.waiters:
                queued.set_answer(fault)
        if everybody or writer is None:
            waiting, self._queue = self._queue, deque()
            unsent = structs.replace(fault, unsent=True)
            for queued in waiting:
                queued.set_answer(unsent)
        else:
            self._flush_soon()
        # A connection that ends while nobody uses it is no failure.
        if counts and not everybody and (calls or writer is None or fault.kind == "protocol"):
            self._failed(fault)

    def _failed(self, fault: Fault) -> None:
        if self.breaker.failed(self._loop.time(), fault):
            self._on_open(self)

    async def _connect(self) -> None:
        try:
            writer = await self._open_writer()
        except Exception as error:
            self._lose(fault_of(error, self._where))
        else:
            # Kept, because a stream that is forgotten closes its connection.
            self._writer = writer
            self._reader = new_reader()
            writer.transport.set_protocol(self)
            self._flush()
        finally:
            self._connecting = None

    async def _open_writer(self) -> asyncio.StreamWriter:
        """Open a connection. Try again if the time ran out because this process was paused."""
        while True:
            active_s, start_s = self._clock.now(), time.monotonic()
            try:
                return (await self._open_stream())[1]
            except Exception as error:
                took_s = time.monotonic() - start_s
                was_paused = self._clock.now() - active_s < took_s / 2
                # Without a waiting request the clock does not tick, and nothing is known of pauses.
                is_ours = was_paused and bool(self._queue)
                if fault_of(error, self._where).kind != "timeout" or not is_ours:
                    raise

    def _sent(self) -> Iterable[Queued]:
        return [queued for call in self._calls for queued in call.waiters]

    def _check_in_flight(self, now: float) -> float:
        fault = late(self._where, unsent=False)
        if self._connecting and now >= self._connecting_since + self.breaker.slow_s:
            self._connecting_since = now
            self._failed(fault)
        if not self._calls:
            return NEVER_S
        # A call that had the whole deadline proves the connection dead: all behind it would hang as
        # well. One that began late in its callers' time proves nothing yet.
        overdue_at = self._calls[0].sent_at + self._deadline
        if now < overdue_at:
            return overdue_at
        self._lose(fault)
        return NEVER_S
