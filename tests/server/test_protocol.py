"""Time, size and order of requests on real sockets.

Tests that depend on transports run on both event loops, others on uvloop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

import pytest
import uvloop

from limen.server.http import HttpConnections, HttpLimits, Request, Response, connection
from limen.server.http.connection import MAX_HEADERS, MAX_PIPELINED, HttpConnection
from tests.server.apps import App
from tests.server.raw import HOST, CutShort, Raw, request
from tests.waiting import generous, wait_until

MAX_BODY = 30_000
LIMITS = HttpLimits(
    max_header=2_048, max_body=MAX_BODY, read_timeout=0.3, keep_alive=0.4, write_timeout=0.4
)
PATIENT = HttpLimits(
    max_header=2_048, max_body=MAX_BODY, read_timeout=5.0, keep_alive=5.0, write_timeout=5.0
)
T = TypeVar("T")


class Served:
    """A server on a loop in a thread."""

    def __init__(self, limits: HttpLimits, loop_factory: Callable[[], asyncio.AbstractEventLoop]):
        self.limits = limits
        self._loop_factory = loop_factory
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def raw(self) -> Raw:
        return Raw(self.port)

    @property
    def connection(self) -> HttpConnection:
        """The only connection."""
        wait_until(lambda: len(self.connections) == 1)
        [each] = self.connections._all
        return each

    def call(self, function: Callable[[], T]) -> T:
        """Call something on the loop."""

        async def called() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self.app = App()
        self.connections = HttpConnections(self.app, self.limits)
        server = await self.loop.create_server(self.connections.make, HOST, 0)
        self.port: int = server.sockets[0].getsockname()[1]
        self._is_up.set()
        await self._end.wait()
        server.close()
        await self.connections.cut()
        self.connections.close()


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return LOOPS[request.param]


@pytest.fixture
def quick(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[Served]:
    with Served(LIMITS, loop_factory) as served:
        yield served


@pytest.fixture
def patient() -> Iterator[Served]:
    with Served(PATIENT, uvloop.new_event_loop) as served:
        yield served


@contextmanager
def lasting(least_s: float) -> Iterator[None]:
    """Check that something takes as long as a timeout of ours, and not for ever."""
    began = time.monotonic()
    yield
    assert least_s <= time.monotonic() - began <= 20


# Time


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nX: "])
def test_a_head_that_trickles_in_is_refused_in_the_end(quick: Served, start: bytes) -> None:
    with lasting(0.25), quick.raw() as raw, trickling(raw, start):
        response = raw.response()
        assert (response.status, response.closes) == (408, True)
        assert "in time" in response.problem["detail"]
        assert raw.ends()


def test_a_body_that_trickles_in_is_refused_in_the_end(quick: Served) -> None:
    start = request("/echo", "Content-Length: 1000", method="POST")
    with lasting(0.25), quick.raw() as raw, trickling(raw, start):
        assert raw.response().problem["status"] == 408
        assert raw.ends()
    assert quick.app.seen == []


@contextmanager
def trickling(raw: Raw, start: bytes) -> Iterator[None]:
    """Send a byte now and then."""
    is_over = threading.Event()

    def trickle() -> None:
        with suppress(OSError):
            while not is_over.wait(0.02):
                raw.send(b"x")

    raw.send(start)
    sender = threading.Thread(target=trickle)
    sender.start()
    try:
        yield
    finally:
        is_over.set()
        sender.join()


def test_who_says_nothing_is_sent_away_without_a_word(quick: Served) -> None:
    with lasting(0.25), quick.raw() as raw:
        assert raw.ends()


def test_an_idle_connection_is_closed_after_a_while_and_not_before(quick: Served) -> None:
    with quick.raw() as raw:
        for _ in range(3):
            assert raw.get().status == 200
            time.sleep(0.2)
        with lasting(0.35):
            raw.get()
            assert raw.ends()


def test_an_app_may_take_longer_than_a_client(quick: Served) -> None:
    with quick.raw() as raw:
        assert raw.get("/sleep/0.7").body == b"slept"
        assert raw.get().status == 200


def test_a_refused_request_is_answered_when_its_body_has_arrived(quick: Served) -> None:
    with quick.raw() as raw:
        raw.send(request("/refused", "Content-Length: 20000", method="POST") + bytes(1_000))
        time.sleep(0.1)
        assert not raw.has_answer()
        raw.send(bytes(19_000))
        response = raw.response()
        assert (response.status, response.closes) == (403, False)
        assert raw.get().status == 200
        raw.send(request("/refused", "Content-Length: 20000", method="POST") + bytes(1_000))
        assert raw.response().status == 408
        assert raw.ends()


@pytest.mark.parametrize("packet", [0, 1_000])
@pytest.mark.parametrize(("path", "status"), [("/echo", 413), ("/refused", 403)])
def test_a_body_that_is_too_large_is_refused_at_once(
    patient: Served, path: str, status: int, packet: int
) -> None:
    chunk = b"3e8\r\n" + bytes(1_000) + b"\r\n"
    for start in (
        request(path, f"Content-Length: {MAX_BODY + 1}", method="POST"),
        request(path, "Transfer-Encoding: chunked", method="POST") + chunk * (MAX_BODY // 1_000),
    ):
        with patient.raw() as raw:
            assert raw.get().status == 200
            raw.send(start, packet=packet)
            raw.send(b"1\r\nx\r\n")
            response = raw.response()
            assert (response.status, response.closes) == (status, True)
            assert raw.ends()
    assert patient.app.seen == []


def test_a_body_may_have_the_largest_size(patient: Served) -> None:
    with patient.raw() as raw:
        raw.send(request("/echo", body=bytes(MAX_BODY)))
        assert raw.response().body == bytes(MAX_BODY)
        half = b"3a98\r\n" + bytes(MAX_BODY // 2) + b"\r\n"
        start = request("/echo", "Transfer-Encoding: chunked", method="POST")
        raw.send(start + half * 2 + b"0\r\n\r\n")
        assert raw.response().body == bytes(MAX_BODY)


def test_a_413_is_not_overtaken_by_a_reset(quick: Served) -> None:
    with quick.raw() as raw:
        raw.send(request("/echo", "Content-Length: 4000000", method="POST") + bytes(1_000))
        answer = raw.response()
        assert (answer.status, answer.closes) == (413, True)
        assert raw.ends()
        raw.send(bytes(1_000_000))  # is still read
        with lasting(0), trickling(raw, b"x"):
            wait_until(lambda: len(quick.connections) == 0)


def test_who_sends_on_and_on_behind_the_last_answer_is_not_listened_to(
    patient: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_LINGER_S", 60.0)
    with patient.raw() as raw:
        raw.send(request("/echo", "Content-Length: 100000000", method="POST") + bytes(1_000))
        assert raw.response().status == 413
        with pytest.raises(ConnectionError):
            raw.send(bytes(50_000_000))


@pytest.mark.parametrize(
    "first",
    [
        request("/bug"),
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        request("/sleep/0.1", "Connection: close"),
        request("/refused", "Connection: close"),
    ],
    ids=["a mistake", "HTTP/1.0", "as it asked", "refused"],
)
def test_who_waits_for_100_behind_the_last_answer_is_sent_away_too(
    patient: Served, first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with patient.raw() as raw:
        asked = ("Expect: 100-continue", "Content-Length: 10")
        raw.send(first + request("/echo", *asked, method="POST"))
        assert raw.response().closes
        assert raw.ends()
        wait_until(lambda: len(patient.connections) == 0)
    assert len(caplog.records) == (b"bug" in first)


def test_who_is_refused_while_it_waits_for_100_is_not_told_to_go_on(
    patient: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with patient.raw() as raw:
        asked = ("Expect: 100-continue", "Transfer-Encoding: chunked")
        raw.send(request("/echo", *asked, method="POST") + b"zz\r\n")
        assert raw.response().status == 400
        assert raw.ends()
        wait_until(lambda: len(patient.connections) == 0)
    assert patient.app.seen == []
    assert caplog.records == []


def test_a_last_answer_is_not_overtaken_by_a_reset_for_what_came_behind_it(quick: Served) -> None:
    with quick.raw() as raw:
        raw.send(request("/sleep/0.2") + b"GET / HTTP/1.1\r\nX: " + bytes(100))
        assert raw.response().body == b"slept"
        answer = raw.response()
        assert (answer.status, answer.closes) == (400, True)
        raw.send(bytes(1_000_000))
        assert raw.ends()


def test_five_hundred_slow_clients_do_not_slow_a_quick_one() -> None:
    starts = (b"GET / HTTP/1.1\r\nX: ", request("/echo", "Content-Length: 999"), b"G", b"")
    with (
        Served(HttpLimits(read_timeout=1.0), uvloop.new_event_loop) as served,
        ExitStack() as stack,
    ):
        slow = []
        for index in range(500):
            slow.append(stack.enter_context(served.raw()))
            slow[-1].send(starts[index % 4])
        end, times = time.monotonic() + 0.5, []
        with served.raw() as raw:
            while time.monotonic() < end:
                with suppress(OSError):
                    for each in slow[::4]:
                        each.send(b"x")
                start = time.monotonic()
                assert raw.get().status == 200
                times.append(time.monotonic() - start)
        assert sorted(times)[len(times) // 2] < generous(0.1)
        for index, each in enumerate(slow):
            assert index % 4 == 3 or each.response().status == 408
            assert each.ends()
        assert time.monotonic() < end + 20


def test_who_does_not_read_the_answer_is_cut_off(quick: Served) -> None:
    with quick.raw() as raw:
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        with lasting(0.3):
            raw.send(request("/big/60000"))
            wait_until(lambda: len(quick.connections) == 1)
            wait_until(lambda: len(quick.connections) == 0)


@pytest.mark.parametrize("path", ["/big/8", "/refused"])
def test_who_asks_on_and_on_without_reading_is_cut_off(quick: Served, path: str) -> None:
    unsent = 0
    with quick.raw() as raw:
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        watched = quick.connection
        while not watched._write_paused:
            raw.send(request(path) * 100)
            wait_until(
                lambda: watched._write_paused or not quick.call(lambda: len(watched._pending))
            )
            unsent = max(unsent, quick.call(watched.transport.get_write_buffer_size))
        assert watched._read_paused or path == "/refused"
        wait_until(lambda: len(quick.connections) == 0)
    # The high-water mark of a transport is 64 KiB.
    assert 65_536 < unsent < 100_000


def test_pipelined_requests_wait_for_a_client_that_does_not_read(patient: Served) -> None:
    with patient.raw() as raw:
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        raw.send(request("/big/8000") + request("/big/1") * 50)
        wait_until(lambda: patient.app.seen == ["big"])
        time.sleep(0.2)
        assert patient.app.seen == ["big"]
        assert len(raw.response().body) == 8_000 * 1_024
        assert {len(raw.response().body) for _ in range(50)} == {1_024}
        assert raw.get().status == 200


def test_who_reads_slowly_but_reads_gets_all_responses(quick: Served) -> None:
    with quick.raw() as raw, lasting(0.6):
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        raw.send(request("/big/64") * 160)
        size = 0
        while size < 160 * 65_536:
            data = raw.socket.recv(131_072)
            assert data
            size += len(data)
            time.sleep(0.008)


def send_all(raw: Raw, data: bytes) -> None:
    """Send until the server closes the connection."""
    with suppress(ConnectionError):
        raw.send(data)


def test_a_client_is_not_late_while_the_server_does_not_read(quick: Served) -> None:
    rest = request("/echo", body=b"abc")
    with quick.raw() as raw:
        raw.send(request("/late") + request() + rest[:-1])
        wait_until(lambda: quick.app.seen == ["waits"])
        sender = threading.Thread(target=send_all, args=(raw, rest[-1:] + request() * 500_000))
        sender.start()
        sender.join(0.8)
        assert sender.is_alive()  # the kernel takes a few megabytes, the server none
        assert len(quick.connection._pending) == 1
        quick.call(quick.app.go_on.set)
        assert raw.response().body == b"late"
        assert raw.response().status == 200
        assert raw.response().body == b"abc"
        raw.socket.shutdown(socket.SHUT_RDWR)
        sender.join()


# Size


def head_of(size: int) -> bytes:
    return request("/", "X-Pad: " + "p" * (size - len(request("/", "X-Pad: "))))


@pytest.mark.parametrize("packet", [0, 1, 7, 100, 2_040, 2_048])
@pytest.mark.parametrize("over", [0, 1, 5_000])
def test_a_head_is_measured_the_same_however_it_is_split(
    patient: Served, packet: int, over: int
) -> None:
    head = head_of(2_048 + over)
    assert len(head) == 2_048 + over
    with patient.raw() as raw:
        assert raw.get().status == 200  # the second on a connection is as the first
        with suppress(ConnectionError):
            raw.send(head, packet=packet)
        response = raw.response()
        if not over:
            assert response.status == 200
            return
        assert (response.status, response.closes) == (431, True)
        assert response.problem["detail"].endswith("are larger than 2,048 bytes.")
        assert raw.ends()


def test_a_head_may_come_with_a_body_that_is_larger_than_it_may_be(patient: Served) -> None:
    with patient.raw() as raw:
        for _ in range(2):
            raw.send(request("/echo", body=bytes(9_000)))
            assert raw.response().body == bytes(9_000)
        raw.send(request("/echo", body=bytes(9_000)) + head_of(2_048))
        assert raw.response().body == bytes(9_000)
        assert raw.response().status == 200


def test_a_url_counts_too(patient: Served) -> None:
    with patient.raw() as raw:
        raw.send(request("/?" + "q" * 2_100))
        assert raw.response().problem["status"] == 431


@pytest.mark.parametrize("packet", [0, 50])
def test_there_are_not_too_many_headers(patient: Served, packet: int) -> None:
    with patient.raw() as raw:
        most = request("/", *["A: b"] * (MAX_HEADERS - 1))  # and Host
        raw.send(most, packet=packet)
        assert raw.response().status == 200
        raw.send(most[:-2] + b"A: b\r\n\r\n", packet=packet)
        assert raw.response().problem["detail"] == "There are more than 100 headers."
        assert raw.ends()


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nHost: limen\r\nX: ",
        b"GET /",
        b"",
        request("/echo", "Transfer-Encoding: chunked", method="POST") + b"1\r\nx\r\n0\r\nX: ",
    ],
    ids=["header", "url", "empty lines", "trailer"],
)
def test_what_never_ends_is_refused_when_it_is_too_large(patient: Served, start: bytes) -> None:
    more = b"x" * 1_000 if start else b"\r\n" * 500
    with patient.raw() as raw, lasting(0):
        raw.send(start)
        with suppress(ConnectionError):
            for _ in range(100):
                raw.send(more)
                time.sleep(0.001)
        assert raw.response().problem["status"] == 431
        assert raw.ends()


def test_a_trailer_is_no_header(patient: Served) -> None:
    start = request("/echo", "Transfer-Encoding: chunked", method="POST")
    with patient.raw() as raw:
        raw.send(start + b"3\r\nabc\r\n0\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n")
        response = raw.response()
        assert (response.body, response.headers["x-names"]) == (b"abc", "host,transfer-encoding")
        raw.send(request("/echo"))
        assert raw.response().headers["x-names"] == "host"


# Form


@pytest.mark.parametrize(
    "wrong",
    [
        b"HELLO\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: limen\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: limen\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: limen\r\nbad header: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: limen\r\nA: b\x00c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: limen\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\nHost: limen\n\n",
        b"GET / HTTP/1.1\r\nHost: limen\nA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: limen\r\nA: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: limen\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : limen\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: limen\rA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: limen\r\n: b\r\n\r\n",
        b"GET / HTTP/1.1 x\r\nHost: limen\r\n\r\n",
        request("/", "Content-Length: 3", "Transfer-Encoding: chunked", method="POST")
        + b"0\r\n\r\n",
        request("/", "Transfer-Encoding: chunked", "Content-Length: 3", method="POST")
        + b"0\r\n\r\n",
        request("/echo", "Content-Length: 3", "Content-Length: 4", method="POST") + b"abcd",
        request("/echo", "Content-Length: 3", "Content-Length: 3", method="POST") + b"abc",
        request("/echo", "Content-Length: 3, 3", method="POST") + b"abc",
        request("/echo", "Content-Length: +3", method="POST") + b"abc",
        request("/echo", "Content-Length: 3 3", method="POST") + b"abc",
        request("/echo", "Content-Length: 0x3", method="POST") + b"abc",
        request("/echo", "Content-Length: 99999999999999999999", method="POST"),
        request("/echo", "Transfer-Encoding: xchunked", method="POST") + b"0\r\n\r\n",
        request("/echo", "Transfer-Encoding: chunked, gzip", method="POST") + b"0\r\n\r\n",
        request("/echo", "Transfer-Encoding: gzip", method="POST") + b"0\r\n\r\n",
        *[
            request("/echo", "Transfer-Encoding: chunked", method="POST") + body
            for body in (
                b"xyz\r\n",
                b"-1\r\n",
                b"0x1\r\na\r\n0\r\n\r\n",
                b" 1\r\na\r\n0\r\n\r\n",
                b"1\na\n0\n\n",
                b"1\r\nab\r\n0\r\n\r\n",
                b"\r\n",
                b"11111111111111111\r\n",
            )
        ],
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_malformed_http_is_told_so_by_a_problem(
    patient: Served, wrong: bytes, is_first: bool
) -> None:
    with patient.raw() as raw:
        if not is_first:
            raw.get()
        raw.send(wrong)
        response = raw.response()
        assert response.problem["title"] == "Bad Request"
        assert response.closes
        assert response.headers["cache-control"] == "no-store"
        assert raw.ends()


def test_a_mistake_behind_a_request_does_not_take_its_answer(patient: Served) -> None:
    with patient.raw() as raw:
        raw.send(request("/sleep/0.2") + b"HELLO\r\n\r\n")
        response = raw.response()
        assert (response.body, response.closes) == (b"slept", False)
        assert raw.response().problem["status"] == 400
        assert raw.ends()


def test_a_late_body_behind_a_request_is_refused_in_its_turn(quick: Served) -> None:
    with quick.raw() as raw:
        raw.send(request("/late") + request("/echo", "Content-Length: 9"))
        watched = quick.connection
        wait_until(lambda: watched._discards)
        assert not raw.has_answer()
        quick.call(quick.app.go_on.set)
        assert raw.response().body == b"late"
        assert raw.response().problem["status"] == 408
        assert raw.ends()


def test_requests_in_one_packet_are_answered_in_order(patient: Served) -> None:
    with patient.raw() as raw:
        bodies = [b"%d" % number * 3 for number in range(30)]
        raw.send(b"".join([request("/echo", body=body) for body in bodies]))
        assert [raw.response().body for _ in bodies] == bodies
        assert raw.get().status == 200


def test_not_too_many_wait_in_line(patient: Served) -> None:
    with patient.raw() as raw:
        raw.send(request("/sleep/0.3") + request() * (MAX_PIPELINED + 100))
        answered = [raw.response() for _ in range(MAX_PIPELINED + 2)]
        assert {each.status for each in answered[:-1]} == {200}
        assert {each.closes for each in answered[:-1]} == {False}
        assert (answered[-1].status, answered[-1].closes) == (400, True)
        assert "More than 256 requests" in answered[-1].problem["detail"]
        assert raw.ends()


def test_a_client_that_expects_100_gets_it(patient: Served) -> None:
    with patient.raw() as raw:
        asked = ("Expect: 100-Continue", "Content-Length: 3")
        for _ in range(2):
            raw.send(request("/echo", *asked, method="POST"))
            assert raw.response().status == 100
            raw.send(b"abc")
            assert raw.response().body == b"abc"
        raw.send(request("/echo", *asked, method="POST") + b"abc")  # did not wait
        assert raw.response().body == b"abc"
        raw.send(request("/echo", "Expect: 100-continue"))  # has no body
        assert raw.response().status == 200


@pytest.mark.parametrize("before", [b"", request("/sleep/0.2")])
@pytest.mark.parametrize(
    ("path", "length", "status"), [("/refused", 3, 403), ("/echo", MAX_BODY + 1, 413)]
)
def test_a_client_that_expects_100_can_be_refused(
    patient: Served, before: bytes, path: str, length: int, status: int
) -> None:
    with patient.raw() as raw:
        asked = ("Expect: 100-continue", f"Content-Length: {length}")
        raw.send(before + request(path, *asked, method="POST"))
        if before:
            assert raw.response().body == b"slept"
        response = raw.response()
        assert (response.status, response.closes) == (status, True)
        raw.send(b"abc")
        assert raw.ends()


def test_http_1_0_has_no_100(patient: Served) -> None:
    with patient.raw() as raw:
        raw.send(b"POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        time.sleep(0.1)
        raw.send(b"abc")
        assert raw.response().body == b"abc"
        assert raw.ends()


def test_a_client_that_waits_for_100_is_not_late(quick: Served) -> None:
    with quick.raw() as raw:
        asked = ("Expect: 100-continue", "Content-Length: 3")
        raw.send(request("/late") + request("/echo", *asked))
        time.sleep(0.7)
        assert not raw.has_answer()
        quick.call(quick.app.go_on.set)
        assert raw.response().body == b"late"
        assert raw.response().status == 100
        raw.send(b"abc")
        assert raw.response().body == b"abc"


@pytest.mark.parametrize("packet", [0, 1])
def test_chunked_bodies_are_put_together(patient: Served, packet: int) -> None:
    start = request("/echo", "Transfer-Encoding: chunked", method="POST")
    with patient.raw() as raw:
        for _ in range(2):
            raw.send(start + b"3\r\nabc\r\n5;x=y\r\ndefgh\r\n0\r\n\r\n", packet=packet)
            assert raw.response().body == b"abcdefgh"


@pytest.mark.parametrize("line", [b"", b"Connection: keep-alive\r\n"])
def test_http_1_0_is_answered_and_closed(patient: Served, line: bytes) -> None:
    with patient.raw() as raw:
        raw.send(b"GET / HTTP/1.0\r\n" + line + b"\r\n")
        response = raw.response()
        assert (response.status, response.closes) == (200, True)
        assert raw.ends()


def test_head_has_no_body(patient: Served) -> None:
    with patient.raw() as raw:
        raw.send(request(method="HEAD"))
        assert raw.response(is_head=True).status == 200
        assert raw.get().status == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/none", 404),
        ("/%68ello", 200),
        ("/refused%2Fb", 403),
        ("/hello?x=%zz", 200),
        ("/hello#x", 200),
        ("http://limen/hello", 200),
        ("http://limen/none", 404),
        ("http://limen", 200),
        ("*", 200),
        ("limen", 400),
    ],
)
def test_targets(patient: Served, target: str, status: int) -> None:
    with patient.raw() as raw:
        assert raw.get(target).status == status


@pytest.mark.parametrize("next_one", [b"", request(), b"GET / HT"])
def test_half_a_connection_is_enough_for_an_answer(patient: Served, next_one: bytes) -> None:
    with patient.raw() as raw:
        raw.send(request("/sleep/0.2") + next_one)
        raw.socket.shutdown(socket.SHUT_WR)
        assert raw.response().body == b"slept"
        if next_one == request():
            assert raw.response().status == 200
        assert raw.ends()


@pytest.mark.parametrize("count", [1, 2])
def test_half_closed_connection_ends_behind_a_response_without_waiting(
    patient: Served, count: int
) -> None:
    with patient.raw() as raw:
        raw.send(request() * count)
        raw.socket.shutdown(socket.SHUT_WR)
        assert [raw.response().status for _ in range(count)] == [200] * count
        assert raw.ends()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", request("/echo", "Content-Length: 9")])
def test_who_hangs_up_within_a_request_is_not_waited_for(patient: Served, sent: bytes) -> None:
    with patient.raw() as raw, lasting(0):
        raw.send(sent)
        raw.socket.shutdown(socket.SHUT_WR)
        assert raw.ends()


def test_a_decision_in_progress_is_completed_when_the_client_has_gone(
    patient: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with patient.raw() as raw:
        raw.send(request("/sleep/0.3") + request("/echo"))
        wait_until(lambda: patient.app.seen == ["sleeps"])
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    wait_until(lambda: patient.app.seen == ["sleeps", "slept"])
    done = patient.connections.wait_until_done()
    asyncio.run_coroutine_threadsafe(done, patient.loop).result(20)
    assert patient.app.seen == ["sleeps", "slept"], "the request behind it was dropped"
    assert caplog.records == []


WEBSOCKET = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")


@pytest.mark.parametrize(("path", "status"), [("/echo", 200), ("/refused", 403)])
def test_an_upgrade_is_answered_as_an_ordinary_request(
    patient: Served, path: str, status: int
) -> None:
    with patient.raw() as raw:
        raw.send(request(path, *WEBSOCKET) + b"\x81\x00")
        response = raw.response()
        assert (response.status, response.closes) == (status, True)
        assert raw.ends()


def test_an_upgrade_may_not_carry_a_body(patient: Served) -> None:
    with patient.raw() as raw:
        raw.send(request("/echo", "Connection: Upgrade", "Upgrade: h2c", body=b"abc"))
        assert "without Upgrade" in raw.response().problem["detail"]
        assert raw.ends()
    assert patient.app.seen == []


# Mistakes


@pytest.mark.parametrize(("path", "closes"), [("/bug", True), ("/begin_bug", False)])
def test_an_exception_of_the_handler_is_a_problem_and_logged(
    patient: Served, caplog: pytest.LogCaptureFixture, path: str, closes: bool
) -> None:
    with patient.raw() as raw:
        response = raw.get(path)
        assert response.problem["title"] == "Internal Server Error"
        assert b"hidden" not in response.body
        assert response.closes == closes
        assert closes or raw.get().status == 200
    [record] = caplog.records
    assert (record.name, record.levelno) == ("limen.server", logging.ERROR)
    assert "hidden" in caplog.text


def test_a_cancelled_request_ends_the_connection(patient: Served) -> None:
    with patient.raw() as raw:
        raw.send(request("/cancelled"))
        with pytest.raises((CutShort, ConnectionResetError)):
            raw.response()
    wait_until(lambda: len(patient.connections) == 0)


def test_answers_are_dated_and_do_not_say_by_whom(patient: Served) -> None:
    with patient.raw() as raw:
        for response in (raw.get(), raw.get("/bug")):
            assert response.headers["date"].endswith("GMT")
            assert "server" not in response.headers


# The end


def test_an_idle_connection_may_ask_once_more_when_the_server_ends(patient: Served) -> None:
    with patient.raw() as asks, patient.raw() as idle, patient.raw() as fresh:
        asks.get()
        idle.get()
        wait_until(lambda: len(patient.connections) == 3)
        patient.call(patient.connections.drain)
        time.sleep(0.5)
        with lasting(0):
            response = asks.get()
            assert (response.status, response.closes) == (200, True)
            assert asks.ends()
            assert idle.ends()
            assert fresh.ends()
    done = patient.connections.wait_until_done()
    asyncio.run_coroutine_threadsafe(done, patient.loop).result(20)


def test_requests_in_progress_are_finished_when_the_server_ends(patient: Served) -> None:
    with patient.raw() as works, patient.raw() as sends:
        works.send(request("/sleep/0.8") + request())
        sends.send(request("/echo", "Content-Length: 4") + b"ab")
        wait_until(lambda: patient.app.seen == ["sleeps"])
        wait_until(lambda: any(each._receiving for each in list(patient.connections._all)))
        patient.call(patient.connections.drain)
        sends.send(b"cd")
        response = sends.response()
        assert (response.body, response.closes) == (b"abcd", True)
        assert sends.ends()
        response = works.response()
        assert (response.body, response.closes) == (b"slept", False)
        assert works.response().closes
        assert works.ends()


def test_what_is_cut_off_leaves_nothing_running(
    patient: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with patient.raw() as raw:
        raw.send(request("/sleep/60"))
        wait_until(lambda: patient.app.seen == ["sleeps"])
        asyncio.run_coroutine_threadsafe(patient.connections.cut(), patient.loop).result(20)
        assert len(patient.connections) == 0
        assert not patient.connections._orphans
    assert caplog.text == ""


def test_a_flood_of_connections_leaves_those_before_it_alone(
    patient: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient.connections, "_max_connections", 20)
    with ExitStack() as stack:
        first = [stack.enter_context(patient.raw()) for _ in range(20)]
        assert {raw.get().status for raw in first} == {200}
        for _ in range(100):
            with patient.raw() as raw, pytest.raises((CutShort, ConnectionError)):
                raw.get()
        assert {raw.get().status for raw in first} == {200}
    wait_until(lambda: len(patient.connections) == 0)
    with patient.raw() as raw:
        assert raw.get().status == 200
    [record] = caplog.records
    assert "more than 20 connections" in record.getMessage()


def test_closed_connection_frees_its_memory_at_once(quick: Served) -> None:
    """Without the garbage collector, which seldom runs in the service."""
    gc.disable()
    try:
        with quick.raw() as raw:
            raw.send(request("/echo", f"Content-Length: {MAX_BODY}") + b"x" * 20_000)
            freed = weakref.ref(quick.connection)
        wait_until(lambda: len(quick.connections) == 0)
        wait_until(lambda: freed() is None)
    finally:
        gc.enable()


def test_idle_connection_holds_no_request(patient: Served) -> None:
    def held() -> int:
        return sum(type(each) is Request for each in gc.get_objects())

    gc.collect()
    before = held()
    with patient.raw() as raw:
        raw.send(request("/echo", f"Content-Length: {MAX_BODY}") + b"x" * MAX_BODY)
        assert len(raw.response().body) == MAX_BODY
        wait_until(lambda: held() == before)


def test_bug_while_a_refusal_is_written_is_logged_and_answered_with_500(
    patient: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patient.app, "begin", lambda _: Response(9_999, []))
    with patient.raw() as raw:
        assert raw.get().status == 500
    assert "a mistake in the handler" in caplog.text
