"""For threads: connections to the service, and the line of those who wait for a decision.

Who finds a call free leads: takes everybody who waits along in one call, tells each his answer, and
hands the lead on. So a lone caller waits for nobody, and many threads share the calls. The lead
goes to the newest who waits: it has the most time left, and so the call gets the most.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from limen import behind
from limen.client.address import Address
from limen.client.http1 import Reader, Response
from limen.client.questions import Asked
from limen.client.tickets import MAX_CALLS, MAX_IDLE, MAX_OTHERS, Answer, late, take

_CHUNK = 65_536


class Wire:
    """A connection: a request out, a response in. Not safe to share."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._reader = Reader()

    def is_fresh(self) -> bool:
        """Return whether it can be trusted. What can be read before anything was asked cannot."""
        try:
            self._socket.settimeout(0)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def exchange(self, data: bytes, ends: float) -> Response:
        """Send a request and return the response to it. Raises `OSError` or `Garbled`."""
        sent, view = 0, memoryview(data)
        while sent < len(data):
            self._socket.settimeout(_left(ends))
            sent += self._socket.send(view[sent:])
        while True:
            self._socket.settimeout(_left(ends))
            received = self._socket.recv(_CHUNK)
            response = self._reader.feed(received) if received else self._reader.end()
            if response is not None:
                return response

    def close(self) -> None:
        """Close this process's end; after a fork the other process keeps its own."""
        with suppress(OSError):
            self._socket.close()


class _Opening:
    """A connection that is being opened, and whoever waits for it."""

    def __init__(self, until: float) -> None:
        self.until = until
        """By when it should be there; else who opens it is lost, and nobody is to wait for it."""
        self.done = threading.Event()
        self.is_left = False
        """Whether nobody waits for it any more."""
        self.wire: Wire | None = None
        self.error: Exception | None = None


class Pool:
    """The connections of one client. Safe to share between threads."""

    def __init__(self, address: Address, context: ssl.SSLContext | None, patience_s: float) -> None:
        self._address = address
        self._context = context
        self._patience_s = patience_s
        """How long opening may take. No caller waits for longer than its own time."""
        self._idle: list[Wire] = []
        self.begin()

    def begin(self) -> None:
        """Start from nothing. After a fork too: locks and connections are the other process's."""
        self._mutex = threading.Lock()
        self._others = threading.BoundedSemaphore(MAX_OTHERS)
        idle, self._idle = self._idle, []
        self._left: list[_Opening] = []
        self._round = object()
        """What is given back from before a `close` is not taken."""
        for wire in idle:
            wire.close()

    def close(self) -> None:
        """Let go of every connection; of those in use, when they are given back."""
        with self._mutex:
            idle, self._idle = self._idle, []
            self._left = []
            self._round = object()
        for wire in idle:
            wire.close()

    def exchange(self, data: bytes, ends: float) -> Response:
        """Send a request and return the response to it. Raises `OSError` or `Garbled`."""
        round_ = self._round
        wire = self._take(ends)
        try:
            response = wire.exchange(data, ends)
        except BaseException:
            wire.close()
            raise
        if response.keeps:
            self._give(wire, round_)
        else:
            wire.close()
        return response

    def exchange_alone(self, data: bytes, ends: float) -> Response:
        """Do the same for what shares no call with others, of which there may be many."""
        if not self._others.acquire(timeout=_left(ends)):
            raise TimeoutError("timed out")
        try:
            return self.exchange(data, ends)
        finally:
            self._others.release()

    def _take(self, ends: float) -> Wire:
        while True:
            with self._mutex:
                wire = self._idle.pop() if self._idle else None
            if wire is None:
                return self._open_behind(ends)
            if wire.is_fresh():
                return wire
            wire.close()

    def _give(self, wire: Wire, round_: object) -> None:
        with self._mutex:
            if round_ is self._round and len(self._idle) < MAX_IDLE:
                self._idle.append(wire)
                return
        wire.close()

    def _open_behind(self, ends: float) -> Wire:
        """Have a connection opened by another thread, and wait for it.

        To find the host, to connect and to shake hands may together take longer than any caller
        has. Who gives up leaves it to the next.
        """
        now = time.monotonic()
        with self._mutex:
            self._left = [each for each in self._left if each.until > now]
            opening = self._left.pop() if self._left else None
            if opening is not None:
                opening.is_left = False
        if opening is None:
            opening = _Opening(now + 2 * self._patience_s)
            behind.start(self._open, opening, self._round)
        try:
            opening.done.wait(_left(ends))
        finally:
            with self._mutex:
                is_ours = opening.done.is_set()
                if not is_ours:
                    opening.is_left = True
                    self._left.append(opening)
        # It may be there by now: if we left it before that, it is somebody else's.
        if is_ours and opening.wire is not None:
            return opening.wire
        raise (opening.error if is_ours else None) or TimeoutError("timed out")

    def _open(self, opening: _Opening, round_: object) -> None:
        try:
            opening.wire = self._connect()
        except Exception as error:
            opening.error = error
        with self._mutex:
            opening.done.set()
            if not opening.is_left:
                return
            if opening in self._left:
                self._left.remove(opening)
        if opening.wire is not None:
            self._give(opening.wire, round_)

    def _connect(self) -> Wire:
        ends = time.monotonic() + self._patience_s
        opened = socket.create_connection((self._address.host, self._address.port), _left(ends))
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                opened.settimeout(_left(ends))
                opened = self._context.wrap_socket(opened, server_hostname=self._address.host)
        except BaseException:
            opened.close()
            raise
        return Wire(opened)


