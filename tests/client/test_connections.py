"""Connections of a client: each is in one hand, and none is lost."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anyio
import msgspec
import pytest

from limen import AsyncClient
from limen.client.address import Address
from limen.client.aio_line import Home
from limen.wire import Done, SlotVerdict
from tests.client.raw import raw, response, verdict

HOST = "127.0.0.1"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as listener:
        yield listener


def test_a_connection_is_not_lost_with_who_was_about_to_use_it(listener: socket.socket) -> None:
    async def call(*_: Any) -> None:
        raise AssertionError("unreachable")

    async def work() -> None:
        loop = asyncio.get_running_loop()
        address = Address(HOST, listener.getsockname()[1], is_tls=False)
        home = Home(loop, address, None, 5, call)
        wire = await home._take()
        home._give(wire)
        wire.used_at -= 60  # idle for so long that the loop is asked first whether it is open
        taking = asyncio.create_task(home._take())
        await asyncio.sleep(0)
        assert home._idle == []
        taking.cancel()
        with suppress(asyncio.CancelledError):
            await taking
        assert not wire.is_fresh
        home.close()

    asyncio.run(work())


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
