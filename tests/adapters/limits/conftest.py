from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from limen.testing import ManualClock
from tests import servers
from tests.adapters.limits.using import KINDS, PATIENT_S, Storage

Open = Callable[..., Storage]

START_S = 1_700_000_040.0
"""A whole minute, and no other boundary."""


@pytest.fixture
def uri(valkey: servers.Server) -> str:
    return f"limen+redis://{servers.HOST}:{valkey.port}"


@pytest.fixture(params=KINDS)
def open_storage(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Make a storage of one kind or the other; it is closed at the end."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())

        def make(uri: str, **options: Any) -> Storage:
            made = Storage(request.param, uri, runner, **options)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_S)


@pytest.fixture
def memory(open_storage: Open, clock: ManualClock) -> Storage:
    """A storage in this process, whose time goes by the test's clock."""
    return open_storage("limen+memory://", clock=clock)


@pytest.fixture
def shared(open_storage: Open, uri: str) -> Storage:
    return open_storage(uri, deadline=PATIENT_S)


@pytest.fixture(params=["memory", "valkey"])
def storage(request: pytest.FixtureRequest, open_storage: Open, clock: ManualClock) -> Storage:
    """A storage of each kind, on each store."""
    if request.param == "memory":
        return open_storage("limen+memory://", clock=clock)
    return open_storage(request.getfixturevalue("uri"), deadline=PATIENT_S)
