"""A gRPC server on a loop in a thread, with methods that show what a protocol does."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import uvloop
from msgspec import structs

from limen.server.grpc.calls import Call, Code, Failed, Streamed, Unary
from limen.server.grpc.connection import GrpcConnections, GrpcLimits
from limen.server.grpc.schema import Schema
from limen.server.grpc.services import Health, Reflection

HOST = "127.0.0.1"
PATIENT = GrpcLimits(read_timeout=5.0, write_timeout=5.0, grace=0.2)
QUICK = structs.replace(PATIENT, read_timeout=0.3, write_timeout=0.4, grace=0.1)
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
T = TypeVar("T")


class Methods:
    """What can be called, and what was."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.go_on = asyncio.Event()
        self.is_ready = True
        schema = Schema()
        self.by_path = {
            b"/t/Echo": Unary(self.echo),
            b"/t/Wait": Unary(self.wait),
            b"/t/Big": Unary(self.big),
            b"/t/Fail": Unary(self.fail),
            b"/t/Mistake": Unary(self.mistake),
            b"/t/Told": Unary(self.told),
            b"/t/Each": Streamed(self.each),
            **Health(schema, lambda: self.is_ready).methods,
            **Reflection(schema).methods,
        }

    async def echo(self, raw: bytes, call: Call) -> bytes:
        self.seen.append(raw)
        return raw

    async def wait(self, raw: bytes, call: Call) -> bytes:
        """Answer when told to."""
        self.seen.append(raw)
        await self.go_on.wait()
        return raw

    async def big(self, raw: bytes, call: Call) -> bytes:
        return bytes(range(251)) * (int(raw) // 251 + 1)

    async def fail(self, raw: bytes, call: Call) -> bytes:
        raise Failed(Code.NOT_FOUND, raw.decode())

    async def mistake(self, raw: bytes, call: Call) -> bytes:
        raise ZeroDivisionError("hidden")

    async def told(self, raw: bytes, call: Call) -> bytes:
        return f"{call.timeout} {call.authorization}".encode()

    async def each(self, messages: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        async for message in messages:
            self.seen.append(message)
            if message == b"fail":
                raise Failed(Code.NOT_FOUND, "as told")
            if message == b"end":
                return
            yield message


class Served:
    """All of it, and where it is."""

    def __init__(
        self,
        limits: GrpcLimits = PATIENT,
        loop: str = "uvloop",
        context: ssl.SSLContext | None = None,
        make: Callable[[], Any] = Methods,
    ) -> None:
        self.limits = limits
        self._loop_factory, self._context, self._make = LOOPS[loop], context, make
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.strays: list[dict[str, Any]] = []
        """What went wrong where nobody waits for it."""

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        assert not self._thread.is_alive()
        assert self.strays == []

    @property
    def count(self) -> int:
        """How many connections there are."""
        return self.call(lambda: len(self.connections))

    def call(self, function: Callable[[], T]) -> T:
        """Call something on the loop."""

        async def called() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self.loop.set_exception_handler(lambda _, context: self.strays.append(context))
        self.methods = self._make()
        self.connections = GrpcConnections(self.methods.by_path, self.limits)
        server = await self.loop.create_server(
            self.connections.make, HOST, 0, ssl=self._context, backlog=500
        )
        self.port: int = server.sockets[0].getsockname()[1]
        self._is_up.set()
        await self._end.wait()
        server.close()
        await self.connections.cut()
        self.connections.close()
