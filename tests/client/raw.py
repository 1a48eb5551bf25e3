"""A server of the test's own, which answers what a test wants, right or wrong."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from limen.wire import Verdict

Answer = Callable[[bytes, bytes], bytes]
"""From the head and the body of a request to the bytes to answer; none is never to answer."""


class Raw:
    """Accepts connections, and keeps what it was asked."""

    def __init__(
        self, answer: Answer, pause_s: float = 0.0, size: int = 2**20, *, closes: bool = False
    ) -> None:
        self.answer = answer
        self._closes = closes
        self._pause_s = pause_s
        self._size = size
        self.asked: list[bytes] = []
        """The bodies of what came."""
        self._connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            stream = connection.makefile("rb")
            while True:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    line = stream.readline()
                    if not line:
                        return
                    head += line
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                body = stream.read(length)
                self.asked.append(body)
                reply = self.answer(head, body)
                for first in range(0, len(reply), self._size):
                    connection.sendall(reply[first : first + self._size])
                    time.sleep(self._pause_s)
                if self._closes:
                    return
                if not reply:
                    stream.read(1)  # until it is closed
                    return
                if b"connection: close" in reply.lower():
                    return


@contextmanager
def raw(
    answer: Answer, pause_s: float = 0.0, size: int = 2**20, *, closes: bool = False
) -> Iterator[Raw]:
    server = Raw(answer, pause_s, size, closes=closes)
    try:
        yield server
    finally:
        server.close()


def verdict(number: int = 0, **changes: Any) -> Verdict:
    made = Verdict(
        True, None, None, None, 0.0, 0.0, 0.0, "store", False, "v", f"id-{number}", None, ()
    )
    return msgspec.structs.replace(made, **changes)


def verdicts(body: bytes) -> bytes:
    """Return the right answer to a question, or to a list of them."""
    made = [verdict(number) for number in range(len(questions(body)))]
    return msgspec.json.encode(made if body.startswith(b"[") else made[0])


def questions(body: bytes) -> list[Any]:
    """Return what is asked: one question comes without a list around it."""
    asked = msgspec.json.decode(body)
    return asked if isinstance(asked, list) else [asked]


def response(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def problem(status: str, detail: str) -> bytes:
    return response(
        msgspec.json.encode({"detail": detail}), status, "application/problem+json; charset=utf-8"
    )


def right(_: bytes, body: bytes) -> bytes:
    return response(verdicts(body))


def chunked(body: bytes) -> bytes:
    middle = len(body) // 2
    parts = [body[:middle], body[middle:]]
    chunks = b"".join(b"%x;x=y\r\n%b\r\n" % (len(part), part) for part in parts)
    return (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
        + chunks
        + b"0\r\nTrailer: x\r\n\r\n"
    )
