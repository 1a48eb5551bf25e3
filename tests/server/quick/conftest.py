"""A service in this process, for each test: on its memory, or on a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.asking import asking
from tests.server.quick.site import RULES, Site
from tests.server.raw import HOST
from tests.servers import Server, binaries, process


@pytest.fixture(scope="module")
def valkey() -> Iterator[Server]:
    with process(binaries()["valkey"]) as started:
        yield started


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A service that counts in its memory."""
    with asking(tmp_path, RULES, {"http.max_header": 2_048}) as [asker]:
        yield Site(asker)


@pytest.fixture
def shared(tmp_path: Path, valkey: Server) -> Iterator[Site]:
    """A service that counts in Valkey: answers take their time."""
    flags = {"store.url": f"redis://{HOST}:{valkey.port}/0", "store.deadline": 0.5}
    with asking(tmp_path, RULES, flags) as [asker]:
        asker.run(asker.service.limiter._backend.ping())
        yield Site(asker)
