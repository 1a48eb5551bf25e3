from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.adapters.outgoing import drivers
from tests.adapters.outgoing.drivers import Driver
from tests.adapters.outgoing.upstream import Upstream, serving


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving() as started:
        yield started


@pytest.fixture(params=drivers.ALL)
def driver(request: pytest.FixtureRequest, upstream: Upstream) -> Iterator[Driver]:
    # After the server, so that connections are closed before it ends.
    with drivers.driver(request.param) as made:
        yield made
