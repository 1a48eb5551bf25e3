"""Connections of a client: each is in one hand, and none is lost."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import anyio
import msgspec
import pytest

from limen import AsyncClient
from limen._internal.http_connections import AsyncHttpTransport, Server
from limen.backends.circuit_breaker import FAILURES
from limen.client.settings import parse_address
from limen.wire import Done, SlotVerdict
from tests.client.raw import raw, response, right, verdict

HOST = "127.0.0.1"
CALL = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


def server_of(url: str) -> Server:
    address = parse_address(url)
    return Server(address.host, address.port, None, 5.0)


def test_a_connection_is_opened_for_the_next_call_when_its_caller_has_left() -> None:
    async def work(port: int) -> None:
        loop = asyncio.get_running_loop()
        transport = AsyncHttpTransport(loop, Server(HOST, port, None, 5.0), 1)
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


def test_callers_that_leave_share_one_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = 0

    async def work(url: str) -> None:
        loop = asyncio.get_running_loop()
        connect, gate = loop.create_connection, asyncio.Event()

        async def open_slowly(*args: Any, **settings: Any) -> Any:
            nonlocal opened
            opened += 1
            await gate.wait()
            return await connect(*args, **settings)

        monkeypatch.setattr(loop, "create_connection", open_slowly)
        transport = AsyncHttpTransport(loop, server_of(url), 18)
        for _ in range(50):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await transport.exchange(CALL)
        last = loop.create_task(transport.exchange(CALL))
        await asyncio.sleep(0)
        gate.set()
        assert (await last).status == 200
        assert len(transport.idle) == 1
        transport.close()

    with raw(right) as server:
        asyncio.run(work(server.url))
    assert opened == 1


def test_closing_cancels_an_opening_that_no_caller_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "create_connection", lambda *_, **__: asyncio.sleep(60))
        transport = AsyncHttpTransport(loop, server_of("http://localhost"), 18)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await transport.exchange(CALL)
        assert len(asyncio.all_tasks()) == 2
        transport.close()
        await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(work())


def test_few_idle_connections_are_kept() -> None:
    async def work(url: str) -> None:
        transport = AsyncHttpTransport(asyncio.get_running_loop(), server_of(url), 2)
        await asyncio.gather(*[transport.exchange(CALL) for _ in range(5)])
        assert len(transport.idle) == 2
        transport.close()

    with raw(right) as server:
        asyncio.run(work(server.url))


def test_calls_that_closing_ends_are_no_failures_of_the_service() -> None:
    silent = True

    def answer(head: bytes, body: bytes) -> bytes:
        return b"" if silent else response(msgspec.json.encode(verdict()))

    async def work(url: str) -> None:
        nonlocal silent
        client = AsyncClient(url, timeout=10)
        calls = [asyncio.create_task(client.usage({})) for _ in range(2 * FAILURES)]
        await asyncio.sleep(0.1)
        await client.aclose()
        assert {(await call).source for call in calls} == {"open"}
        silent = False
        assert (await client.usage({})).source == "store"
        await client.aclose()

    with raw(answer) as server:
        asyncio.run(work(server.url))


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
