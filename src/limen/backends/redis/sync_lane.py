"""A lane for threads: one connection to a server, and the line of those who wait for it.

Who finds the lane free leads: takes everybody who waits along in one call, tells each his answer,
and hands the lead on. So a lone caller waits for nobody, and many threads share the round trips.
The lead goes to the newest who waits: it has the most time left, and so the call gets the most.
"""

from __future__ import annotations

import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import structs

from limen import behind
from limen.backends import Fault
from limen.backends.redis.batch import (
    MAX_REQUESTS,
    Again,
    Answer,
    Call,
    Request,
    calls_of,
    is_suspicious,
)
from limen.backends.redis.breaker import Breaker
from limen.backends.redis.deadline import Deadline
from limen.backends.redis.protocol import NO_REPLY, fault_of, late, new_reader, pack_command
from limen.connect import Address
from limen.cores import cores

CONNECT_S = 1.0
"""By when a connection should be open; only to tell who opens one from who is lost."""
_GRACE_S = 5.0
_BIRTH_S = 0.5
"""After which a thread that has not begun is taken for one that never will: see `limen.behind`."""
_IDLE_S = 1.0
_CHUNK = 16_384
_WATCHED_S = 0.000_3
"""How soon replies have to come, for a caller to look out for one and not to sleep. It does so for
twice the usual time at most: a core is busy meanwhile."""
_SLEPT = 32
"""After how many times asleep a caller looks out once, to see whether replies come sooner now."""
_CORES = cores()
_OURS = frozenset(
    {"builtins", "eventlet", "gevent", "hiredis", "limen", "redis", "select", "socket", "ssl"}
)
"""Where the errors come from that mean that a server cannot be reached, or that we are wrong."""
_EARLY_S = 0.005
"""How much sooner than it should a socket may give up."""


class Expired(TimeoutError):
    """The deadline of a call has passed."""


class Wire:
    """A connection: commands out, replies in. Not safe to share."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket: socket.socket = opened
        self._reader = new_reader()
        # To poll and then to read takes half the system calls of a time-out of the socket's. Only
        # plain sockets can: not those of TLS, which hold data back, and not those of gevent.
        self._poll: Any = None
        if type(opened).__module__ == "socket" and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(opened, select.POLLIN)
            opened.settimeout(None)
        self._usual_s = _WATCHED_S
        """How long a reply took of late, for those who looked out: to be woken takes longer."""
        self._slept = 0
        """How many did not look out, since the last who did."""
        self._looks_out = True
        """Whether the one who asked last does."""
        self._sent_at = 0.0
        self.used_at: float = time.monotonic()
        self.owed: int = 0
        """How many replies are still to come."""
        self.owes_since: float = 0.0
        """Since when there is one to come."""

    def send(self, packet: bytes, deadline: Deadline, replies: int = 1) -> None:
        """Write it all, or raise."""
        self.owed += replies
        if self._poll is None or len(packet) > _CHUNK:
            # What is shorter fits into the kernel's buffer: it never waits.
            wait_s = max(deadline.left(), 0.001)
            self.socket.settimeout(wait_s)
            waits_until = time.monotonic() + wait_s
            try:
                self.socket.sendall(packet)
            except TimeoutError as error:
                raise (Expired("timed out") if _is_own(error, waits_until) else error) from None
        else:
            self.socket.sendall(packet)
        self._sent_at = time.perf_counter()
        if self._usual_s > _WATCHED_S:
            self._slept = (self._slept + 1) % _SLEPT
        self._looks_out = not self._slept

    def receive(self, deadline: Deadline) -> object:
        """Return the next of the replies that are owed; an error of the server is one too."""
        while (reply := self._reader.gets()) is NO_REPLY:
            data = self._read(deadline)
            if not data:
                raise ConnectionError("the server closed the connection")
            if self._looks_out:
                took_s = min(time.perf_counter() - self._sent_at, 2 * _WATCHED_S)
                self._usual_s += (took_s - self._usual_s) / 8
            self._reader.feed(data)
        self.owed -= 1
        return reply

    def _read(self, deadline: Deadline) -> bytes:
        """Return bytes that have arrived, or raise TimeoutError when the deadline has passed.

        Waits for one tick at a time, so that the deadline notices a pause of this process. After a
        pause, bytes that arrived meanwhile are read before the deadline can pass.
        """
        if self._poll is not None and self._watch():
            return self.socket.recv(_CHUNK)
        while True:
            wait_s = max(deadline.next_wait(), 0.001)
            if self._poll is not None:
                if self._poll.poll(wait_s * 1_000):
                    return self.socket.recv(_CHUNK)
            else:
                self.socket.settimeout(wait_s)
                waits_until = time.monotonic() + wait_s
                try:
                    return self.socket.recv(_CHUNK)
                except TimeoutError as error:
                    if not _is_own(error, waits_until):
                        raise
            if deadline.left() <= 0:
                raise Expired("timed out")

    def _watch(self) -> bool:
        """Look out for a reply that should be here in a moment; return whether it is.

        Where a server is that near, to be woken takes as long as the reply itself. Other threads
        run meanwhile: each look lets go of the interpreter.
        """
        if not self._looks_out or _CORES < 2:
            return False
        end = self._sent_at + 2 * min(self._usual_s, _WATCHED_S)
        while not self._poll.poll(0):
            if time.perf_counter() > end:
                return False
        return True

    def is_done(self) -> bool:
        """Return whether nothing is left that was not asked for."""
        return not self._reader.has_data()

    def ask(self, *command: str, deadline: Deadline) -> object:
        """Send one command and return its reply."""
        self.send(pack_command(command), deadline)
        return self.receive(deadline)

    def is_fresh(self) -> bool:
        """Return whether it can be trusted. What can be read before anything was asked cannot."""
        if self.owed or time.monotonic() - self.used_at < _IDLE_S:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            return not selector.select(0)

    def close(self) -> None:
        """Close this process's end; after a fork the other process keeps its own."""
        self.socket.close()


