"""A client that sends whatever it is told to, frame by frame, and writes down what comes back.

Frames and headers are those of hyperframe and hpack, not our own.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

HOST = "127.0.0.1"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ECHO, WAIT, BIG, EACH = "/t/Echo", "/t/Wait", "/t/Big", "/t/Each"
# Codes of errors, from RFC 9113.
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR = 0, 1, 3, 6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 8, 9, 11
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5


class Closed(Exception):
    """The server closed before what was waited for came."""


class Answer:
    """What came back on one stream."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        self.data = b""
        self.sizes: list[int] = []
        self.is_ended = False
        self.reset: int | None = None

    @property
    def is_over(self) -> bool:
        return self.is_ended or self.reset is not None

    @property
    def status(self) -> int:
        """The code of gRPC."""
        return int(self.headers[-1]["grpc-status"])

    @property
    def detail(self) -> str:
        return self.headers[-1].get("grpc-message", "")

    @property
    def messages(self) -> list[bytes]:
        found, data = [], self.data
        while data:
            compressed, size = struct.unpack_from(">BL", data)
            assert not compressed
            assert len(data) >= 5 + size
            found.append(data[5 : 5 + size])
            data = data[5 + size :]
        return found


class Transcript:
    """What a server said, understood as it comes."""

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.frames: list[Frame] = []
        self.goaways: list[GoAwayFrame] = []
        self.settings: dict[int, int] = {}
        self.pings: list[bytes] = []
        self.acks = 0
        self.widened: dict[int, int] = {}
        self.decoder = Decoder()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= 9:
            frame, size = Frame.parse_frame_header(memoryview(self._rest[:9]))
            if len(self._rest) < 9 + size:
                return
            frame.parse_body(memoryview(self._rest[9 : 9 + size]))
            self._rest = self._rest[9 + size :]
            self._take(frame)

    def answer(self, number: int) -> Answer:
        return self.answers.setdefault(number, Answer())

    def _take(self, frame: Frame) -> None:
        if not self.frames:
            assert isinstance(frame, SettingsFrame), "settings come first"
        self.frames.append(frame)
        if isinstance(frame, SettingsFrame):
            self.acks += "ACK" in frame.flags
            self.settings |= frame.settings
        elif isinstance(frame, PingFrame):
            assert "ACK" in frame.flags
            self.pings.append(frame.opaque_data)
        elif isinstance(frame, GoAwayFrame):
            self.goaways.append(frame)
        elif isinstance(frame, WindowUpdateFrame):
            more = self.widened.get(frame.stream_id, 0) + frame.window_increment
            self.widened[frame.stream_id] = more
        else:
            self._take_on_stream(frame, self.answer(frame.stream_id))

    def _take_on_stream(self, frame: Frame, answer: Answer) -> None:
        if isinstance(frame, RstStreamFrame):
            assert answer.reset is None
            answer.reset = frame.error_code
            return
        assert not answer.is_over, frame
        if isinstance(frame, HeadersFrame):
            found = self.decoder.decode(frame.data)
            answer.headers.append({str(name): str(value) for name, value in found})
        else:
            assert isinstance(frame, DataFrame), frame
            answer.data += frame.data
            answer.sizes.append(len(frame.data))
        answer.is_ended = "END_STREAM" in frame.flags


class Wire(Transcript):
    """One connection."""

    def __init__(
        self, port: int, settings: Mapping[int, int] | None = None, *, greets: bool = True
    ) -> None:
        super().__init__()
        self.socket = socket.create_connection((HOST, port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.encoder = Encoder()
        self.is_closed = False
        if greets:
            self.send(PREFACE, SettingsFrame(0, dict(settings or {})))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *frames: Frame | bytes) -> None:
        self.socket.sendall(as_bytes(*frames))

    def call(self, number: int, message: bytes = b"", path: str = ECHO) -> None:
        """Call once, all at once."""
        self.send(self.head(number, path), data(number, prefixed(message), ends=True))

    def head(self, number: int, path: str = ECHO, *, ends: bool = False, **more: str) -> Frame:
        block = self.encoder.encode(list(headers(path, **more).items()))
        return head(number, block, ends=ends)

    # What comes back.

    def read(self, number: int) -> Answer:
        """Read on until a call is over."""
        self.until(lambda: self.answer(number).is_over)
        return self.answer(number)

    def until(self, so: Callable[[], bool]) -> None:
        while not so():
            self._receive()

    def goes_away(self) -> int:
        """Read on to the end; return why it is one."""
        try:
            while True:
                self._receive()
        except Closed:
            assert self.goaways, "closed without a word"
            return self.goaways[-1].error_code

    def asks_again(self) -> None:
        """See that the server has read all there was."""
        count = len(self.pings)
        self.send(PingFrame(0, b"probe..."))
        self.until(lambda: len(self.pings) > count)

    def _receive(self) -> None:
        try:
            received = self.socket.recv(65_536)
        except ConnectionResetError:
            received = b""
        if not received:
            self.is_closed = True
            raise Closed
        self.feed(received)


def as_bytes(*frames: Frame | bytes) -> bytes:
    return b"".join(each if isinstance(each, bytes) else each.serialize() for each in frames)


def raw(kind: int, flags: int = 0, number: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame that no library would make."""
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, number) + payload


def headers(path: str = ECHO, **more: str) -> dict[str, str]:
    found = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "limen",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return found | {name.replace("_", "-"): value for name, value in more.items()}


def head(number: int, block: bytes, *, ends: bool = False, flags: Iterable[str] = ()) -> Frame:
    return HeadersFrame(
        number, block, flags=["END_HEADERS", *flags, *(["END_STREAM"] if ends else [])]
    )


def data(number: int, content: bytes, *, ends: bool = False) -> Frame:
    return DataFrame(number, content, flags=["END_STREAM"] if ends else [])


def in_pieces(number: int, body: bytes, size: int) -> list[Frame]:
    """Return a body in frames of some bytes, and an empty one at the end."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return [*(data(number, piece) for piece in pieces), data(number, b"", ends=True)]


def continuation(number: int, block: bytes, *, ends: bool = False) -> Frame:
    return ContinuationFrame(number, block, flags=["END_HEADERS"] if ends else [])


def prefixed(message: bytes) -> bytes:
    return struct.pack(">BL", 0, len(message)) + message
