"""Servers to disturb. What runs of faults leave behind is printed at the end: it is their point."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests import servers
from tests.faults import figures


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where a server is that the tests of a file share."""
    with servers.server(servers.binaries()["valkey"]) as port:
        yield port


@pytest.fixture
def admin(port: int) -> Iterator[redis.Redis]:
    """A client of another kind, to look and to disturb; the server is empty."""
    with redis.Redis(port=port) as client:
        client.flushall()
        yield client


@pytest.fixture
def mortal() -> Iterator[servers.Server]:
    """A server of the test's own, to kill and to freeze."""
    with servers.process(servers.binaries()["valkey"]) as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if figures.said:
        terminalreporter.section("figures")
        for line in figures.said:
            terminalreporter.write_line(line)
