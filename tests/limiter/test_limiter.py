"""Every verb of the library, on both limiters."""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import limen
from limen import (
    AsyncLimiter,
    Check,
    Concurrency,
    ConfigurationError,
    Decision,
    InvalidInput,
    InvalidLimit,
    Limit,
    Limiter,
    RateLimitExceeded,
)
from limen.model import ALGORITHMS
from limen.testing import ManualClock


class Blocking:
    """An `AsyncLimiter` whose verbs are called like those of a `Limiter`."""

    def __init__(self, limiter: AsyncLimiter, runner: asyncio.Runner) -> None:
        self._limiter, self._runner = limiter, runner

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method = getattr(self._limiter, verb)

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **kwargs)
            return self._runner.run(answer) if inspect.iscoroutine(answer) else answer

        return call


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture(params=["Limiter", "AsyncLimiter"])
def limiter(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Any]:
    if request.param == "Limiter":
        yield Limiter(clock=clock)
        return
    with asyncio.Runner() as runner:
        yield Blocking(AsyncLimiter(clock=clock), runner)


every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


@every_algorithm
def test_admits_the_quota_and_refuses_the_next(limiter: Any, algorithm: str) -> None:
    decisions = [limiter.check("user:42", f"3/minute {algorithm}") for _ in range(4)]
    assert [decision.allowed for decision in decisions] == [True, True, True, False]
    assert [decision.remaining for decision in decisions] == [2, 1, 0, 0]
    assert [decision.source for decision in decisions] == ["store"] * 4
    assert not decisions[0].degraded
    assert decisions[0].retry_after == 0.0
    assert 0 < decisions[3].retry_after <= 60


def test_a_decision_carries_all_that_was_asked(limiter: Any) -> None:
    decision = limiter.check("user:42", "100/minute", cost=5)
    assert decision
    assert (decision.key, decision.cost, str(decision.limit)) == ("user:42", 5, "100/minute")
    assert (decision.remaining, decision.reset_after, decision.delay) == (95, 60.0, 0.0)
    assert decision.parts == (decision,)
    assert decision.receipt.charges[0][0].cost == 5
    assert pickle.loads(pickle.dumps(decision)) == decision


def test_a_decision_shows_no_key(limiter: Any) -> None:
    decision = limiter.check("secret-api-key", "1/minute")
    refused = limiter.check("secret-api-key", "1/minute")
    for shown in (
        repr(decision),
        repr(decision.receipt),
        repr(refused),
        str(RateLimitExceeded(refused)),
    ):
        assert "secret" not in shown
    assert "retry in 60 s" in str(RateLimitExceeded(refused))
    assert repr(decision) == (
        "<Decision allowed: 1/minute, remaining=0, reset_after=60.0, source=store>"
    )


def test_keys_are_counted_apart_and_bytes_are_their_text(limiter: Any) -> None:
    assert limiter.check("a", "1/minute").allowed
    assert limiter.check("b", "1/minute").allowed
    assert not limiter.check(b"a", "1/minute").allowed
    assert limiter.check(b"\xff\xfe", "1/minute").allowed
    assert not limiter.check(b"\xff\xfe", "1/minute").allowed


def test_a_key_is_its_text_whatever_it_prints_as(limiter: Any) -> None:
    class Colour(str, enum.Enum):  # noqa: UP042  # prints as `Colour.RED`, which is the point
        RED = "red"

    limiter.check(Colour.RED, "1/minute")
    assert not limiter.check("red", "1/minute").allowed


def test_a_program_that_seeds_its_random_numbers_loses_no_refund(limiter: Any) -> None:
    for _ in range(3):
        random.seed(1)
        assert limiter.refund(limiter.check("k", "10/minute"))


def test_long_keys_are_kept_short_and_never_collide(limiter: Any) -> None:
    long = "x" * 1_000_000
    assert limiter.check(long, "1/minute").allowed
    assert not limiter.check(long, "1/minute").allowed
    assert limiter.check(long + "y", "1/minute").allowed


def test_several_limits_are_all_or_nothing(limiter: Any, clock: ManualClock) -> None:
    limits = ("5/second", "8/minute")
    for _ in range(5):
        assert limiter.check("k", *limits).allowed
    refused = limiter.check("k", *limits)
    assert not refused.allowed
    assert str(refused.limit) == "5/second"
    assert [part.allowed for part in refused.parts] == [False, True]
    assert limiter.peek("k", "8/minute").remaining == 3  # the refused one was not charged
    clock.advance(1)
    assert not limiter.check("k", *limits, cost=4).allowed
    assert limiter.check("k", *limits, cost=3).allowed
    assert limiter.peek("k", "5/second").remaining == 2


