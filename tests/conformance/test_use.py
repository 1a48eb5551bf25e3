"""What stands around a decision: those who watch, those who wait, and the decorator."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

from limen import Decision, InvalidInput, Limit, RateLimitExceeded


def test_ping_finds_the_store(limiter: Any) -> None:
    assert limiter.ping() is None


def test_a_closed_limiter_can_be_closed_again(connect: Callable[..., Any]) -> None:
    limiter = connect()
    limiter.check("k", "1/day")
    limiter.close()
    limiter.close()


def test_a_decision_carries_all_that_was_asked(limiter: Any) -> None:
    decision = limiter.check(b"user:42", "100/day", cost=5)
    assert decision
    assert (decision.key, decision.cost, str(decision.limit)) == ("user:42", 5, "100/day")
    assert (decision.remaining, decision.reset_after, decision.delay) == (95, 86_400.0, 0.0)
    assert decision.parts == (decision,)
    assert pickle.loads(pickle.dumps(decision)) == decision


def test_bad_input_is_an_error_and_charges_nothing(limiter: Any) -> None:
    for cost in (-1, 1.5, True, None, 10**10):
        with pytest.raises(InvalidInput):
            limiter.check("k", "3/day", cost=cost)
    with pytest.raises(InvalidInput, match="share one state"):
        limiter.check("k", "3/day", "5/day")
    assert limiter.peek("k", "3/day").remaining == 3


class TestObservers:
    def test_see_each_decision_as_it_was_told(self, connect: Callable[..., Any]) -> None:
        seen: list[Decision] = []
        limiter = connect(observers=[seen.append])
        told = [limiter.check("k", "1/day"), limiter.check("k", "1/day", "5/hour")]
        limiter.peek("k", "1/day")
        limiter.refund(told[0])
        told.append(limiter.acquire("k", "1/day"))
        assert seen == told
        assert [decision.allowed for decision in seen] == [True, False, True]

    def test_that_fail_harm_nobody(
        self, connect: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(decision: Decision) -> None:
            raise RuntimeError("observer is broken")

        seen: list[Decision] = []
        limiter = connect(observers=[broken, seen.append])
        assert limiter.check("k", "1/day").allowed
        assert len(seen) == 1
        assert "observer is broken" in caplog.text


class TestAcquire:
    def test_waits_until_there_is_room(self, limiter: Any) -> None:
        start = time.monotonic()
        decisions = [limiter.acquire("k", "2/30ms") for _ in range(5)]
        assert all(decision.allowed for decision in decisions)
        assert time.monotonic() - start >= 0.06

    def test_sits_out_the_delay_of_a_leaky_bucket(self, limiter: Any) -> None:
        start = time.monotonic()
        for _ in range(4):
            limiter.acquire("k", "1/20ms leaky_bucket burst 5")
        assert time.monotonic() - start >= 0.06

    def test_gives_up_at_once_when_the_timeout_will_not_do(self, limiter: Any) -> None:
        limiter.acquire("k", "1/day")
        start = time.monotonic()
        with pytest.raises(RateLimitExceeded) as caught:
            limiter.acquire("k", "1/day", timeout=3_600)
        assert time.monotonic() - start < 60
        assert caught.value.decision.retry_after == pytest.approx(86_400, abs=60)

    def test_gives_up_at_once_on_what_never_fits(self, limiter: Any) -> None:
        with pytest.raises(RateLimitExceeded, match="never fits"):
            limiter.acquire("k", "1/day", cost=2)

    def test_gives_a_place_back_that_would_come_too_late(self, limiter: Any) -> None:
        limit = Limit(1, 3_600, algorithm="leaky_bucket", burst=3)
        limiter.acquire("k", limit)
        with pytest.raises(RateLimitExceeded):
            limiter.acquire("k", limit, timeout=10)
        assert limiter.peek("k", limit).remaining == 2

    def test_waiting_is_not_counted_as_hammering(self, limiter: Any) -> None:
        for _ in range(3):
            assert limiter.acquire("k", "1/20ms count_denied", timeout=30).allowed


class TestDecorator:
    def test_counts_the_values_of_an_argument_apart(self, limiter: Any) -> None:
        def greet(greeting: str, user_id: int = 0) -> str:
            return f"{greeting} {user_id}"

        guarded = limiter.limit("1/day", key="user_id")(greet)
        assert guarded("hi", 1) == "hi 1"
        assert guarded("hi", user_id=2) == "hi 2"
        for user_id in (1, 2):
            with pytest.raises(RateLimitExceeded) as caught:
                guarded("hi", user_id=user_id)
            assert not caught.value.decision.allowed
            assert caught.value.decision.source == "store"

    def test_takes_the_key_from_a_function_as_it_is(self, limiter: Any) -> None:
        decorate = limiter.limit("1/day", "5/hour", key=lambda user: f"user:{user}")
        assert decorate(lambda user: user)("a") == "a"
        assert not limiter.check("user:a", "1/day").allowed
        assert limiter.peek("user:a", "5/hour").remaining == 4

    def test_without_a_key_all_calls_count_together_and_a_refused_one_does_not_run(
        self, limiter: Any
    ) -> None:
        ran: list[int] = []
        guarded = limiter.limit("2/day", cost=2)(ran.append)
        guarded(1)
        with pytest.raises(RateLimitExceeded):
            guarded(2)
        assert ran == [1]

    def test_delays_under_a_leaky_bucket(self, limiter: Any) -> None:
        guarded = limiter.limit("1/20ms leaky_bucket burst 5")(lambda: time.monotonic())
        first, *_, last = [guarded() for _ in range(3)]
        assert last - first >= 0.03
