"""Connections of a client: each is in one hand, and none is lost."""

from __future__ import annotations

import asyncio
import socket
import time

import anyio
import msgspec
import pytest

from limen import AsyncClient
from limen._internal.http_connections import AsyncHttpTransport, Server
from limen.wire import Done, SlotVerdict
from tests.client.raw import raw, response, verdict

HOST = "127.0.0.1"


def test_a_connection_is_opened_for_the_next_call_when_its_caller_has_left() -> None:
    async def work(port: int) -> None:
        loop = asyncio.get_running_loop()
        transport = AsyncHttpTransport(loop, Server(HOST, port, None, 5.0))
        call = loop.create_task(transport.exchange(b"unsent"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        end = loop.time() + 10
        while not transport.idle:
            assert loop.time() < end, "the connection was lost"
            await asyncio.sleep(0.01)
        transport.close()
        assert not transport.idle

    with socket.create_server((HOST, 0)) as listener:
        asyncio.run(work(listener.getsockname()[1]))


def test_a_slot_is_given_back_by_who_is_cancelled_at_every_turn() -> None:
    """As the scopes of anyio do it: whatever is awaited behind a cancellation is cancelled, too."""
    asked: list[bytes] = []

    def answer(head: bytes, body: bytes) -> bytes:
        asked.append(head.split(b" ")[0])
        if asked == [b"POST"]:
            time.sleep(0.3)
            return response(msgspec.json.encode(SlotVerdict(verdict(), "a-slot", 30.0)))
        return response(msgspec.json.encode(Done(True)))

    async def work(url: str) -> None:
        async with AsyncClient(url, timeout=10) as client:
            with anyio.move_on_after(0.05):
                await client.slot({"path": "/export"}).acquire()
            end = asyncio.get_running_loop().time() + 10
            while b"DELETE" not in asked:
                assert asyncio.get_running_loop().time() < end, "nobody lets go of it"
                await asyncio.sleep(0.01)

    with raw(answer) as server:
        asyncio.run(work(server.url))


@pytest.mark.parametrize("verb", ["decide", "usage"])
def test_a_pause_of_the_process_is_no_fault_of_the_service(verb: str) -> None:
    async def work(url: str) -> None:
        async with AsyncClient(url, timeout=0.25) as client:
            facts = {"path": "/search"}
            assert (await client.decide(facts)).source == "store"
            asking = asyncio.create_task(getattr(client, verb)(facts))
            for _ in range(10):
                await asyncio.sleep(0)
                time.sleep(0.1)  # noqa: ASYNC251  # it blocks the loop
            assert (await asking).source == "store"

    def answer(head: bytes, body: bytes) -> bytes:
        return response(msgspec.json.encode(verdict()))

    with raw(answer) as server:
        asyncio.run(work(server.url))
