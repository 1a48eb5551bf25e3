"""Frames of HTTP/2 (RFC 9113), as bytes. Pure."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = Struct(">HBBBL")
"""Of a frame: its length as 16 and 8 bits, its kind, its flags, and its stream."""
HEADER_SIZE = HEADER.size
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
ACK = END_STREAM = 0x1
END_HEADERS, PADDED, WITH_PRIORITY = 0x4, 0x8, 0x20
LAST_STREAM = 2**31 - 1
MAX_WINDOW = 2**31 - 1
WINDOW = 65_535
"""What either side may send before it is told that it may send more."""
FRAME_SIZE = 16_384
"""The largest frame that either side takes, unless it says otherwise."""
PING_SIZE = 8
TABLE_SIZE = 4_096
"""How many bytes of headers either side remembers, unless it says otherwise."""

_SETTING = Struct(">HL")
_TWO = Struct(">LL")
_ONE = Struct(">L")


class Error(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    """What the two sides tell each other at the start, as far as it matters here."""

    HEADER_TABLE_SIZE = 1
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Broken(Exception):
    """Say that a client does not keep to the protocol, and that the connection ends."""

    def __init__(self, error: Error, why: str) -> None:
        super().__init__(why)
        self.error = error


def expect(holds: bool, otherwise: str) -> None:
    """Raise `Broken` unless something holds."""
    if not holds:
        raise Broken(Error.PROTOCOL_ERROR, otherwise)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    size = len(payload)
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    """Return the frame that tells what this side takes."""
    return frame(SETTINGS, 0, 0, b"".join([_SETTING.pack(*each) for each in values.items()]))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return what the other side takes, by numbers, some of them unknown. Raises `Broken`."""
    if len(payload) % _SETTING.size:
        raise Broken(Error.FRAME_SIZE_ERROR, "settings of a wrong length")
    return [(number, value) for number, value in _SETTING.iter_unpack(payload)]


def window_update(stream: int, more: int) -> bytes:
    """Return the frame that lets the other side send more; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, _ONE.pack(more))


def reset(stream: int, error: Error) -> bytes:
    """Return the frame that ends a stream."""
    return frame(RST_STREAM, 0, stream, _ONE.pack(error))


def goaway(last: int, error: Error, why: str = "") -> bytes:
    """Return the frame that ends a connection, after a last stream."""
    return frame(GOAWAY, 0, 0, _TWO.pack(last, error) + why.encode())


def number(payload: bytes) -> int:
    """Return what a frame of one number says. Raises `Broken`."""
    if len(payload) != _ONE.size:
        raise Broken(Error.FRAME_SIZE_ERROR, "a number of a wrong length")
    found: int = _ONE.unpack(payload)[0]
    return found


def content(payload: bytes, flags: int) -> bytes:
    """Return what DATA or HEADERS hold besides padding and priority. Raises `Broken`."""
    start = padding = 0
    if flags & PADDED:
        if not payload:
            raise Broken(Error.FRAME_SIZE_ERROR, "a padded frame without padding")
        start, padding = 1, payload[0]
    if flags & WITH_PRIORITY:
        start += 5
    if start + padding > len(payload):
        raise Broken(Error.PROTOCOL_ERROR, "a frame of nothing but padding")
    return payload[start : len(payload) - padding]
