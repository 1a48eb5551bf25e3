"""Limiters in memory follow the libraries that tests replace the system's time with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime

import freezegun
import pytest
import time_machine
from limits import parse
from limits.aio.strategies import MovingWindowRateLimiter as AsyncMovingWindow
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

import limen.adapters.limits  # noqa: F401  # makes the addresses known
from limen import AsyncLimiter, Limiter
from limen.engine import Engine
from limen.rules import parse_text

START = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)
Advance = Callable[[float], object]
Freeze = Callable[[], AbstractContextManager[Advance]]


@contextmanager
def frozen() -> Iterator[Advance]:
    with freezegun.freeze_time(START) as moved:
        yield moved.tick


@contextmanager
def travelled() -> Iterator[Advance]:
    with time_machine.travel(START, tick=False) as moved:
        yield moved.shift


# Entered in each test: pytest itself measures time between fixtures.
every_library = pytest.mark.parametrize("freeze", [frozen, travelled])


@every_library
def test_a_limiter_follows_it(freeze: Freeze) -> None:
    with freeze() as advance:
        limiter = Limiter()
        assert [limiter.check("k", "1/minute").allowed for _ in range(2)] == [True, False]
        assert limiter.check("k", "1/minute").retry_after == 60
        advance(60)
        assert limiter.check("k", "1/minute").allowed


def test_a_limiter_that_was_made_before_follows_it() -> None:
    limiter = Limiter()
    limiter.check("before", "1/minute")
    with frozen() as advance:
        assert [limiter.check("k", "1/minute").allowed for _ in range(2)] == [True, False]
        advance(60)
        assert limiter.check("k", "1/minute").allowed


@every_library
def test_an_asyncio_limiter_follows_it(freeze: Freeze) -> None:
    async def check(advance: Advance) -> list[bool]:
        limiter = AsyncLimiter()
        allowed = [(await limiter.check("k", "1/minute")).allowed for _ in range(2)]
        advance(60)
        return [*allowed, (await limiter.check("k", "1/minute")).allowed]

    with freeze() as advance:
        assert asyncio.run(check(advance)) == [True, False, True]


@every_library
def test_rules_follow_it(freeze: Freeze) -> None:
    rules = "rules: [{name: may, key: [user], limits: 1/day, ends: 2026-05-05}]"
    with freeze() as advance:
        engine = Engine(parse_text(rules), Limiter())
        assert [engine.decide({"user": "7"}).allowed for _ in range(2)] == [True, False]
        advance(86_400)
        assert [engine.decide({"user": "7"}).allowed for _ in range(2)] == [True, True]


@pytest.mark.parametrize("strategy", [FixedWindowRateLimiter, MovingWindowRateLimiter])
@every_library
def test_a_storage_of_limits_follows_it(freeze: Freeze, strategy: type) -> None:
    with freeze() as advance:
        limiter, item = strategy(storage_from_string("limen+memory://")), parse("1/minute")
        assert [limiter.hit(item, "k") for _ in range(2)] == [True, False]
        assert limiter.get_window_stats(item, "k").reset_time == START.timestamp() + 60
        advance(60)
        assert limiter.hit(item, "k")


@every_library
def test_an_asyncio_storage_of_limits_follows_it(freeze: Freeze) -> None:
    async def hit(advance: Advance) -> list[bool]:
        limiter = AsyncMovingWindow(storage_from_string("async+limen+memory://"))
        hits = [await limiter.hit(parse("1/minute"), "k") for _ in range(2)]
        advance(60)
        return [*hits, await limiter.hit(parse("1/minute"), "k")]

    with freeze() as advance:
        assert asyncio.run(hit(advance)) == [True, False, True]
