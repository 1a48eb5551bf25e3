"""The connection pool of the thread driver, with servers that answer when the test lets them."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import hiredis
import pytest

from limen._internal import background
from limen._internal.connection_pool import NotConnected
from limen._internal.deadline import Deadline
from limen.backends import Fault
from limen.backends.circuit_breaker import CircuitBreaker
from limen.backends.redis.batch import Request
from limen.backends.redis.exchange import Exchange, Pending, RedisConnection, RedisServer
from tests.exhausted import no_thread
from tests.waiting import wait_until

ANSWER = b"\x01\x01"
PATIENCE_S = 30.0


class Peer:
    """A server that answers each call with a permit of `answers`."""

    def __init__(self, name: str, max_connections: int = 16, deadline: float = PATIENCE_S) -> None:
        self.answers = threading.Semaphore(0)
        self.calls: list[str] = []
        """The keys of the calls, in the order of their arrival."""
        self.can_open = True
        self.opened: list[socket.socket] = []
        self._is_closed = False
        self.breaker = CircuitBreaker(name, deadline)
        self.server = RedisServer(
            self._open, (name, 1), name, self.breaker, lambda _: None, max_connections
        )
        self.pool = self.server.pool

    def close(self) -> None:
        self._is_closed = True
        self.answers.release(1_000)
        self.pool.close()
        for theirs in self.opened:
            theirs.close()

    def _open(self) -> RedisConnection:
        if not self.can_open:
            raise ConnectionError("max number of clients reached")
        ours, theirs = socket.socketpair()
        self.opened.append(theirs)
        threading.Thread(target=self._serve, args=(theirs,), daemon=True).start()
        return RedisConnection(ours)

    def _serve(self, theirs: socket.socket) -> None:
        reader = hiredis.Reader()
        with suppress(OSError):  # closed by either side
            while data := theirs.recv(65_536):
                reader.feed(data)
                while (call := reader.gets()) is not False:
                    self.calls.append(call[3].decode())
                    self.answers.acquire()
                    theirs.sendall(b"$2\r\n%b\r\n" % ANSWER)


@contextmanager
def peer(name: str = "peer", max_connections: int = 16, deadline: float = 1.0) -> Iterator[Peer]:
    made = Peer(name, max_connections, deadline)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


def call(*peers: Peer, key: str = "k", seconds: float = PATIENCE_S) -> list[object]:
    """Send a request to each peer at the same time, and return the answers."""
    deadline = Deadline(seconds)
    exchanges = [
        Exchange(each.server, [Pending(Request([key], b"x", len(ANSWER), 0))], deadline)
        for each in peers
    ]
    for exchange in exchanges:
        exchange.take()
    for exchange in exchanges:
        exchange.send()
    for exchange in exchanges:
        exchange.receive()
    return [pending.answer for exchange in exchanges for pending in exchange.pending]


def is_opening(each: Peer) -> bool:
    with each.pool._lock:
        return bool(each.pool._openings)


def start_in_order(
    threads: ThreadPoolExecutor, each: Peer, count: int
) -> list[Future[list[object]]]:
    """Start calls one after the other; the first ones are sent, the others wait."""
    started, before = [], len(each.calls)
    for number in range(count):
        started.append(threads.submit(call, each, key=f"key {number}"))
        wait_until(lambda: len(each.calls) + len(each.pool._waiting) == before + len(started))
        wait_until(lambda: not is_opening(each))
    return started


def test_waiting_threads_are_served_in_order(threads: ThreadPoolExecutor) -> None:
    with peer(max_connections=1) as server:
        started = start_in_order(threads, server, 12)
        assert len(server.calls) == 1
        server.answers.release(12)
        assert [each.result(PATIENCE_S) for each in started] == [[ANSWER]] * 12
        assert server.calls == [f"key {number}" for number in range(12)]
        assert len(server.opened) == 1


def test_pool_opens_no_more_connections_than_it_may(threads: ThreadPoolExecutor) -> None:
    with peer(max_connections=5) as server:
        server.answers.release(200)
        started = [threads.submit(call, server) for _ in range(200)]
        assert [each.result(PATIENCE_S) for each in started] == [[ANSWER]] * 200
        assert 1 <= len(server.opened) <= 5


def test_lone_caller_uses_one_connection() -> None:
    with peer() as server:
        server.answers.release(50)
        for _ in range(50):
            assert call(server) == [ANSWER]
        assert len(server.opened) == 1


def test_wait_for_a_connection_counts_towards_the_deadline(threads: ThreadPoolExecutor) -> None:
    with peer(max_connections=1) as server:
        [first] = start_in_order(threads, server, 1)
        [answer] = call(server, seconds=0.05)
        assert isinstance(answer, Fault)
        assert (answer.kind, answer.unsent) == ("timeout", True)
        assert not server.breaker.is_open
        server.answers.release()
        assert first.result(PATIENCE_S) == [ANSWER]
        assert server.calls == ["key 0"]


def test_late_reply_is_skipped_by_the_next_caller() -> None:
    with peer(max_connections=1, deadline=PATIENCE_S) as server:
        [answer] = call(server, key="late", seconds=0.05)
        assert isinstance(answer, Fault)
        assert (answer.kind, answer.unsent) == ("timeout", False)
        server.answers.release(2)
        assert call(server, key="next") == [ANSWER]
        assert server.calls == ["late", "next"]
        assert len(server.opened) == 1


def test_connection_that_is_silent_for_a_deadline_is_closed() -> None:
    with peer(max_connections=1, deadline=0.05) as server:
        [answer] = call(server, seconds=0.1)
        assert isinstance(answer, Fault)
        server.answers.release(2)
        assert call(server) == [ANSWER]
        assert len(server.opened) == 2


def test_servers_are_written_to_before_any_is_read_from(threads: ThreadPoolExecutor) -> None:
    with peer("slow") as slow, peer("quick") as quick:
        both = threads.submit(call, slow, quick)
        wait_until(lambda: bool(slow.calls and quick.calls))
        quick.answers.release()
        slow.answers.release()
        assert both.result(PATIENCE_S) == [ANSWER, ANSWER]


def test_server_that_cannot_be_reached_fails_all_that_wait(threads: ThreadPoolExecutor) -> None:
    with peer() as server:
        server.can_open = False
        started = [threads.submit(call, server) for _ in range(20)]
        for each in started:
            [answer] = each.result(PATIENCE_S)
            assert isinstance(answer, Fault)
            assert (answer.kind, answer.unsent) == ("connection", True)
        assert server.breaker.is_open


def test_refused_connection_leaves_the_open_ones_in_use(threads: ThreadPoolExecutor) -> None:
    with peer() as server:
        server.answers.release()
        assert call(server) == [ANSWER]
        server.can_open = False
        started = start_in_order(threads, server, 3)
        server.answers.release(3)
        assert [each.result(PATIENCE_S) for each in started] == [[ANSWER]] * 3
        assert not server.breaker.is_open
        assert len(server.opened) == 1


def test_close_ends_the_wait_and_the_connections(threads: ThreadPoolExecutor) -> None:
    with peer(max_connections=1) as server:
        first, second = start_in_order(threads, server, 2)
        server.pool.close()
        [answer] = second.result(PATIENCE_S)
        assert isinstance(answer, Fault)
        assert "closed" in answer.message
        server.answers.release(2)
        assert first.result(PATIENCE_S) == [ANSWER]
        wait_until(lambda: server.opened[0].fileno() < 0 or _is_closed(server.opened[0]))
        assert call(server) == [ANSWER]
        assert len(server.opened) == 2


def _is_closed(theirs: socket.socket) -> bool:
    theirs.setblocking(False)
    with suppress(BlockingIOError):
        return theirs.recv(1) == b""
    return False


@pytest.mark.filterwarnings("ignore:Exception ignored in.*socket")
def test_connection_that_is_lost_with_its_thread_frees_its_place() -> None:
    with peer(max_connections=1) as server:
        assert isinstance(server.pool.take(Deadline(PATIENCE_S)), RedisConnection)
        # As after an exception of a signal handler: nobody refers to the connection any more.
        server.answers.release()
        assert call(server) == [ANSWER]
        assert len(server.opened) == 2


@pytest.mark.parametrize("count", [2, 3])
def test_unexpected_bytes_close_the_connection(count: int) -> None:
    with peer(max_connections=1) as server:
        server.answers.release(count)
        for number in range(count):
            assert call(server) == [ANSWER]
            if not number:
                server.opened[0].sendall(b"$2\r\n\x01\x00\r\n")
                time.sleep(0.01)
                server.pool._free[0]._used_at -= 60
        assert len(server.opened) == 2


class Unpolled(socket.socket):
    """A socket that waits with a time-out of Python's, as those of TLS and gevent."""