def test_several_limits_in_one_text(limiter: Any) -> None:
    decision = limiter.check("k", "10/second; 1000/hour")
    assert [str(part.limit) for part in decision.parts] == ["10/second", "1000/hour"]


def test_the_binding_part_of_a_refusal_is_the_longest_to_wait_for(limiter: Any) -> None:
    limiter.check("k", "2/second", "2/minute", cost=2)
    refused = limiter.check("k", "2/second", "2/minute")
    assert (str(refused.limit), refused.retry_after) == ("2/minute", 60.0)
    never = limiter.check("k", "2/second", Limit(3, 60, name="three"), cost=3)
    assert (str(never.limit), never.retry_after) == ("2/second", None)


def test_the_binding_part_of_an_admission_is_the_nearest_its_limit(limiter: Any) -> None:
    decision = limiter.check("k", "10/second", "100/minute", cost=5)
    assert (str(decision.limit), decision.remaining) == ("10/second", 5)
    tie = limiter.check("t", "10/hour", "10/minute")
    assert str(tie.limit) == "10/hour"


@every_algorithm
def test_a_cost_that_never_fits_is_refused_at_once_and_changes_nothing(
    limiter: Any, algorithm: str
) -> None:
    refused = limiter.check("k", f"3/minute {algorithm}", cost=4)
    assert (refused.allowed, refused.retry_after, refused.receipt) == (False, None, None)
    assert limiter.peek("k", f"3/minute {algorithm}").remaining == 3


@every_algorithm
def test_cost_zero_is_always_allowed_and_reports(limiter: Any, algorithm: str) -> None:
    text = f"3/minute {algorithm}"
    limiter.check("k", text, cost=3)
    decision = limiter.check("k", text, cost=0)
    assert (decision.allowed, decision.remaining, decision.receipt) == (True, 0, None)


def test_peek_charges_nothing(limiter: Any) -> None:
    for _ in range(3):
        assert limiter.peek("k", "1/minute").remaining == 1
    assert limiter.peek("k", "1/minute", cost=2).retry_after is None
    assert limiter.check("k", "1/minute").allowed
    assert limiter.peek("k", "1/minute").retry_after == 60.0


@every_algorithm
def test_refund_gives_back_once(limiter: Any, algorithm: str) -> None:
    text = f"3/minute {algorithm}"
    first, second = limiter.check("k", text), limiter.check("k", text, cost=2)
    assert limiter.refund(second)
    assert limiter.peek("k", text).remaining == 2
    assert not limiter.refund(second)
    assert not limiter.refund(second.receipt)
    assert not limiter.settle(second, 3)
    assert limiter.peek("k", text).remaining == 2
    assert limiter.refund(first.receipt)
    assert limiter.peek("k", text).remaining == 3


def test_a_refused_decision_has_nothing_to_refund(limiter: Any) -> None:
    limiter.check("k", "1/minute")
    refused = limiter.check("k", "1/minute")
    assert not limiter.refund(refused)
    assert not limiter.peek("k", "1/minute").allowed


@every_algorithm
def test_a_refund_after_everything_drained_gives_nothing(
    limiter: Any, clock: ManualClock, algorithm: str
) -> None:
    text = f"2/minute {algorithm}"
    old = limiter.check("k", text, cost=2)
    clock.advance(120)
    limiter.check("k", text, cost=2)
    assert not limiter.refund(old)
    assert limiter.peek("k", text).remaining == 0


@every_algorithm
def test_settle_corrects_an_estimate(limiter: Any, algorithm: str) -> None:
    text = f"10/minute {algorithm}"
    less = limiter.check("less", text, cost=5)
    assert limiter.settle(less, 2)
    assert limiter.peek("less", text).remaining == 8
    assert not limiter.settle(less, 1)
    more = limiter.check("more", text, cost=5)
    assert limiter.settle(more, 9)
    assert limiter.peek("more", text).remaining == 1
    debt = limiter.check("debt", text, cost=5)
    assert limiter.settle(debt, 15)
    refused = limiter.peek("debt", text)
    assert (refused.allowed, refused.remaining) == (False, 0)
    same = limiter.check("same", text, cost=5)
    assert not limiter.settle(same, 5)
    assert not limiter.refund(same)


