"""HTTP/1.1 for a client, without I/O: requests to bytes, bytes to responses.

Both transports use it. Everything that is not a valid response of bounded length is `Garbled`.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import NamedTuple

_VERSION = b"HTTP/1."
_MAX_HEAD = 65_536
_MAX_BODY = 64 * 2**20
_MAX_LINE = 1_024
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?")
_LENGTH = re.compile(rb"[0-9]{1,12}")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")
_EMPTY = (204, 304)


class Request(NamedTuple):
    """A request to the service."""

    method: str
    path: str
    """With the query, if there is one: `/v1/usage?user=42`."""
    body: bytes = b""


class Response(NamedTuple):
    """A response of the service."""

    status: int
    kind: str
    """The media type, without its parameters: `application/json`."""
    body: bytes
    keeps: bool
    """Whether the connection can be used again."""


class Garbled(Exception):
    """Say that the received bytes are not a valid response, or too long."""


class Encoder:
    """Encodes the requests of one client. Its `repr` does not show the token."""

    def __init__(self, authority: str, path: str, token: str | None) -> None:
        self._path = path
        headers = f"Host: {authority}\r\nUser-Agent: limen\r\nAccept: application/json\r\n"
        if token is not None:
            headers += f"Authorization: Bearer {token}\r\n"
        self._headers = headers

    def encode(self, request: Request) -> bytes:
        """Return a request as bytes."""
        head = f"{request.method} {self._path}{request.path} HTTP/1.1\r\n{self._headers}"
        if request.method != "GET":
            head += f"Content-Type: application/json\r\nContent-Length: {len(request.body)}\r\n"
        return f"{head}\r\n".encode("ascii") + request.body


class Reader:
    """Reads one response after the other from the bytes of a connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_ended = False
        self._parser = self._response()

    def feed(self, data: bytes) -> Response | None:
        """Take received bytes; return the response when it is complete. Raises `Garbled`.

        Empty data is the end of the connection.
        """
        self._buffer += data
        self._is_ended = not data
        try:
            next(self._parser)
        except StopIteration as end:
            response: Response = end.value
            self._parser = self._response()
            return response
        if self._is_ended:
            raise Garbled("the connection was closed before the answer was complete")
        return None

    # The parser is a generator, which yields when it needs more bytes.

    def _response(self) -> Generator[None, None, Response]:
        match, lines = yield from self._head()
        while match[2].startswith(b"1"):  # the response follows
            match, lines = yield from self._head()
        status = int(match[2])
        headers = _headers(lines)
        connection = headers.get(b"connection", b"").lower()
        keeps = b"keep-alive" in connection if match[1] == b"0" else b"close" not in connection
        coding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
        if status in _EMPTY:
            body = b""
        elif coding is not None:
            if coding.lower() != b"chunked" or length is not None:
                raise Garbled("the transfer encoding of the answer is not supported")
            body = yield from self._chunks()
        elif length is not None:
            if not _LENGTH.fullmatch(length):
                raise Garbled("the length of the answer is not a number")
            body = yield from self._exactly(int(length))
        else:
            body, keeps = (yield from self._rest()), False
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        # Bytes behind the response would be taken for the response to the next request.
        return Response(status, kind.decode("latin-1"), body, keeps and not self._buffer)

    def _head(self) -> Generator[None, None, tuple[re.Match[bytes], list[bytes]]]:
        """Return the parts of the first line, and the lines of the headers."""
        yield from self._wait_for(len(_VERSION))
        if not self._buffer.startswith(_VERSION):
            raise Garbled("the answer is not HTTP/1.1")
        first, *lines = (yield from self._until(b"\r\n\r\n", _MAX_HEAD)).split(b"\r\n")
        match = _STATUS.fullmatch(first)
        if match is None or match[2] == b"101":
            raise Garbled("the answer is not HTTP/1.1")
        return match, lines

    def _chunks(self) -> Generator[None, None, bytes]:
        body = bytearray()
        while True:
            match = _CHUNK_SIZE.fullmatch((yield from self._until(b"\r\n", _MAX_LINE)))
            if match is None:
                raise Garbled("the answer has an invalid chunk")
            size = int(match[1], 16)
            if not size:
                break
            _check_size(len(body) + size)
            body += yield from self._exactly(size)
            if (yield from self._exactly(2)) != b"\r\n":
                raise Garbled("the answer has an invalid chunk")
        while (yield from self._until(b"\r\n", _MAX_LINE)):
            pass  # trailers
        return bytes(body)

    def _rest(self) -> Generator[None, None, bytes]:
        while not self._is_ended:
            _check_size(len(self._buffer))
            yield
        return self._take(len(self._buffer))

    def _exactly(self, count: int) -> Generator[None, None, bytes]:
        _check_size(count)
        yield from self._wait_for(count)
        return self._take(count)

    def _until(self, mark: bytes, most: int) -> Generator[None, None, bytes]:
        searched = 0
        while (end := self._buffer.find(mark, searched, most + len(mark))) < 0:
            if len(self._buffer) >= most + len(mark):
                raise Garbled("the head of the answer, or of a chunk, is too long")
            searched = max(len(self._buffer) - len(mark) + 1, 0)
            yield
        taken = self._take(end)
        del self._buffer[: len(mark)]
        return taken

    def _wait_for(self, count: int) -> Generator[None, None, None]:
        while len(self._buffer) < count:
            yield

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken


def _check_size(size: int) -> None:
    if size > _MAX_BODY:
        raise Garbled("the answer is too long")


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise Garbled("the answer has an invalid header")
        name, value = name.lower(), value.strip()
        if name in (b"content-length", b"transfer-encoding") and headers.get(name, value) != value:
            raise Garbled("the answer has two different lengths")
        headers[name] = value
    return headers