@pytest.mark.parametrize("is_plain", [True, False])
def test_silent_server_ends_with_the_deadline(is_plain: bool) -> None:
    with ExitStack() as stack:
        ours, server = map(stack.enter_context, socket.socketpair())
        if not is_plain:
            ours = stack.enter_context(Unpolled(fileno=ours.detach()))
        connection = RedisConnection(ours)
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            connection.receive(Deadline(0.05))
        assert time.monotonic() - start >= 0.045
        server.sendall(b"+late\r\n")
        assert connection.receive(Deadline(PATIENCE_S)) == b"late"


def test_full_send_buffer_ends_with_the_deadline() -> None:
    with ExitStack() as stack:
        ours, _server = map(stack.enter_context, socket.socketpair())
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        with pytest.raises(TimeoutError):
            RedisConnection(ours).send(b"x" * 10_000_000, Deadline(0.05))


def test_thread_whose_turn_comes_too_late_sends_nothing(threads: ThreadPoolExecutor) -> None:
    """It would be charged, decide without the reply, and delay those behind it."""
    with peer(max_connections=1, deadline=0.1) as server:
        for _ in range(40):  # a round trip usually takes 30 ms
            server.server.answered(0.03)
        [first] = start_in_order(threads, server, 1)
        waiting = threads.submit(call, server, key="late", seconds=0.1)
        wait_until(lambda: len(server.pool._waiting) == 1)
        time.sleep(0.085)
        server.answers.release(2)
        assert first.result(PATIENCE_S) == [ANSWER]
        [answer] = waiting.result(PATIENCE_S)
        assert isinstance(answer, Fault)
        assert (answer.kind, answer.unsent) == ("timeout", True)
        assert call(server, key="next") == [ANSWER]
        assert server.calls == ["key 0", "next"]