class Lead:
    """The right to use a lane's connection, and what is done with it. One at a time is current."""

    __slots__ = ("batch", "calls", "is_sent", "left_s", "sent_at", "until", "wire")

    def __init__(self, until: float, wire: Wire | None) -> None:
        self.until: float = until
        """By when it should have been handed on."""
        self.wire: Wire | None = wire
        self.batch: list[Ticket] = []
        self.calls: list[Call[Ticket]] = []
        self.sent_at: float = 0.0
        self.left_s: float = 0.0
        """The seconds left of its leader's deadline when it was sent."""
        self.is_sent: bool = False
        """Whether there are replies to read."""

    def drop_wire(self) -> None:
        """Close the connection; the next leader has another one opened."""
        if self.wire is not None:
            self.wire.close()
            self.wire = None


class Ticket:
    """A caller's place in a lane."""

    __slots__ = ("answer", "deadline", "gate", "is_elsewhere", "is_unsent", "lead", "request")

    def __init__(self, request: Request, deadline: Deadline) -> None:
        self.request: Request = request
        self.deadline: Deadline = deadline
        self.answer: Answer | None = None
        self.gate: Any = None
        """A lock that opens when there is an answer, or the lead; None for who never waited."""
        self.lead: Lead | None = None
        self.is_elsewhere: bool = False
        """Whether its caller waits in another lane first, and could not lead at once."""
        self.is_unsent: bool = False
        """Whether it stood in line until its time was over, or until it led."""

    def tell(self, answer: Answer) -> None:
        """Give the answer to whoever waits here."""
        self.answer = answer
        if self.gate is not None:
            self.gate.release()


