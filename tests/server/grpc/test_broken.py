"""Who does not keep to HTTP/2 is told so by GOAWAY, and cut off; others do not notice."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hpack import Encoder
from hyperframe.frame import (
    DataFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.server.grpc.serving import HOST, Served
from tests.server.grpc.wire import (
    COMPRESSION_ERROR,
    ECHO,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PROTOCOL_ERROR,
    WAIT,
    Wire,
    as_bytes,
    continuation,
    data,
    head,
    headers,
    prefixed,
    raw,
)

BLOCK = Encoder().encode(list(headers(ECHO).items()))
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
# An entry of the table that is as long as may be, named again and again by one byte.
_BOMB = Encoder().encode([("a", "b" * 3_900)]) + b"\xbe" * 100


@pytest.fixture(autouse=True)
def _others_are_served(served: Served) -> Iterator[None]:
    with Wire(served.port) as other:
        other.call(1, b"before")
        assert other.read(1).messages == [b"before"]
        yield
        other.call(3, b"after")
        assert other.read(3).messages == [b"after"]


# Columns: what is sent behind the greeting, and the code of the GOAWAY.
BROKEN = {
    "a frame that is too large": (raw(DATA, 0, 1, bytes(16_385)), FRAME_SIZE_ERROR),
    "a kind nobody knows that is too large": (raw(0xEE, 0, 0, bytes(16_385)), FRAME_SIZE_ERROR),
    "data on no stream": (raw(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
    "data before headers": (raw(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
    "headers on no stream": (raw(HEADERS, 4, 0, BLOCK), PROTOCOL_ERROR),
    "headers on an even stream": (raw(HEADERS, 4, 2, BLOCK), PROTOCOL_ERROR),
    "headers on an even stream that is past": (
        as_bytes(head(3, BLOCK), raw(HEADERS, 4, 2, BLOCK)),
        PROTOCOL_ERROR,
    ),
    "headers twice": (as_bytes(head(1, BLOCK), head(1, BLOCK)), PROTOCOL_ERROR),
    "headers behind the end": (
        as_bytes(
            head(1, Encoder().encode(list(headers(WAIT).items()))),
            data(1, prefixed(b"x"), ends=True),
            head(1, BLOCK, ends=True),
        ),
        PROTOCOL_ERROR,
    ),
    "headers that are not continued": (
        as_bytes(HeadersFrame(1, BLOCK[:5]), PingFrame(0, b"12345678")),
        PROTOCOL_ERROR,
    ),
    "headers that are continued elsewhere": (
        as_bytes(HeadersFrame(1, BLOCK[:5]), continuation(3, BLOCK[5:], ends=True)),
        PROTOCOL_ERROR,
    ),
    "what continues nothing": (as_bytes(continuation(1, BLOCK, ends=True)), PROTOCOL_ERROR),
    "headers of nothing but padding": (raw(HEADERS, 0xC, 1, b"\x05abc"), PROTOCOL_ERROR),
    "headers too short for a priority": (raw(HEADERS, 0x24, 1, b"abc"), PROTOCOL_ERROR),
    "padded headers without a length": (raw(HEADERS, 0xC, 1), FRAME_SIZE_ERROR),
    "data of nothing but padding": (
        as_bytes(head(1, BLOCK), raw(DATA, 8, 1, b"\x05abc")),
        PROTOCOL_ERROR,
    ),
    "padded data without a length": (
        as_bytes(head(1, BLOCK), raw(DATA, 8, 1)),
        FRAME_SIZE_ERROR,
    ),
    "the end of no stream": (raw(RST, 0, 0, bytes(4)), PROTOCOL_ERROR),
    "the end of a stream that never began": (as_bytes(RstStreamFrame(1)), PROTOCOL_ERROR),
    "an end of a wrong length": (
        as_bytes(head(1, BLOCK), raw(RST, 0, 1, bytes(3))),
        FRAME_SIZE_ERROR,
    ),
    "settings of a wrong length": (raw(SETTINGS, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    "settings of a stream": (raw(SETTINGS, 0, 1), PROTOCOL_ERROR),
    "settings that thank and say more": (raw(SETTINGS, 1, 0, bytes(6)), FRAME_SIZE_ERROR),
    "a first window that is too large": (
        raw(SETTINGS, 0, 0, struct.pack(">HL", INITIAL_WINDOW_SIZE, 2**31)),
        FLOW_CONTROL_ERROR,
    ),
    "frames that are too small": (
        raw(SETTINGS, 0, 0, struct.pack(">HL", MAX_FRAME_SIZE, 16_383)),
        PROTOCOL_ERROR,
    ),
    "frames that are too large to be": (
        raw(SETTINGS, 0, 0, struct.pack(">HL", MAX_FRAME_SIZE, 2**24)),
        PROTOCOL_ERROR,
    ),
    "a ping of a wrong length": (raw(PING, 0, 0, b"1234567"), FRAME_SIZE_ERROR),
    "a ping of a stream": (raw(PING, 0, 1, b"12345678"), PROTOCOL_ERROR),
    "a window that grows by nothing": (raw(WINDOW, 0, 0, bytes(4)), PROTOCOL_ERROR),
    "a window of a wrong length": (raw(WINDOW, 0, 0, bytes(5)), FRAME_SIZE_ERROR),
    "a window of a stream that never began": (as_bytes(WindowUpdateFrame(1, 5)), PROTOCOL_ERROR),
    "a window that overflows": (as_bytes(WindowUpdateFrame(0, 2**31 - 1)), FLOW_CONTROL_ERROR),
    "a window of a stream that overflows": (
        as_bytes(head(1, BLOCK), WindowUpdateFrame(1, 2**31 - 1)),
        FLOW_CONTROL_ERROR,
    ),
    "a window that settings overflow": (
        as_bytes(
            head(1, BLOCK),
            WindowUpdateFrame(1, 2**31 - 1 - 65_535),
            SettingsFrame(0, {INITIAL_WINDOW_SIZE: 65_536}),
        ),
        FLOW_CONTROL_ERROR,
    ),
    "a promise": (raw(PUSH, 4, 1, struct.pack(">L", 2) + BLOCK), PROTOCOL_ERROR),
    "headers that cannot be read": (raw(HEADERS, 5, 1, b"\xff\xff\xff\xff\xff"), COMPRESSION_ERROR),
    "headers that name nothing": (raw(HEADERS, 5, 1, b"\xbe"), COMPRESSION_ERROR),
    "a table that is too large": (raw(HEADERS, 5, 1, b"\x3f\xe2\xff\x03"), COMPRESSION_ERROR),
    "an HPACK bomb": (raw(HEADERS, 5, 1, _BOMB), ENHANCE_YOUR_CALM),
    "headers that are too long": (
        as_bytes(
            HeadersFrame(1, BLOCK), continuation(1, bytes(16_384)), continuation(1, bytes(16_384))
        ),
        ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_it_goes_away_for(served: Served, name: str) -> None:
    sent, code = BROKEN[name]
    with Wire(served.port) as wire:
        wire.send(sent)
        assert wire.goes_away() == code
        assert wire.goaways[-1].additional_data, "and says why"


def test_a_goaway_names_the_last_call_that_was_taken(served: Served) -> None:
    with Wire(served.port) as wire:
        wire.call(5, b"x")
        wire.read(5)
        wire.send(raw(PING, 0, 0, b""))
        assert wire.goes_away() == FRAME_SIZE_ERROR
        assert wire.goaways[-1].last_stream_id == 5


# Columns: what is ignored.
IGNORED = {
    "a kind nobody knows": raw(0xEE, 0xFF, 7, b"whatever"),
    "flags nobody knows": raw(PING, 0xFE, 0, b"12345678"),
    "the bit that is reserved": raw(PING, 0, 2**31, b"12345678"),
    "a priority": as_bytes(PriorityFrame(9, stream_weight=5)),
    "settings nobody knows": raw(SETTINGS, 0, 0, struct.pack(">HL", 0xAB, 2**32 - 1)),
    "thanks for settings": raw(SETTINGS, 1),
    "an answer to no ping": raw(PING, 1, 0, b"12345678"),
    "a goaway": raw(GOAWAY, 0, 0, bytes(8)),
}


@pytest.mark.parametrize("name", IGNORED)
def test_it_goes_on_after(served: Served, name: str) -> None:
    with Wire(served.port) as wire:
        wire.send(IGNORED[name])
        wire.call(1, b"x")
        assert wire.read(1).messages == [b"x"]
        assert wire.goaways == []


def test_a_flag_that_data_does_not_have_takes_nothing_away(served: Served) -> None:
    padded = b"\x02" + prefixed(b"x") + b"\0\0"
    with Wire(served.port) as wire:
        wire.send(wire.head(1), raw(DATA, 0x1 | 0x8 | 0x20, 1, padded))
        assert wire.read(1).messages == [b"x"]


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/1.1\r\n", b"POST "]
)
def test_http_1_is_told_where_it_is(served: Served, sent: bytes) -> None:
    with socket.create_connection((HOST, served.port), 10) as plain:
        plain.sendall(sent)
        received = b""
        while more := plain.recv(4_096):
            received += more
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert body == b"This port speaks gRPC; HTTP is spoken on another one.\n"


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\0", b"\xff"])
def test_tls_and_noise_are_closed_without_a_word(served: Served, sent: bytes) -> None:
    with socket.create_connection((HOST, served.port), 10) as plain:
        plain.sendall(sent)
        assert plain.recv(4_096) == b""


def test_a_greeting_that_is_cut_into_bytes_is_one(served: Served) -> None:
    with Wire(served.port, greets=False) as wire:
        for byte in as_bytes(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", SettingsFrame(0)):
            wire.send(bytes([byte]))
        wire.call(1, b"x")
        assert wire.read(1).messages == [b"x"]
        assert wire.acks == 1


def test_nothing_is_read_behind_what_broke_it(served: Served) -> None:
    served.methods.seen.clear()
    with Wire(served.port) as wire:
        wire.send(raw(PING, 0, 0, b""), head(1, BLOCK), data(1, prefixed(b"late"), ends=True))
        assert wire.goes_away() == FRAME_SIZE_ERROR
    assert b"late" not in served.methods.seen


@pytest.mark.parametrize("frame", [DataFrame(1, b"x"), RstStreamFrame(1), WindowUpdateFrame(1, 1)])
def test_what_comes_late_for_a_call_that_is_over_is_ignored(
    served: Served, frame: DataFrame
) -> None:
    with Wire(served.port) as wire:
        wire.call(1, b"x")
        wire.read(1)
        wire.send(frame)
        wire.call(3, b"y")
        assert wire.read(3).messages == [b"y"]
