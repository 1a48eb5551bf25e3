"""Who leans on a bound finds it: told by GOAWAY or RST_STREAM, while others are served.

Memory and time are those of a server on a real socket; nothing is logged as an error.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hpack import Encoder
from hyperframe.frame import (
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from limen.server.grpc.connection import Connection, GrpcConnections
from tests.server.grpc.inside import Pipe
from tests.server.grpc.serving import PATIENT, Methods, Served
from tests.server.grpc.wire import (
    BIG,
    CANCEL,
    EACH,
    ECHO,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    INITIAL_WINDOW_SIZE,
    NO_ERROR,
    PREFACE,
    WAIT,
    Wire,
    as_bytes,
    continuation,
    data,
    head,
    headers,
    in_pieces,
    prefixed,
    raw,
)
from tests.waiting import wait_until

BLOCK = Encoder().encode(list(headers(ECHO).items()))
WAIT_BLOCK = Encoder().encode(list(headers(WAIT).items()))
EACH_BLOCK = Encoder().encode(list(headers(EACH).items()))
REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@contextmanager
def lasting(least_s: float) -> Iterator[None]:
    """Check that something takes as long as a timeout of ours, and not for ever."""
    began = time.monotonic()
    yield
    assert least_s <= time.monotonic() - began <= 20


def pairs(first: Callable[[int], Frame], count: int) -> bytes:
    """Return calls that are cancelled as soon as they begin."""
    return b"".join(
        as_bytes(first(number), RstStreamFrame(number, CANCEL)) for number in range(1, 2 * count, 2)
    )


# Columns: what is sent again and again, more often than it may be.
FLOODS = {
    "pings": as_bytes(PingFrame(0, b"12345678")) * 10_001,
    "answers to pings": raw(6, 1, 0, b"12345678") * 10_001,
    "settings": as_bytes(SettingsFrame(0)) * 10_001,
    "settings that change windows": as_bytes(SettingsFrame(0, {INITIAL_WINDOW_SIZE: 9})) * 10_001,
    "thanks for settings": raw(4, 1) * 10_001,
    "kinds nobody knows": raw(0xEE) * 10_001,
    "priorities": raw(2, 0, 3, bytes(5)) * 10_001,
    "goaways": raw(7, 0, 0, bytes(8)) * 10_001,
    "room for answers": as_bytes(WindowUpdateFrame(0, 1)) * 10_001,
    "room on a stream": as_bytes(head(1, BLOCK)) + as_bytes(WindowUpdateFrame(1, 1)) * 10_001,
    "empty data": as_bytes(head(1, BLOCK)) + as_bytes(data(1, b"")) * 10_001,
    "data one byte long": as_bytes(head(1, BLOCK), data(1, b"\0\0\1\0\0"))
    + as_bytes(data(1, b"x")) * 10_001,
    "padding": as_bytes(head(1, BLOCK)) + raw(0, 8, 1, b"\x08" + bytes(8)) * 10_001,
    "data of a call that was refused": as_bytes(head(1, BLOCK, ends=True))
    + as_bytes(data(1, b"x")) * 10_012,
    "headers of a call that is past": as_bytes(head(3, BLOCK)) + as_bytes(head(1, BLOCK)) * 10_001,
    "empty continuations": as_bytes(HeadersFrame(1, BLOCK))
    + as_bytes(continuation(1, b"")) * 10_001,
    "calls that are cancelled": pairs(lambda number: head(number, BLOCK), 10_001),
    "streams that are cancelled": pairs(lambda number: head(number, EACH_BLOCK), 10_001),
}


@pytest.mark.parametrize("name", FLOODS)
def test_too_many_frames_that_ask_for_nothing_are_too_many(served: Served, name: str) -> None:
    with Wire(served.port) as other, Wire(served.port) as wire:
        with suppress(ConnectionError):
            wire.send(FLOODS[name])
        assert wire.goes_away() == ENHANCE_YOUR_CALM
        other.call(1, b"others")
        assert other.read(1).messages == [b"others"]


def test_who_asks_may_send_more_of_them(served: Served) -> None:
    ten = as_bytes(PingFrame(0, b"12345678")) * 10
    with Wire(served.port) as wire:
        for number in range(1, 4_001, 2):
            wire.send(ten, wire.head(number), data(number, prefixed(b""), ends=True))
            if number % 100 == 1:
                wire.read(number)
        assert wire.read(3_999).status == 0
        assert wire.goaways == []


def test_calls_that_are_cancelled_do_not_run_without_end(served: Served) -> None:
    """Rapid reset: the work goes on, so it is bounded whoever waits for it."""
    served.call(served.methods.go_on.clear)
    served.methods.seen.clear()
    with Wire(served.port) as wire:
        for number in range(1, 10_001, 2):
            body = data(number, prefixed(b"work"), ends=True)
            wire.send(head(number, WAIT_BLOCK), body, RstStreamFrame(number, CANCEL))
        wire.asks_again()
        assert len(served.methods.seen) <= 2_000
        refused = sum(answer.reset == 7 for answer in wire.answers.values())
        assert refused >= 3_000
        served.call(served.methods.go_on.set)
        wire.call(10_001, b"again")
        assert wire.read(10_001).messages == [b"again"]


def test_streams_that_are_cancelled_at_once_are_not_counted_for_ever(served: Served) -> None:
    with Wire(served.port) as wire:
        wire.send(pairs(lambda number: head(number, EACH_BLOCK), 2_500))
        wire.asks_again()
        wire.call(5_001, b"again")
        assert wire.read(5_001).messages == [b"again"]


# Sizes


@pytest.mark.parametrize("size", [1_048_577, 4 * 2**20, 2**32 - 1])
def test_a_message_that_is_too_long_is_refused_as_soon_as_it_says_so(
    served: Served, size: int
) -> None:
    with lasting(0), Wire(served.port) as wire:
        wire.send(wire.head(1), data(1, struct.pack(">BL", 0, size) + b"x"))
        answer = wire.read(1)
        assert (answer.status, answer.detail) == (8, "a message is longer than 1,048,576 bytes")
        wire.until(lambda: answer.reset == NO_ERROR)
        # What is on its way is taken, and forgotten.
        wire.send(*in_pieces(1, bytes(1_000_000), 16_384))
        wire.call(3, b"next")
        assert wire.read(3).messages == [b"next"]


def test_a_client_that_sends_more_than_it_may_is_cut_off(served: Served) -> None:
    with Wire(served.port) as wire:
        for number in range(1, 19, 2):
            body = struct.pack(">BL", 0, 1_000_000) + bytes(600_000)
            with suppress(ConnectionError):
                wire.send(wire.head(number), *in_pieces(number, body, 16_384)[:-1])
        assert wire.goes_away() == FLOW_CONTROL_ERROR


def test_a_call_that_sends_more_than_it_may_is_refused(served: Served) -> None:
    with Wire(served.port) as wire:
        body = prefixed(bytes(1_048_576)) + b"more"
        wire.send(wire.head(1), *in_pieces(1, body, 16_384))
        assert wire.read(1).status == 8
        wire.send(wire.head(3, EACH), *in_pieces(3, prefixed(b"x") * 180_000, 16_384))
        assert wire.read(3).status in (0, 8)
        wire.call(5, b"next")
        assert wire.read(5).messages == [b"next"]


# Time


@pytest.mark.parametrize(
    "start",
    [
        raw(6, 0, 0, b"12345678")[:-1],
        raw(6)[:3],
        as_bytes(HeadersFrame(1, BLOCK[:5])),
        as_bytes(HeadersFrame(1, BLOCK[:5]), continuation(1, BLOCK[5:7])),
    ],
)
def test_what_is_begun_and_not_ended_is_not_waited_for(either_quick: Served, start: bytes) -> None:
    with lasting(0.25), Wire(either_quick.port) as wire:
        wire.send(start)
        assert wire.goes_away() == ENHANCE_YOUR_CALM


def test_headers_that_trickle_in_are_not_waited_for(quick: Served) -> None:
    with lasting(0.25), Wire(quick.port) as wire:
        wire.send(HeadersFrame(1, BLOCK))
        with suppress(ConnectionError):
            for _ in range(100):
                wire.send(continuation(1, b""))
                time.sleep(0.03)
        assert wire.goes_away() == ENHANCE_YOUR_CALM


def test_a_frame_that_trickles_in_is_not_waited_for(quick: Served) -> None:
    with lasting(0.25), Wire(quick.port) as wire:
        with suppress(ConnectionError):
            for byte in raw(6, 0, 0, b"12345678") * 10:
                wire.send(bytes([byte]))
                time.sleep(0.03)
        assert wire.goes_away() == ENHANCE_YOUR_CALM


def test_a_client_that_always_has_the_rest_of_something_is_not_cut_off(quick: Served) -> None:
    ping = as_bytes(PingFrame(0, b"12345678"))
    with Wire(quick.port) as wire:
        wire.send(ping[:5])
        for _ in range(30):
            wire.send(ping[5:] + ping[:5])
            time.sleep(0.02)
        wire.until(lambda: len(wire.pings) == 30)


def test_who_says_nothing_at_all_is_not_waited_for(quick: Served) -> None:
    for start in (b"", b"PRI * HT"):
        with lasting(0.25), Wire(quick.port, greets=False) as wire:
            wire.send(start)
            assert wire.socket.recv(100) == b""


@pytest.mark.parametrize("path", [ECHO, EACH])
def test_a_body_that_trickles_in_ends_its_call(quick: Served, path: str) -> None:
    with lasting(0.25), Wire(quick.port) as wire:
        wire.send(wire.head(1, path), data(1, prefixed(bytes(1_000))[:5]))
        for _ in range(20):
            wire.send(data(1, b"x"))
            time.sleep(0.02)
        assert wire.read(1).reset == CANCEL
        wire.call(3, b"next")
        assert wire.read(3).messages == [b"next"]


def test_who_waits_between_calls_is_left_alone(quick: Served) -> None:
    with Wire(quick.port) as wire:
        wire.call(1, b"x")
        wire.read(1)
        time.sleep(0.8)
        wire.call(3, b"y")
        assert wire.read(3).messages == [b"y"]


def test_an_answer_for_which_no_room_is_given_ends(either_quick: Served) -> None:
    with lasting(0.3), Wire(either_quick.port, {INITIAL_WINDOW_SIZE: 10}) as wire:
        wire.call(1, b"%d" % 10**6, BIG)
        wire.send(wire.head(3, EACH), data(3, prefixed(bytes(20)) * 3, ends=True))
        assert wire.read(1).reset == CANCEL
        assert wire.read(3).reset == CANCEL
        wire.call(5, b"x")
        assert wire.read(5).messages == [b"x"]


def test_a_client_that_does_not_read_is_cut_off(either_quick: Served) -> None:
    before = either_quick.count
    with Wire(either_quick.port, {INITIAL_WINDOW_SIZE: 2**30}) as wire:
        wire.send(WindowUpdateFrame(0, 2**30))
        for number in range(1, 101, 2):
            wire.call(number, b"%d" % 10**6, BIG)
        wait_until(lambda: either_quick.count == before, 10)


# Connections


def test_more_connections_than_there_may_be_are_closed(
    quick: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quick.connections, "_max_connections", 2)
    with Wire(quick.port) as one, Wire(quick.port) as two:
        for wire in (one, two):
            wire.call(1, b"x")
            wire.read(1)
        with Wire(quick.port, greets=False) as three:
            assert three.socket.recv(100) == b""
        one.call(3, b"y")
        assert one.read(3).messages == [b"y"]
    wait_until(lambda: quick.count == 0)
    with Wire(quick.port) as again:
        again.call(1, b"z")
        assert again.read(1).messages == [b"z"]
    assert "more than 2 gRPC connections" in caplog.text
    caplog.clear()


# Memory


def test_a_client_that_takes_no_answers_does_not_make_them_pile_up(served: Served) -> None:
    """Five bytes ask for hundreds: nothing more is made until the client takes some."""
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 0}) as wire:
        wire.send(wire.head(1, REFLECT))
        held = _held_after(lambda: _ask_in_vain(wire))
    assert held < 5 * 2**20


def _ask_in_vain(wire: Wire) -> None:
    piece = prefixed(b"") * 3_000
    wire.send(*[data(1, piece) for _ in range(60)])
    wire.asks_again()


def test_no_message_is_taken_before_the_answer_to_the_last_one_is(served: Served) -> None:
    served.methods.seen.clear()
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 0}) as wire:
        wire.send(wire.head(1, EACH), data(1, prefixed(b"x") * 50))
        for count in range(1, 10):
            wire.asks_again()
            wire.asks_again()
            assert len(served.methods.seen) == count
            wire.send(WindowUpdateFrame(1, len(prefixed(b"x"))))
            wire.until(lambda: len(wire.answer(1).messages) == count)  # noqa: B023


def test_messages_are_not_taken_for_a_client_that_does_not_read(served: Served) -> None:
    served.methods.seen.clear()
    message = bytes(16_000)
    with Wire(served.port, {INITIAL_WINDOW_SIZE: 2**30}) as wire:
        wire.send(WindowUpdateFrame(0, 2**30), wire.head(1, EACH))
        wire.socket.settimeout(0.5)
        with suppress(TimeoutError):
            for _ in range(2_000):  # 32 MB, more than sockets hold
                wire.send(data(1, prefixed(message)))
        assert len(served.methods.seen) < 1_500


async def _talk_of(count: int) -> tuple[Methods, Connection]:
    """Begin a talk of so many messages that are there at once."""
    methods = Methods()
    connection = GrpcConnections(methods.by_path, PATIENT).make()
    connection.connection_made(Pipe())
    connection.pause_writing()
    whole = as_bytes(head(1, EACH_BLOCK), data(1, prefixed(b"") * count, ends=True))
    connection.data_received(PREFACE + raw(4) + whole)
    return methods, connection


def test_many_small_messages_wait_for_a_client_that_does_not_read() -> None:
    async def talk() -> list[int]:
        methods, connection = await _talk_of(100)
        seen = []
        for act in (connection.pause_writing, connection.resume_writing):
            act()
            for _ in range(300):
                await asyncio.sleep(0)
            seen.append(len(methods.seen))
        connection.connection_lost(None)
        return seen

    assert asyncio.run(talk()) == [1, 100]


def test_many_small_messages_hold_up_nobody() -> None:
    async def turns() -> int:
        methods, connection = await _talk_of(1_000)
        connection.resume_writing()
        count = 0
        while len(methods.seen) < 1_000:
            await asyncio.sleep(0)
            count += 1
        connection.connection_lost(None)
        return count

    assert asyncio.run(turns()) >= 1_000


def test_what_one_connection_holds_is_bounded(served: Served) -> None:
    """A thousand calls, each with as much of a message as may be."""
    with Wire(served.port) as wire:
        held = _held_after(lambda: _send_halves(wire))
    assert held < 12 * 2**20


def _send_halves(wire: Wire) -> None:
    piece = prefixed(bytes(10_000))[:4_000]
    for number in range(1, 2_001, 2):
        wire.send(wire.head(number), data(number, piece))
    wire.asks_again()


def test_connections_leave_nothing_behind(served: Served) -> None:
    def talk() -> None:
        for _ in range(30):
            with Wire(served.port) as wire:
                wire.send(*[wire.head(number, EACH) for number in range(1, 40, 2)])
                wire.call(41, b"10000", BIG)
                wire.read(41)
        wait_until(lambda: served.count <= before)

    before = served.count
    talk()
    assert _held_after(talk) < 200_000


def _held_after(act: Callable[[], None]) -> int:
    """Return how many bytes more there are after something."""
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        act()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
