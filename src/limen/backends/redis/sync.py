"""The driver for threads: blocking sockets, one connection pool for each server."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from limen import flow
from limen._internal import background
from limen._internal.deadline import Deadline
from limen.backends import Change, Fault, Prepared
from limen.backends.redis import route, script
from limen.backends.redis.batch import Again, Request
from limen.backends.redis.exchange import Exchange, Pending, RedisConnection, RedisServer
from limen.backends.redis.flows import RedisFlows
from limen.connect import Address, Target, open_socket
from limen.flow import Flow
from limen.model import Reading


class RedisBackend(RedisFlows[RedisServer]):
    """Decides on Redis: one server, a primary that sentinels name, or a cluster. For threads."""

    def __init__(self, target: Target, namespace: str, deadline: float) -> None:
        self._servers: dict[Address, RedisServer] = {}
        super().__init__(target, namespace, deadline)

    def after_fork(self) -> None:
        """Start without connections: those of the parent process stay there."""
        super().after_fork()
        for server in self._servers.values():
            server.pool.reset()

    def run(self, prepared: Prepared, within: float | None = None) -> tuple[Reading, ...] | Fault:
        """Decide the checks together, all or nothing; return a reading for each, or a fault."""
        deadline = Deadline(within or self._deadline, is_fixed=within is not None)
        if prepared.request is None:
            return flow.run(self._across(prepared, deadline))
        reply = self._call(prepared.request, deadline)
        return reply if isinstance(reply, Fault) else script.readings(reply)

    def change(self, change: Change) -> bool | Fault:
        """Carry out a change; return whether there was anything to change, or why not."""
        return flow.run(self._changed(change))

    def ping(self) -> Fault | None:
        """Connect to every server, and let the script write there; return why not."""
        return flow.run(self._reached())

    def close(self) -> None:
        """Close all connections."""
        self._closed.set()
        self._closed = threading.Event()
        for server in list(self._servers.values()):
            server.close()

    _now = staticmethod(time.monotonic)
    _deadline_in = staticmethod(Deadline)
    _run = _finish = staticmethod(flow.run)

    def _start(self, work: Flow[Any]) -> bool:
        try:
            background.start(flow.run, work)
        except RuntimeError:  # the system has no more threads
            return False
        return True

    def _rest(self, seconds: float, closed: threading.Event) -> None:
        closed.wait(seconds)

    def _connect(self, address: Address, *, sentinel: bool = False) -> RedisConnection:
        seconds = self._router.connect_s
        return RedisConnection(open_socket(self._target, address, seconds, sentinel=sentinel))

    def _call(self, request: Request, deadline: Deadline, *, insist: bool = False) -> bytes | Fault:
        tries, again = 0, Again()
        while tries < route.MAX_TRIES:
            server = self._server(request, deadline, insist=insist)
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
        self, requests: Sequence[Request], deadline: Deadline, *, all_or_none: bool
    ) -> list[bytes | Fault]:
        all_pending = [Pending(request) for request in requests]
        by_server: dict[RedisServer, list[Pending]] = {}
        for pending in all_pending:
            server = self._server(pending.request, deadline)
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
        """Take a connection to each server, write to all, then read from all.

        With `all_or_none`, nothing is sent unless there is a connection to every server.
        """
        # In the order of their addresses, or two threads could each hold a connection that the
        # other one waits for.
        servers = sorted(by_server, key=_address_of) if len(by_server) > 1 else by_server
        exchanges = [Exchange(server, by_server[server], deadline) for server in servers]
        try:
            for exchange in exchanges:
                if exchange.server.address not in self._router.connected:
                    self._extend_at_first(exchange.server.address, deadline)
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
        answers = [each.answer for exchange in exchanges for each in exchange.pending]
        fault = next(answer for answer in answers if isinstance(answer, Fault))
        for exchange in exchanges:
            exchange.cancel(fault)

    def _server(
        self, request: Request, deadline: Deadline, *, insist: bool = False
    ) -> RedisServer | Fault:
        """Return the server for a request, or the fault that answers it."""
        if self._router.moves:
            self._refresh_if_due()
            if self._router.is_unknown_yet:
                flow.run(self._wait_for_shape(deadline))
        address = self._router.address(request)
        if address is None:
            return self._router.nobody_owns(request)
        server = self._servers.get(address) or self._server_at(address)
        if insist or not server.breaker.is_open:
            return server
        return self._refusal(server) or server

    def _server_at(self, address: Address) -> RedisServer:
        with self._mutex:
            server = self._servers.get(address)
            if server is None:
                server = self._servers[address] = RedisServer(
                    lambda: flow.run(self._open(address)),
                    address,
                    self._router.where(address),
                    self._router.breaker(address),
                    self._tend,
                    self._target.max_connections,
                )
            return server

    def _is_known(self, server: RedisServer) -> bool:
        return self._servers.get(server.address) is server

    def _renew_connections(self) -> None:
        for server in list(self._servers.values()):
            server.pool.renew()

    def _forget_all_but(self, nodes: set[Address]) -> None:
        with self._mutex:
            gone = [self._servers.pop(address) for address in set(self._servers) - nodes]
        for server in gone:
            server.pool.renew()

    def _follow(
        self, request: Request, again: Again, server: RedisServer, deadline: Deadline
    ) -> Request:
        if again.pause_s:
            time.sleep(min(again.pause_s, max(deadline.left(), 0)))
        return self._router.follow(request, again, server.address)


def _address_of(server: RedisServer) -> Address:
    return server.address
