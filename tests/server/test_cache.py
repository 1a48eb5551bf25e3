"""The cache of parsed requests changes no response: not when rules change, nor with time."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from typing import Any

import msgspec
import pytest

from limen import AsyncLimiter, wire
from limen.engine import AsyncEngine
from limen.http import answer_of_verdict, raw_headers
from limen.rules import RuleSet, parse, parse_text
from limen.server.api.cache import Memo
from limen.server.api.handlers import CheckHandlers
from limen.server.api.receipts import Receipts
from limen.server.api.requests import _ROOM
from limen.server.api.response_templates import template_of
from limen.server.api.verdict_response import rate_limit_headers, verdict_message
from limen.server.http import Request
from limen.server.insight.watch import Watch
from limen.testing import ManualClock
from tests.server.admin.driving import StubPeer

ONE = """
rules:
  - {name: one, match: {path: /a}, key: [user], limits: 2/minute}
"""
OTHER = """
rules:
  - {name: other, match: {path: /a}, key: [user], limits: 5/minute}
"""
FOR_A_TIME = """
rules:
  - name: sale
    match: {path: /a}
    key: [user]
    limits: 1/hour
    ends: 1970-01-01T00:10:00Z
"""
MIXED = """
rules:
  - {name: plain, match: {path: /a*}, key: [user], limits: [3/minute, 9/hour]}
  - {name: bucket, match: {path: /a}, key: [user], limits: 10/s burst 3}
  - {name: watched, match: {path: /a}, key: [user], limits: 1/day, mode: shadow}
  - name: tiered
    key: [user]
    limits: 4/month
    tiers: {by: plan, limits: {free: 2/minute, pro: unlimited}}
  - {name: half, match: {path: /b}, key: [user], limits: 2/minute, enforce_percent: 50}
  - {name: known, match: {path: /c}, key: [tenant], missing: deny, limits: 5/minute}
  - {name: shut, match: {path: /d}, mode: block}
