"""A small service in bytes, written for threads and for asyncio, with methods of all four kinds.

A message says what to do: `fail`, `abort`, `code`, `metadata`, `cost 7`; anything else comes back.
A stream answers each word by a message; at `wait` it waits until the test lets it go on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc

from limen.adapters.grpc import visit_of

PLACE, UPLOAD, WATCH, CHAT = (
    f"/shop.Orders/{name}" for name in ("Place", "Upload", "Watch", "Chat")
)
OTHER = "/shop.Other/Place"
OWN = (("own", "1"),)


class Shop(grpc.GenericRpcHandler):
    """The service for threads."""

    def __init__(self, *, is_in_threads: bool = True) -> None:
        self.is_in_threads = is_in_threads
        self.seen: list[bytes] = []
        self.waiting = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.closed = threading.Semaphore(0)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method in (PLACE, OTHER):
            return grpc.unary_unary_rpc_method_handler(self.place)
        if details.method == UPLOAD:
            return grpc.stream_unary_rpc_method_handler(self.upload)
        if details.method == WATCH:
            return grpc.unary_stream_rpc_method_handler(self.watch)
        if details.method == CHAT:
            return grpc.stream_stream_rpc_method_handler(self.chat)
        return None

    def place(self, request: bytes, context: Any) -> Any:
        self.seen.append(request)
        if self.is_in_threads:
            assert isinstance(context, grpc.ServicerContext)
        if request == b"fail":
            raise ValueError("on purpose")
        if request == b"abort":
            context.set_trailing_metadata(OWN)
            context.abort(grpc.StatusCode.NOT_FOUND, "no such order")
        if request == b"abort with status":
            context.abort_with_status(status())
        if request == b"code":
            context.set_trailing_metadata(OWN)
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details("no such order")
        if request == b"metadata":
            context.send_initial_metadata(OWN)
            context.set_trailing_metadata(OWN)
        if request.startswith(b"cost "):
            visit_of(context).costs(int(request.removeprefix(b"cost ")))
        if request == b"wait":
            self.wait()
        return request

    def upload(self, requests: Iterator[bytes], context: Any) -> bytes:
        return self.place(b" ".join(requests), context)  # type: ignore[no-any-return]

    def watch(self, request: bytes, context: Any) -> Iterator[bytes]:
        try:
            for word in request.split():
                if word == b"wait":
                    self.wait()
                else:
                    yield self.place(word, context)
        finally:
            self.closed.release()

    def chat(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            yield from self.watch(request, context)

    def wait(self) -> None:
        self.waiting.release()
        assert self.go_on.wait(60)


class AsyncShop(Shop):
    """The same for asyncio: the first stream is a generator, the second reads and writes."""

    async def place(self, request: bytes, context: Any) -> Any:
        self.seen.append(request)
        if request == b"fail":
            raise ValueError("on purpose")
        if request == b"abort":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such order", OWN)
        if request == b"abort with status":
            await context.abort_with_status(status())
        if request == b"code":
            context.set_trailing_metadata(OWN)
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details("no such order")
        if request == b"metadata":
            await context.send_initial_metadata(OWN)
            context.set_trailing_metadata(OWN)
        if request.startswith(b"cost "):
            visit_of(context).costs(int(request.removeprefix(b"cost ")))
        if request == b"wait":
            await self.sit()
        return request

    async def upload(self, requests: Any, context: Any) -> Any:  # type: ignore[override]
        return await self.place(b" ".join([request async for request in requests]), context)

    async def watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:  # type: ignore[override]
        try:
            for word in request.split():
                if word == b"wait":
                    await self.sit()
                else:
                    yield await self.place(word, context)
        finally:
            self.closed.release()

    async def chat(self, requests: Any, context: Any) -> None:  # type: ignore[override]
        while (request := await context.read()) is not grpc.aio.EOF:
            async for message in self.watch(request, context):
                await context.write(message)

    async def sit(self) -> None:
        self.waiting.release()
        while not self.go_on.is_set():  # noqa: ASYNC110  # it is set in another thread
            await asyncio.sleep(0.005)


def status() -> Any:
    """Return a status as `grpc_status` would make it."""

    class Status(grpc.Status):
        code = grpc.StatusCode.NOT_FOUND
        details = "no such order"
        trailing_metadata = OWN

    return Status()