def test_packet_that_was_cut_short_closes_its_connection() -> None:
    """The next caller's command would continue the half command that was sent."""
    with ExitStack() as stack:
        ours, theirs = map(stack.enter_context, socket.socketpair())
        breaker = CircuitBreaker("peer", PATIENCE_S)
        server = RedisServer(
            lambda: RedisConnection(ours), ("peer", 1), "peer", breaker, lambda _: None, 1
        )
        pending = Pending(Request(["k" * 10_000_000], b"x", len(ANSWER), 0))
        exchange = Exchange(server, [pending], Deadline(0.05))  # nobody reads at the other end
        assert exchange.take()
        exchange.send()
        exchange.receive()
        assert isinstance(pending.answer, Fault)
        assert not server.pool._free
        while theirs.recv(65_536):
            pass  # until the end of the connection


def test_waiters_and_closing_do_not_collide(threads: ThreadPoolExecutor) -> None:
    with peer(max_connections=1) as server:
        server.can_open = False
        ends = time.monotonic() + 0.5

        def ask() -> None:
            while time.monotonic() < ends:
                [answer] = call(server, seconds=0.001)
                assert isinstance(answer, Fault)

        asking = [threads.submit(ask) for _ in range(8)]
        while time.monotonic() < ends:
            server.pool.close()
        for each in asking:
            each.result(PATIENCE_S)


