"""HTTP/1.1 as a client speaks it, without any I/O: requests to bytes, bytes to responses.

Both drivers use it. It knows nothing of limen: neither paths nor messages. Whatever is not as it
should be is `Garbled`, and so is whatever would never end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_MAX_HEAD = 65_536
_MAX_BODY = 64 * 2**20
_MAX_LINE = 1_024
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")
_EMPTY = (204, 304)


class Request(NamedTuple):
    """What to ask for."""

    method: str
    path: str
    """With the query, if there is one: `/v1/usage?user=42`."""
    body: bytes = b""


class Response(NamedTuple):
    """What was answered."""

    status: int
    kind: str
    """The media type, without its parameters: `application/json`."""
    body: bytes
    keeps: bool
    """Whether the connection can be used again."""


class Garbled(Exception):
    """Say that what came is no HTTP, or too much of it."""


class Head(NamedTuple):
    """What every request of one client says."""

    path: str
    """What stands before every path."""
    lines: bytes
    """The headers that are always the same."""

    def encode(self, request: Request) -> bytes:
        """Return a request as bytes."""
        first = f"{request.method} {self.path}{request.path} HTTP/1.1\r\n".encode("ascii")
        if request.method == "GET":
            return b"%b%b\r\n" % (first, self.lines)
        return b"%b%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
            first,
            self.lines,
            len(request.body),
            request.body,
        )

    def __repr__(self) -> str:
        # Without the lines: the token is in them.
        return f"<Head of {self.path or '/'}>"


class Reader:
    """Reads one response after the other from what a connection brings."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._begin()

    def _begin(self) -> None:
        self._looked = 0
        self._status = 0
        self._kind = ""
        self._keeps = False
        self._length: int | None = None
        """Of the body, or of what is left of a chunk; None is to the end of the connection."""
        self._is_chunked = False
        self._is_last = False
        """Whether only the lines after the last chunk are to come."""
        self._chunks: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Response | None:
        """Take what came; return the response when it is whole. Raises `Garbled`."""
        self._buffer += data
        while not self._status:
            if not self._read_head():
                return None
        return self._read_chunks() if self._is_chunked else self._read_plain()

    def end(self) -> Response:
        """Return the response that ends with its connection. Raises `Garbled` for half of one."""
        if not self._status or self._is_chunked or self._length is not None:
            begun = "in the middle of an answer" if self._buffer or self._status else "unanswered"
            raise Garbled(f"the connection was closed {begun}")
        return self._whole(bytes(self._buffer))

    def _read_head(self) -> bool:
        """Read the first line and the headers, if they are all there; skip those of 1xx."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n", max(self._looked - 3, 0))
        if end < 0:
            self._looked = len(buffer)
            if self._looked > _MAX_HEAD or not b"HTTP/1.".startswith(buffer[:7]):
                raise Garbled("the answer is not HTTP")
            return False
        first, *lines = bytes(buffer[:end]).split(b"\r\n")
        del buffer[: end + 4]
        self._looked = 0
        found = _STATUS.fullmatch(first)
        if found is None or end > _MAX_HEAD:
            raise Garbled("the answer is not HTTP")
        status = int(found[2])
        if status == 101:
            raise Garbled("the answer is not HTTP/1.1")
        if status < 200:
            return bool(buffer)
        self._status = status
        self._take_headers(_headers(lines), is_new=found[1] == b"1")
        return True

    def _take_headers(self, headers: dict[bytes, bytes], *, is_new: bool) -> None:
        said = headers.get(b"connection", b"").lower()
        self._keeps = b"close" not in said if is_new else b"keep-alive" in said
        self._kind = (
            headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
        )
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        if self._status in _EMPTY:
            self._length = 0
        elif coding is not None:
            if coding.lower() != b"chunked" or length is not None:
                raise Garbled("the answer's length is not said as expected")
            self._is_chunked = True
        elif length is not None:
            if not length.isdigit() or len(length) > 12 or int(length) > _MAX_BODY:
                raise Garbled("the answer's length is not as expected")
            self._length = int(length)
        else:
            self._keeps = False

    def _read_plain(self) -> Response | None:
        if len(self._buffer) > _MAX_BODY:
            raise Garbled("the answer is too long")
        if self._length is None or len(self._buffer) < self._length:
            return None
        body = bytes(self._buffer[: self._length])
        del self._buffer[: self._length]
        return self._whole(body)

    def _read_chunks(self) -> Response | None:
        buffer = self._buffer
        while True:
            if self._length is None:
                line = self._line()
                if line is None:
                    return None
                if self._is_last:
                    if not line:
                        return self._whole(b"".join(self._chunks))
                    continue
                found = _SIZE.fullmatch(line)
                if found is None:
                    raise Garbled("the answer's chunks are not as expected")
                size = int(found[1], 16)
                self._is_last = size == 0
                self._length = size or None
                self._size += size
                if self._size > _MAX_BODY:
                    raise Garbled("the answer is too long")
                continue
            if len(buffer) < self._length + 2:
                return None
            if buffer[self._length : self._length + 2] != b"\r\n":
                raise Garbled("the answer's chunks are not as expected")
            self._chunks.append(bytes(buffer[: self._length]))
            del buffer[: self._length + 2]
            self._length = None

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n", 0, _MAX_LINE)
        if end < 0:
            if len(self._buffer) >= _MAX_LINE:
                raise Garbled("the answer's chunks are not as expected")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _whole(self, body: bytes) -> Response:
        # What says more than it was asked would be taken for the answer to something else.
        keeps = self._keeps and not self._buffer
        response = Response(self._status, self._kind, body, keeps)
        self._begin()
        return response


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise Garbled("the answer's headers are not as expected")
        name, value = name.lower(), value.strip()
        if name in (b"content-length", b"transfer-encoding") and found.get(name, value) != value:
            raise Garbled("the answer's length is said twice")
        found[name] = value
    return found
