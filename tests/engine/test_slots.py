"""`engine.slot`: what a request holds while it runs, beside limits and under several rules."""

from __future__ import annotations

import asyncio
import contextlib
import pickle

import pytest

from limen import AsyncLimiter
from limen.engine import AsyncEngine, RequestRefused
from limen.rules import parse_text
from tests import servers
from tests.engine.conftest import Make
from tests.engine.drivers import answers, clock_at, left

SLOTS = """\
rules:
  - name: exports
    match: {path: /export}
    key: [user]
    concurrency: {slots: 2, lease: 60s}
    limits: 3/day
  - name: all-exports
    match: {path: /export}
    concurrency: {slots: 3, lease: 60s}
  - {name: requests, key: [user], limits: 9/day}
"""
ANN, BOB = ({"user": user, "path": "/export"} for user in ("ann", "bob"))


def test_a_slot_is_taken_under_every_rule_and_given_back(make: Make) -> None:
    engine = make(SLOTS)
    with engine.slot(ANN) as slot:
        assert slot.verdict is not None
        assert [(part.name, part.remaining) for part in slot.verdict.parts] == [
            ("exports#1", 1),
            ("exports#2", 2),
            ("all-exports#1", 2),
            ("requests#1", 8),
        ]
        assert [part.cost for part in slot.verdict.parts] == [1, 1, 1, 1]
        assert left(engine, ANN) == {
            "exports#1": 1,
            "exports#2": 2,
            "all-exports#1": 2,
            "requests#1": 8,
        }
    # The slots are free again; what was counted stays counted.
    assert left(engine, ANN) == {
        "exports#1": 2,
        "exports#2": 2,
        "all-exports#1": 3,
        "requests#1": 8,
    }


def test_a_slot_is_given_back_when_the_work_fails(make: Make) -> None:
    engine = make(SLOTS)
    with pytest.raises(ZeroDivisionError), engine.slot(ANN):
        raise ZeroDivisionError
    assert left(engine, ANN)["exports#1"] == 2


def test_a_refused_slot_raises_and_holds_and_charges_nothing(make: Make) -> None:
    engine = make(SLOTS)
    with engine.slot(ANN), engine.slot(ANN):
        with pytest.raises(RequestRefused, match="refused by rule exports: retry in") as caught:
            engine.slot(ANN).__enter__()
        verdict = caught.value.verdict
        assert (verdict.allowed, verdict.rule) == (False, "exports")
        assert str(verdict.limit) == "2 at once, lease 1 minute"
        assert verdict.retry_after == pytest.approx(60, abs=10)
        assert left(engine, ANN) == {
            "exports#1": 0,
            "exports#2": 1,
            "all-exports#1": 1,
            "requests#1": 7,
        }
        # The third place is everybody's, and bob takes it.
        with engine.slot(BOB), pytest.raises(RequestRefused, match="by rule all-exports"):
            engine.slot({"user": "eve", "path": "/export"}).__enter__()
    assert left(engine, BOB)["all-exports#1"] == 3


def test_a_limit_beside_it_refuses_the_slot_too(make: Make) -> None:
    engine = make(SLOTS)
    for _ in range(3):
        with engine.slot(ANN):
            pass
    with pytest.raises(RequestRefused, match="refused by rule exports") as caught:
        engine.slot(ANN).__enter__()
    assert str(caught.value.verdict.limit) == "3/day"
    assert left(engine, ANN)["exports#1"] == 2
    assert left(engine, BOB)["all-exports#1"] == 3


def test_acquire_renew_and_release_are_there_for_who_holds_no_block(make: Make) -> None:
    engine = make(SLOTS)
    slots = [engine.slot(ANN) for _ in range(3)]
    assert len({slot.id for slot in slots}) == 3
    assert [slot.acquire().allowed for slot in slots] == [True, True, False]
    assert [slot.renew() for slot in slots] == [True, True, False]
    assert [slot.release() for slot in slots] == [True, True, False]
    assert [slot.release() for slot in slots] == [False] * 3
    assert slots[2].acquire().allowed
    assert slots[2].release()


