"""The driver for threads: blocking sockets, one connection pool for each server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeVar

from limen import fork
from limen._internal import background
from limen._internal.deadline import Deadline
from limen.backends import Change, Correct, Fault, Prepared, Reset, Shard
from limen.backends.circuit_breaker import PASSING
from limen.backends.redis import across, route, script
from limen.backends.redis.batch import Again, Packer, Request, greet
from limen.backends.redis.exchange import Exchange, Pending, RedisServer
from limen.backends.redis.protocol import fault_of
from limen.backends.redis.sync_connection import RedisConnection
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
        self._servers: dict[Address, RedisServer] = {}
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
        for server in self._servers.values():
            server.pool.reset()

    def prepare(self, checks: tuple[Check, ...], charge: bool = True, holder: str = "") -> Prepared:
        """Encode checks for the script."""
        return self._packer.prepare(checks, charge, holder)

    def run(self, prepared: Prepared, within: float | None = None) -> tuple[Reading, ...] | Fault:
        """Decide the checks together, all or nothing; return a reading for each, or a fault."""
        deadline = Deadline(within or self._deadline)
        if prepared.request is not None:
            reply = self._call(prepared.request, deadline)
            return reply if isinstance(reply, Fault) else script.readings(reply)
        receipt_id = f"{next(self._receipt_ids):016x}"
        return self._drive(across.decide(self._packer, prepared, receipt_id), deadline)

    def change(self, change: Change) -> bool | Fault:
        """Carry out a change; return whether there was anything to change, or why not."""
        deadline = Deadline(self._deadline)
        if isinstance(change, Correct | Reset):
            return self._drive(across.change(self._packer, change), deadline)
        reply = self._call(self._packer.change(change), deadline)
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
        for server in list(self._servers.values()):
            server.pool.close()

    def _call(self, request: Request, deadline: Deadline, *, insist: bool = False) -> bytes | Fault:
        """Send one request, follow redirections, and return the reply.

        With `insist`, also to a server whose circuit breaker is open.
        """
        tries, again = 0, Again()
        while tries < route.MAX_TRIES:
            if self._router.moves:
                self._know_shape(deadline)
            server = self._server(request, insist=insist)
            if isinstance(server, Fault):
                return server
            pending = Pending(request)
            self._exchange({server: [pending]}, deadline)
            if not isinstance(pending.answer, Again):
                return self._result(pending)
            again = pending.answer
            tries += self._router.weight(again)
            request = self._follow(request, again, server, deadline)
            if deadline.left() <= 0:
                break
        return self._router.no_end(again)

    def _call_all(
        self, requests: Sequence[Request], deadline: Deadline, *, all_or_none: bool = False
    ) -> list[bytes | Fault]:
        """Send several requests at the same time; redirections are followed one by one.

        With `all_or_none`, nothing is sent unless there is a connection to every server.
        """
        if self._router.clustered:
            self._know_shape(deadline)
        all_pending = [Pending(request) for request in requests]
        by_server: dict[RedisServer, list[Pending]] = {}
        for pending in all_pending:
            server = self._server(pending.request)
            if isinstance(server, Fault):
                pending.answer = server
            else:
                by_server.setdefault(server, []).append(pending)
        self._exchange(by_server, deadline, all_or_none=all_or_none)
        for server, answered in by_server.items():
            for pending in answered:
                if isinstance(pending.answer, Again):
                    request = self._follow(pending.request, pending.answer, server, deadline)
                    pending.answer = self._call(request, deadline)
        return [self._result(pending) for pending in all_pending]

    def _result(self, pending: Pending) -> bytes | Fault:
        """Return the answer to a request whose redirections were followed."""
        answer = pending.answer
        assert isinstance(answer, bytes | Fault)
        if isinstance(answer, Fault):
            self._router.suspect(answer)
        return answer

    def _exchange(
        self,
        by_server: dict[RedisServer, list[Pending]],
        deadline: Deadline,
        *,
        all_or_none: bool = False,
    ) -> None:
        """Take a connection to each server, write to all, then read from all."""
        # In the order of their addresses, or two threads could each hold a connection that the
        # other one waits for.
        servers = sorted(by_server, key=_address_of) if len(by_server) > 1 else by_server
        exchanges = [Exchange(server, by_server[server], deadline) for server in servers]
        try:
            for exchange in exchanges:
                self._wait_longer_at_first(exchange.server, deadline)
                if not exchange.take() and all_or_none:
                    self._cancel(exchanges)
                    return
            for exchange in exchanges:
                exchange.send()
            for exchange in exchanges:
                exchange.receive(is_measured=exchange is exchanges[0])
        except BaseException:
            for exchange in exchanges:
                exchange.abandon()
            raise

    def _cancel(self, exchanges: list[Exchange]) -> None:
        """Put all connections back: one server cannot be reached, and nothing was sent."""
        faults = [each.answer for exchange in exchanges for each in exchange.pending]
        [fault] = [each for each in faults if isinstance(each, Fault)][:1]
        for exchange in exchanges:
            exchange.cancel(fault)

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
        replies = self._call_all(
            step.requests, deadline or Deadline(self._deadline), all_or_none=step.reserves
        )
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

    def _wait_longer_at_first(self, server: RedisServer, deadline: Deadline) -> None:
        """Extend a deadline for the first connection, unless the caller has a shorter one."""
        if server.address not in self._router.connected and deadline.seconds >= self._deadline:
            deadline.extend(self._router.first_s(server.address, time.monotonic()))

    def _refresh_if_due(self) -> None:
        with self._mutex:
            due = self._router.should_refresh(time.monotonic())
        if due and not _start(self._refresh_behind):
            self._router.refreshed(time.monotonic())

    def _server(self, request: Request, *, insist: bool = False) -> RedisServer | Fault:
        """Return the server for a request; or a fault, if the server's circuit breaker is open."""
        address = self._router.address(request)
        if address is None:
            return self._router.nobody_owns(request)
        server = self._servers.get(address)
        if server is None:
            with self._mutex:
                server = self._servers.setdefault(address, self._new_server(address))
        if server.breaker.is_open and not insist:
            self._tend(server)
            self._router.suspect(server.breaker.refusal)
            return server.breaker.refusal
        return server

    def _foreseen(self, step: across.Step) -> Fault | None:
        """Return the fault of a server that is left alone: nobody else is to be charged then."""
        for request in step.requests:
            server = self._server(request)
            if isinstance(server, Fault) and server.unsent:
                return server
        return None

    def _new_server(self, address: Address) -> RedisServer:
        return RedisServer(
            partial(self._open, address),
            address,
            self._router.where(address),
            self._router.breaker(address),
            self._tend,
            self._target.max_connections,
        )

    def _tend(self, server: RedisServer) -> None:
        """See to it that a server which is left alone is asked again, when it answers."""
        number = server.breaker.should_tend(time.monotonic())
        if number:
            _start(self._tend_behind, server, number, self._closed)

    def _tend_behind(self, server: RedisServer, number: int, closed: threading.Event) -> None:
        breaker, took_s, now = server.breaker, 0.0, time.monotonic
        while self._servers.get(server.address) is server and (rest := breaker.rest(now(), number)):
            if closed.wait(max(rest - took_s, _LEAST_REST_S)):
                # Whoever uses the limiter again begins anew.
                breaker.close()
                return
            start = now()
            # Once to connect, for which no caller has the time, and once as a caller would.
            fault = self._probe(server.address, (self._router.patient_s, breaker.slow_s))
            if closed.is_set():
                # Meanwhile; and this has opened a connection again.
                server.pool.close()
            if fault is None or fault.kind in PASSING:
                breaker.close()
                where = self._router.where(server.address)
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
            answer = self._call(request, Deadline(seconds), insist=True)
            if isinstance(answer, Fault):
                return answer
        return None

    def _follow(
        self, request: Request, again: Again, server: RedisServer, deadline: Deadline
    ) -> Request:
        if again.pause_s:
            time.sleep(min(again.pause_s, max(deadline.left(), 0)))
        return self._router.follow(request, again, server.address)

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
                for server in list(self._servers.values()):
                    server.pool.renew()
            return
        self._router.learn(self._find(route.find_owners(self._router.candidates())))
        nodes = set(self._router.nodes())
        with self._mutex:
            gone = [self._servers.pop(address) for address in set(self._servers) - nodes]
        for server in gone:
            server.pool.renew()

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
            connection = RedisConnection(
                open_socket(self._target, address, seconds, sentinel=sentinel)
            )
            try:
                return connection.ask(*command, deadline=Deadline(seconds))
            finally:
                connection.close()
        except Exception as error:
            return error

    def _open(self, address: Address) -> RedisConnection:
        """Return a connection to a server that knows the script."""
        target = self._target
        if target.kind == "sentinel":
            address = self._named_primary()
        connection = RedisConnection(open_socket(target, address, self._router.connect_s))
        try:
            greeting = greet(
                must_lead=target.kind == "sentinel", is_new=self._router.is_new(address)
            )
            command = next(greeting)
            while True:
                reply = connection.ask(*command, deadline=Deadline(self._router.connect_s))
                command = greeting.send(reply)
        except StopIteration as done:
            self._router.met(address)
            if done.value:
                self._log.warn("greeting", f"{self._router.where(address)}: {done.value}")
            return connection
        except BaseException:
            connection.close()
            raise


def _start(work: Callable[..., object], *arguments: object) -> bool:
    """Have something done behind the caller; return whether there was a thread for it."""
    try:
        background.start(work, *arguments)
    except RuntimeError:
        return False
    return True


def _address_of(server: RedisServer) -> Address:
    return server.address
