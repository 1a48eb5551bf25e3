"""Connections to a database of rules: each lives as long as its transaction. Knows no tables.

None is kept open, so a store works in any event loop, after a fork, and after its server came back.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, NullPool, event, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from limen.ending import to_the_end
from limen.errors import ConfigurationError
from limen.rules.stores.address import Address
from limen.rules.stores.faults import in_plain_words, is_busy

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]

CONNECT_S = 5.0
_COMMAND_S = 10.0
_STATEMENT_MS = 9_000
"""After which PostgreSQL ends a statement: before the driver does, which would leave it running."""
# The name of our lock among the advisory locks of a PostgreSQL database: "limen", in ASCII.
_MIGRATION_LOCK = 0x6C696D656E
_POLL_S = 0.02


class Database:
    """One database of rules, SQLite or PostgreSQL."""

    def __init__(
        self, address: Address, busy_timeout: float, connect_timeout: float = CONNECT_S
    ) -> None:
        self.address = address
        self._connect_timeout = connect_timeout
        self._busy_timeout = busy_timeout
        self._lock_ms = max(1, round(busy_timeout * 1_000))  # 0 would be without a bound
        self._engines: dict[asyncio.AbstractEventLoop, AsyncEngine] = {}
        """One for each loop: until its first connection is there, an engine holds a lock that is
        the loop's. Another loop would not be woken by it, and the child of a fork never get it."""

    async def read(self, work: Work[T]) -> T:
        """Do some work in a transaction that reads one moment, and waits for no writer."""
        engine = self._engine("BEGIN")
        if self.address.kind == "postgresql":
            engine = engine.execution_options(isolation_level="REPEATABLE READ")
        return await self._run(engine, work)

    async def write(self, work: Work[T]) -> T:
        """Do some work in a transaction: all of it is written at the end, or nothing."""
        # One that reads first and writes later may be refused in the middle; one that says at once
        # that it will write waits for its turn.
        return await self._run(self._engine("BEGIN IMMEDIATE"), work)

    async def migrate(self, work: Work[T]) -> T:
        """Do some work in a transaction that writes, while no other process migrates."""

        async def alone(connection: AsyncConnection) -> T:
            # The migration of another process may take longer than `busy_timeout`; the driver ends
            # the wait after `_COMMAND_S`.
            await connection.run_sync(partial(_set_timeouts, 0, 0))
            await connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            await connection.run_sync(partial(_set_timeouts, self._lock_ms, _STATEMENT_MS))
            return await work(connection)

        if self.address.kind == "postgresql":
            return await self.write(alone)
        with in_plain_words(self.address):
            await to_the_end(self._use_write_ahead_log())
        return await self.write(work)

    def create_file(self) -> None:
        """Make the file of SQLite, empty, and its folder, where they are missing."""
        path = self.address.path
        if path is None:
            return
        with in_plain_words(self.address):
            if path.exists():
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def unwritable_path(self) -> Path | None:
        """Return the file of SQLite, or its folder, if this user cannot write it."""
        path = self.address.path
        if path is None:
            return None
        try:
            path.stat()
        except FileNotFoundError:
            return None
        except OSError:
            pass  # of a folder on the way; `access` says the same
        # SQLite also writes files beside it, for which it needs the folder.
        return next((each for each in (path, path.parent) if not os.access(each, os.W_OK)), None)

    async def close(self) -> None:
        """Let go of what is left. A later use opens it again."""
        engine = self._engines.pop(asyncio.get_running_loop(), None)
        if engine is not None:
            await engine.dispose()

    def _engine(self, begin: str | None) -> AsyncEngine:
        """Return the engine of this loop, which begins transactions by these words."""
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is None:
            for known in list(self._engines):
                if known.is_closed():
                    self._engines.pop(known, None)
            if self.address.kind == "sqlite":
                engine = _sqlite(self.address, self._busy_timeout)
            else:
                engine = _postgresql(self.address, self._lock_ms, self._connect_timeout)
            self._engines[loop] = engine
        return engine.execution_options(limen_begin=begin)

    async def _run(self, engine: AsyncEngine, work: Work[T]) -> T:
        async def transaction() -> T:
            async with engine.begin() as connection:
                return await work(connection)

        with in_plain_words(self.address):
            if self.address.kind == "postgresql":
                return await transaction()
            # The thread of aiosqlite outlives a failure to open the file, and may then complain
            # on standard error that the event loop is gone. So it opens only what can be opened.
            await asyncio.to_thread(_try_to_open, _uri(self.address))
            # A thread does the work, and goes on when the caller is cancelled: what it opens then
            # would be nobody's, such as the lock of a writer.
            return await to_the_end(transaction())

    async def _use_write_ahead_log(self) -> None:
        """Let readers and a writer work side by side; the file remembers it."""
        # This one statement does not wait for its turn by itself.
        end = asyncio.get_running_loop().time() + self._busy_timeout
        while True:
            try:
                async with self._engine(None).connect() as connection:
                    await connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                return
            except DBAPIError as error:
                if not is_busy(error) or asyncio.get_running_loop().time() > end:
                    raise
            await asyncio.sleep(_POLL_S)


def _uri(address: Address) -> str:
    # `mode=rw`: whoever only looks does not leave an empty file behind.
    return f"file:{quote(str(address.path))}?mode=rw"


def _try_to_open(uri: str) -> None:
    sqlite3.connect(uri, uri=True).close()


def _sqlite(address: Address, busy_timeout: float) -> AsyncEngine:
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=_uri(address), query={"uri": "true"}),
        poolclass=NullPool,
        hide_parameters=True,
        # The driver begins no transaction of its own: `_begin` does.
        connect_args={"isolation_level": None, "timeout": busy_timeout},
    )
    event.listen(engine.sync_engine, "connect", _set_up)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _set_up(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    for setting in ("synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _begin(connection: Connection) -> None:
    begin = connection.get_execution_options().get("limen_begin", "BEGIN")
    if begin:
        connection.exec_driver_sql(begin)


def _postgresql(address: Address, lock_ms: int, connect_timeout: float) -> AsyncEngine:
    import asyncpg  # type: ignore[import-untyped]  # it has no types

    async def connect() -> Any:
        # The address goes to the driver alone, so that nothing of SQLAlchemy can show a password;
        # and the driver reads it as every program of PostgreSQL does, `sslmode` included.
        try:
            return await asyncpg.connect(
                address.dsn, timeout=connect_timeout, command_timeout=_COMMAND_S
            )
        except ValueError as error:
            if isinstance(error, asyncpg.InterfaceError | OSError):
                raise
            raise ConfigurationError(
                f"the address {address.shown} cannot be read; expected the URI of libpq"
            ) from None

    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        poolclass=NullPool,
        hide_parameters=True,
        isolation_level="READ COMMITTED",
    )
    event.listen(engine.sync_engine, "begin", partial(_set_timeouts, lock_ms, _STATEMENT_MS))
    return engine


def _set_timeouts(lock_ms: int, statement_ms: int, connection: Connection) -> None:
    """Bound how long the server waits for a lock, and works on a statement; 0 is no bound."""
    # For the transaction: PgBouncer refuses a connection that asks for them when it is opened.
    connection.execute(
        select(
            func.set_config("lock_timeout", str(lock_ms), True),
            func.set_config("statement_timeout", str(statement_ms), True),
        )
    )
