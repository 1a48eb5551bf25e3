"""A service for all tests of this folder, and both clients of it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from limen import AsyncClient, Client
from tests.client.drivers import Blocking, Threaded
from tests.client.services import Served, served
from tests.faults.proxy import Proxy, proxy

Connect = Callable[..., Threaded]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("service")) as started:
        yield started


class Leaving:
    """A way to the service, which can be cut off for good."""

    def __init__(self, way: Proxy) -> None:
        self._way = way
        self.url = f"http://localhost:{way.port}"

    def leave(self) -> None:
        self._way.refuse()
        self._way.cut()


@pytest.fixture
def leaving(service: Served) -> Iterator[Leaving]:
    with proxy(service.port) as way:
        yield Leaving(way)


@pytest.fixture(params=["threads", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Make a client of an address; it is closed at the end."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())

        def make(url: str, **settings: Any) -> Threaded:
            made: Threaded
            if request.param == "threads":
                made = Threaded(Client(url, **settings))
            else:
                made = Blocking(AsyncClient(url, **settings), runner)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def client(connect: Connect, service: Served) -> Threaded:
    # Long enough for a machine that has much else to do.
    return connect(service.url, timeout=5)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost, signed by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "tls.crt", folder / "tls.key"
    extensions = ("subjectAltName=DNS:localhost", "basicConstraints=CA:TRUE")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    subprocess.run(
        [*command.split(), "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(made)]
        + [word for extension in extensions for word in ("-addext", extension)],
        check=True,
        capture_output=True,
    )
    return made, key
