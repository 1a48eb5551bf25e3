"""A client in the child of a fork, and behind TLS."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from limen import AsyncClient, Client, ConfigurationError
from tests.client.conftest import Connect
from tests.client.drivers import Blocking, somebody
from tests.client.services import Served, served
from tests.forked import in_child


@contextmanager
def busy(client: Client) -> Iterator[None]:
    """Have some threads ask for something else all the while."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            client.check("busy", "10/second")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_client_goes_on_in_the_child_of_a_fork(service: Served) -> None:
    key = somebody()["user"]
    with Client(service.url, timeout=5) as client, busy(client):
        assert client.check(key, "1000/minute").remaining == 999

        def work() -> bool:
            said = [client.check(key, "1000/minute") for _ in range(10)]
            with client.slot(somebody("/export")):
                return all(verdict.source == "store" for verdict in said)

        for _ in range(5):
            assert in_child(work)
        # Nobody got the answer to somebody else's question, and both were counted.
        assert client.check(key, "1000/minute").remaining == 948


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_parent_and_child_do_not_share_a_connection(service: Served) -> None:
    with Client(service.url, timeout=5) as client:

        def ask(key: str) -> bool:
            said = [client.check(key, "1000/minute") for _ in range(200)]
            return all(each.source == "store" and each.parts[0].key == key for each in said)

        assert ask("before the fork")
        of_parent: list[bool] = []
        assert in_child(lambda: ask("child"), lambda: of_parent.append(ask("parent")))
        assert of_parent == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_an_async_client_goes_on_in_the_child_of_a_fork(service: Served) -> None:
    client = AsyncClient(service.url, timeout=5)
    key = somebody()["user"]

    async def ask(times: int) -> bool:
        said = await asyncio.gather(*(client.check(key, "100/minute") for _ in range(times)))
        return all(verdict.source == "store" for verdict in said)

    with asyncio.Runner() as runner:
        assert runner.run(ask(3))
        assert in_child(lambda: asyncio.new_event_loop().run_until_complete(ask(10)))
        assert runner.run(ask(3))
        assert runner.run(client.check(key, "100/minute")).remaining == 83
        runner.run(client.aclose())


@pytest.fixture(scope="module")
def secure(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[Served]:
    made, key = certificate
    settings = f"tls.certificate={made}", f"tls.key={key}"
    with served(tmp_path_factory.mktemp("secure"), *settings, scheme="https") as started:
        yield started


def test_asks_over_tls(connect: Connect, secure: Served, certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=certificate[0])
    client = connect(secure.url, timeout=5, ssl_context=context)
    before = secure.calls()
    facts = somebody()
    said = client.together([lambda: client.decide(facts)] * 200)
    assert {verdict.source for verdict in said} == {"store"}
    assert sum(bool(verdict) for verdict in said) == 10
    if isinstance(client, Blocking):  # threads do not share calls
        assert secure.calls() - before < 200
    assert client.usage(facts).remaining == 0
    assert {client.decide_many([facts] * 500)[n].source for n in (0, 499)} == {"store"}


def test_keeps_its_connection_over_tls(secure: Served, certificate: tuple[Path, Path]) -> None:
    opened = 0

    class Counting(ssl.SSLContext):
        def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
            nonlocal opened
            opened += 1
            return super().wrap_socket(*args, **kwargs)

    context = Counting(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificate[0])
    with Client(secure.url, timeout=5, ssl_context=context) as client:
        assert {client.decide(somebody()).source for _ in range(10)} == {"store"}
    assert opened == 1


def test_a_certificate_that_nobody_vouches_for_is_not_trusted(
    connect: Connect, secure: Served, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(secure.url, timeout=5)
    assert client.decide(somebody()).source == "open"
    assert "its certificate is not accepted" in caplog.text


def test_plain_http_to_a_service_with_tls_is_no_answer(connect: Connect, secure: Served) -> None:
    client = connect(secure.url.replace("https", "http"), timeout=5)
    assert client.decide(somebody()).source == "open"


def test_a_context_of_tls_needs_an_address_of_tls() -> None:
    with pytest.raises(ConfigurationError, match="ssl_context is for https://"):
        Client("http://localhost:8080", ssl_context=ssl.create_default_context())


@pytest.mark.skipif(sys.platform != "linux", reason="uvloop is not there")
def test_works_on_uvloop(service: Served) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with AsyncClient(service.url, timeout=5) as client:
            facts = somebody()
            said = await asyncio.gather(*(client.decide(facts) for _ in range(64)))
            assert sum(bool(verdict) for verdict in said) == 10
            async with client.slot(somebody("/export")):
                pass

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
