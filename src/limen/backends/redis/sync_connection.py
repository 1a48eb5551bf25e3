"""A connection to Redis for threads: commands out, replies in."""

from __future__ import annotations

import socket
import time

from redis.exceptions import RedisError

from limen._internal.deadline import Deadline
from limen._internal.socket_stream import SocketStream
from limen.backends.redis.protocol import NO_REPLY, new_reader, pack_command

CONNECTION_ERRORS = (OSError, RedisError)
"""What opening, writing and reading raise when the server or the network fails."""


class RedisConnection(SocketStream):
    """An open connection. Replies that came too late for their caller are skipped by the next."""

    def __init__(self, opened: socket.socket) -> None:
        super().__init__(opened)
        self._reader = new_reader()
        self._unread = 0
        """The number of replies that have not been read."""
        self._unread_since = 0.0

    def send(self, packet: bytes, deadline: Deadline, replies: int = 1) -> None:
        """Write all of a packet. Raises `TimeoutError` when the deadline has passed."""
        if not self._unread:
            self._unread_since = time.monotonic()
        self._unread += replies
        self.write(packet, deadline)

    def skip_late_replies(self, deadline: Deadline, expected: int) -> None:
        """Read the replies to earlier calls, before the `expected` replies of the last one."""
        while self._unread > expected:
            self.receive(deadline)
            self._unread_since = time.monotonic()

    def receive(self, deadline: Deadline) -> object:
        """Return the next reply; an error of the server is a value. Raises `TimeoutError`."""
        while (reply := self._reader.gets()) is NO_REPLY:
            data = self.read(deadline)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        self._unread -= 1
        return reply

    def late_s(self) -> float:
        """Return for how many seconds the oldest unread reply has been missing."""
        return time.monotonic() - self._unread_since if self._unread else 0.0

    def has_extra_data(self) -> bool:
        """Return whether the server sent more than was asked for, though every reply was read."""
        return not self._unread and bool(self._reader.has_data())

    def is_usable(self) -> bool:
        """Return whether an idle connection can be used. Late replies may be on their way."""
        if self._unread:
            return self.late_s() < self.checked_after_s
        return super().is_usable()

    def ask(self, *command: str, deadline: Deadline) -> object:
        """Send one command and return its reply."""
        self.send(pack_command(command), deadline)
        return self.receive(deadline)
