"""When the store is dead: each rule falls back as it says, and the request is decided once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from limen import AsyncLimiter, Limiter
from limen.engine import AsyncEngine, Engine
from limen.rules import parse_text
from tests.engine.drivers import Blocking, Threaded, answers

NOBODY = "redis://127.0.0.1:1"
USER = {"user": "42"}

RULES = """\
rules:
  - {name: counted, key: [user], limits: 2/day}
  - {name: passed, match: {path: /open*}, key: [user], limits: 1/day, on_error: open}
  - {name: shut, match: {path: "*closed"}, key: [user], limits: 9/day, on_error: closed}
  - {name: watched, key: [user], limits: 1/day, on_error: closed, mode: shadow}
"""


@pytest.fixture(params=["Engine", "AsyncEngine"])
def engine(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Threaded]:
    rules = parse_text(RULES)
    if request.param == "Engine":
        with Limiter(NOBODY) as limiter:
            yield Threaded(Engine(rules, limiter))
        return
    async_limiter = AsyncLimiter(NOBODY)
    yield Blocking(AsyncEngine(rules, async_limiter), runner)
    runner.run(async_limiter.aclose())


def test_each_rule_falls_back_as_it_says(engine: Threaded) -> None:
    verdict = engine.decide({**USER, "path": "/open"})
    assert (verdict.allowed, verdict.degraded) == (True, True)
    assert verdict.decision is not None
    assert [part.source for part in verdict.decision.parts] == ["local", "open", "closed"]
    assert [(part.rule, part.mode, part.allowed) for part in verdict.parts] == [
        ("counted", "enforce", True),
        ("passed", "enforce", True),
        ("watched", "shadow", False),
    ]


def test_local_counts_and_open_does_not(engine: Threaded) -> None:
    found = [engine.decide({**USER, "path": "/open"}) for _ in range(3)]
    assert [verdict.allowed for verdict in found] == [True, True, False]
    assert (found[2].rule, found[2].source) == ("counted", "local")


def test_one_that_is_closed_refuses_for_all_and_charges_none(engine: Threaded) -> None:
    for _ in range(3):
        verdict = engine.decide({**USER, "path": "/open-and-closed"})
        assert (verdict.allowed, verdict.rule, verdict.source) == (False, "shut", "closed")
        assert verdict.retry_after == 1.0
    assert answers(engine, 3, USER) == [True, True, False]


def test_a_block_needs_no_store(engine: Threaded) -> None:
    engine.use("rules: [{name: gone, mode: block}, {name: a, limits: 1/day, on_error: open}]")
    verdict = engine.decide(USER)
    assert (verdict.allowed, verdict.rule, verdict.degraded) == (False, "gone", False)


def test_a_refund_gives_back_what_was_counted_here(engine: Threaded) -> None:
    verdict = engine.decide(USER)
    assert engine.refund(verdict)
    assert answers(engine, 3, USER) == [True, True, False]
