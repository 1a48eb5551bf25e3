"""Slots: so many at once and no more, each held by its own id, until released or its lease ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from limen import Concurrency, RateLimitExceeded
from tests.conformance.stores import Store, is_renewed

TWO = Concurrency(2, lease=30)


def test_are_full_when_all_are_held(limiter: Any) -> None:
    slots = [limiter.slot("k", TWO) for _ in range(3)]
    decisions = [slot.acquire() for slot in slots]
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert [decision.remaining for decision in decisions] == [1, 0, 0]
    assert [decision.source for decision in decisions] == ["store"] * 3
    assert decisions[2].retry_after == pytest.approx(30, abs=5)
    assert decisions[2].limit == TWO
    assert slots[2].decision == decisions[2]
    assert len({slot.id for slot in slots}) == 3


def test_are_free_again_when_released_once(limiter: Any) -> None:
    one, two, three = (limiter.slot("k", TWO) for _ in range(3))
    one.acquire()
    two.acquire()
    assert one.release() is True
    assert one.release() is False
    assert three.acquire().allowed
    assert not one.acquire().allowed


def test_nobody_frees_or_renews_what_another_holds(limiter: Any) -> None:
    holder, other = limiter.slot("k", Concurrency(1, lease=30)), limiter.slot("k", TWO)
    holder.acquire()
    assert other.release() is False
    assert other.renew() is False
    assert not limiter.slot("k", Concurrency(1, lease=30)).acquire().allowed
    assert holder.renew() is True


def test_who_holds_one_already_keeps_it(limiter: Any) -> None:
    slot = limiter.slot("k", TWO)
    assert [slot.acquire().remaining for _ in range(3)] == [1, 1, 1]


def test_keys_and_names_are_apart(limiter: Any) -> None:
    one = Concurrency(1, lease=30)
    assert limiter.slot("a", one).acquire().allowed
    assert limiter.slot("b", one).acquire().allowed
    assert limiter.slot("a", Concurrency(1, lease=30, name="other")).acquire().allowed
    assert not limiter.slot("a", one).acquire().allowed


def test_number_and_lease_may_change_while_held(limiter: Any) -> None:
    slots = [limiter.slot("k", Concurrency(3, lease=30)) for _ in range(3)]
    assert all(slot.acquire().allowed for slot in slots)
    assert not limiter.slot("k", Concurrency(2, lease=60)).acquire().allowed
    assert limiter.slot("k", Concurrency(5, lease=60)).acquire().remaining == 1


def test_a_lease_ends_by_itself_and_its_late_holder_harms_nobody(limiter: Any) -> None:
    short = Concurrency(1, lease=0.03)
    dead, alive = limiter.slot("k", short), limiter.slot("k", Concurrency(1, lease=30))
    dead.acquire()
    while not (refused := alive.acquire()).allowed:
        assert refused.retry_after <= 0.03
        limiter.sleep(refused.retry_after)
    assert dead.release() is False
    assert dead.renew() is False
    assert not limiter.slot("k", short).acquire().allowed
    assert alive.release() is True


def test_a_renewed_lease_is_a_full_one(limiter: Any) -> None:
    slot = limiter.slot("k", Concurrency(1, lease=30))
    slot.acquire()
    limiter.sleep(0.03)
    before = time.time()
    assert slot.renew() is True
    refused = limiter.slot("k", Concurrency(1, lease=30)).acquire()
    assert refused.retry_after >= 30 - (time.time() - before) - 0.005


def test_limits_beside_a_slot_are_all_or_nothing(limiter: Any) -> None:
    limited = limiter.slot("k", TWO, "1/day", "5/day token_bucket")
    decision = limited.acquire()
    assert [part.remaining for part in decision.parts] == [1, 0, 4]
    refused = limiter.slot("k", TWO, "1/day", "5/day token_bucket").acquire()
    assert (str(refused.limit), refused.allowed) == ("1/day", False)
    assert limiter.peek("k", "5/day token_bucket").remaining == 4
    assert limiter.slot("k", TWO).acquire().remaining == 0  # the refusal above took none
    full = limiter.slot("k", TWO, "7/hour").acquire()
    assert full.limit == TWO
    assert limiter.peek("k", "7/hour").remaining == 7
    assert limited.release() is True
    assert limiter.peek("k", "1/day").remaining == 0  # a slot is given back, a limit is used


def test_limits_beside_a_slot_are_refunded_and_the_slot_is_not(limiter: Any) -> None:
    slot = limiter.slot("k", TWO, "2/day")
    assert limiter.refund(slot.acquire())
    assert limiter.peek("k", "2/day").remaining == 2
    assert slot.renew() is True


def test_with_holds_renews_and_frees(limiter: Any) -> None:
    limit = Concurrency(1, lease=2)
    with limiter.slot("k", limit) as slot:
        assert slot.decision.allowed
        assert is_renewed(limiter, "k", limit)
        with pytest.raises(RateLimitExceeded) as caught, limiter.slot("k", limit):
            raise AssertionError("unreachable")
        assert caught.value.decision.limit == limit
    assert limiter.slot("k", limit).acquire().allowed


def test_with_frees_also_when_the_body_fails(limiter: Any) -> None:
    with pytest.raises(ZeroDivisionError), limiter.slot("k", Concurrency(1, lease=30)):
        raise ZeroDivisionError
    assert limiter.slot("k", Concurrency(1, lease=30)).acquire().allowed


def test_limiters_share_the_slots_of_a_store(connect: Callable[..., Any], store: Store) -> None:
    one, two = Concurrency(1, lease=30), connect()
    connect().slot("k", one).acquire()
    assert two.slot("k", one).acquire().allowed is not store.is_shared


def test_nothing_is_left_behind_when_all_are_released(
    limiter: Any, store: Store, namespace: str
) -> None:
    slots = [limiter.slot("k", TWO) for _ in range(2)]
    for slot in slots:
        slot.acquire()
    assert len(store.ttls_ms(f"{namespace}*")) == (1 if store.is_shared else 0)
    for slot in slots:
        slot.release()
    assert store.ttls_ms(f"{namespace}*") == {}
