"""What a worker takes note of, decision by decision."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from limen import AsyncLimiter, Limit
from limen.engine import AsyncEngine, Verdict, verdict_without_rules
from limen.observe.cells import MOST_NAMES, OTHERS
from limen.observe.hiding import hashed
from limen.observe.recent import Recent, found
from limen.observe.slices import RuleSlice
from limen.rules import parse
from limen.server.insight.watch import OWN, Watch

RULES = {
    "rules": [
        {"name": "user", "match": {"path": "/api"}, "key": ["user"], "limits": "2/minute"},
        {"name": "all", "match": {"path": "/api"}, "key": [], "limits": ["10/minute", "99/hour"]},
        {"name": "new", "match": {"path": "/api"}, "key": ["user"], "limits": "1/minute",
         "mode": "shadow"},
        {"name": "never", "match": {"path": "/closed"}, "mode": "block"},
        {"name": "signed", "match": {"path": "/own"}, "key": ["user"], "missing": "deny",
         "limits": "5/minute"},
        {"name": "tiered", "match": {"path": "/tier"}, "key": ["user"],
         "tiers": {"by": "plan", "limits": {"gold": "unlimited"}, "default": "3/minute"},
         "limits": "3/minute"},
    ]
}  # fmt: skip


class Asker:
    """Asks rules in memory, and tells a watch."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.limiter = AsyncLimiter()
        self.engine = AsyncEngine(parse(RULES), self.limiter)

    def ask(self, **attributes: str) -> Verdict:
        verdict = asyncio.run(self.engine.decide(attributes))
        self.watch.see(verdict, "check", "id")
        return verdict


@pytest.fixture
def watch() -> Watch:
    return Watch("here", recent=Recent(sample=1.0, of_one=100))


@pytest.fixture
def asker(watch: Watch) -> Asker:
    return Asker(watch)


def taken(watch: Watch) -> dict[str, RuleSlice]:
    return watch.taken(watch.usages)


def rule(watch: Watch, name: str) -> RuleSlice:
    return taken(watch)[name]


def test_each_rule_is_counted_once_for_a_request(asker: Asker, watch: Watch) -> None:
    for _ in range(3):
        asker.ask(path="/api", user="joe")
    # The third was refused by `user`: `all` let it pass, and counted nothing.
    assert watch.decisions == {"user": [2, 1, 0, 0], "all": [2, 0, 0, 0], "new": [1, 0, 2, 0]}
    assert (watch.allowed, watch.refused, watch.degraded) == (2, 1, 0)
    assert watch.refused_by == {"user": 1}


def test_rules_that_refuse_without_counting_are_counted(asker: Asker, watch: Watch) -> None:
    asker.ask(path="/closed")
    asker.ask(path="/own")
    assert watch.decisions == {"never": [0, 1, 0, 0], "signed": [0, 1, 0, 0]}
    assert [seen.reason for seen in watch.recent.newest()] == [
        "an attribute of its key is missing",
        "blocked by the rule",
    ]


def test_a_tier_without_a_limit_is_allowed(asker: Asker, watch: Watch) -> None:
    asker.ask(path="/tier", user="joe", plan="gold")
    assert watch.decisions == {"tiered": [1, 0, 0, 0]}


def test_who_comes_most_often_and_who_is_refused(asker: Asker, watch: Watch) -> None:
    for user, times in (("joe", 5), ("ann", 2), ("eve", 1)):
        for _ in range(times):
            asker.ask(path="/api", user=user)
    found = rule(watch, "user")
    assert dict(found.top_allowed) == {"user=joe": 2, "user=ann": 2, "user=eve": 1}
    assert found.top_denied == (("user=joe", 3),)
    assert dict(found.nearest) == {"user=joe": 100, "user=ann": 100, "user=eve": 50}
    assert sorted(percent for _, percent in found.peaks) == [50, 100, 101]
    assert dict(rule(watch, "new").top_denied) == {"user=joe": 4, "user=ann": 1}


def test_a_key_that_falls_back_is_near_no_more(watch: Watch) -> None:
    usage = watch._meet("rule")
    limit = Limit(10, 60)
    for remaining in (1, 9):
        usage.waiting.append(("k", limit, remaining))
    usage.settle()
    assert usage.taken(str).nearest == (("k", 10),)


def test_a_refusal_is_noted_behind_what_passed_before_it(asker: Asker, watch: Watch) -> None:
    usage = watch._meet("rule")
    usage.waiting.append(("k", Limit(10, 60), 4))
    usage.refuse("k")
    assert usage.taken(str).nearest == (("k", 100),)


def test_what_waits_is_counted_when_somebody_looks(asker: Asker, watch: Watch) -> None:
    for _ in range(3):
        asker.ask(path="/tier", user="joe", plan="tin")
    assert rule(watch, "tiered").top_allowed == (("user=joe", 3),)


def test_of_several_limits_the_one_nearest_counts(asker: Asker, watch: Watch) -> None:
    asker.ask(path="/api", user="joe")
    assert [percent for _, percent in rule(watch, "all").peaks] == [10]


