"""A client that takes HTTP at its word: whatever is cut short, reset or unasked for is an error."""

from __future__ import annotations

import json
import select
import socket
import time
from dataclasses import dataclass
from typing import Any, Self

HOST = "127.0.0.1"


class CutShort(Exception):
    """The connection ended before the response did."""


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        document: dict[str, Any] = json.loads(self.body)
        assert document["status"] == self.status
        return document


class Raw:
    """One connection."""

    def __init__(self, port: int, host: str = HOST, *, timeout: float = 10) -> None:
        self.socket = socket.create_connection((host, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes, *, packet: int = 0, pause: float = 0) -> None:
        """Send all at once, or in packets of some bytes."""
        if not packet:
            self.socket.sendall(data)
            return
        for start in range(0, len(data), packet):
            self.socket.sendall(data[start : start + packet])
            if pause:
                time.sleep(pause)

    def get(self, path: str = "/", *headers: str) -> Response:
        self.send(request(path, *headers))
        return self.response()

    def response(self, *, is_head: bool = False) -> Response:
        head = self._until(b"\r\n\r\n").decode().split("\r\n")
        status = int(head[0].split(" ")[1])
        headers = {}
        for line in head[1:-2]:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        if is_head or status in (100, 204, 304):
            return Response(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Response(status, headers, self._chunks())
        return Response(status, headers, self._exactly(int(headers["content-length"])))

    def ends(self) -> bool:
        """Wait for the end; say whether nothing came before it."""
        try:
            rest = self._buffer + self.socket.recv(65_536)
        except ConnectionResetError:
            return False
        return rest == b""

    def has_answer(self) -> bool:
        """Return whether anything has come that was not read."""
        return bool(self._buffer or select.select([self.socket], [], [], 0)[0])

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n"), 16):
            body += self._exactly(size)
            assert self._exactly(2) == b"\r\n"
        assert self._exactly(2) == b"\r\n"
        return body

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._read()
        end = self._buffer.index(mark) + len(mark)
        found, self._buffer = self._buffer[:end], self._buffer[end:]
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._read()
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _read(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise CutShort(self._buffer)
        self._buffer += data


def request(path: str = "/", *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: limen", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body
