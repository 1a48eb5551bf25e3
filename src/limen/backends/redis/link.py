"""A connection to Redis for asyncio, and `Link`: one to the server that owns some keys.

A link is for all that is no decision. It knows no rules. All keys that go through one link have the
same hash tag, so in a cluster, too, they have one owner, and a redirection names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from limen.backends.redis.protocol import (
    NO_REPLY,
    ServerError,
    fault_of,
    new_reader,
    pack_command,
)
from limen.backends.redis.route import find_primary
from limen.connect import Address, Opened, Target, open_stream
from limen.errors import StoreError
from limen.flow import run_async

Words = tuple[str | bytes, ...]
"""A command and its arguments."""
_CHUNK = 65_536
_MAX_MOVES = 3


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


class Link:
    """Sends commands, one after the other, and connects anew when that fails."""

    def __init__(self, target: Target, patience: float = 1.0) -> None:
        self._target = target
        self._patience = patience
        self._connection: AsyncRedisConnection | None = None
        self._owner: Address | None = None
        self._asked: Address = ("", 0)
        self._failures = 0
        self._turn = asyncio.Lock()

    async def call(self, *words: str | bytes) -> Any:
        """Return the reply to a command. Raises `StoreError` for an error, or for none in time."""
        return (await self.call_all(words))[0]

    async def call_all(self, *commands: Words, spare: str = "none") -> list[Any]:
        """Return the replies to several commands, sent together. Raises as `call` does.

        Errors that begin with `spare` are among the replies, and not raised.
        """
        async with self._turn:
            with self._in_plain_words():
                replies = await self._exchange_anew(commands)
                for _ in range(_MAX_MOVES):
                    moved = next((_moved(reply) for reply in replies if _moved(reply)), None)
                    if moved is None:
                        break
                    self._drop()
                    # Without a host, it is the one that was asked.
                    self._owner = (moved[0] or self._asked[0], moved[1])
                    replies = await self._exchange(commands)
                for reply in replies:
                    if isinstance(reply, ServerError) and not str(reply).startswith(spare):
                        raise reply
        return replies

    async def send(self, *words: str | bytes) -> None:
        """Send a command whose reply is read by `receive`."""
        with self._in_plain_words():
            async with asyncio.timeout(self._patience):
                connection = await self._connected()
            connection.send(words)

    async def receive(self, patience: float) -> Any:
        """Return what comes next; None when nothing came in time.

        Raises `StoreError` when the line is cut, and for an error.
        """
        with self._in_plain_words():
            connection = await self._connected()
            try:
                async with asyncio.timeout(patience):
                    reply = await connection.receive()
            except TimeoutError:
                return None
            if isinstance(reply, ServerError):
                raise reply
            return reply

    @contextmanager
    def _in_plain_words(self) -> Iterator[None]:
        """Let go of the connection when something goes wrong, and say what."""
        try:
            yield
        except BaseException as error:
            self._drop()
            # Whoever owned the keys may do so no more; and who was asked first may be hung.
            self._owner = None
            self._failures += 1
            if isinstance(error, Exception):
                raise StoreError(str(fault_of(error, self._target.shown))) from None
            raise

    def close(self) -> None:
        """Let go of the connection. The next command opens another."""
        self._drop()

    async def _exchange_anew(self, commands: tuple[Words, ...]) -> list[Any]:
        """Exchange; once more, on a new connection, if the one we had was cut meanwhile."""
        was_open = self._connection is not None
        try:
            return await self._exchange(commands)
        except ConnectionError:
            if not was_open:
                raise
        self._drop()
        return await self._exchange(commands)

    async def _exchange(self, commands: tuple[Words, ...]) -> list[Any]:
        async with asyncio.timeout(self._patience):
            connection = await self._connected()
            connection.send(*commands)
            return [await connection.receive() for _ in commands]

    async def _connected(self) -> AsyncRedisConnection:
        if self._connection is None:
            self._connection = await self._connect()
        return self._connection

    async def _connect(self) -> AsyncRedisConnection:
        """Open a connection to the owner of the keys; if it is not known, to any server."""
        failure: Exception = ConnectionError("no address")
        for address in (self._owner,) if self._owner else await self._candidates():
            try:
                connection = await self._open(address)
            except Exception as error:  # another node may know better
                failure = error
            else:
                self._asked = address
                return connection
        raise failure

    async def _candidates(self) -> Sequence[Address]:
        target = self._target
        if target.kind == "sentinel":
            ask = self._ask_sentinel
            return [await run_async(find_primary(ask, target.addresses, target.service))]
        # Another one first after each failure: one that hangs would take all the time there is.
        first = self._failures % len(target.addresses)
        return target.addresses[first:] + target.addresses[:first]

    async def _open(self, address: Address, *, sentinel: bool = False) -> AsyncRedisConnection:
        patience = self._patience
        return AsyncRedisConnection(
            await open_stream(self._target, address, patience, sentinel=sentinel)
        )

    async def _ask_sentinel(self, address: Address, *command: str) -> object:
        """Return the reply of a sentinel, or an error."""
        # A part of our patience, so that one that hangs leaves time for another.
        patience = self._patience / 3
        try:
            async with asyncio.timeout(patience):
                connection = await self._open(address, sentinel=True)
                try:
                    return await connection.ask(*command, seconds=patience)
                finally:
                    connection.close()
        except Exception as error:  # another one may know
            return error

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _moved(reply: object) -> Address | None:
    """Return where a redirection points to; None for any other reply."""
    if not isinstance(reply, ServerError) or not str(reply).startswith("MOVED "):
        return None
    host, _, port = str(reply).split()[2].rpartition(":")
    return host, int(port)