class Lane:
    """The way to one server."""

    def __init__(
        self,
        open_wire: Callable[[], Wire],
        address: Address,
        where: str,
        deadline: float,
        breaker: Breaker,
        on_open: Callable[[Lane], object],
    ) -> None:
        self.address: Address = address
        self.breaker: Breaker = breaker
        self._on_open = on_open
        self._open_wire = open_wire
        self._where = where
        self._deadline = deadline
        self._connecting_since: float | None = None
        self._is_stale = False
        """Whether the connection leads to who was the primary."""
        self._wire: Wire | None = None
        self._lead: Lead | None = None
        self.begin()

    def begin(self) -> None:
        """Start from nothing. After a fork too: locks and connection are the other process's."""
        lead, wire = self._lead, self._wire
        self._mutex = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._lead = None
        """Who may use the connection now; None when nobody does."""
        self._wire = None
        """The connection, while nobody uses it."""
        if lead is not None:
            lead.drop_wire()
        if wire is not None:
            wire.close()

    def renew(self) -> None:
        """Have another connection opened by the next who leads."""
        self._is_stale = True

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits here."""
        return self._lead is None

    def close(self) -> None:
        """Let go of the connection. Who leads finds the lead gone, and closes its own."""
        with self._mutex:
            waiting, self._waiting = self._waiting, deque()
            wire, self._wire, self._lead = self._wire, None, None
        if wire is not None:
            wire.close()
        for ticket in waiting:
            ticket.tell(Fault("connection", f"{self._where}: the limiter was closed", unsent=True))

    def start(self, first: Ticket, *others: Ticket) -> None:
        """Stand in line with one's tickets; where there is none, lead: send them at once."""
        with self._mutex:
            for ticket in others:
                self._stand(ticket)
            if self._lead is not None:
                self._stand(first)
                return
            first.lead = self._new_lead(time.monotonic() + first.deadline.left())
        self._send(first, first.lead)

    def finish(self, ticket: Ticket) -> Answer:
        """Return the answer to a ticket that was started, when it is there or its time is over."""
        while ticket.answer is None:
            self.step(ticket)
        return ticket.answer

    def step(self, ticket: Ticket) -> None:
        """Go on with a ticket that was started: read the replies; or wait, and send if it leads."""
        lead = ticket.lead
        if lead is not None and lead.is_sent:
            self._receive(ticket, lead)
        else:
            ticket.is_elsewhere = False
            self._wait(ticket)

    def abandon(self, ticket: Ticket, error: BaseException) -> None:
        """Leave with a ticket, because something was thrown into its caller's thread.

        That may be between any two lines, `start` and `finish` among them. One that leads and does
        not hand on would hold up all others.
        """
        lead = self._step_out(ticket)
        if ticket.answer is None:
            ticket.answer = fault_of(error, self._where)
        if lead is not None:
            self._break_off(ticket, lead, error)

    def _new_lead(self, until: float) -> Lead:
        self._lead = lead = Lead(until, self._wire)
        self._wire = None
        return lead

    def _stand(self, ticket: Ticket) -> None:
        ticket.gate = threading.Lock()
        ticket.gate.acquire()
        # It may have led before, for want of a connection in vain: now anybody may send it.
        ticket.is_unsent = False
        self._waiting.append(ticket)

    def _send(self, ticket: Ticket, lead: Lead) -> None:
        """As the leader, send what waits. Without a connection, have one opened, and wait too."""
        try:
            wire = lead.wire
            if wire is None or self._is_stale or not wire.is_fresh():
                self._is_stale = False
                self._connect_behind(ticket, lead)
                return
            lead.batch = batch = [ticket]
            if self._waiting:
                with self._mutex:
                    while self._waiting and len(batch) < MAX_REQUESTS:
                        batch.append(self._waiting.popleft())
            lead.calls = calls_of(batch)
            lead.sent_at, lead.left_s = time.monotonic(), ticket.deadline.left()
            if not wire.owed:
                wire.owes_since = lead.sent_at
            packet = b"".join([call.encode() for call in lead.calls])
            wire.send(packet, ticket.deadline, _replies(lead.calls))
            lead.is_sent = True
            self.breaker.batches.add(len(batch))
        except BaseException as error:
            if ticket.lead is lead:
                self._break_off(ticket, lead, error)
            if _was_thrown_in(error):
                raise

    def _receive(self, ticket: Ticket, lead: Lead) -> None:
        """As the leader, read the replies, tell everybody, and hand the lead on."""
        try:
            wire = lead.wire
            assert wire is not None
            strange: Fault | Again | None = None
            for _ in range(wire.owed - _replies(lead.calls)):
                wire.receive(ticket.deadline)  # too late for whoever asked
                wire.owes_since = lead.sent_at
            for call in lead.calls:
                reply = wire.receive(ticket.deadline)
                if call.asks_first:
                    reply = wire.receive(ticket.deadline)
                for waiter, answer in call.answers(reply, self._where):
                    if not isinstance(answer, bytes) and not is_suspicious(strange):
                        strange = answer
                    waiter.tell(answer)
            wire.used_at = time.monotonic()
            if is_suspicious(strange) or not wire.is_done():
                # A wrong server; or one that says more, or else, than it was asked: what comes
                # next might be taken for the answer to something else.
                lead.drop_wire()
            self._take_note(lead.left_s - ticket.deadline.left(), strange)
        except BaseException as error:
            if _was_thrown_in(error):
                self._break_off(ticket, lead, error)
                raise
            if isinstance(error, TimeoutError):
                self._gave_up(ticket, lead, error)
            else:
                self._break_off(ticket, lead, error)
        else:
            self._hand_on(ticket, lead)

    def _gave_up(self, ticket: Ticket, lead: Lead, error: TimeoutError) -> None:
        """End a call whose time is over before its replies are there.

        One that began late in its caller's time proves nothing against the connection: the replies
        are left for the next leader to skip. Were it dropped, a server to which connecting takes
        nearly the whole deadline would never be reached.
        """
        fault = fault_of(error, self._where)
        wire = lead.wire
        if wire is not None and time.monotonic() - wire.owes_since > self.breaker.slow_s:
            lead.drop_wire()
            self._failed(fault)
        self._end(ticket, lead, fault)

    def _take_note(self, took_s: float, strange: Fault | Again | None) -> None:
        """Count a reply for the circuit breaker. `took_s` does not include pauses."""
        if isinstance(strange, Fault):
            self._failed(strange)
        elif is_suspicious(strange):
            self._failed(Fault("readonly", f"{self._where}: it takes no writes any more"))
        else:
            breaker = self.breaker
            breaker.trips.add(took_s)
            is_slow = took_s > breaker.slow_s
            if (is_slow or breaker.is_alert) and breaker.answered(time.monotonic(), is_slow):
                self._on_open(self)

    def _failed(self, fault: Fault) -> None:
        if self.breaker.failed(time.monotonic(), fault):
            self._on_open(self)

    def _break_off(self, ticket: Ticket, lead: Lead, error: BaseException) -> None:
        """End a call that failed half-way. Its connection may yet bring the replies: drop it."""
        lead.drop_wire()
        fault = structs.replace(fault_of(error, self._where), unsent=not lead.sent_at)
        if not _was_thrown_in(error):
            self._failed(fault)
        self._end(ticket, lead, fault)

    def _end(self, ticket: Ticket, lead: Lead, fault: Fault) -> None:
        for waiter in lead.batch or [ticket]:
            if waiter.answer is None:
                waiter.tell(fault)
        self._hand_on(ticket, lead)

    def _hand_on(self, ticket: Ticket | None, lead: Lead) -> None:
        with self._mutex:
            if ticket is not None:
                ticket.lead = None
            if self._lead is not lead:
                # It was taken away meanwhile, and the connection goes with who had it.
                lead.drop_wire()
                return
            self._wire, lead.wire = lead.wire, None
            if not self._waiting:
                self._lead = None
                return
            following = self._newest()
            following.is_unsent = True
            following.lead = self._new_lead(time.monotonic() + following.deadline.seconds)
        following.gate.release()

    def _newest(self) -> Ticket:
        """Take the newest out of the line, of those whose callers are here."""
        if self._waiting[-1].is_elsewhere:
            for ticket in reversed(self._waiting):
                if not ticket.is_elsewhere:
                    self._waiting.remove(ticket)
                    return ticket
        return self._waiting.pop()

    def _wait(self, ticket: Ticket) -> None:
        """Wait for an answer, or for the lead; until the time is over."""
        deadline = ticket.deadline
        try:
            while not ticket.gate.acquire(timeout=deadline.next_wait()) and deadline.left() > 0:
                pass
        except BaseException:
            # Nobody will stand here any more: a lead that was handed over goes on to the next.
            lead = self._step_out(ticket)
            if lead is not None:
                self._hand_on(ticket, lead)
            raise
        if ticket.answer is not None:
            return
        lead = self._step_out(ticket)
        if lead is not None and deadline.left() > 0:
            self._send(ticket, lead)
            return
        if ticket.answer is None:
            ticket.answer = fault = late(self._where, unsent=ticket.is_unsent)
            if self._connects_slowly():
                self._failed(fault)
        if lead is not None:
            self._hand_on(ticket, lead)

    def _connects_slowly(self) -> bool:
        """Return whether connecting takes too long; of those who wait for it, to the first."""
        with self._mutex:
            now, since = time.monotonic(), self._connecting_since
            if since is None or now - since <= self.breaker.slow_s:
                return False
            self._connecting_since = now
            return True

    def _step_out(self, ticket: Ticket) -> Lead | None:
        """Leave the line; return the lead, if one goes with it."""
        with self._mutex:
            if ticket.lead is not None or ticket.answer is not None:
                return ticket.lead
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                ticket.is_unsent = True
            if self._lead is not None and self._lead.until < time.monotonic() - _GRACE_S:
                # Who led was torn away before it could hand on: another one leads from now on.
                ticket.lead = self._new_lead(time.monotonic())
            return ticket.lead

    def _connect_behind(self, ticket: Ticket, lead: Lead) -> None:
        """Have a connection opened by a thread that leads meanwhile, and stand in line.

        Opening takes several steps, and together they may take longer than any caller has.
        """
        lead.drop_wire()
        try:
            with self._mutex:
                ticket.lead = None
                self._stand(ticket)
                self._connecting_since = time.monotonic()
                lead.until = self._connecting_since + _BIRTH_S - _GRACE_S
            behind.start(self._connect, lead)
        except BaseException:
            # No thread to be had: the interpreter ends, or the system has no more. Or this one was
            # torn away; if the other began nevertheless, it finds the lead gone.
            with self._mutex:
                if self._lead is lead:
                    ticket.lead = lead
                    if ticket in self._waiting:
                        self._waiting.remove(ticket)
            raise

    def _connect(self, lead: Lead) -> None:
        lead.until = time.monotonic() + CONNECT_S
        try:
            lead.wire = self._open_wire()
        except BaseException as error:
            fault = structs.replace(fault_of(error, self._where), unsent=True)
            self._connecting_since = None
            self._failed(fault)
            with self._mutex:
                if self._lead is not lead:
                    return
                waiting, self._waiting = self._waiting, deque()
                self._lead = None
            for waiter in waiting:
                waiter.tell(fault)
            return
        self._connecting_since = None
        self._hand_on(None, lead)


def _is_own(error: TimeoutError, waits_until: float) -> bool:
    """Return whether a socket has raised a time-out, and not a signal handler meanwhile."""
    return "timed out" in str(error) and time.monotonic() >= waits_until - _EARLY_S


def _was_thrown_in(error: BaseException) -> bool:
    """Return whether an error is not of our doing: a worker's time-out, say, of its signal handler.

    That one is for the caller. Errors of this module are `Expired`, have the number of an error of
    the system, or are of a class of Python's or of redis-py's.
    """
    if isinstance(error, Expired) or (isinstance(error, OSError) and error.errno is not None):
        return False
    if not isinstance(error, Exception) or type(error).__module__.partition(".")[0] not in _OURS:
        return True
    return isinstance(error, TimeoutError)


def _replies(calls: list[Call[Ticket]]) -> int:
    return sum([1 + call.asks_first for call in calls])
