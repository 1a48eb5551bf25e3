from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests import servers
from tests.shared.load import Crowd


@pytest.fixture(scope="module")
def valkey() -> Iterator[servers.Server]:
    with servers.process(servers.binaries()["valkey"]) as server:
        yield server


@pytest.fixture
def admin(valkey: servers.Server) -> Iterator[redis.Redis]:
    """A client of another kind, to look and to disturb."""
    with redis.Redis(port=valkey.port) as client:
        client.flushall()
        yield client


@pytest.fixture
def url(valkey: servers.Server, admin: redis.Redis) -> str:
    return f"redis://127.0.0.1:{valkey.port}"


@pytest.fixture(scope="session")
def crowd() -> Iterator[Crowd]:
    with Crowd() as started:
        yield started
