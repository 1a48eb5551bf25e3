"""Servers for the tests of this folder: each test runs in threads and on asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from limen import AsyncClient, AsyncLimiter, Client, Limiter
from limen.engine import AsyncEngine, Engine
from limen.rules import RuleSet
from tests.adapters.grpc.serving import Kind, Shopper, serving

Serve = Callable[..., Shopper]


class Sources:
    """Makes who is asked, of the kind that the server needs."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def limiter(self, *arguments: Any, **settings: Any) -> Any:
        made = Limiter if self.kind == "threads" else AsyncLimiter
        return made(*arguments, **settings)

    def client(self, url: str, **settings: Any) -> Any:
        made = Client if self.kind == "threads" else AsyncClient
        return made(url, **settings)

    def engine(self, rules: RuleSet, limiter: Any) -> Any:
        made = Engine if self.kind == "threads" else AsyncEngine
        return made(rules, limiter)


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def sources(kind: Kind) -> Sources:
    return Sources(kind)


@pytest.fixture
def serve(kind: Kind, sources: Sources) -> Iterator[Serve]:
    """Serve the shop behind limits, and return a client of it. Counts in memory if not told."""
    with ExitStack() as stack:

        def start(
            *limits: Any, source: Any = None, channel_options: Any = (), **options: Any
        ) -> Shopper:
            limiter = source if source is not None else sources.limiter()
            where, shop = stack.enter_context(serving(kind, limiter, *limits, **options))
            channel = grpc.insecure_channel(where, options=channel_options)
            return Shopper(stack.enter_context(channel), shop)

        yield start
