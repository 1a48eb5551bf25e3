"""Deadlines: time during which the process was paused does not count."""

from __future__ import annotations

import pytest

from limen._internal import deadline
from limen._internal.deadline import ActiveClock, Deadline


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


def test_clock_that_ticks_in_time_keeps_real_time(real: Monotonic) -> None:
    clock = ActiveClock(0.05)
    start_s = clock.now()
    for _ in range(1_000):
        real.now_s += clock.tick_s
        clock.tick()
    assert clock.now() - start_s == pytest.approx(1_000 * clock.tick_s)


def test_timers_that_are_a_little_late_do_not_slow_the_clock(real: Monotonic) -> None:
    clock = ActiveClock(0.05)
    start_s = clock.now()
    for _ in range(10):
        real.now_s += 1.9 * clock.tick_s
        clock.tick()
    assert clock.now() - start_s == pytest.approx(10 * 1.9 * clock.tick_s)


def test_clock_is_exact_between_two_ticks(real: Monotonic) -> None:
    clock = ActiveClock(0.05)
    start_s = clock.now()
    real.now_s += 0.000_3
    assert clock.now() - start_s == pytest.approx(0.000_3)
    assert clock.now() - start_s == pytest.approx(0.000_3)


def test_readings_between_two_ticks_do_not_count_a_pause(real: Monotonic) -> None:
    clock = ActiveClock(0.05)
    start_s = clock.now()
    for _ in range(60):
        real.now_s += 0.002
        clock.now()
    assert clock.tick() - start_s == pytest.approx(0.005)


@pytest.mark.parametrize("pause_s", [0.02, 0.06, 0.5, 3_600.0])
def test_pause_costs_two_ticks(real: Monotonic, pause_s: float) -> None:
    limit = Deadline(0.05)
    real.now_s += 0.002
    before_s = limit.left()
    real.now_s += pause_s
    assert before_s - limit.left() == pytest.approx(0.005)
    assert limit.left() > 0


@pytest.mark.parametrize(
    ("deadline_s", "tick_s"), [(0.001, 0.001), (0.015, 0.001_5), (0.05, 0.002_5), (5.0, 0.002_5)]
)
def test_tick_is_a_tenth_of_the_deadline_within_bounds(deadline_s: float, tick_s: float) -> None:
    assert ActiveClock(deadline_s).tick_s == pytest.approx(tick_s)


def test_deadline_passes_although_every_wait_is_interrupted_by_a_pause(real: Monotonic) -> None:
    limit = Deadline(0.05)
    waits = 0
    while limit.left() > 0:
        assert 0 < limit.next_wait() <= 0.002_5
        real.now_s += 1.0
        waits += 1
    assert 10 <= waits <= 11
    assert limit.next_wait() == 0.0


def test_last_wait_ends_with_the_deadline(real: Monotonic) -> None:
    limit = Deadline(0.05)
    for _ in range(19):
        real.now_s += 0.002_5
        limit.left()
    real.now_s += 0.001
    assert limit.next_wait() == pytest.approx(0.001_5)