def test_another_slice_begins_with_nothing_and_counters_go_on(asker: Asker, watch: Watch) -> None:
    asker.ask(path="/api", user="joe")
    over = watch.begin()
    asker.ask(path="/api", user="joe")
    assert watch.taken(over)["user"].allowed == 1
    watch.begin()
    assert taken(watch) == {}
    asker.ask(path="/api", user="ann")
    assert rule(watch, "user").top_allowed == (("user=ann", 1),)
    assert rule(watch, "user").allowed == 1
    assert watch.decisions["user"] == [3, 0, 0, 0]


def test_limits_that_callers_bring_along_are_counted_under_one_name(watch: Watch) -> None:
    limiter = AsyncLimiter()
    for n in range(3):
        decision = asyncio.run(limiter.check("k", f"{n + 1}/minute"))
        watch.see(verdict_without_rules(decision, "v7"), "check", "id")
    assert watch.decisions == {OWN: [3, 0, 0, 0]}


def test_a_decision_tells_why(asker: Asker, watch: Watch) -> None:
    for _ in range(3):
        asker.ask(path="/api", user="joe")
    refused, *passed = watch.recent.newest()
    assert (refused.rule, refused.key, refused.limit) == ("user", "user=joe", "2/minute")
    assert (refused.reason, refused.allowed, refused.surface) == ("over 2/minute", False, "check")
    assert refused.instance == "here"
    assert refused.retry_after is not None
    assert 0 < refused.retry_after <= 60
    assert [seen.reason for seen in passed] == ["within 2/minute"] * 2
    assert [seen.shadow for seen in passed] == [True, False]


def test_keys_are_hidden_where_that_is_asked_for(asker: Asker) -> None:
    hide = hashed(b"secret")
    asker.watch = watch = Watch(hide=hide, recent=Recent(sample=1.0))
    for _ in range(3):
        asker.ask(path="/api", user="joe")
    assert "joe" not in repr(taken(watch))
    assert rule(watch, "user").top_denied == ((hide("user=joe"), 1),)
    assert {seen.key for seen in watch.recent.newest()} == {hide("user=joe")}


def test_without_insight_it_counts_and_keeps_no_key(asker: Asker) -> None:
    asker.watch = watch = Watch(recent=Recent(a_second=0), keeps_keys=False)
    for _ in range(3):
        asker.ask(path="/api", user="joe")
    assert watch.decisions["user"] == [2, 1, 0, 0]
    assert watch.recent.newest() == []
    assert "joe" not in repr(taken(watch))


def test_long_keys_are_cut_before_they_are_kept(watch: Watch) -> None:
    usage = watch._meet("rule")
    usage.waiting.append(("k" * 100_000, Limit(10, 60), 1))
    usage.refuse("k" * 100_000)
    assert max(len(key) for key in [*usage.allowed, *usage.denied, *usage.near]) <= 256


def test_the_room_for_keys_is_shared_by_the_rules_in_use(watch: Watch) -> None:
    limit = Limit(10, 60)

    def fill(rules: int) -> int:
        for n in range(rules):
            usage = watch._meet(f"rule {n}")
            for key in range(200):
                usage.waiting.append((f"key {key}", limit, 4))
            usage.settle()
        held = list(watch._usages.values())
        return sum(len(u.allowed) + len(u.denied) + len(u.near) for u in held)

    assert fill(900) == 900 * 400
    watch.begin()
    # With less than a hundred for each now, and up to twice that for a while.
    assert fill(900) <= 900 * 2 * 2 * 73


def test_rules_that_are_gone_make_room_for_new_names(watch: Watch) -> None:
    for n in range(MOST_NAMES):
        watch._meet(f"old-{n}").cell.allowed += 1
    watch._meet("late").cell.allowed += 1
    assert watch.decisions[OTHERS] == [1, 0, 0, 0]
    watch.use(parse({"rules": [{"name": "old-7", "limits": "1/minute"}]}))
    watch._meet("new").cell.allowed += 1
    assert watch.decisions == {
        "old-7": [1, 0, 0, 0],
        "new": [1, 0, 0, 0],
        OTHERS: [1, 0, 0, 0],
    }


def test_without_the_store_it_says_who_decided(watch: Watch) -> None:
    attributes: Mapping[str, Any] = {"path": "/api", "user": "joe"}

    async def ask() -> list[Verdict]:
        # Nobody listens there.
        async with AsyncLimiter("redis://127.0.0.1:1", deadline=0.2) as limiter:
            engine = AsyncEngine(parse(RULES), limiter)
            return [await engine.decide(attributes) for _ in range(3)]

    for verdict in asyncio.run(ask()):
        watch.see(verdict, "auth", "id")
    assert watch.decisions["user"] == [0, 0, 0, 3]
    assert watch.fallback == {"local": [2, 1]}
    assert (watch.allowed, watch.refused, watch.degraded) == (2, 1, 3)
    refused = found(watch.recent.newest(), allowed=False)[0]
    assert refused.reason == "over 2/minute, counted here while the store is away"
    assert refused.fault == "connection"
