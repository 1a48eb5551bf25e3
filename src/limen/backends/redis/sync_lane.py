"""A lane for threads: one connection to a server, and the line of those who wait for it.

Who finds the lane free leads: takes everybody who waits along in one call, tells each his answer,
and hands the lead on. So a lone caller waits for nobody, and many threads share the round trips.
The lead goes to the newest who waits: it has the most time left, and so the call gets the most.
"""

from __future__ import annotations

import math
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from limen.backends import Fault
from limen.backends.redis.batch import MAX_REQUESTS, Again, Answer, Call, Request, calls_of
from limen.backends.redis.protocol import NO_REPLY, fault_of, new_reader, pack_command

CONNECT_S = 1.0
"""How long a step of opening a connection may take. No caller waits for that long."""
_GRACE_S = 5.0
_IDLE_S = 1.0
_CHUNK = 65_536


class Wire:
    """A connection: commands out, replies in. Not safe to share."""

    def __init__(self, opened: socket.socket, patience_s: float) -> None:
        self._socket = opened
        self._reader = new_reader()
        # In a call that has the whole patience, the kernel keeps the time: that takes a third of
        # the system calls. Only plain sockets can: not those of TLS, and not those of gevent.
        is_plain = type(opened).__module__ == "socket"
        self._kernel_s = patience_s if is_plain else math.inf
        self._timeout_s: float | None = None
        opened.settimeout(None)
        if is_plain:
            seconds = struct.pack("@ll", int(patience_s), int(patience_s % 1 * 1e6))
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        self.used_at: float = time.monotonic()
        self.owed: int = 0
        """How many replies are still to come that nobody waits for any more."""

    def send(self, packet: bytes, ends: float, replies: int = 1) -> None:
        """Write it all, or raise."""
        self.owed += replies
        self._set_timeout(ends)
        try:
            self._socket.sendall(packet)
        except BlockingIOError:
            raise TimeoutError("timed out") from None

    def receive(self, ends: float) -> object:
        """Return the next of the replies that are owed; an error of the server is one too."""
        while (reply := self._reader.gets()) is NO_REPLY:
            self._set_timeout(ends)
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                raise TimeoutError("timed out") from None
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        self.owed -= 1
        return reply

    def _set_timeout(self, ends: float) -> None:
        left_s = max(ends - time.monotonic(), 0.001)
        timeout_s = None if 0.9 < left_s / self._kernel_s < 1.1 else left_s
        if timeout_s is not None or self._timeout_s is not None:
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s

    def ask(self, *command: str, ends: float) -> object:
        """Send one command and return its reply."""
        self.send(pack_command(command), ends)
        return self.receive(ends)

    def is_fresh(self) -> bool:
        """Return whether it can be trusted. What can be read before anything was asked cannot."""
        if self.owed or time.monotonic() - self.used_at < _IDLE_S:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            return not selector.select(0)

    def close(self) -> None:
        """Close this process's end; after a fork the other process keeps its own."""
        self._socket.close()


class Ticket:
    """A caller's place in a lane."""

    __slots__ = ("answer", "ends", "gate", "has_lead", "leads", "request")

    def __init__(self, request: Request, ends: float) -> None:
        self.request: Request = request
        self.ends: float = ends
        self.answer: Answer | None = None
        self.gate: Any = None
        """A lock that opens when there is an answer, or the lead; None for who never waited."""
        self.has_lead: bool = False
        """Whether the lead was handed to it."""
        self.leads: bool = False
        """Whether it leads, and has sent a batch whose replies it has to read."""

    def tell(self, answer: Answer) -> None:
        """Give the answer to whoever waits here."""
        self.answer = answer
        if self.gate is not None:
            self.gate.release()


