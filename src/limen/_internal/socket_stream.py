"""A socket for threads, with deadlines that do not count pauses of this process while it reads."""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import Any

from limen._internal.deadline import Deadline

_CHUNK = 16_384
_MIN_WAIT_S = 0.001
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError)


class SocketStream:
    """An open connection that one thread uses at a time. A member of a `ConnectionPool`."""

    checked_after_s: float = 1.0
    """After how many idle seconds `is_usable` looks at the socket."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        # A plain socket does not block, and `poll` waits for it: half the system calls of a socket
        # with a time-out. TLS sockets buffer data, and the sockets of gevent switch greenlets.
        self._poll: Any = None
        if type(opened).__module__ == "socket" and hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(opened, select.POLLIN)
            opened.setblocking(False)
        self._used_at = time.monotonic()
        self.is_current: bool = True
        """Whether its pool still uses it. If not, it is closed when it is put back."""

    def write(self, data: bytes, deadline: Deadline) -> None:
        """Write all of the data. Raises `TimeoutError` when the deadline has passed."""
        if self._poll is None:
            self._socket.settimeout(max(deadline.left(), _MIN_WAIT_S))
            self._socket.sendall(data)
            return
        sent = self._send(data)
        while sent < len(data):
            self._wait_until_writable(deadline)
            sent += self._send(data[sent:])

    def read(self, deadline: Deadline) -> bytes:
        """Return the bytes that have arrived, empty at the end of the connection.

        Raises `TimeoutError` when the deadline has passed. Waits for one tick of the deadline at a
        time: after a pause of this process, bytes that arrived meanwhile are read before the
        deadline can pass.
        """
        while True:
            wait_s = max(deadline.next_wait(), _MIN_WAIT_S)
            if self._poll is not None:
                if self._poll.poll(wait_s * 1_000):
                    return self._socket.recv(_CHUNK)
            else:
                self._socket.settimeout(wait_s)
                try:
                    return self._socket.recv(_CHUNK)
                except TimeoutError:
                    pass  # one tick is over, the deadline perhaps not
            if deadline.left() <= 0:
                raise TimeoutError

    def touch(self) -> None:
        """Note that the connection was used now."""
        self._used_at = time.monotonic()

    def is_usable(self) -> bool:
        """Return whether an idle connection is open, and no unexpected bytes have arrived."""
        if time.monotonic() - self._used_at < self.checked_after_s:
            return True
        try:
            if self._poll is None:
                self._socket.settimeout(0)
            self._socket.recv(1)
        except _WOULD_BLOCK:
            return True  # nothing to read, as it should be
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close this process's end; after a fork the other process keeps its own."""
        self._socket.close()

    def _send(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _wait_until_writable(self, deadline: Deadline) -> None:
        left_s = deadline.left()
        if left_s <= 0:
            raise TimeoutError
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        writable.poll(max(min(left_s, deadline.next_wait()), _MIN_WAIT_S) * 1_000)
