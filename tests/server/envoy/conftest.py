"""Services with rules for descriptors of many kinds: whole ones, and their part for Envoy alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from limen.engine import AsyncEngine
from limen.limiter import AsyncLimiter
from limen.rules import parse_text
from limen.server.envoy.service import RateLimits
from limen.server.insight.watch import Watch
from tests.server.asking import Asker, asking

RULES = """
rules:
  - {name: user, match: {domain: d, descriptor: user}, key: [user], limits: 5/day}
  - {name: path, match: {domain: d, descriptor: path}, key: [path], limits: [3/hour, 4/day]}
  - {name: paid, match: {domain: d, descriptor: paid}, key: [paid], cost: 2, limits: 9/day}
  - {name: by, match: {domain: d, descriptor: by/tokens}, key: [by], cost: tokens, limits: 99/day}
  - {name: never, match: {domain: d, descriptor: agent, agent: robot}, mode: block}
  - {name: seen, match: {domain: d, descriptor: seen}, key: [seen], limits: 1/day, mode: shadow}
  - {name: odd, match: {domain: d, descriptor: odd}, key: [odd], limits: 2/30s}
  - {name: week, match: {domain: d, descriptor: week}, key: [week], limits: 7/week}
  - {name: one, match: {domain: d, descriptor: both}, key: [both], limits: 8/day}
  - {name: two, match: {domain: d, descriptor: both}, key: [both], limits: 3/minute}
  - {name: at-once, match: {domain: d, descriptor: slot}, concurrency: {slots: 1, lease: 9s}}
  - name: plan
    match: {domain: d, descriptor: plan}
    key: [plan]
    tiers: {by: plan, limits: {gold: unlimited}, default: 2/day}
  - name: watched-plan
    match: {domain: d, descriptor: watched}
    key: [watched]
    mode: shadow
    tiers: {by: watched, limits: {gold: unlimited}, default: 2/day}
exemptions:
  - {name: friends, match: {domain: d, user: friend}}
"""
Make = Callable[..., Asker]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Start services by rules and settings."""
    with ExitStack() as stack:

        def start(rules: str = RULES, **flags: Any) -> Asker:
            given = {
                "gateway.deadline": 5.0,
                "store.deadline": 5.0,
                **{name.replace("__", "."): value for name, value in flags.items()},
            }
            [asker] = stack.enter_context(asking(tmp_path, rules, given))
            return asker

        yield start


class Alone:
    """What answers Envoy, in memory and without all else; called like a whole service."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.run = runner.run
        self.watch = Watch()
        self._limiter = AsyncLimiter()
        self.engine = AsyncEngine(parse_text(RULES), self._limiter)
        self.envoy = RateLimits(
            self.engine, self._limiter, self.watch, within=5.0, styles=("draft-11",)
        )

    @property
    def service(self) -> Alone:
        return self


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def alone(runner: asyncio.Runner) -> Alone:
    return Alone(runner)