def test_one_s_release_frees_nobody_else_s_slot(make: Make) -> None:
    engine = make(SLOTS)
    with engine.slot(ANN):
        stranger = engine.slot(ANN)
        assert not stranger.release()
        assert left(engine, ANN)["exports#1"] == 1


def test_decide_does_not_apply_a_rule_with_slots_nor_half_of_it(make: Make) -> None:
    engine = make(SLOTS)
    verdicts = [engine.decide(ANN) for _ in range(5)]
    assert [verdict.allowed for verdict in verdicts] == [True] * 5
    assert verdicts[0].not_applicable == ("exports", "all-exports")
    assert [part.rule for part in verdicts[0].parts] == ["requests"]
    # Not even the limits beside the slots.
    assert left(engine, ANN) == {
        "exports#1": 2,
        "exports#2": 3,
        "all-exports#1": 3,
        "requests#1": 4,
    }


def test_a_peek_shows_rules_with_slots(make: Make) -> None:
    engine = make(SLOTS)
    assert engine.peek(ANN).not_applicable == ()
    with engine.slot(ANN), engine.slot(ANN):
        verdict = engine.peek(ANN)
        assert (verdict.allowed, verdict.rule) == (False, "exports")


def test_a_shadow_of_slots_refuses_nobody_and_counts(make: Make) -> None:
    engine = make(
        """\
rules:
  - {name: watched, key: [user], concurrency: {slots: 1, lease: 60}, mode: shadow}
  - {name: felt, key: [user], concurrency: {slots: 3, lease: 60}}
"""
    )
    with engine.slot(ANN) as first, engine.slot(ANN) as second:
        found = [slot.verdict for slot in (first, second) if slot.verdict is not None]
        assert [verdict.rule for verdict in found] == ["felt", "felt"]
        assert [verdict.parts[0].allowed for verdict in found] == [True, False]
        assert [verdict.parts[0].mode for verdict in found] == ["shadow", "shadow"]
        assert left(engine, ANN) == {"watched#1": 0, "felt#1": 1}
    assert left(engine, ANN) == {"watched#1": 1, "felt#1": 3}


def test_a_slot_without_rules_is_always_free(make: Make) -> None:
    engine = make("rules: []")
    slot = engine.slot(ANN)
    with slot:
        assert slot.verdict is not None
        assert (slot.verdict.allowed, slot.id) == (True, None)
    assert slot.acquire().allowed
    assert (slot.renew(), slot.release()) == (True, True)


def test_a_slot_under_limits_alone_charges_them(make: Make) -> None:
    engine = make("rules: [{name: requests, key: [user], limits: 2/day}]")
    for _ in range(2):
        with engine.slot(ANN):
            pass
    with pytest.raises(RequestRefused, match="refused by rule requests"):
        engine.slot(ANN).__enter__()


def test_a_block_refuses_a_slot_and_says_until_when(make: Make) -> None:
    rules = SLOTS + "  - {name: closed, mode: block, ends: 2026-12-25}\n"
    engine = make(rules, clock=clock_at("2026-12-24T23:59"))
    slot = engine.slot(ANN)
    with pytest.raises(RequestRefused, match="refused by rule closed: retry in 60 s"):
        slot.__enter__()
    verdict = slot.acquire()
    assert (verdict.allowed, verdict.rule) == (False, "closed")
    engine.use(SLOTS)
    assert left(engine, ANN)["exports#1"] == 2


def test_a_block_is_told_from_when_the_slot_is_asked_for(make: Make) -> None:
    """Between making a slot and acquiring it, time may pass."""
    clock = clock_at("2026-12-24T23:59")
    engine = make("rules: [{name: closed, mode: block, ends: 2026-12-25}]", clock=clock)
    slot = engine.slot(ANN)
    clock.advance(30)
    assert slot.acquire().retry_after == 30.0


