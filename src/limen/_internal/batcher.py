"""Requests of one event loop that are sent together, with deadlines that do not count pauses.

At most a few batches are in flight; requests that are made meanwhile share the next one. A batch is
sent by the loop and not by the task of a caller, so a cancelled caller cancels no other request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from limen._internal.deadline import ActiveClock

R = TypeVar("R")
A = TypeVar("A")
NEVER_S = float("inf")
_MIN_WAIT_S = 0.001
"""The shortest timer: some loops round a shorter one down to none."""


class QueuedRequest(Generic[R, A]):
    """A request and the future of its answer."""

    __slots__ = ("ends", "future", "request")

    def __init__(self, request: R, ends: float, future: asyncio.Future[A]) -> None:
        self.request: R = request
        self.ends: float = ends
        self.future: asyncio.Future[A] = future

    @property
    def is_done(self) -> bool:
        """Whether it was answered, or its caller was cancelled."""
        return self.future.done()

    def set_answer(self, answer: A) -> None:
        """Answer the request, unless it is done."""
        if not self.future.done():
            self.future.set_result(answer)


class Batcher(Generic[R, A]):
    """A queue of requests. A subclass sends them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: ActiveClock,
        max_in_flight: int,
        late: Callable[..., A],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._max_in_flight = max_in_flight
        self._late = late
        """Return the answer to a request whose deadline has passed; `unsent` if it was queued."""
        self._queue: deque[QueuedRequest[R, A]] = deque()
        self._in_flight = 0
        """How many batches were sent and not answered."""
        self._will_flush = False
        self._timer: asyncio.TimerHandle | None = None
        """Ticks the clock while a request waits."""
        self._next_end = NEVER_S
        """The earliest time at which a deadline may have passed."""

    def ask(self, request: R, ends: float) -> asyncio.Future[A]:
        """Queue a request; return the future of its answer, which comes at the deadline at last."""
        future: asyncio.Future[A] = self._loop.create_future()
        self._queue.append(QueuedRequest(request, ends, future))
        if self._in_flight < self._max_in_flight and not self._will_flush:
            self._flush_soon()
        if self._timer is None:
            # Nothing waited until now: the clock has not ticked for a while.
            self._clock.tick()
            self._next_end = ends
            self._set_timer()
        elif ends < self._next_end:
            self._next_end = ends
            self._set_timer()
        return future

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for an answer."""
        return not (self._queue or self._in_flight)

    def _flush(self) -> None:
        """Send queued requests."""
        raise NotImplementedError

    def _sent(self) -> Iterable[QueuedRequest[R, A]]:
        """Return the requests in flight."""
        raise NotImplementedError

    def _check_in_flight(self, now: float) -> float:
        """Check the batches in flight after a deadline has passed; return when to check again."""
        return NEVER_S

    def _flush_soon(self) -> None:
        """Flush once at the end of this turn of the loop: other tasks may add requests by then."""
        if self._queue and self._in_flight < self._max_in_flight and not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._will_flush = False
        self._flush()

    def _take(self, most: int) -> list[QueuedRequest[R, A]]:
        """Take requests from the queue, without those that were cancelled or are too late."""
        batch: list[QueuedRequest[R, A]] = []
        while self._queue and len(batch) < most:
            queued = self._queue.popleft()
            if not queued.is_done:
                batch.append(queued)
        return batch

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left_s = max(self._next_end - self._clock.now(), _MIN_WAIT_S)
        self._timer = self._loop.call_later(min(left_s, self._clock.tick_s), self._tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        """Tick the clock, and answer the requests whose deadline has passed.

        After a pause of this process the clock has hardly advanced. The loop reads the replies that
        arrived meanwhile before the next tick.
        """
        self._timer = None
        now = self._clock.tick()
        if self.is_idle:
            self._next_end = NEVER_S
        overdue = self._expire(now) if now >= self._next_end else []
        if self._next_end < NEVER_S:
            self._set_timer()
        # At last: a caller may make the next request at once, with a deadline of its own.
        for queued, answer in overdue:
            queued.set_answer(answer)

    def _expire(self, now: float) -> list[tuple[QueuedRequest[R, A], A]]:
        """Return the requests whose deadline has passed, and set the next end."""
        late, unsent = self._late(unsent=False), self._late(unsent=True)
        pending = [(queued, late) for queued in self._sent()]
        pending += [(queued, unsent) for queued in self._queue]
        self._next_end = NEVER_S
        overdue: list[tuple[QueuedRequest[R, A], A]] = []
        for queued, answer in pending:
            if queued.is_done:
                continue
            if queued.ends <= now:
                overdue.append((queued, answer))
            elif queued.ends < self._next_end:
                self._next_end = queued.ends
        self._next_end = min(self._next_end, self._check_in_flight(now))
        return overdue


class TaskBatcher(Batcher[R, A]):
    """Sends each batch by a task of its own."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: ActiveClock,
        send: Callable[[list[QueuedRequest[R, A]]], Awaitable[list[A]]],
        late: Callable[..., A],
        *,
        max_in_flight: int,
        max_batch: int,
    ) -> None:
        super().__init__(loop, clock, max_in_flight, late)
        self._send = send
        """Return the answers to a batch."""
        self._max_batch = max_batch
        self._batches: dict[asyncio.Task[None], list[QueuedRequest[R, A]]] = {}

    def close(self, answer: A) -> None:
        """Answer all requests, and cancel what is in flight."""
        for queued in [*self._queue, *self._sent()]:
            queued.set_answer(answer)
        for task in self._batches:
            task.cancel()

    def _flush(self) -> None:
        while self._in_flight < self._max_in_flight and (batch := self._take(self._max_batch)):
            self._in_flight += 1
            task = self._loop.create_task(self._run(batch))
            self._batches[task] = batch
            task.add_done_callback(self._ended)

    def _sent(self) -> Iterable[QueuedRequest[R, A]]:
        return [queued for batch in self._batches.values() for queued in batch]

    async def _run(self, batch: list[QueuedRequest[R, A]]) -> None:
        for queued, answer in zip(batch, await self._send(batch), strict=True):
            queued.set_answer(answer)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._in_flight -= 1
        error = None if task.cancelled() else task.exception()
        for queued in self._batches.pop(task):
            if error is not None and not queued.is_done:
                queued.future.set_exception(error)
        # Behind the callers that were just answered: their next requests share the batch.
        self._flush_soon()