class Ticket:
    """A caller's place in the line."""

    __slots__ = ("answer", "asked", "ends", "gate", "leads")

    def __init__(self, asked: Asked, ends: float) -> None:
        self.asked: Asked = asked
        self.ends: float = ends
        self.answer: Answer | None = None
        self.leads: bool = False
        self.gate: Any = None
        """A lock that opens when there is an answer, or the lead; None for who does not wait."""

    @property
    def is_done(self) -> bool:
        """Whether there is an answer, or nobody waits for one any more."""
        return self.answer is not None

    def tell(self, answer: Answer) -> None:
        """Give the answer to whoever still waits."""
        if self.answer is None:
            self.answer = answer
            gate = self.gate
            if gate is not None:
                gate.release()


class Line:
    """Those who wait for a decision."""

    def __init__(self, call: Callable[[list[Ticket], float], None]) -> None:
        self._call = call
        self.begin()

    def begin(self) -> None:
        """Start from nothing, also in the child of a fork."""
        self._mutex = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._calls = 0

    def ask(self, ticket: Ticket) -> Answer:
        """Return the answer to a ticket, when it is there or its time is over."""
        mutex = self._mutex
        try:
            with mutex:
                if self._calls < MAX_CALLS:
                    # In this order: torn away in between, one leaves a call too many, not too few.
                    ticket.leads = True
                    self._calls += 1
                else:
                    ticket.gate = threading.Lock()
                    ticket.gate.acquire()
                    self._waiting.append(ticket)
            if not ticket.leads:
                ticket.gate.acquire(timeout=_left(ticket.ends))
            self._step_out(ticket)
            if ticket.leads and ticket.answer is None and ticket.ends > time.monotonic():
                self._lead(ticket)
        except BaseException:
            self._step_out(ticket)
            raise
        finally:
            if ticket.leads:
                self._hand_on()
        return late() if ticket.answer is None else ticket.answer

    def _step_out(self, ticket: Ticket) -> None:
        """Leave the line: for an answer, for the lead, or because the time is over."""
        with self._mutex:
            ticket.gate = None
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                # Nobody will have asked for it.
                ticket.answer = late()

    def _lead(self, ticket: Ticket) -> None:
        with self._mutex:
            batch = take(self._waiting, ticket)
        try:
            self._call(batch, ticket.ends)
        finally:
            for each in batch:
                each.tell(late())

    def _hand_on(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._calls -= 1
                return
            following = self._waiting.pop()
            following.leads = True
            following.gate.release()


def _left(ends: float) -> float:
    # Never 0, which would mean not to wait at all, and be another error.
    return max(ends - time.monotonic(), 0.000_1)