def test_refund_of_several_limits_gives_back_to_each(limiter: Any) -> None:
    decision = limiter.check("k", "5/second", "5/minute", cost=5)
    assert limiter.refund(decision)
    assert not limiter.refund(decision.parts[0])
    assert limiter.peek("k", "5/second").remaining == 5
    assert limiter.peek("k", "5/minute").remaining == 5


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket"])
def test_the_second_of_two_refunds_eats_no_newer_charge(
    limiter: Any, clock: ManualClock, algorithm: str
) -> None:
    text = f"10/10s {algorithm}"
    first, second = limiter.check("k", text, cost=5), limiter.check("k", text, cost=5)
    assert limiter.refund(first)
    clock.advance(5)  # the second has drained
    limiter.check("k", text, cost=5)
    assert not limiter.refund(second)
    assert limiter.peek("k", text).remaining == 5


@every_algorithm
def test_a_receipt_from_before_a_step_back_eats_no_newer_charge(
    limiter: Any, clock: ManualClock, algorithm: str
) -> None:
    text = f"10/10s {algorithm}"
    old = limiter.check("k", text, cost=10)
    clock.advance(-1_000)
    limiter.peek("k", text)
    clock.advance(45)
    limiter.check("k", text, cost=10)
    assert not limiter.refund(old)
    assert limiter.peek("k", text).remaining == 0


@pytest.mark.parametrize("algorithm", ["packed_window", "rolling_window"])
def test_an_expired_charge_is_not_given_back_after_a_step_back(
    limiter: Any, clock: ManualClock, algorithm: str
) -> None:
    old = limiter.check("k", f"5/minute {algorithm}")
    clock.advance(-12)
    limiter.check("k", f"5/minute {algorithm}")
    clock.advance(60)
    assert not limiter.refund(old)


def test_counted_refusals_under_a_lowered_quota_forget_nothing_that_was_used(
    limiter: Any, clock: ManualClock
) -> None:
    limiter.check("k", "100/minute count_denied", cost=100)
    clock.advance(1)
    assert not limiter.check("k", "1/minute count_denied").allowed
    assert not limiter.check("k", "100/minute count_denied", cost=2).allowed


@every_algorithm
def test_a_peek_under_another_quota_changes_nothing(
    limiter: Any, clock: ManualClock, algorithm: str
) -> None:
    limiter.check("k", f"1/minute {algorithm}")
    limiter.peek("k", f"1000/minute {algorithm}")
    clock.advance(0.1)
    assert not limiter.check("k", f"1/minute {algorithm}").allowed


def test_reset_forgets_what_was_counted(limiter: Any) -> None:
    limiter.check("k", "1/minute", "1/hour")
    limiter.reset("k", "1/minute")
    assert limiter.check("k", "1/minute").allowed
    assert not limiter.check("k", "1/hour").allowed
    limiter.reset("never seen", "1/minute")


def test_a_changed_number_keeps_its_state_and_a_new_period_starts_afresh(limiter: Any) -> None:
    limiter.check("k", "100/minute", cost=100)
    assert limiter.peek("k", "1000/minute").remaining == 900
    assert limiter.peek("k", "100/hour").remaining == 100
    assert limiter.peek("k", "100/minute token_bucket").remaining == 100
    assert limiter.peek("k", Limit(100, 60, name="other")).remaining == 100