class Lane:
    """The way to one server."""

    def __init__(self, open_wire: Callable[[], Wire], where: str, deadline: float) -> None:
        self._open_wire = open_wire
        self._where = where
        self._deadline = deadline
        self._wire: Wire | None = None
        self.begin()

    def begin(self) -> None:
        """Start from nothing. After a fork too: locks and connection are the other process's."""
        self._mutex = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._batch: list[Ticket] = []
        self._calls: list[Call[Ticket]] = []
        self._sent_at = 0.0
        self._led_until = 0.0
        """By when who leads should have handed on; 0.0 when nobody leads."""
        self.drop()

    def drop(self) -> None:
        """Close the connection; the next leader has another one opened."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def start(self, first: Ticket, *others: Ticket) -> None:
        """Stand in line with one's tickets; where there is none, lead: send them at once."""
        with self._mutex:
            for ticket in others:
                self._stand(ticket)
            if self._led_until:
                self._stand(first)
                return
            self._led_until = first.ends
        self._send(first)

    def finish(self, ticket: Ticket) -> Answer:
        """Return the answer to a ticket that was started, when it is there or its time is over."""
        while ticket.answer is None:
            if ticket.leads:
                self._receive(ticket)
            else:
                self._wait(ticket)
        return ticket.answer

    def _stand(self, ticket: Ticket) -> None:
        ticket.gate = threading.Lock()
        ticket.gate.acquire()
        self._waiting.append(ticket)

    def _send(self, ticket: Ticket) -> None:
        """As the leader, send what waits. Without a connection, have one opened, and wait too."""
        try:
            wire = self._wire
            if wire is None or not wire.is_fresh():
                self._connect_behind(ticket)
                return
            self._take(ticket)
            self._calls = calls_of(self._batch)
            self._sent_at = time.monotonic()
            packet = b"".join([call.encode() for call in self._calls])
            wire.send(packet, ticket.ends, _replies(self._calls))
            ticket.leads = True
        except BaseException as error:
            self._break_off(ticket, error)
            if not isinstance(error, Exception):
                raise

    def _take(self, ticket: Ticket) -> None:
        batch = self._batch = [ticket]
        if self._waiting:
            with self._mutex:
                while self._waiting and len(batch) < MAX_REQUESTS:
                    batch.append(self._waiting.popleft())

    def _receive(self, ticket: Ticket) -> None:
        """As the leader, read the replies, tell everybody, and hand the lead on."""
        ticket.leads = False
        try:
            wire = self._wire
            assert wire is not None
            is_right = True
            for _ in range(wire.owed - _replies(self._calls)):
                wire.receive(ticket.ends)  # too late for whoever asked
            for call in self._calls:
                reply = wire.receive(ticket.ends)
                if call.asks_first:
                    reply = wire.receive(ticket.ends)
                for waiter, answer in call.answers(reply, self._where):
                    is_right = is_right and not (type(answer) is Again and answer.fresh)
                    waiter.tell(answer)
            wire.used_at = time.monotonic()
            if not is_right:
                self.drop()
        except TimeoutError as error:
            # A call that began late in its caller's time proves nothing against the connection:
            # the replies are left for the next leader to skip. Were it dropped, a server to which
            # connecting takes nearly the whole deadline would never be reached.
            if ticket.ends - self._sent_at > 0.9 * self._deadline:
                self.drop()
            self._end_batch(ticket, fault_of(error, self._where))
        except BaseException as error:
            self._break_off(ticket, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._hand_on()

    def _break_off(self, ticket: Ticket, error: BaseException) -> None:
        """End a call that failed half-way. Its connection may yet bring the replies: drop it."""
        self.drop()
        self._end_batch(ticket, fault_of(error, self._where))

    def _end_batch(self, ticket: Ticket, fault: Fault) -> None:
        for waiter in self._batch or [ticket]:
            if waiter.answer is None:
                waiter.tell(fault)
        self._hand_on()

    def _hand_on(self) -> None:
        self._batch, self._calls = [], []
        with self._mutex:
            if not self._waiting:
                self._led_until = 0.0
                return
            following = self._waiting.pop()
            following.has_lead = True
            self._led_until = following.ends
        following.gate.release()

    def _wait(self, ticket: Ticket) -> None:
        """Wait for an answer, or for the lead; until the time is over."""
        try:
            ticket.gate.acquire(timeout=max(ticket.ends - time.monotonic(), 0))
        except BaseException:
            # Nobody will stand here any more: a lead that was handed over goes on to the next.
            if self._step_out(ticket):
                self._hand_on()
            raise
        if ticket.answer is not None:
            return
        if not self._step_out(ticket):
            if ticket.answer is None:
                ticket.answer = Fault("timeout", f"{self._where}: no answer in time")
        elif ticket.ends > time.monotonic():
            self._send(ticket)
        else:
            ticket.answer = Fault("timeout", f"{self._where}: no answer in time")
            self._hand_on()

    def _step_out(self, ticket: Ticket) -> bool:
        """Leave the line; return whether with the lead."""
        with self._mutex:
            if ticket.has_lead:
                ticket.has_lead = False
                return True
            if ticket.answer is None:
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                if 0.0 < self._led_until < time.monotonic() - _GRACE_S:
                    # Who led was torn away before it could hand on: take the lead from it.
                    self.drop()
                    self._led_until = time.monotonic() + _GRACE_S
                    return True
            return False

    def _connect_behind(self, ticket: Ticket) -> None:
        """Have a connection opened by a thread that leads meanwhile, and stand in line.

        Opening takes several steps, and together they may take longer than any caller has.
        """
        self.drop()
        with self._mutex:
            self._stand(ticket)
            self._led_until = time.monotonic() + CONNECT_S
        try:
            threading.Thread(target=self._connect, name="limen-connect", daemon=True).start()
        except RuntimeError:
            # No thread to be had: the interpreter ends, or the system has no more.
            with self._mutex:
                self._waiting.remove(ticket)
            raise

    def _connect(self) -> None:
        try:
            self._wire = self._open_wire()
        except BaseException as error:
            fault = fault_of(error, self._where)
            with self._mutex:
                waiting, self._waiting = self._waiting, deque()
                self._led_until = 0.0
            for waiter in waiting:
                waiter.tell(fault)
            return
        self._hand_on()


def _replies(calls: list[Call[Ticket]]) -> int:
    return sum([1 + call.asks_first for call in calls])
