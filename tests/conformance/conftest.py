"""One suite for every store and both limiters: servers are shared, names are new in each test."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from limen import AsyncLimiter, Limiter
from tests.conformance.stores import (
    LIMITERS,
    PATIENT_S,
    STORES,
    Blocking,
    Store,
    Threaded,
    store_called,
)


@pytest.fixture(scope="session", params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with store_called(request.param) as store:
        yield store


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def namespace() -> str:
    return secrets.token_hex(6)


@pytest.fixture(params=LIMITERS)
def connect(
    request: pytest.FixtureRequest,
    store: Store,
    runner: asyncio.Runner,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Callable[..., Any]]:
    """Make limiters on the store; at the end, see that it was the store that decided."""
    opened: list[Any] = []

    def make(**settings: Any) -> Any:
        settings = {"namespace": namespace, "deadline": PATIENT_S, **settings}
        if request.param == "Limiter":
            opened.append(Threaded(Limiter(store.url, **settings)))
        else:
            opened.append(Blocking(AsyncLimiter(store.url, **settings), runner))
        return opened[-1]

    yield make
    for limiter in opened:
        limiter.close()
    logged = [each for each in caplog.get_records("call") if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in logged] == []
    store.assert_keys_are_short_and_end(f"{namespace}*")


@pytest.fixture
def limiter(connect: Callable[..., Any]) -> Any:
    return connect()


@pytest.fixture
def period() -> float:
    """A period of about a day, in no boundary's neighbourhood: windows are aligned to 1970."""
    now = time.time()
    periods = range(90_000, 100_000, 101)
    return next(period for period in periods if 0.1 < now % period / period < 0.9)
