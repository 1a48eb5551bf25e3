"""A connection to Redis for asyncio: commands out, replies in. Decisions go through a `Lane`."""

from __future__ import annotations

import asyncio
from typing import Any

from limen.backends.redis.protocol import NO_REPLY, new_reader, pack_command
from limen.connect import Opened

Words = tuple[str | bytes, ...]
"""A command and its arguments."""
_CHUNK = 65_536


class AsyncRedisConnection:
    """An open connection. For one task at a time."""

    def __init__(self, opened: Opened) -> None:
        self.opened: Opened = opened
        self._reader = new_reader()

    def send(self, *commands: Words) -> None:
        """Write commands; each has one reply."""
        self.opened[1].write(b"".join([pack_command(command) for command in commands]))

    async def receive(self) -> Any:
        """Return the next reply; an error of the server is a value."""
        while (reply := self._reader.gets()) is NO_REPLY:
            data = await self.opened[0].read(_CHUNK)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return reply

    async def ask(self, *command: str, seconds: float) -> Any:
        """Send one command and return its reply. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            self.send(command)
            return await self.receive()

    def close(self) -> None:
        """Close the connection."""
        self.opened[1].close()
