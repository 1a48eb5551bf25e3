"""From YAML to verdict: every test runs by threads and by asyncio, in memory and on Valkey."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from limen import AsyncLimiter, Limiter
from limen.clock import Clock
from limen.engine import AsyncEngine, Engine
from limen.rules import parse_text
from tests.conformance.stores import PATIENT_S, Store, store_called
from tests.engine.drivers import Blocking, Threaded

Make = Callable[..., Threaded]


@pytest.fixture(scope="session", params=["memory", "valkey"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with store_called(request.param) as store:
        yield store


@pytest.fixture(scope="session")
def cluster() -> Iterator[Store]:
    with store_called("cluster") as store:
        yield store


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=["Engine", "AsyncEngine"])
def make_on(
    request: pytest.FixtureRequest, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[..., Threaded]]:
    """Make engines on a store; at the end, see that it was the store that decided."""
    opened: list[Limiter | AsyncLimiter] = []
    namespace = secrets.token_hex(6)

    def make(store: Store, rules: str, *, clock: Clock | None = None, **settings: Any) -> Threaded:
        settings = {"namespace": namespace, "deadline": PATIENT_S, **settings}
        if request.param == "Engine":
            limiter = Limiter(store.url, **settings)
            opened.append(limiter)
            return Threaded(Engine(parse_text(rules), limiter, clock=clock))
        async_limiter = AsyncLimiter(store.url, **settings)
        opened.append(async_limiter)
        return Blocking(AsyncEngine(parse_text(rules), async_limiter, clock=clock), runner)

    yield make
    for limiter in opened:
        if isinstance(limiter, Limiter):
            limiter.close()
        else:
            runner.run(limiter.aclose())
    logged = [each for each in caplog.get_records("call") if each.levelno >= logging.WARNING]
    assert [each.getMessage() for each in logged] == []


@pytest.fixture
def make(make_on: Callable[..., Threaded], store: Store) -> Make:
    """Make an engine of rules in YAML."""
    return lambda rules, **settings: make_on(store, rules, **settings)
