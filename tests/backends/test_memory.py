"""The store in this process: exact under threads and tasks, bounded, and forgetful in time."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections.abc import Iterator

import pytest

from limen import AsyncLimiter, Check, Concurrency, Limit, Limiter
from limen.backends.memory import MemoryBackend
from limen.model import ALGORITHMS
from limen.testing import ManualClock
from tests.forked import in_child


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Let threads interrupt each other at every chance, or a missing lock stays unseen."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def states(limiter: Limiter) -> int:
    backend = limiter._backend
    assert isinstance(backend, MemoryBackend)
    return len(backend)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.usefixtures("frequent_switches")
def test_eight_threads_on_one_key_admit_exactly_the_limit(algorithm: str) -> None:
    limiter = Limiter()
    # A day, so that nothing refills or rolls over while the test runs.
    limit = Limit(1_000, 86_400, algorithm=algorithm)
    admitted = []
    start = threading.Barrier(8)

    def worker() -> None:
        start.wait()
        admitted.append(sum(limiter.check("k", limit).allowed for _ in range(400)))

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 1_000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_thousand_tasks_on_one_key_admit_exactly_the_limit(algorithm: str) -> None:
    async def run() -> int:
        limiter = AsyncLimiter()
        limit = Limit(700, 86_400, algorithm=algorithm)
        decisions = await asyncio.gather(*(limiter.check("k", limit) for _ in range(1_000)))
        return sum(decision.allowed for decision in decisions)

    assert asyncio.run(run()) == 700


@pytest.mark.usefixtures("frequent_switches")
def test_all_or_nothing_holds_under_threads() -> None:
    limiter = Limiter()
    limits = (
        Limit(300, 86_400),
        Limit(500, 86_400, name="b"),
        Limit(400, 3_600, algorithm="token_bucket"),
    )
    start = threading.Barrier(4)
    admitted = []

    def worker() -> None:
        start.wait()
        admitted.append(sum(limiter.check("k", *limits).allowed for _ in range(200)))

    threads = [threading.Thread(target=worker) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 300
    assert limiter.peek("k", limits[1]).remaining == 200


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_expired_states_are_forgotten_a_little_at_each_call(
    clock: ManualClock, algorithm: str
) -> None:
    limiter = Limiter(clock=clock)
    for number in range(1_000):
        limiter.check(f"user:{number}", f"5/second {algorithm}")
    assert states(limiter) == 1_000
    clock.advance(10)
    for _ in range(1_000 // 8 + 1):
        limiter.check("other", "5/second")
    assert states(limiter) == 1


def test_a_state_in_use_is_not_forgotten(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    for _ in range(100):
        assert limiter.check("busy", "100/10s").allowed
        limiter.check(str(random.random()), "1/50ms")
        clock.advance(0.09)
    assert not limiter.check("busy", "100/10s", cost=2).allowed


def test_a_state_that_was_used_since_is_not_forgotten_when_its_first_use_is(
    clock: ManualClock,
) -> None:
    limiter = Limiter(clock=clock)
    limiter.check("k", "5/10s")
    clock.advance(9)
    limiter.check("k", "5/10s", cost=4)
    clock.advance(1.1)
    for number in range(20):
        limiter.check(f"other:{number}", "5/second")
    assert limiter.peek("k", "5/10s").remaining == 1


def test_peeks_and_refusals_leave_no_state_behind(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    limiter.peek("k", "5/second")
    limiter.check("k", "5/second", cost=6)
    limiter.check("k", "5/second", cost=0)
    limiter.check("k", "5/second", "1/minute", cost=2)
    assert states(limiter) == 0


def test_max_keys_is_a_bound(clock: ManualClock) -> None:
    limiter = Limiter("memory://?max_keys=100", clock=clock)
    for number in range(1_000):
        limiter.check(f"user:{number}", "5/minute")
        assert states(limiter) <= 100
        clock.advance(0.01)


def test_expired_states_go_before_live_ones(clock: ManualClock) -> None:
    limiter = Limiter("memory://?max_keys=100", clock=clock)
    for number in range(50):
        limiter.check(f"old:{number}", "5/second")
    for number in range(50):
        limiter.check(f"live:{number}", "5/hour")
    clock.advance(10)
    for number in range(50):
        limiter.check(f"new:{number}", "5/hour")
    assert all(limiter.peek(f"live:{number}", "5/hour").remaining == 4 for number in range(50))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_refused_key_outlives_a_flood_of_new_ones(clock: ManualClock, algorithm: str) -> None:
    limiter = Limiter("memory://?max_keys=1000", clock=clock)
    text = f"5/day {algorithm}"
    for number in range(10):
        limiter.check(f"attacker:{number}", text, cost=5)
        clock.advance(0.2)
    for number in range(20_000):
        limiter.check(f"flood:{number}", text)
        clock.advance(0.01)
    assert not any(limiter.check(f"attacker:{number}", text).allowed for number in range(10))


def test_slots_and_used_receipts_are_kept_and_forgotten_too(clock: ManualClock) -> None:
    limiter = Limiter("memory://?max_keys=20", clock=clock)
    slot = limiter.slot("k", Concurrency(1, lease=30))
    assert slot.acquire().allowed
    decision = limiter.check("k", "5/minute", cost=5)
    assert limiter.refund(decision)
    for number in range(200):
        limiter.check(f"flood:{number}", "5/hour")
    assert not limiter.slot("k", Concurrency(1, lease=30)).acquire().allowed
    assert not limiter.refund(decision)
    clock.advance(3_601)
    for _ in range(20):
        limiter.check("other", "5/second")
    assert states(limiter) == 1


def test_refunds_push_out_no_refused_key(clock: ManualClock) -> None:
    limiter = Limiter("memory://?max_keys=100", clock=clock)
    for number in range(50):
        limiter.check(f"attacker:{number}", "1/day")
    for _ in range(300):
        limiter.refund(limiter.check("good", "1000/day"))
        clock.advance(0.001)
    assert not any(limiter.check(f"attacker:{number}", "1/day").allowed for number in range(50))


def test_a_step_back_of_the_clock_keeps_what_was_counted(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    for algorithm in ALGORITHMS:
        limiter.check("k", f"5/minute {algorithm}", cost=5)
    clock.advance(-3_600)
    for algorithm in ALGORITHMS:
        refused = limiter.check("k", f"5/minute {algorithm}")
        assert not refused.allowed
        assert refused.retry_after is not None
        assert refused.retry_after <= 120


def test_a_fixed_window_is_remembered_when_the_clock_steps_back_over_its_end() -> None:
    clock = ManualClock(1_000_009.9)
    limiter = Limiter(clock=clock)
    limiter.check("k", "5/10s fixed_window", cost=5)
    clock.advance(0.2)
    for number in range(100):
        limiter.check(f"other:{number}", "5/second")
    clock.advance(-0.2)
    assert not limiter.check("k", "5/10s fixed_window").allowed


def test_an_upward_settle_is_charged_also_when_the_store_is_full(clock: ManualClock) -> None:
    limiter = Limiter("memory://?max_keys=1", clock=clock)
    decisions = [limiter.check("k", "100/minute") for _ in range(10)]
    assert all(limiter.settle(decision, 10) for decision in decisions)
    assert limiter.peek("k", "100/minute").remaining == 0


def test_an_upward_settle_is_charged_also_when_the_state_was_forgotten(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    decision = limiter.check("k", "100/second")
    clock.advance(10)
    limiter.check("other", "5/second")
    assert states(limiter) == 1
    assert limiter.settle(decision, 11)
    assert limiter.peek("k", "100/second").remaining == 90


def test_a_receipt_is_good_once_also_after_its_charge_has_grown(clock: ManualClock) -> None:
    limiter = Limiter(clock=clock)
    decision = limiter.check("k", "10/10s token_bucket")
    assert limiter.settle(decision, 10)
    clock.advance(5)
    assert not limiter.settle(decision, 10)
    assert limiter.peek("k", "10/10s token_bucket").remaining == 5


def test_the_calendar_does_not_outgrow_the_store(clock: ManualClock) -> None:
    limiter = Limiter("memory://?max_keys=2", clock=clock)
    limiter.check("refused", "1/hour")
    for number in range(1_000):
        limiter.check(f"user:{number}", "100/day", cost=99)
    assert len(limiter._backend._states._slices) < 50  # type: ignore[attr-defined]  # memory's own


def test_a_receipt_is_good_once_also_when_the_store_is_full(clock: ManualClock) -> None:
    limiter = Limiter("memory://?max_keys=1", clock=clock)
    first, second = limiter.check("k", "10/minute"), limiter.check("k", "10/minute", cost=4)
    assert limiter.refund(first)
    assert not limiter.refund(second)  # no room to remember it: too strict, never too generous
    assert not limiter.refund(first)
    assert limiter.peek("k", "10/minute").remaining == 6


def test_a_nearly_spent_burst_outlives_a_nearly_full_window(clock: ManualClock) -> None:
    limiter = Limiter("memory://?max_keys=2", clock=clock)
    limiter.check("spent", "10/s burst 1000", cost=960)
    limiter.check("idle", "100/minute")
    limiter.check("new", "100/minute")
    assert limiter.peek("spent", "10/s burst 1000").remaining == 40
    assert limiter.peek("idle", "100/minute").remaining == 100


def test_identical_limits_on_different_keys_are_decided_together() -> None:
    limiter = Limiter()
    limit = Limit.parse("2/minute")
    for _ in range(2):
        assert limiter.decide(Check(limit, "a"), Check(limit, "b")).allowed
    assert limiter.check("c", limit).allowed
    assert not limiter.decide(Check(limit, "c", 2), Check(limit, "d")).allowed
    assert limiter.peek("d", limit).remaining == 2


def test_the_child_of_a_fork_waits_for_no_thread_of_its_parent() -> None:
    limiter = Limiter()
    limiter.check("k", "5/day")
    backend = limiter._backend
    assert isinstance(backend, MemoryBackend)
    lock, is_held, done = backend._lock, threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            done.wait(90)

    def work() -> bool:
        # States that were perhaps being changed are forgotten.
        return [limiter.check("k", "5/day").remaining for _ in range(2)] == [4, 3]

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert is_held.wait(10)
        assert in_child(work)
    finally:
        done.set()
        thread.join()
    assert limiter.check("k", "5/day").remaining == 3


def test_the_child_of_a_fork_has_the_counts_of_its_parent() -> None:
    limiter = Limiter()
    limiter.check("k", "5/day")
    assert in_child(lambda: limiter.check("k", "5/day").remaining == 3)
    assert limiter.check("k", "5/day").remaining == 3