"""
RECEIPTS = Receipts(32 * "s", "p")


class Asker:
    """The decision API on rules, with a clock of its own."""

    def __init__(self, rules: RuleSet, room: int = 10_000_000) -> None:
        self.clock = ManualClock()
        self.limiter = AsyncLimiter(clock=self.clock)
        self.engine = AsyncEngine(rules, self.limiter, clock=self.clock)
        self.handlers = CheckHandlers(self.engine, self.limiter, RECEIPTS, Watch())
        self.parser = self.handlers.parser
        self.parser._cache = Memo(room)

    def ask(self, **attributes: str) -> wire.Verdict:
        peer: Any = StubPeer()
        request = Request("POST", b"/v1/check", "/v1/check", b"", [], peer)
        request.body = msgspec.json.encode({"attributes": attributes})
        response = asyncio.run(self.handlers.check(request))
        return msgspec.json.decode(response.body, type=wire.Verdict)


def test_other_rules_hold_for_the_next_question_although_it_was_asked_before() -> None:
    asker = Asker(parse_text(ONE))
    assert [asker.ask(user="7", path="/a").allowed for _ in range(3)] == [True, True, False]
    asker.engine.use(parse_text(OTHER))
    assert asker.ask(user="7", path="/a").rule == "other"
    asker.engine.use(parse_text(ONE))
    assert not asker.ask(user="7", path="/a")


def test_a_rule_that_ends_is_not_remembered_beyond_its_end() -> None:
    asker = Asker(parse_text(FOR_A_TIME))
    assert [asker.ask(user="7", path="/a").rule for _ in range(2)] == ["sale", "sale"]
    asker.clock.advance(601)
    assert asker.ask(user="7", path="/a").rule is None


def test_an_override_that_ends_is_not_remembered_beyond_its_end() -> None:
    text = """
    rules:
      - name: one
        key: [user]
        limits: 5/minute
        overrides: [{key: {user: "7"}, limits: 1/minute, ends: 1970-01-01T00:10:00Z}]
    """
    asker = Asker(parse_text(text))
    assert asker.ask(user="7").limit == "1/minute"
    asker.clock.advance(601)
    assert asker.ask(user="7").limit == "5/minute"


@pytest.mark.parametrize(
    ("text", "timeless"),
    [
        (ONE, True),
        (FOR_A_TIME, False),
        ("rules: []\nexemptions: [{name: x, match: {user: a}}]", True),
        (
            "rules: []\nexemptions: [{name: x, match: {user: a}, ends: 2040-01-01T00:00:00Z}]",
            False,
        ),
    ],
)
def test_a_rule_set_knows_whether_time_has_a_say(text: str, timeless: bool) -> None:
    assert parse_text(text).is_timeless is timeless


def test_it_never_remembers_more_than_it_may() -> None:
    asker = Asker(parse_text(ONE), room=5_000_000)
    for number in range(5_000):
        assert asker.ask(user=str(number), path="/a").remaining == 1
    assert 900 < len(asker.parser._cache._known) < 2_500


def test_the_older_half_is_forgotten() -> None:
    memo: Memo[int] = Memo(2_000_000)
    under = object()
    for number in range(2_001):
        memo.get(number, under)
        memo.keep(number, number, 1_000)
    known = [number for number in range(2_001) if memo.get(number, under) is not None]
    assert known == list(range(1_000, 2_001))
    assert memo.get(2_000, object()) is None


def test_template_and_verdict_give_the_same_headers_and_parts() -> None:
    """The service renders headers from a template, the adapters from the verdict."""
    asker, chance = Asker(parse_text(MIXED)), random.Random(5)
    seen: set[bool] = set()
    names: set[bytes] = set()
    for _ in range(600):
        attributes = {
            "user": str(chance.randrange(4)),
            "path": chance.choice(["/a", "/ab", "/b", "/c", "/d"]),
            "plan": chance.choice(["free", "pro", ""]),
            "tenant": chance.choice(["", "acme"]),
        }
        verdict = asyncio.run(asker.engine.decide(attributes))
        template = template_of(verdict.applied)
        headers = rate_limit_headers(verdict, template, ("draft-11",), 0.0)
        assert headers == raw_headers(answer_of_verdict(verdict))
        parts = verdict_message(verdict, template, "id", RECEIPTS).parts
        fields = [(part.rule, part.name, part.mode, part.allowed) for part in parts]
        assert fields == [(part.rule, part.name, part.mode, part.allowed) for part in verdict.parts]
        seen.add(verdict.allowed)
        names |= {name for name, _ in headers}
        asker.clock.advance(chance.choice([0.0, 0.1, 20.0]))
    assert seen == {True, False}
    assert names == {b"ratelimit-policy", b"ratelimit", b"retry-after"}


def test_what_takes_much_room_is_not_remembered() -> None:
    memo: Memo[int] = Memo(2_000_000)
    rules = object()
    assert memo.get(b"a", rules) is None
    memo.keep(b"a", 1, 1_001)
    assert memo.get(b"a", rules) is None
    memo.keep(b"a", 1, 1_000)
    assert memo.get(b"a", rules) == 1


@pytest.mark.parametrize("tiered", [False, True], ids=["plain", "tiered"])
@pytest.mark.parametrize("rest", ["", "x" * 400, "%" * 400, "é" * 100], ids=lambda rest: rest[:1])
@pytest.mark.parametrize("limits", [1, 3, 10])
def test_a_question_takes_about_as_much_room_as_it_is_said_to(
    limits: int, rest: str, tiered: bool
) -> None:
    rules = [
        {"name": f"rule-{n}", "key": ["user"], "limits": f"{100 + n}/minute"}
        | ({"tiers": {"by": "plan", "limits": {"free": "5/minute"}}} if tiered else {})
        for n in range(limits)
    ]
    asker = Asker(parse({"rules": rules}), room=10**9)
    asker.parser._limiter = AsyncLimiter("redis://127.0.0.1:1")
    bodies = [
        msgspec.json.encode({"attributes": {"user": f"{number:010}{rest}", "plan": "free"}})
        for number in range(400)
    ]
    asker.parser.one(bodies.pop())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for body in bodies:
            asker.parser.one(bytes(bytearray(body)))
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.7 < took / asker.parser._cache._used < 1.3
    if limits < 10 or not rest:
        # There is room for each of them, and for many.
        usual = Memo[object](_ROOM)
        usual.keep(b"it", "kept", asker.parser._cache._used // len(bodies))
        assert usual._known
