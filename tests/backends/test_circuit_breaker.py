"""The breaker: opens on failures in a row, on their share and on slowness, and closes by itself."""

from __future__ import annotations

import pytest

from limen.backends import Fault, FaultKind
from limen.backends.circuit_breaker import FAILURES, CircuitBreaker

DEADLINE_S = 0.05
SILENT = Fault("timeout", "here: no answer in time")


def new() -> CircuitBreaker:
    return CircuitBreaker("here", DEADLINE_S)


def opened(now: float = 0.0) -> CircuitBreaker:
    breaker = new()
    assert [breaker.failed(now, SILENT) for _ in range(FAILURES)] == [False] * 4 + [True]
    return breaker


class TestFailuresInARow:
    def test_open_it_once(self) -> None:
        breaker = opened()
        assert breaker.is_open
        assert not breaker.failed(0.0, SILENT), "it is open already"
        assert breaker.shard.opened == 1

    def test_are_counted_anew_after_an_answer(self) -> None:
        breaker = new()
        for now in range(20):
            for _ in range(FAILURES - 1):
                assert not breaker.failed(2.0 * now, SILENT)
            assert breaker.is_alert, "else the answer would not be told"
            assert not breaker.answered(2.0 * now + 1.5, False)
        assert not breaker.is_open

    @pytest.mark.parametrize("kind", ["poisoned", "script", "internal", "cluster"])
    def test_of_single_requests_are_counted_and_no_more(self, kind: FaultKind) -> None:
        breaker = new()
        for _ in range(100):
            assert not breaker.failed(0.0, Fault(kind, "here: not its fault"))
        assert breaker.shard.faults == {kind: 100}
        assert breaker.shard.fault == ""

    @pytest.mark.parametrize(
        "kind",
        ["timeout", "connection", "tls", "rights", "loading", "readonly", "memory", "busy"],
    )
    def test_of_the_server_open_it_whatever_their_kind(self, kind: FaultKind) -> None:
        breaker = new()
        for _ in range(FAILURES):
            breaker.failed(0.0, Fault(kind, "here: trouble", "do this"))
        assert breaker.refusal.kind == kind
        assert str(breaker.refusal) == "here: trouble; left alone until it answers (do this)"
        assert not breaker.refusal.may_have_run, "what is not asked is not charged"


class TestShare:
    def test_of_half_opens_it(self) -> None:
        breaker = new()
        told = [
            breaker.failed(n / 100, SILENT) if n % 2 == 0 else breaker.answered(n / 100, False)
            for n in range(20)
        ]
        assert told == [False] * 19 + [True]

    def test_of_less_does_not(self) -> None:
        breaker = new()
        for n in range(300):
            if n % 3 == 0:
                assert not breaker.failed(n / 100, SILENT)
            else:
                assert not breaker.answered(n / 100, False)

    def test_within_a_second_only(self) -> None:
        breaker = new()
        for n in range(200):
            now = n / 10  # ten in a second are too few to judge
            told = breaker.failed(now, SILENT) if n % 2 else breaker.answered(now, False)
            assert not told

    def test_of_slow_answers_opens_it_too(self) -> None:
        breaker = new()
        told = [breaker.answered(n / 100, True) for n in range(20)]
        assert told == [False] * 19 + [True]
        assert breaker.refusal.kind == "timeout"
        assert "longer than 45 ms" in str(breaker.refusal)

    def test_is_watched_for_a_second_after_one_slow_answer(self) -> None:
        breaker = new()
        assert not breaker.answered(0.0, True)
        assert breaker.is_alert
        assert not any(breaker.answered(n / 100, False) for n in range(120))
        assert not breaker.is_alert


class TestTending:
    def test_is_for_one_at_a_time(self) -> None:
        breaker = opened()
        assert breaker.should_tend(0.0)
        assert not breaker.should_tend(0.1)

    def test_is_for_another_when_that_one_is_lost(self) -> None:
        breaker = opened()
        first = breaker.should_tend(0.0)
        assert breaker.rest(3.0, first)
        assert not breaker.should_tend(8.0), "it was heard of at 3"
        assert breaker.should_tend(9.0)
        assert breaker.rest(9.0, first) is None, "the first, if it lives after all, ends"

    def test_is_not_needed_while_all_is_well(self) -> None:
        assert not new().should_tend(0.0)

    def test_ends_by_closing(self) -> None:
        breaker = opened()
        breaker.close()
        assert not breaker.is_open
        assert (breaker.shard.state, breaker.shard.fault) == ("closed", "")
        assert (breaker.shard.opened, breaker.shard.faults) == (1, {"timeout": FAILURES})
        assert not breaker.failed(0.0, SILENT), "it takes as many failures again"

    def test_ends_when_nobody_has_missed_the_server_for_a_while(self) -> None:
        breaker = opened()
        number = breaker.should_tend(0.0)
        assert breaker.rest(29.0, number) is not None
        assert breaker.rest(31.0, number) is None
        assert breaker.should_tend(31.0), "the next who misses it begins again"

    def test_leaves_the_server_alone_for_a_moment_that_differs(self) -> None:
        breaker = opened()
        number = breaker.should_tend(0.0)
        rests = {breaker.rest(0.0, number) or 0.0 for _ in range(100)}
        assert len(rests) > 1
        assert 0.1 < min(rests) < max(rests) < 0.5

    def test_is_rare_while_somebody_has_to_mend_the_settings(self) -> None:
        breaker = new()
        for _ in range(FAILURES):
            breaker.failed(0.0, Fault("rights", "here: WRONGPASS"))
        number = breaker.should_tend(0.0)
        assert min(breaker.rest(0.0, number) or 0.0 for _ in range(100)) >= 0.5

    def test_that_had_to_end_lets_a_caller_try_now_and_then(self) -> None:
        breaker = opened()
        number = breaker.should_tend(0.0)
        assert not breaker.may_try(0.0)
        breaker.abandon(1.0, number)
        assert [breaker.may_try(now) for now in (1.0, 1.1, 1.2, 1.4, 1.5)] == [
            True,
            False,
            False,
            True,
            False,
        ]
        assert breaker.should_tend(1.5), "and another begins at once"
        breaker.close()
        assert not breaker.may_try(9.0)


def test_service_is_probed_by_one_request_at_a_time() -> None:
    breaker = CircuitBreaker("here", DEADLINE_S, probe_after_s=1.0)
    for _ in range(FAILURES):
        breaker.failed(10.0, SILENT)
    assert not breaker.may_try(10.999)
    assert [breaker.may_try(11.0) for _ in range(3)] == [True, False, False]
    # A probe without an outcome is followed by another one.
    assert not breaker.may_try(11.999)
    assert breaker.may_try(12.0)
    breaker.failed(12.5, SILENT)
    assert not breaker.may_try(13.499)
    assert breaker.may_try(13.5)
    breaker.close()
    assert not breaker.is_open
    assert not breaker.may_try(20.0)
