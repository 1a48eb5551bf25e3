"""The control plane cannot take the sockets and files that the data plane needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi import FastAPI

from limen.server.process import control_plane
from limen.server.process.control_plane import ControlServer
from limen.server.process.listen import bind
from tests.server.product import Product, product
from tests.server.raw import HOST, CutShort, Raw
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder: Path = tmp_path_factory.mktemp("control-plane")
    with product(folder) as each:
        yield each


def test_silent_connections_are_limited_and_the_data_plane_answers(served: Product) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(Raw(served.admin_port)) for _ in range(300)]
        for raw in silent:
            raw.socket.setblocking(False)
        wait_until(lambda: sum(map(_is_closed, silent)) >= 50)
        with Raw(served.port) as raw:
            assert raw.get("/healthz").status == 200
        with Raw(served.admin_port) as raw, pytest.raises((CutShort, ConnectionError)):
            raw.get("/healthz")
    wait_until(lambda: served.ask("/metrics").status == 200)


def _is_closed(raw: Raw) -> bool:
    try:
        return raw.socket.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_connection_that_sends_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "_FIRST_REQUEST_S", 0.05)

    async def connect() -> bytes:
        listener = bind(HOST, 0)
        server = ControlServer(FastAPI(), listener, None, 1)
        await server.start()
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()
            await server.cut()

    assert asyncio.run(connect()) == b""


def test_port_that_was_chosen_by_the_system_is_the_one_that_clients_see(served: Product) -> None:
    with Raw(served.port) as raw:
        detail = raw.get("/nothing").problem["detail"]
    assert f"listens at {HOST}:{served.admin_port} (admin.bind)" in detail
    document = json.loads(served.ask("/openapi.json").body)
    [server] = document["paths"]["/v1/check"]["servers"]
    assert server["url"] == f"http://{HOST}:{served.port}"