class TestDecide:
    def test_each_check_has_its_own_key_and_cost(self, limiter: Any) -> None:
        limit = Limit.parse("10/minute")
        decision = limiter.decide(Check(limit, "user:1", 3), Check(limit, "org:1", 4))
        assert [(part.key, part.remaining) for part in decision.parts] == [
            ("user:1", 7),
            ("org:1", 6),
        ]

    def test_a_shadow_has_no_say_and_counts_what_it_alone_would_admit(self, limiter: Any) -> None:
        strict, loose = Limit.parse("1/minute"), Limit.parse("10/hour")
        checks = (Check(strict, "k", enforce=False), Check(loose, "k"))
        decisions = [limiter.decide(*checks) for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True, True, True]
        assert [decision.parts[0].allowed for decision in decisions] == [True, False, False]
        assert str(decisions[2].limit) == "10/hour"
        assert limiter.peek("k", strict).remaining == 0

    def test_a_refusal_charges_no_shadow(self, limiter: Any) -> None:
        shadow, real = Limit.parse("5/minute"), Limit.parse("1/hour")
        for _ in range(3):
            limiter.decide(Check(shadow, "k", enforce=False), Check(real, "k"))
        assert limiter.peek("k", shadow).remaining == 4

    def test_a_lone_shadow_lets_everything_pass(self, limiter: Any) -> None:
        check = Check(Limit.parse("1/minute"), "k", enforce=False)
        decisions = [limiter.decide(check) for _ in range(2)]
        assert [decision.allowed for decision in decisions] == [True, True]
        assert [decision.parts[0].allowed for decision in decisions] == [True, False]

    def test_count_denied_counts_only_where_it_was_refused(
        self, limiter: Any, clock: ManualClock
    ) -> None:
        strict = Limit.parse("1/10s count_denied")
        loose = Limit.parse("5/minute count_denied")
        for _ in range(3):
            limiter.decide(Check(strict, "k"), Check(loose, "k"))
        assert limiter.peek("k", loose).remaining == 4
        clock.advance(9)
        assert limiter.check("k", strict).retry_after == 10.0
        clock.advance(10)
        assert limiter.check("k", strict).allowed

    @pytest.mark.parametrize(
        "checks",
        [
            (),
            ("100/minute",),
            (Check("100/minute", "k"),),  # type: ignore[arg-type]  # that it fails is the point
            (Check(Limit(1, 60), ""),),
            (Check(Limit(1, 60), "k", cost=-1),),
            (Check(Limit(1, 60), "k", subject=""),),
            (Check(Limit(1, 60), "k", enforce="no"),),  # type: ignore[arg-type]  # as above
            (Check(Limit(1, 60), "k", on_error="maybe"),),  # type: ignore[arg-type]  # as above
            (Check(Concurrency(1, lease=1), "k"),),
            (Check(Limit(1, 60), "k"), Check(Limit(2, 60), "k")),
        ],
    )
    def test_bad_checks_are_an_error(self, limiter: Any, checks: Any) -> None:
        with pytest.raises(InvalidInput):
            limiter.decide(*checks)


class TestBadInput:
    @pytest.mark.parametrize("cost", [-1, 1.0, float("nan"), True, "1", None, 10**10])
    def test_cost(self, limiter: Any, cost: Any) -> None:
        with pytest.raises(InvalidInput, match="cost must be a whole number from 0"):
            limiter.check("k", "3/minute", cost=cost)
        assert limiter.peek("k", "3/minute").remaining == 3

    @pytest.mark.parametrize("key", ["", b"", None, 5, ["k"], object()])
    def test_key(self, limiter: Any, key: Any) -> None:
        with pytest.raises(InvalidInput, match="key must be non-empty text or bytes"):
            limiter.check(key, "3/minute")

    def test_a_refused_key_is_not_shown(self, limiter: Any) -> None:
        with pytest.raises(InvalidInput, match=r"got bytearray$"):
            limiter.check(bytearray(b"secret"), "3/minute")

    @pytest.mark.parametrize("limits", [(), (None,), (5,), (["3/minute"],), (Concurrency(1, 1),)])
    def test_limits(self, limiter: Any, limits: Any) -> None:
        with pytest.raises(InvalidInput):
            limiter.check("k", *limits)

    def test_unreadable_limit(self, limiter: Any) -> None:
        with pytest.raises(InvalidLimit, match="10/month-ish"):
            limiter.check("k", "10/month-ish")

    def test_the_same_limit_twice(self, limiter: Any) -> None:
        for limits in (("3/minute", "3/minute"), ("3/minute; 5/60s",)):
            with pytest.raises(InvalidInput, match="would share one state"):
                limiter.check("k", *limits)
        assert limiter.peek("k", "3/minute").remaining == 3

    @pytest.mark.parametrize("actual", [-1, 1.5, True, None])
    def test_actual_cost(self, limiter: Any, actual: Any) -> None:
        decision = limiter.check("k", "3/minute")
        with pytest.raises(InvalidInput, match="actual_cost must be"):
            limiter.settle(decision, actual)
        with pytest.raises(InvalidInput, match="expected a Decision"):
            limiter.refund("decision")

    @pytest.mark.parametrize("timeout", [-1, True, "1", float("nan")])
    def test_timeout(self, limiter: Any, timeout: Any) -> None:
        with pytest.raises(InvalidInput, match="timeout must be"):
            limiter.acquire("k", "3/minute", timeout=timeout)

    def test_what_cannot_be_shown_is_still_an_error_of_the_tree(self, limiter: Any) -> None:
        class Hostile:
            def __repr__(self) -> str:
                raise RuntimeError

            def __eq__(self, other: object) -> bool:
                raise RuntimeError

            __hash__ = None  # type: ignore[assignment]  # as an array has none

        for bad in (Hostile(), [10**5_000]):
            with pytest.raises(InvalidInput):
                limiter.check("k", "1/s", cost=bad)
            with pytest.raises(InvalidInput):
                limiter.check(bad, "1/s")
            with pytest.raises(InvalidInput):
                limiter.check("k", bad)
            with pytest.raises(InvalidInput):
                limiter.acquire("k", "1/s", timeout=bad)
            with pytest.raises(InvalidLimit):
                Limit(1, 1, algorithm=bad)  # type: ignore[arg-type]  # that it fails is the point
        with pytest.raises(InvalidLimit):
            Limit(1, 10**400)
        with pytest.raises(InvalidLimit):
            Concurrency(1, lease=10**400)
        assert limiter.acquire("k", "1/s", timeout=10**400).allowed

    def test_huge_values_do_not_flood_the_message(self, limiter: Any) -> None:
        for bad in ("x" * 10**6, 10**6_000):
            with pytest.raises(InvalidInput) as caught:
                limiter.check("k", "3/minute", cost=bad)
            assert len(str(caught.value)) < 200


