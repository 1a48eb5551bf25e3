"""What the adapters are tried with: a store on Valkey, none at all, and a service elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import servers
from tests.client.services import Served, free_port, served


@pytest.fixture(scope="session")
def store() -> Iterator[str]:
    """The address of a real Valkey."""
    with servers.server(servers.binaries()["valkey"]) as port:
        yield f"redis://{servers.HOST}:{port}"


@pytest.fixture
def dead_store() -> str:
    """The address of a store that is not there."""
    return f"redis://{servers.HOST}:{free_port()}"


@pytest.fixture(scope="session")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A limen elsewhere, with the rules of `tests.client.services`."""
    with served(tmp_path_factory.mktemp("remote")) as started:
        yield started
