"""How long requests wait, by a clock that is an argument."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limen import LimenError, Limiter
from limen.adapters.outgoing.pace import MAX_PAUSES, Pauses, RateLimited, Turn
from limen.testing import ManualClock


def turn(pauses: Pauses, wait: float | None = None, now: float = 0.0) -> Turn:
    return Turn(pauses, "a", RateLimited, wait, now)


def test_a_pause_ends() -> None:
    pauses = Pauses(300)
    pauses.begin("a", 10, 100.0)
    assert pauses.left("a", 100.0) == 10
    assert pauses.left("a", 109.0) == 1
    assert pauses.left("a", 110.0) == 0
    assert pauses.left("b", 100.0) == 0


def test_a_pause_only_gets_longer() -> None:
    pauses = Pauses(300)
    pauses.begin("a", 10, 0.0)
    pauses.begin("a", 5, 1.0)
    assert pauses.left("a", 1.0) == 9
    pauses.begin("a", 20, 1.0)
    assert pauses.left("a", 1.0) == 20


@pytest.mark.parametrize("seconds", [301, 1e15, 1e300])
def test_no_server_can_ask_for_more_than_the_longest_pause(seconds: float) -> None:
    pauses = Pauses(300)
    pauses.begin("a", seconds, 50.0)
    assert pauses.left("a", 50.0) == 300


def test_pauses_that_are_over_make_room_first() -> None:
    pauses = Pauses(300)
    for number in range(MAX_PAUSES):
        pauses.begin(f"{number}", 1 if number % 2 else 100, 0.0)
    pauses.begin("one more", 100, 2.0)
    assert len(pauses._until) == MAX_PAUSES // 2 + 1
    assert pauses.left("0", 2.0) == 98


def test_never_more_pauses_are_remembered_than_the_bound() -> None:
    pauses = Pauses(300)
    for number in range(MAX_PAUSES + 10):
        pauses.begin(f"{number}", 100 + number / 100, 0.0)
    assert len(pauses._until) == MAX_PAUSES
    # Those were forgotten that would have been over first.
    assert pauses.left("9", 0.0) == 0
    assert pauses.left("10", 0.0) > 0
    assert pauses.left(f"{MAX_PAUSES + 9}", 0.0) > 0


def test_those_who_wait_come_back_a_little_after_each_other_and_never_early() -> None:
    pauses = Pauses(300)
    pauses.begin("a", 100, 0.0)
    slept = {turn(pauses).pause(0.0) for _ in range(100)}
    assert len(slept) > 50
    assert min(slept) >= 100
    assert max(slept) <= 110


def test_nobody_waits_longer_than_he_may_for_the_sake_of_others() -> None:
    pauses = Pauses(300)
    pauses.begin("a", 100, 0.0)
    assert all(100 <= turn(pauses, wait=101).pause(0.0) <= 101 for _ in range(100))


def test_a_pause_that_does_not_fit_is_refused_before_anybody_sleeps() -> None:
    pauses = Pauses(300)
    pauses.begin("a", 10, 0.0)
    with pytest.raises(
        RateLimited, match=r"^not sent: its server wants no more for 10 s; "
    ) as told:
        turn(pauses, wait=9.9).pause(0.0)
    assert told.value.retry_after == 10


def test_waiting_for_servers_and_for_limits_uses_up_the_same_time() -> None:
    limiter = Limiter(clock=ManualClock())
    limiter.check("a", "1/minute")
    waiting = turn(Pauses(300), wait=70)
    refused = limiter.check("a", "1/minute")
    assert waiting.left(0.0) == 70
    assert waiting.delay(refused, 9.0) == 60
    assert waiting.left(9.0) == 61
    with pytest.raises(RateLimited, match=r"over the limit of 1/minute for 60 s; wait that long"):
        waiting.delay(refused, 11.0)
    assert waiting.left(80.0) == 0


def test_without_a_bound_everything_fits_but_what_never_does() -> None:
    limiter = Limiter(clock=ManualClock())
    waiting = turn(Pauses(300), wait=None)
    assert waiting.left(1e9) is None
    with pytest.raises(RateLimited, match="it never fits; lower the cost, or raise") as told:
        waiting.delay(limiter.check("a", "1/minute", cost=2), 0.0)
    assert told.value.retry_after is None


def test_an_error_has_no_key_in_it_and_survives_a_pickle() -> None:
    limiter = Limiter(clock=ManualClock())
    refused = limiter.check("secret", "1/minute", cost=2)
    error = Turn(Pauses(300), "secret", RateLimited, 0, 0.0).refusal(refused)
    assert "secret" not in f"{error} {error!r}"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.retry_after) == (str(error), error.retry_after)
    assert isinstance(again, LimenError)


@given(st.floats(1e-9, 400), st.floats(0, 1e6))
def test_a_pause_ends_by_a_clock_of_whole_microseconds_too(seconds: float, start: float) -> None:
    clock = ManualClock(start)
    pauses = Pauses(300)
    began = clock.monotonic()
    pauses.begin("a", seconds, began)
    waiting = turn(pauses)
    for _ in range(5):
        if pause := waiting.pause(clock.monotonic()):
            clock.sleep(pause)
    assert not waiting.is_held(clock.monotonic())
    assert clock.monotonic() - began <= min(seconds, 300) * 1.1 + 1e-5