def test_retired_connections_in_use_count_towards_the_bound(threads: ThreadPoolExecutor) -> None:
    with peer(max_connections=1) as server:
        [first] = start_in_order(threads, server, 1)
        server.pool.renew()
        second = threads.submit(call, server, key="second")
        wait_until(lambda: len(server.pool._waiting) == 1)
        assert len(server.opened) == 1
        server.answers.release(2)
        assert first.result(PATIENCE_S) == [ANSWER]
        assert second.result(PATIENCE_S) == [ANSWER]
        assert len(server.opened) == 2


def test_opening_of_a_caller_that_gave_up_is_for_the_next_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[object] = []
    monkeypatch.setattr(background, "start", lambda *work: started.append(work))
    with peer() as server:
        for _ in range(3):
            with pytest.raises(NotConnected):
                server.pool.take(Deadline(0.001))
        assert len(started) == 1


def test_without_threads_callers_wait_for_the_open_connections(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with peer() as server:
        used = server.pool.take(Deadline(PATIENCE_S))
        with monkeypatch.context() as patch:
            patch.setattr(background, "start", no_thread)
            waiting = threads.submit(server.pool.take, Deadline(PATIENCE_S))
            wait_until(lambda: len(server.pool._waiting) == 1)
            server.pool.put_back(used)
            assert waiting.result(PATIENCE_S) is used
        assert not is_opening(server)
        server.pool.put_back(used)


def test_without_threads_callers_wait_for_a_connection_that_is_being_opened(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with peer() as server:
        can_open, opened = threading.Event(), server.pool._open_connection

        def open_later() -> RedisConnection:
            can_open.wait(PATIENCE_S)
            return opened()

        server.pool._open_connection = open_later
        first = threads.submit(server.pool.take, Deadline(PATIENCE_S))
        wait_until(lambda: is_opening(server))
        with monkeypatch.context() as patch:
            patch.setattr(background, "start", no_thread)
            second = threads.submit(server.pool.take, Deadline(PATIENCE_S))
            wait_until(lambda: len(server.pool._waiting) == 2)
            can_open.set()
            server.pool.put_back(first.result(PATIENCE_S))
            server.pool.put_back(second.result(PATIENCE_S))


def test_without_threads_and_connections_the_caller_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with peer() as server:
        with monkeypatch.context() as patch:
            patch.setattr(background, "start", no_thread)
            with pytest.raises(NotConnected, match="new thread"):
                server.pool.take(Deadline(PATIENCE_S))
            [answer] = call(server)
            assert isinstance(answer, Fault)
            assert (answer.kind, answer.unsent) == ("internal", True)
        assert not server.pool._openings
        assert not server.pool._waiting
        server.answers.release()
        assert call(server) == [ANSWER]


@pytest.mark.parametrize("is_put_back", [True, False])
def test_without_threads_a_lost_connection_is_an_answer_to_those_that_wait(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, is_put_back: bool
) -> None:
    with peer(max_connections=1) as server:
        used = server.pool.take(Deadline(PATIENCE_S))
        waiting = threads.submit(server.pool.take, Deadline(PATIENCE_S))
        wait_until(lambda: len(server.pool._waiting) == 1)
        server.pool.renew()
        with monkeypatch.context() as patch:
            patch.setattr(background, "start", no_thread)
            (server.pool.put_back if is_put_back else server.pool.discard)(used)
            with pytest.raises(NotConnected, match="new thread"):
                waiting.result(PATIENCE_S)
        assert not server.pool._openings


def test_exception_of_a_signal_handler_leaves_no_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(deque[object]):
        def append(self, waiter: object) -> None:
            super().append(waiter)
            raise KeyboardInterrupt

    with peer() as server:
        monkeypatch.setattr(server.pool, "_waiting", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            server.pool.take(Deadline(PATIENCE_S))
        assert not server.pool._waiting
