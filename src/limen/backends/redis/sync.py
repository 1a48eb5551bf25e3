"""The driver for threads: sockets that block, one lane for each server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeVar

from limen import behind, fork
from limen.backends import Change, Correct, Fault, Reset, Shard
from limen.backends.redis import across, route, script
from limen.backends.redis.batch import Again, Packer, Request, greet
from limen.backends.redis.breaker import PASSING
from limen.backends.redis.deadline import Deadline
from limen.backends.redis.protocol import fault_of
from limen.backends.redis.sync_lane import Lane, Ticket, Wire
from limen.backends.redis.sync_several import finish_all
from limen.backends.sampled import SampledLog
from limen.connect import Address, Target, open_socket
from limen.model import Check, Reading, receipt_ids

T = TypeVar("T")
_LEAST_REST_S = 0.05


class RedisBackend:
    """Decides on Redis: one server, a primary that sentinels name, or a cluster. For threads."""

    def __init__(self, target: Target, namespace: str, deadline: float) -> None:
        self._target = target
        self._deadline = deadline
        self._router = route.Router(target, deadline)
        self._packer = Packer(namespace, clustered=self._router.clustered)
        self._lanes: dict[Address, Lane] = {}
        self._receipt_ids = receipt_ids()
        self._log = SampledLog()
        self.lost_refunds: int = 0
        """How many reservations could not be given back, and stay charged for their period."""
        self._begin()
        fork.watch(self)

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self._looked_up = threading.Event()
        self._closed = threading.Event()

    def after_fork(self) -> None:
        """Leave the other process its connections, and begin with none."""
        self._begin()
        self._router.begin()
        self._receipt_ids = receipt_ids()
        for lane in self._lanes.values():
            lane.begin()

    def run_all(
        self,
        checks: tuple[Check, ...],
        charge: bool,
        holder: str = "",
        within: float | None = None,
    ) -> tuple[Reading, ...] | Fault:
        """Decide some checks together, all or nothing; return a reading for each, or why not."""
        deadline = Deadline(within or self._deadline)
        if self._packer.is_together(checks):
            reply = self._ask(self._packer.checks(checks, charge, holder), deadline)
            return reply if isinstance(reply, Fault) else script.readings(reply)
        receipt_id = f"{next(self._receipt_ids):016x}"
        steps = across.decide(self._packer, checks, charge, holder, receipt_id)
        return self._drive(steps, deadline)

    def change(self, change: Change) -> bool | Fault:
        """Carry out a change; return whether there was anything to change, or why not."""
        deadline = Deadline(self._deadline)
        if isinstance(change, Correct | Reset):
            return self._drive(across.change(self._packer, change), deadline)
        reply = self._ask(self._packer.change(change), deadline)
        return reply if isinstance(reply, Fault) else bool(reply[1])

    def ping(self) -> Fault | None:
        """Connect to every server there is, and let the script write there; return why not."""
        try:
            if self._router.clustered:
                self._learn_shape()
        except Exception as error:
            return fault_of(error, self._target.shown)
        for address in self._router.servers():
            fault = self._probe(address, (self._router.patient_s,), charge=False)
            if fault is not None:
                return fault
            breaker = self._router.breaker(address)
            if breaker.is_open and not self._probe(address, (breaker.slow_s,)):
                breaker.close()
        return None

    def shards(self) -> tuple[Shard, ...]:
        """Return how each server is doing."""
        return self._router.shards()

    def close(self) -> None:
        """Let go of every connection."""
        self._closed.set()
        self._closed = threading.Event()
        for lane in self._lanes.values():
            lane.close()

    def _ask(self, request: Request, deadline: Deadline, *, insist: bool = False) -> bytes | Fault:
        tries, again = 0, Again()
        while tries < route.MAX_TRIES:
            if self._router.moves:
                self._know_shape(deadline)
            lane = self._lane(request, insist=insist)
            if isinstance(lane, Fault):
                return lane
            self._wait_longer_at_first(lane, deadline)
            ticket = Ticket(request, deadline)
            try:
                lane.start(ticket)
                answer = lane.finish(ticket)
            except BaseException as error:
                lane.abandon(ticket, error)
                raise
            if isinstance(answer, bytes):
                return answer
            if isinstance(answer, Again):
                again = answer
                tries += self._router.weight(again)
                request = self._follow(request, again, lane, deadline)
                if deadline.left() <= 0:
                    break
            else:
                self._router.suspect(answer)
                return answer
        return self._router.no_end(again)

    def _ask_all(self, requests: Sequence[Request], deadline: Deadline) -> list[bytes | Fault]:
        """Ask for all of them at the same time."""
        tickets = [Ticket(request, deadline) for request in requests]
        by_lane: dict[Lane, list[Ticket]] = {}
        if self._router.clustered:
            self._know_shape(deadline)
        for ticket in tickets:
            lane = self._lane(ticket.request)
            if isinstance(lane, Fault):
                ticket.answer = lane
            else:
                by_lane.setdefault(lane, []).append(ticket)
        try:
            for lane, started in by_lane.items():
                self._wait_longer_at_first(lane, deadline)
                for ticket in started:
                    ticket.is_elsewhere = len(by_lane) > 1
                lane.start(*started)
            finish_all(by_lane, deadline)
        except BaseException as error:
            for lane, started in by_lane.items():
                for ticket in started:
                    lane.abandon(ticket, error)
            raise
        answers: list[bytes | Fault] = []
        for ticket in tickets:
            answer = ticket.answer
            if isinstance(answer, Again):
                [lane] = [each for each, own in by_lane.items() if ticket in own]
                request = self._follow(ticket.request, answer, lane, deadline)
                answer = self._ask(request, deadline)
            assert answer is not None
            if isinstance(answer, Fault):
                self._router.suspect(answer)
            answers.append(answer)
        return answers

    def _drive(
        self, steps: Generator[across.Step, Sequence[bytes | Fault], T], deadline: Deadline
    ) -> T:
        try:
            step = next(steps)
            while True:
                if step.behind:
                    if not _start(self._carry_out, step):
                        self._carry_out(step)
                    step = steps.send(())
                else:
                    step = steps.send(self._carry_out(step, deadline))
        except StopIteration as done:
            result: T = done.value
            return result

    def _carry_out(
        self, step: across.Step, deadline: Deadline | None = None
    ) -> list[bytes | Fault]:
        refusal = self._foreseen(step) if step.reserves else None
        if refusal is not None:
            return [refusal] * len(step.requests)
        replies = self._ask_all(step.requests, deadline or Deadline(self._deadline))
        lost = step.lost(replies)
        if lost:
            with self._mutex:
                self.lost_refunds += len(lost)
            self._log.warn("lost", f"{len(lost)} charges were not given back: {lost[0]}")
        return replies

    def _know_shape(self, deadline: Deadline) -> None:
        """Have the cluster's shape looked up, if it is time to; wait only if it was never known."""
        self._refresh_if_due()
        if self._router.is_unknown_yet and deadline.seconds >= self._deadline:
            deadline.extend(self._router.first_s(None, time.monotonic()))
        while self._router.is_unknown_yet and deadline.left() > 0:
            if self._looked_up.wait(deadline.next_wait()):
                break

    def _wait_longer_at_first(self, lane: Lane, deadline: Deadline) -> None:
        """Extend a deadline for the first connection, unless the caller has a shorter one."""
        if lane.address not in self._router.connected and deadline.seconds >= self._deadline:
            deadline.extend(self._router.first_s(lane.address, time.monotonic()))

    def _refresh_if_due(self) -> None:
        with self._mutex:
            due = self._router.should_refresh(time.monotonic())
        if due and not _start(self._refresh_behind):
            self._router.refreshed(time.monotonic())

    def _lane(self, request: Request, *, insist: bool = False) -> Lane | Fault:
        """Return the way to whom a request is for; if that one is left alone, say so instead."""
        address = self._router.address(request)
        if address is None:
            return self._router.nobody_owns(request)
        lane = self._lanes.get(address)
        if lane is None:
            with self._mutex:
                lane = self._lanes.setdefault(address, self._new_lane(address))
        if lane.breaker.is_open and not insist:
            self._tend(lane)
            self._router.suspect(lane.breaker.refusal)
            return lane.breaker.refusal
        return lane

    def _foreseen(self, step: across.Step) -> Fault | None:
        """Return the fault of a server that is left alone: nobody else is to be charged then."""
        for request in step.requests:
            lane = self._lane(request)
            if isinstance(lane, Fault) and lane.unsent:
                return lane
        return None

    def _new_lane(self, address: Address) -> Lane:
        where, breaker = self._router.where(address), self._router.breaker(address)
        open_wire = partial(self._open, address)
        return Lane(open_wire, address, where, self._deadline, breaker, self._tend)

    def _tend(self, lane: Lane) -> None:
        """See to it that a server which is left alone is asked again, when it answers."""
        number = lane.breaker.should_tend(time.monotonic())
        if number:
            _start(self._tend_behind, lane, number, self._closed)

    def _tend_behind(self, lane: Lane, number: int, closed: threading.Event) -> None:
        breaker, took_s, now = lane.breaker, 0.0, time.monotonic
        while self._lanes.get(lane.address) is lane and (rest := breaker.rest(now(), number)):
            if closed.wait(max(rest - took_s, _LEAST_REST_S)):
                # Whoever uses the limiter again begins anew.
                breaker.close()
                return
            start = now()
            # Once to connect, for which no caller has the time, and once as a caller would.
            fault = self._probe(lane.address, (self._router.patient_s, breaker.slow_s))
            if closed.is_set():
                # Meanwhile; and this has opened a connection again.
                lane.close()
            if fault is None or fault.kind in PASSING:
                breaker.close()
                where = self._router.where(lane.address)
                self._log.warn(f"back {where}", f"{where}: it answers again")
            else:
                self._refresh_if_due()
            took_s = now() - start

    def _probe(
        self, address: Address, patience_s: Sequence[float], *, charge: bool = True
    ) -> Fault | None:
        """Have something decided, once for each of these patiences; return why it was not."""
        request = self._router.probe(self._packer, address, charge=charge)
        if request is None:
            return self._router.owns_nothing(address)
        for seconds in patience_s:
            answer = self._ask(request, Deadline(seconds), insist=True)
            if isinstance(answer, Fault):
                return answer
        return None

    def _follow(self, request: Request, again: Again, lane: Lane, deadline: Deadline) -> Request:
        if again.pause_s:
            time.sleep(min(again.pause_s, max(deadline.left(), 0)))
        return self._router.follow(request, again, lane.address)

    def _refresh_behind(self) -> None:
        trouble = None
        try:
            self._learn_shape()
        except Exception as error:
            trouble = fault_of(error, self._target.shown)
        finally:
            self._router.refreshed(time.monotonic(), trouble)
            self._looked_up.set()

    def _learn_shape(self) -> None:
        if not self._router.clustered:
            if self._named_primary() != self._router.primary:
                for lane in list(self._lanes.values()):
                    lane.renew()
            return
        self._router.learn(self._find(route.find_owners(self._router.candidates())))
        nodes = set(self._router.nodes())
        with self._mutex:
            gone = [self._lanes.pop(e) for e in set(self._lanes) - nodes if self._lanes[e].is_idle]
        for lane in gone:
            lane.close()

    def _find(self, finder: Generator[route.Question, object, T], *, sentinel: bool = False) -> T:
        try:
            address, command = next(finder)
            while True:
                address, command = finder.send(self._ask_about(address, command, sentinel))
        except StopIteration as done:
            found: T = done.value
            return found

    def _named_primary(self) -> Address:
        finder = route.find_primary(self._target.addresses, self._target.service)
        return self._find(finder, sentinel=True)

    def _ask_about(self, address: Address, command: tuple[str, ...], sentinel: bool) -> object:
        seconds = self._router.connect_s
        try:
            wire = Wire(open_socket(self._target, address, seconds, sentinel=sentinel))
            try:
                return wire.ask(*command, deadline=Deadline(seconds))
            finally:
                wire.close()
        except Exception as error:
            return error

    def _open(self, address: Address) -> Wire:
        """Return a connection to a server that knows the script."""
        target = self._target
        if target.kind == "sentinel":
            address = self._named_primary()
        wire = Wire(open_socket(target, address, self._router.connect_s))
        try:
            greeting = greet(
                must_lead=target.kind == "sentinel", is_new=self._router.is_new(address)
            )
            command = next(greeting)
            while True:
                reply = wire.ask(*command, deadline=Deadline(self._router.connect_s))
                command = greeting.send(reply)
        except StopIteration as done:
            self._router.met(address)
            if done.value:
                self._log.warn("greeting", f"{self._router.where(address)}: {done.value}")
            return wire
        except BaseException:
            wire.close()
            raise


def _start(work: Callable[..., object], *arguments: object) -> bool:
    """Have something done behind the caller; return whether there was a thread for it."""
    try:
        behind.start(work, *arguments)
    except RuntimeError:
        return False
    return True