def test_a_missing_key_denies_a_slot(make: Make) -> None:
    engine = make(
        "rules: [{name: e, key: [user], missing: deny, concurrency: {slots: 1, lease: 60}}]"
    )
    with pytest.raises(RequestRefused, match=r"refused by rule e$") as caught:
        engine.slot({"path": "/export"}).__enter__()
    assert caught.value.verdict.parts[0].reason == "missing"


def test_who_is_unlimited_still_needs_a_slot(make: Make) -> None:
    engine = make(
        """\
rules:
  - name: exports
    key: [user]
    concurrency: {slots: 1, lease: 60}
    tiers: {by: plan, limits: {pro: unlimited}, default: 1/day}
"""
    )
    pro = {"user": "ann", "plan": "pro"}
    with engine.slot(pro) as slot:
        assert slot.verdict is not None
        assert [part.tier for part in slot.verdict.parts] == ["pro"]
        assert not engine.peek(pro).allowed
    for _ in range(2):
        with engine.slot(pro):
            pass


def test_what_a_slot_was_charged_is_settled_and_given_back(make: Make) -> None:
    engine = make(
        """\
rules:
  - name: streams
    key: [user]
    concurrency: {slots: 2, lease: 60}
    cost: tokens
    limits: 1000/day
"""
    )
    with engine.slot({**ANN, "tokens": "800"}) as slot:
        pass
    assert slot.verdict is not None
    assert [part.cost for part in slot.verdict.parts] == [1, 800]
    assert engine.settle(slot.verdict, {"tokens": 500})
    assert left(engine, ANN) == {"streams#1": 2, "streams#2": 500}
    again = engine.slot({**ANN, "tokens": "100"})
    assert engine.refund(again.acquire())
    # A refund gives back what was counted; the slot is given back by its holder.
    assert left(engine, ANN) == {"streams#1": 1, "streams#2": 500}
    assert again.release()


def test_a_slot_is_entered_again_when_it_was_left(make: Make) -> None:
    engine = make(SLOTS)
    slot = engine.slot(ANN)
    ids = set()
    for _ in range(2):
        with slot:
            ids.add(slot.id)
    assert len(ids) == 2
    assert answers(engine, 1, ANN) == [True]


def test_a_refusal_travels_between_processes(make: Make) -> None:
    engine = make("rules: [{name: closed, mode: block}]")
    with pytest.raises(RequestRefused) as caught:
        engine.slot(ANN).__enter__()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.verdict.rule) == ("refused by rule closed", "closed")


CANCELLED = """\
rules:
  - {name: a, key: [user], concurrency: {slots: 500, lease: 60s}}
  - {name: b, key: [org], concurrency: {slots: 500, lease: 60s}}
  - {name: c, concurrency: {slots: 500, lease: 60s}}
  - {name: d, key: [ip], mode: shadow, concurrency: {slots: 500, lease: 60s}}
"""


def test_whoever_is_cancelled_lets_go_of_every_place() -> None:
    facts = {"user": "1", "org": "x", "ip": "192.0.2.7"}

    async def hold_and_cancel(url: str) -> list[int | None]:
        async with AsyncLimiter(url, deadline=2) as limiter:
            engine = AsyncEngine(parse_text(CANCELLED), limiter)

            async def hold() -> None:
                async with engine.slot(facts):
                    await asyncio.sleep(0)

            for number in range(150):
                task = asyncio.create_task(hold())
                # At every moment of it: before, between and after the replies.
                await asyncio.sleep(number * 2e-5)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            return [part.remaining for part in (await engine.peek(facts)).parts]

    with servers.server(servers.binaries()["valkey"]) as port:
        assert asyncio.run(hold_and_cancel(f"redis://127.0.0.1:{port}")) == [500] * 4
