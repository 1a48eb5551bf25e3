"""Shadows, enforcement for a share of the keys, and variants: what is shown, and what is felt."""

from __future__ import annotations

import pytest

from tests.engine.conftest import Make
from tests.engine.drivers import answers, left

SHADOW = """\
rules:
  - {name: strict, key: [user], limits: 1/day, mode: shadow}
  - {name: loose, key: [user], limits: 3/day}
"""


def test_a_shadow_counts_and_reports_and_never_refuses(make: Make) -> None:
    engine = make(SHADOW)
    found = [engine.decide({"user": "42"}) for _ in range(4)]
    assert [verdict.allowed for verdict in found] == [True, True, True, False]
    assert [verdict.rule for verdict in found] == ["loose"] * 4
    shadows = [verdict.parts[0] for verdict in found]
    assert [(part.rule, part.mode) for part in shadows] == [("strict", "shadow")] * 4
    assert [part.allowed for part in shadows] == [True, False, False, False]
    assert [part.remaining for part in shadows] == [0, 0, 0, 0]
    assert shadows[1].retry_after == pytest.approx(86_400, abs=60)
    assert [verdict.parts[1].mode for verdict in found] == ["enforce"] * 4


def test_a_shadow_alone_binds_nobody(make: Make) -> None:
    engine = make("rules: [{name: strict, key: [user], limits: 1/day, mode: shadow}]")
    found = [engine.decide({"user": "42"}) for _ in range(3)]
    assert [verdict.allowed for verdict in found] == [True] * 3
    assert [(v.rule, v.limit, v.remaining, v.retry_after) for v in found] == [
        (None, None, None, 0.0)
    ] * 3
    assert [verdict.parts[0].allowed for verdict in found] == [True, False, False]


def test_a_shadow_is_not_charged_for_what_others_refuse(make: Make) -> None:
    engine = make(
        """\
rules:
  - {name: watched, key: [user], limits: 9/day, mode: shadow}
  - {name: strict, key: [user], limits: 1/day}
"""
    )
    assert answers(engine, 4, {"user": "42"}) == [True, False, False, False]
    assert left(engine, {"user": "42"}) == {"watched#1": 8, "strict#1": 0}


def test_what_a_shadow_counted_is_there_when_it_is_enforced(make: Make) -> None:
    engine = make(SHADOW)
    engine.decide({"user": "42"})
    engine.use(SHADOW.replace(", mode: shadow", ""))
    verdict = engine.decide({"user": "42"})
    assert (verdict.allowed, verdict.rule) == (False, "strict")


def test_a_rule_that_is_off_is_not_there_and_finds_its_counters_again(make: Make) -> None:
    engine = make(SHADOW)
    engine.decide({"user": "42"})
    engine.use(SHADOW.replace("mode: shadow", "mode: off"))
    assert [part.rule for part in engine.decide({"user": "42"}).parts] == ["loose"]
    engine.use(SHADOW)
    assert left(engine, {"user": "42"}) == {"strict#1": 0, "loose#1": 1}


USERS = [str(n) for n in range(300)]
SHARE = """\
rules:
  - {{name: api, key: [user], limits: 1/day, enforce_percent: {0}}}
"""


def test_enforcement_for_a_share_refuses_those_and_watches_the_rest(make: Make) -> None:
    engine = make(SHARE.format(20))
    first = {user: engine.decide({"user": user}) for user in USERS}
    again = {user: engine.decide({"user": user}) for user in USERS}
    assert all(verdict.allowed for verdict in first.values())
    refused = {user for user, verdict in again.items() if not verdict.allowed}
    enforced = {user for user, verdict in first.items() if verdict.parts[0].mode == "enforce"}
    assert refused == enforced
    assert 30 <= len(refused) <= 90
    # For the rest it is counted, and would have refused.
    watched = [again[user].parts[0] for user in USERS if user not in refused]
    assert {(part.mode, part.allowed) for part in watched} == {("shadow", False)}


def test_a_share_that_grows_keeps_who_was_in_it_and_its_counters(make: Make) -> None:
    engine = make(SHARE.format(0))
    for user in USERS:
        engine.decide({"user": user})
    refused = []
    for percent in (0, 10, 20, "50.5", 100):
        engine.use(SHARE.format(percent))
        refused.append({user for user in USERS if not engine.peek({"user": user}).allowed})
    assert refused[0] == set()
    assert refused[0] < refused[1] < refused[2] < refused[3] < refused[4] == set(USERS)


def test_the_same_rules_loaded_again_slice_the_same(make: Make) -> None:
    engine = make(SHARE.format(30))
    modes = [engine.peek({"user": user}).parts[0].mode for user in USERS]
    engine.use(SHARE.format(30) + "  - {name: other, limits: 9/day, mode: off}\n")
    assert [engine.peek({"user": user}).parts[0].mode for user in USERS] == modes


VARIANTS = """\
rules:
  - name: api
    key: [user]
    limits: 4/day
    variants:
      - {name: bucket, percent: 25, algorithm: token_bucket}
      - {percent: 25, limits: [2/day, 9/week]}
      - {name: free, percent: 25, limits: unlimited}
"""


def test_each_variant_has_its_own_limits_and_the_rest_the_rule_s(make: Make) -> None:
    engine = make(VARIANTS)
    found: dict[str | None, set[tuple[str, ...]]] = {}
    for user in USERS:
        parts = engine.decide({"user": user}).parts
        limits = tuple(str(part.limit) for part in parts)
        assert len({part.variant for part in parts}) == 1
        found.setdefault(parts[0].variant, set()).add(limits)
    assert found == {
        "bucket": {("4/day token_bucket",)},
        "v2": {("2/day", "9/week")},
        "free": {("None",)},
        None: {("4/day",)},
    }


def test_a_key_is_in_one_variant_by_every_limit_and_every_time(make: Make) -> None:
    engine = make(VARIANTS)
    once = [engine.peek({"user": user}).parts[0].variant for user in USERS]
    engine.use(VARIANTS.replace("4/day", "5/day"))
    assert [engine.peek({"user": user}).parts[0].variant for user in USERS] == once


def test_a_variant_is_felt(make: Make) -> None:
    engine = make(VARIANTS)
    asked: dict[str | None, list[bool]] = {}
    for user in USERS[:60]:
        variant = engine.peek({"user": user}).parts[0].variant
        if variant not in asked:
            asked[variant] = answers(engine, 5, {"user": user})
    assert asked == {
        "bucket": [True] * 4 + [False],
        "v2": [True] * 2 + [False] * 3,
        "free": [True] * 5,
        None: [True] * 4 + [False],
    }


def test_a_variant_with_tiers_of_its_own_uses_those(make: Make) -> None:
    engine = make(
        """\
rules:
  - name: api
    key: [user]
    tiers: {by: plan, limits: {pro: 6/day}, default: 2/day}
    variants:
      - percent: 50
        tiers: {by: plan, limits: {pro: 7/day}, default: 3/day}
      - {percent: 50, algorithm: fixed_window}
"""
    )
    seen = {
        (part.variant, part.tier, part.remaining, part.limit.algorithm)
        for user in USERS[:40]
        for plan in ("pro", "free")
        for part in engine.peek({"user": user, "plan": plan}).parts
        if part.limit is not None and hasattr(part.limit, "algorithm")
    }
    assert seen == {
        ("v1", "pro", 7, "packed_window"),
        ("v1", None, 3, "packed_window"),
        ("v2", "pro", 6, "fixed_window"),
        ("v2", None, 2, "fixed_window"),
    }
