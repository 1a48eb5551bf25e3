"""Deadlines: time during which the process was paused does not count."""

from __future__ import annotations

import pytest

from limen.backends.redis import deadline
from limen.backends.redis.deadline import ActiveClock, Deadline


class Monotonic:
    """A monotonic clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Monotonic:
    real = Monotonic()
    monkeypatch.setattr(deadline, "time", real)
    return real


def test_clock_read_once_per_tick_keeps_real_time(real: Monotonic) -> None:
    clock = ActiveClock(0.05)
    start_s = clock.now()
    for _ in range(1_000):
        real.now_s += clock.tick_s
        clock.now()
    assert clock.now() - start_s == pytest.approx(5.0)


def test_timers_that_are_a_little_late_do_not_slow_the_clock(real: Monotonic) -> None:
    clock = ActiveClock(0.05)
    start_s = clock.now()
    for _ in range(10):
        real.now_s += 1.9 * clock.tick_s
        clock.now()
    assert clock.now() - start_s == pytest.approx(10 * 1.9 * clock.tick_s)


@pytest.mark.parametrize("pause_s", [0.02, 0.06, 0.5, 3_600.0])
def test_pause_costs_no_more_than_a_fifth_of_the_deadline(real: Monotonic, pause_s: float) -> None:
    limit = Deadline(0.05)
    real.now_s += limit.tick_s
    before_s = limit.left()
    real.now_s += pause_s
    assert before_s - limit.left() == pytest.approx(0.01)
    assert limit.left() > 0


def test_deadline_passes_although_every_wait_is_interrupted_by_a_pause(real: Monotonic) -> None:
    limit = Deadline(0.05)
    waits = 0
    while limit.left() > 0:
        assert 0 < limit.next_wait() <= limit.tick_s
        real.now_s += 1.0
        waits += 1
    assert waits == 5
    assert limit.next_wait() == 0.0


def test_last_wait_ends_with_the_deadline(real: Monotonic) -> None:
    limit = Deadline(0.05)
    for _ in range(9):
        real.now_s += limit.tick_s
        limit.left()
    real.now_s += 0.003
    assert limit.next_wait() == pytest.approx(0.002)