class TestConstruction:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"store": "redis://hunter2@host"}, "a user and no password"),
            ({"store": "redis://user:hunter2@host:x"}, "a host of 'redis://' cannot be read"),
            ({"store": "mongo://user:hunter2@host"}, "unknown store 'mongo://'"),
            ({"store": "memory"}, "has no scheme"),
            ({"store": "user:hunter2@host"}, "has no scheme"),
            ({"store": "redis://:a/hunter2@host"}, "write / as %2F"),
            ({"store": "redis://:a?hunter2@host"}, "write / as %2F"),
            ({"store": 5}, "store must be an address"),
            ({"store": "memory://host"}, "takes no host"),
            ({"store": "memory://?max_key=5"}, "unknown option 'max_key'"),
            ({"store": "memory://?max_keys=0"}, "max_keys must be"),
            ({"store": "memory://?max_keys=many"}, "max_keys must be"),
            ({"namespace": ""}, "namespace must be"),
            ({"namespace": "a{b}"}, "namespace must be"),
            ({"on_error": "panic"}, "on_error must be"),
            ({"instances": 0}, "instances must be"),
            ({"deadline": 0}, "deadline must be"),
            ({"deadline": True}, "deadline must be"),
            ({"observers": [5]}, "an observer must be callable"),
            ({"observers": None}, "observers must be a list"),
            ({"clock": object()}, "without time_ns"),
            ({"store": "memory://["}, "cannot be read"),
        ],
    )
    def test_is_validated(self, settings: dict[str, Any], message: str) -> None:
        for kind in (Limiter, AsyncLimiter):
            with pytest.raises(ConfigurationError, match=r"^[^\n]*$") as caught:
                kind(**settings)
            assert message in str(caught.value)
            assert "hunter2" not in str(caught.value)

    def test_ping_and_close(self, limiter: Any) -> None:
        limiter.ping()
        with Limiter() as entered:
            assert entered.check("k", "1/s").allowed

    def test_aclose(self) -> None:
        async def use() -> bool:
            async with AsyncLimiter() as entered:
                return (await entered.check("k", "1/s")).allowed

        assert asyncio.run(use())


def test_observers_see_every_decision_and_harm_nobody(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Decision] = []

    def broken(decision: Decision) -> None:
        raise RuntimeError("observer is broken")

    limiter = Limiter(observers=[broken, seen.append], clock=clock)
    with caplog.at_level(logging.ERROR, logger="limen"):
        limiter.check("k", "1/minute")
        limiter.check("k", "1/minute", "1/hour")
        limiter.peek("k", "1/minute")
    assert [decision.allowed for decision in seen] == [True, False]
    assert "observer is broken" in caplog.text


def test_the_root_has_few_names_and_all_of_them_exist() -> None:
    assert len(limen.__all__) <= 20
    assert all(hasattr(limen, name) for name in limen.__all__)
