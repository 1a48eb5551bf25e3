"""A gRPC server on a real socket, in threads or on asyncio, and a client of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # they have no types
from grpc_status import rpc_status  # type: ignore[import-untyped]

from limen.adapters.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from tests.adapters.grpc.shop import CHAT, PLACE, UPLOAD, WATCH, AsyncShop, Shop

Kind = Literal["threads", "asyncio"]
QuotaFailure: Any = error_details_pb2.QuotaFailure
RetryInfo: Any = error_details_pb2.RetryInfo


class Answer:
    """What a client got."""

    def __init__(self, call: Any, messages: list[bytes]) -> None:
        self.messages = messages
        self.code: grpc.StatusCode = call.code()
        self.detail: str = call.details()
        self.initial: dict[str, Any] = dict(call.initial_metadata() or ())
        self.trailing: dict[str, Any] = dict(call.trailing_metadata() or ())
        self._call = call

    @property
    def status(self) -> Any:
        """The `google.rpc.Status`, as Google's own package reads it."""
        return rpc_status.from_call(self._call)

    def detail_of(self, kind: Any) -> Any:
        """Return what the status says in a message of some kind; None when it has none."""
        for each in self.status.details:
            found = kind()
            if each.Unpack(found):
                return found
        return None


class Shopper:
    """A client."""

    def __init__(self, channel: Any, shop: Shop) -> None:
        self.channel = channel
        self.shop = shop

    def place(self, message: bytes = b"tea", method: str = PLACE, **more: Any) -> Answer:
        return self._finished(self.channel.unary_unary(method).future(message, **more), False)

    def upload(self, *messages: bytes, **more: Any) -> Answer:
        return self._finished(
            self.channel.stream_unary(UPLOAD).future(iter(messages), **more), False
        )

    def watching(self, message: bytes, **more: Any) -> Any:
        """Begin a stream, and leave it to the test."""
        return self.channel.unary_stream(WATCH)(message, **more)

    def watch(self, message: bytes, **more: Any) -> Answer:
        return self._finished(self.watching(message, **more), True)

    def chat(self, *messages: bytes, **more: Any) -> Answer:
        return self._finished(self.channel.stream_stream(CHAT)(iter(messages), **more), True)

    def codes(self, count: int, *arguments: Any, **more: Any) -> list[str]:
        return [self.place(*arguments, **more).code.name for _ in range(count)]

    def _finished(self, call: Any, streams: bool) -> Answer:
        messages: list[bytes] = []
        try:
            if streams:
                messages.extend(call)
            else:
                messages.append(call.result(30))
        except grpc.RpcError:
            pass
        return Answer(call, messages)


@contextmanager
def serving(
    kind: Kind,
    limiter: Any,
    *limits: Any,
    shop: Any = None,
    around: Sequence[Any] = (),
    address: str = "127.0.0.1:0",
    credentials: grpc.ServerCredentials | None = None,
    register: Callable[[Any], None] = lambda server: None,
    **options: Any,
) -> Iterator[tuple[str, Shop]]:
    """Serve the shop behind limits; yield where, and the shop itself.

    The limiter is closed at the end: for asyncio, in the loop of the server.
    """
    shop = shop or (Shop() if kind == "threads" else AsyncShop())

    def prepared(server: Any) -> str:
        server.add_generic_rpc_handlers((shop,))
        register(server)
        if credentials is not None:
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    if kind == "threads":
        interceptors = [*around, RateLimitInterceptor(limiter, *limits, **options)]
        with ThreadPoolExecutor(16) as pool:
            server = grpc.server(pool, interceptors=interceptors)
            where = prepared(server)
            server.start()
            try:
                yield where, shop
            finally:
                shop.go_on.set()
                server.stop(0).wait()
                getattr(limiter, "limiter", limiter).close()
        return
    interceptors = [*around, AsyncRateLimitInterceptor(limiter, *limits, **options)]
    # What still runs in the pool needs the loop to come to its end.
    with _Loop() as loop, ThreadPoolExecutor(4) as pool:

        async def start() -> tuple[Any, str]:
            server = grpc.aio.server(pool, interceptors=interceptors)
            where = prepared(server)
            await server.start()
            return server, where

        server, where = loop.run(start())
        try:
            yield where, shop
        finally:
            shop.go_on.set()

            async def stop() -> None:
                await server.stop(0)
                await getattr(limiter, "limiter", limiter).aclose()

            loop.run(stop())


class _Loop:
    """An event loop in a thread of its own."""

    def __enter__(self) -> _Loop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        return self

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
