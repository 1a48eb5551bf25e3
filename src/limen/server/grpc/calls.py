"""What is called, and how calls are answered: headers and trailers, messages, codes. Pure.

Clients send the same headers again and again, and HTTP/2 lets them do so in a few bytes that mean
the same as long as neither side's table changes. So a block of headers that was understood is
remembered until then.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple
from urllib.parse import quote

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from limen.server.grpc.frames import Broken, Error

PREFIX = Struct(">BL")
"""Of a message: whether it is compressed, and its length."""
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_GRPC_TYPE = re.compile(rb"application/grpc(\+|;|$)")
"""Not that of gRPC for browsers, which is something else."""
_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_READ = (b":method", b":path", b"authorization", b"content-type", b"grpc-encoding", b"grpc-timeout")
"""The headers that are read. Each may be sent once."""
_MOST_REMEMBERED, _LONGEST_REMEMBERED = 256, 1_024
# Literals that go into no table, so that the bytes are the same every time.
_OK = b"\x88"
_GRPC = b"\x0f\x10\x10application/grpc"


class Code(IntEnum):
    """How a call ended. There is none for a mistake of our own: that is UNAVAILABLE."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Failed(Exception):
    """Say that a call is not answered, and why."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Unary(NamedTuple):
    """A method that answers one message by one."""

    answer: Callable[[bytes, Call], Awaitable[bytes]]
    undelivered: Callable[[bytes], object] | None = None
    """Called with the answer when the client has given up the call before it."""


class Streamed(NamedTuple):
    """A method that answers messages by messages, until either side ends."""

    answer: Callable[[AsyncIterator[bytes], Call], AsyncIterator[bytes]]


Method = Unary | Streamed
Methods = Mapping[bytes, Method]
"""By their paths: `b"/grpc.health.v1.Health/Check"`."""


class Call(NamedTuple):
    """What the headers of a call say."""

    method: Method | None
    """None when there is nothing to call; `refusal` says so then."""
    timeout: float | None
    """How many seconds the client waits."""
    authorization: str | None
    refusal: bytes
    """The headers that refuse the call, whatever it sends; empty for most."""


class Headers:
    """Understands the headers of one connection."""

    def __init__(self, methods: Methods, max_size: int) -> None:
        self._methods = methods
        self._decoder = Decoder(max_size)
        self._known: dict[bytes, Call] = {}

    def read(self, block: bytes) -> Call:
        """Return what a block of headers calls. Raises `Broken`."""
        found = self._known.get(block)
        if found is not None:
            return found
        table = self._decoder.header_table
        entries = table.dynamic_entries
        newest, size = entries[0] if entries else None, table.maxsize
        try:
            headers = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError:
            raise Broken(Error.ENHANCE_YOUR_CALM, "the headers are too long") from None
        except (HPACKError, UnicodeDecodeError):
            raise Broken(Error.COMPRESSION_ERROR, "the headers cannot be read") from None
        call = _call([(bytes(name), bytes(value)) for name, value in headers], self._methods)
        if table.maxsize != size or (entries[0] if entries else None) is not newest:
            # Whatever was said by a place in the table now means something else.
            self._known.clear()
        elif len(block) <= _LONGEST_REMEMBERED and len(self._known) < _MOST_REMEMBERED:
            self._known[block] = call
        return call


def _call(fields: Sequence[tuple[bytes, bytes]], methods: Methods) -> Call:
    headers = dict(fields)
    names = [name for name, _ in fields]
    repeated = next((name for name in _READ if names.count(name) > 1), None)
    authorization = headers.get(b"authorization")
    token = None if authorization is None else authorization.decode("latin-1")
    timeout = _seconds(headers.get(b"grpc-timeout"))
    method = methods.get(headers.get(b":path", b""))
    refusal = b""
    if headers.get(b":method") != b"POST":
        refusal = status(405)
    elif not _GRPC_TYPE.match(headers.get(b"content-type", b"")):
        refusal = status(415)
    elif method is None:
        refusal = failure(Code.UNIMPLEMENTED, "there is no such method; reflection lists them")
    elif headers.get(b"grpc-encoding", b"identity") != b"identity":
        refusal = failure(Code.UNIMPLEMENTED, "messages must not be compressed")
    elif repeated is not None:
        # Proxies and servers disagree which value counts.
        detail = f"the header {repeated.decode()} is repeated; send it once"
        refusal = failure(Code.INVALID_ARGUMENT, detail)
    elif timeout is None and b"grpc-timeout" in headers:
        refusal = failure(Code.INVALID_ARGUMENT, "grpc-timeout is not as gRPC has it")
    return Call(method, timeout, token, refusal)


def _seconds(timeout: bytes | None) -> float | None:
    found = _TIMEOUT.fullmatch(timeout or b"")
    return int(found[1]) * _UNITS_S[found[2]] if found else None


BEGIN: bytes = _OK + _GRPC
"""The headers before messages."""


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + _text(name) + _text(value)


def _text(value: bytes) -> bytes:
    size = len(value)
    if size < 0x7F:
        return bytes((size,)) + value
    size, more = size - 0x7F, bytearray((0x7F,))
    while size >= 0x80:
        more.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*more, size)) + value


def trailers(code: Code, detail: str = "") -> bytes:
    """Return the headers behind all messages."""
    found = _literal(b"grpc-status", b"%d" % code)
    if detail:
        said = quote(detail[:1_000], safe=" !#$&'()*+,/:;=?@[]\"<>^`{|}")
        found += _literal(b"grpc-message", said.encode("ascii"))
    return found


END: bytes = trailers(Code.OK)
"""The trailers of a call that was answered."""


def failure(code: Code, detail: str) -> bytes:
    """Return the headers that are all there is to a call that failed."""
    return BEGIN + trailers(code, detail)


def status(number: int) -> bytes:
    """Return the headers for who does not even speak gRPC."""
    return b"\x08\x03%d" % number
