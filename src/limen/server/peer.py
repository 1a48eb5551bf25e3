"""Whether the client of a connection still waits for a response."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Mapping
from typing import Any

EXTENSION = "limen.peer"
"""The ASGI extension under which a scope has `Peer.is_gone`."""
_HANGUP: int = getattr(select, "POLLRDHUP", 0)
"""Only Linux reports that the other side has closed before its last bytes are read."""


class Peer:
    """The other side of a connection."""

    __slots__ = ("_poll", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
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


def extensions_of(peer: Peer) -> dict[str, dict[object, object]]:
    """Return the ASGI extensions of the requests of one connection."""
    return {EXTENSION: {"is_gone": peer.is_gone}}


def is_gone(scope: Mapping[str, Any]) -> bool:
    """Return whether the client of a request has gone; False where the server cannot tell."""
    extension = (scope.get("extensions") or {}).get(EXTENSION)
    if extension is None:
        return False
    ask: Callable[[], bool] = extension["is_gone"]
    return ask()
