"""Servers to talk to; at the end, see that nothing was logged as an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.server.grpc.serving import LOOPS, PATIENT, QUICK, Served


@pytest.fixture(autouse=True)
def _nothing_is_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    logged = [each for each in caplog.get_records("call") if each.levelno >= logging.WARNING]
    assert [each.getMessage() for each in logged] == []


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One that waits long enough for any client."""
    with Served(PATIENT) as served:
        yield served


@pytest.fixture(params=LOOPS)
def either(request: pytest.FixtureRequest) -> Iterator[Served]:
    with Served(PATIENT, request.param) as served:
        yield served


@pytest.fixture
def quick() -> Iterator[Served]:
    """One that soon loses patience."""
    with Served(QUICK) as served:
        yield served


@pytest.fixture(params=LOOPS)
def either_quick(request: pytest.FixtureRequest) -> Iterator[Served]:
    with Served(QUICK, request.param) as served:
        yield served
