"""The other end of a connection: its address, and whether it still waits for a response."""

from __future__ import annotations

import asyncio
import select
import socket

_HANGUP: int = getattr(select, "POLLRDHUP", 0)
"""Only Linux reports that the other end has closed before its last bytes are read."""


class Peer:
    """The other end of a connection."""

    __slots__ = ("_poll", "_transport", "address")

    def __init__(self, transport: asyncio.Transport) -> None:
        name = transport.get_extra_info("peername")
        self.address: str | None = str(name[0]) if isinstance(name, tuple) else None
        """The IP address; None on a Unix socket."""
        self._transport = transport
        self._poll: select.poll | None = None

    def is_gone(self) -> bool:
        """Return whether the client has closed the connection, or its side of it.

        Asks the kernel, which takes a microsecond: the event loop reads the end of a connection
        only after it has answered the request before it.
        """
        if self._transport.is_closing():
            return True
        if self._poll is None:
            sock: socket.socket | None = self._transport.get_extra_info("socket")
            if sock is None or not _HANGUP:
                return False
            self._poll = select.poll()
            self._poll.register(sock.fileno(), _HANGUP)
        return bool(self._poll.poll(0))
