"""`RedisFlows`: what the drivers for threads and for asyncio share. No I/O of its own.

Its generators are flows: they yield what a call of the driver returned; see `limen.flow`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from limen import fork
from limen.backends import Change, Correct, Fault, Prepared, Reset, Shard
from limen.backends.circuit_breaker import PASSING, CircuitBreaker
from limen.backends.redis import across
from limen.backends.redis.batch import Packer, greet
from limen.backends.redis.protocol import fault_of
from limen.backends.redis.route import Router, find_owners, find_primary
from limen.backends.sampled import SampledLog
from limen.connect import Address, Target
from limen.flow import Flow
from limen.model import Check, Reading, receipt_ids

T = TypeVar("T")
_MIN_REST_S = 0.05
_POLL_S = 0.002


class CallDeadline(Protocol):
    """The time that one caller has."""

    is_fixed: bool
    """Whether the caller does not want it to be extended."""

    def left(self) -> float:
        """Return the seconds left; zero or less when the deadline has passed."""

    def extend(self, seconds: float) -> None:
        """Have at least so many seconds left."""


class Server(Protocol):
    """One server, as a driver keeps it."""

    address: Address
    breaker: CircuitBreaker

    def close(self) -> None:
        """Close its connections."""


S = TypeVar("S", bound=Server)


class RedisFlows(Generic[S]):
    """Decisions on Redis: one server, a primary that sentinels name, or a cluster.

    A driver has the methods that are declared here. What waits returns a result on threads, and an
    awaitable on asyncio.
    """

    _now: Callable[[], float]
    """Return the time of the circuit breakers, in seconds."""
    _deadline_in: Callable[[float], Any]
    """Return a deadline that starts now."""
    _run: Callable[[Flow[Any]], Any]
    """Run a flow."""
    _start: Callable[[Flow[Any]], Any]
    """Run a flow in the background; return a false value if no thread can be started for it."""
    _finish: Callable[[Flow[Any]], Any]
    """Run a flow to its end, even if the caller is cancelled."""
    _rest: Callable[[float, threading.Event], Any]
    """Wait some seconds. A thread waits no longer than until the driver is closed."""
    _connect: Callable[..., Any]
    """Open a connection, with `ask` and `close`, to an address. `sentinel` says which login."""
    _call: Callable[..., Any]
    """Send one request, follow redirections, and return the reply or a fault.

    Arguments: the request, the deadline; with `insist`, also if the circuit breaker is open.
    """
    _call_all: Callable[..., Any]
    """Send several requests at the same time, and return their replies in order.

    Arguments: the requests, the deadline; with `all_or_none`, none is sent unless all can be.
    """
    _server_at: Callable[[Address], S]
    """Return the server at an address."""
    _is_known: Callable[[S], bool]
    """Return whether the driver still uses a server."""
    _renew_connections: Callable[[], None]
    """Replace the connections to all servers."""
    _forget_all_but: Callable[[set[Address]], None]
    """Forget the servers that are not in the cluster any more."""

    def __init__(self, target: Target, namespace: str, deadline: float) -> None:
        self._target = target
        self._deadline = deadline
        self._router = Router(target, deadline)
        self._packer = Packer(namespace, clustered=self._router.clustered)
        self._log = SampledLog()
        self.lost_refunds: int = 0
        """How many reservations could not be given back, and stay charged for their period."""
        self.after_fork()
        fork.watch(self)

    def after_fork(self) -> None:
        """Start without connections: those of the parent process stay there."""
        self._mutex = threading.Lock()
        self._closed = threading.Event()
        self._receipt_ids = receipt_ids()
        self._router.begin()

    def prepare(self, checks: tuple[Check, ...], charge: bool = True, holder: str = "") -> Prepared:
        """Encode checks for the script."""
        return self._packer.prepare(checks, charge, holder)

    def shards(self) -> tuple[Shard, ...]:
        """Return how each server is doing."""
        return self._router.shards()

    def _across(
        self, prepared: Prepared, deadline: CallDeadline
    ) -> Flow[tuple[Reading, ...] | Fault]:
        """Decide checks that are in several slots."""
        receipt_id = f"{next(self._receipt_ids):016x}"
        return self._drive(across.decide(self._packer, prepared, receipt_id), deadline)

    def _changed(self, change: Change) -> Flow[bool | Fault]:
        deadline = self._deadline_in(self._deadline)
        if isinstance(change, Correct | Reset):
            return (yield from self._drive(across.change(self._packer, change), deadline))
        reply = yield self._call(self._packer.change(change), deadline)
        return reply if isinstance(reply, Fault) else bool(reply[1])

    def _reached(self) -> Flow[Fault | None]:
        """Connect to every server, and let the script write there; return why not."""
        router = self._router
        try:
            if router.clustered:
                yield from self._learn_shape()
        except Exception as error:
            return fault_of(error, self._target.shown)
        for address in router.servers():
            fault = yield from self._probe(address, (router.patient_s,), charge=False)
            if fault is not None:
                return fault
            breaker = router.breaker(address)
            if breaker.is_open and not (yield from self._probe(address, (breaker.slow_s,))):
                breaker.close()
        return None

    def _drive(
        self, steps: Generator[across.Step, Sequence[bytes | Fault], T], deadline: CallDeadline
    ) -> Flow[T]:
        try:
            step = next(steps)
            while True:
                if deadline.left() <= 0 and not deadline.is_fixed:
                    # The step before was carried out, after a wait for a first connection.
                    deadline.extend(self._deadline)
                if step.behind:
                    work = self._carry_out(step, self._deadline_in(self._deadline))
                    if not self._start(work):
                        yield from work
                    step = steps.send(())
                elif step.undoes:
                    step = steps.send((yield self._finish(self._carry_out(step, deadline))))
                else:
                    step = steps.send((yield from self._carry_out(step, deadline)))
        except StopIteration as done:
            result: T = done.value
            return result

    def _carry_out(self, step: across.Step, deadline: CallDeadline) -> Flow[list[bytes | Fault]]:
        refusal = self._foreseen(step) if step.reserves else None
        if refusal is not None:
            return [refusal] * len(step.requests)
        replies: list[bytes | Fault] = yield self._call_all(
            step.requests, deadline, all_or_none=step.reserves
        )
        lost = step.lost(replies)
        if lost:
            with self._mutex:
                self.lost_refunds += len(lost)
            self._log.warn("lost", f"{len(lost)} charges were not given back: {lost[0]}")
        return replies

    def _foreseen(self, step: across.Step) -> Fault | None:
        """Return the fault of a server that gets no requests now: then nothing is reserved."""
        for request in step.requests:
            address = self._router.address(request)
            refusal = None if address is None else self._refusal(self._server_at(address))
            if refusal is not None:
                return refusal
        return None

    def _refusal(self, server: S) -> Fault | None:
        """Return the fault of a request to a server whose circuit breaker is open.

        None if the request is sent: the breaker is closed, or needs a request as a probe.
        """
        breaker = server.breaker
        if not breaker.is_open:
            return None
        self._tend(server)
        self._router.suspect(breaker.refusal)
        return None if breaker.may_try(self._now()) else breaker.refusal

    def _tend(self, server: S) -> None:
        """Start to probe a server in the background, unless that is being done."""
        number = server.breaker.should_tend(self._now())
        if number and not self._start(self._tending(server, number)):
            server.breaker.abandon(self._now(), number)  # the next caller tries again

    def _tending(self, server: S, number: int) -> Flow[None]:
        """Probe a server until it answers, and close its circuit breaker then."""
        breaker, closed, took_s, began_at = server.breaker, self._closed, 0.0, self._now()
        try:
            while self._is_known(server) and (rest := breaker.rest(self._now(), number)):
                yield self._rest(max(rest - took_s, _MIN_REST_S), closed)
                if closed.is_set():
                    breaker.close()
                    return
                start = self._now()
                # Once to connect, for which no caller has the time, and once as a caller would.
                patience_s = (self._router.patient_s, breaker.slow_s)
                fault = yield from self._probe(server.address, patience_s)
                if closed.is_set():
                    server.close()  # the probe has opened a connection again
                if fault is None or fault.kind in PASSING:
                    breaker.close()
                    where = self._router.where(server.address)
                    self._log.warn(f"back {where}", f"{where}: it answers again")
                else:
                    self._refresh_if_due()
                took_s = self._now() - start
        except BaseException:
            # A task that ends with its loop cannot read the time of the loop any more.
            breaker.abandon(began_at, number)
            raise

    def _probe(
        self, address: Address, patience_s: Sequence[float], *, charge: bool = True
    ) -> Flow[Fault | None]:
        """Have something decided, once with each of these deadlines; return why it was not."""
        request = self._router.probe(self._packer, address, charge=charge)
        if request is None:
            return self._router.owns_nothing(address)
        for seconds in patience_s:
            answer = yield self._call(request, self._deadline_in(seconds), insist=True)
            if isinstance(answer, Fault):
                return answer
        return None

    def _extend_at_first(self, address: Address | None, deadline: CallDeadline) -> None:
        """Extend a deadline for the first connection; None is one to look up the shape."""
        if not deadline.is_fixed:
            deadline.extend(self._router.first_s(address, time.monotonic()))

    def _wait_for_shape(self, deadline: CallDeadline) -> Flow[None]:
        """Wait until the shape of the cluster is known for the first time."""
        self._extend_at_first(None, deadline)
        while self._router.is_unknown_yet and deadline.left() > 0:
            yield self._rest(_POLL_S, self._closed)

    def _refresh_if_due(self) -> None:
        with self._mutex:
            is_due = self._router.should_refresh(self._now())
        if is_due and not self._start(self._refresh()):
            self._router.refreshed(self._now())

    def _refresh(self) -> Flow[None]:
        trouble, began_at = None, self._now()
        try:
            yield from self._learn_shape()
        except Exception as error:
            trouble = fault_of(error, self._target.shown)
        except BaseException:
            self._router.refreshed(began_at)
            raise
        self._router.refreshed(self._now(), trouble)

    def _learn_shape(self) -> Flow[None]:
        """Ask who owns the slots of the cluster, or whom the sentinels name."""
        if self._router.clustered:
            ask = partial(self._ask_about, sentinel=False)
            self._router.learn((yield from find_owners(ask, self._router.candidates())))
            self._forget_all_but(set(self._router.servers()))
        elif (yield from self._named_primary()) != self._router.primary:
            self._renew_connections()

    def _named_primary(self) -> Flow[Address]:
        ask = partial(self._ask_about, sentinel=True)
        return find_primary(ask, self._target.addresses, self._target.service)

    def _ask_about(self, address: Address, *command: str, sentinel: bool) -> Any:
        """Ask a node or a sentinel on a connection of its own; return the reply or an error."""
        return self._run(self._asked_about(address, command, sentinel))

    def _asked_about(
        self, address: Address, command: tuple[str, ...], sentinel: bool
    ) -> Flow[object]:
        try:
            connection = yield self._connect(address, sentinel=sentinel)
            try:
                return (yield connection.ask(*command, seconds=self._router.connect_s))
            finally:
                connection.close()
        except Exception as error:
            return error

    def _open(self, address: Address) -> Flow[Any]:
        """Return a connection to a server that knows the script."""
        must_lead = self._target.kind == "sentinel"
        if must_lead:
            address = yield from self._named_primary()
        connection = yield self._connect(address)
        try:
            ask = partial(connection.ask, seconds=self._router.connect_s)
            is_new = self._router.is_new(address)
            warning = yield from greet(ask, must_lead=must_lead, is_new=is_new)
        except BaseException:
            connection.close()
            raise
        self._router.met(address)
        if warning:
            self._log.warn("greeting", f"{self._router.where(address)}: {warning}")
        return connection
