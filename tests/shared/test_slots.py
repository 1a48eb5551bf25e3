"""Slots that are shared by processes: never too many, and none is lost with its holder."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import pytest
import redis

from limen import Concurrency, Limiter, RateLimitExceeded
from tests import servers
from tests.faults.proxy import proxy
from tests.shared.load import Crowd
from tests.waiting import wait_until

PATIENT_S = 10.0
FEW = Concurrency(5, lease=30)


def hold_often(url: str, number: int) -> tuple[int, int]:
    """Return the most that were seen inside at once, and how often this process was inside."""
    most = entered = 0
    with Limiter(url, deadline=PATIENT_S) as limiter, redis.Redis.from_url(url) as client:
        for _ in range(250):
            try:
                with limiter.slot("door", FEW):
                    entered += 1
                    most = max(most, int(client.incr("inside")))
                    client.decr("inside")
            except RateLimitExceeded:
                time.sleep(0.0005)
    return most, entered


def hold_many(url: str, number: int) -> tuple[int, int]:
    """The same with threads, so that there is a crowd at the door."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: hold_often(url, number), range(4)))
    return max(most for most, _ in found), sum(entered for _, entered in found)


def test_never_more_than_the_slots(crowd: Crowd, url: str) -> None:
    found = crowd.run(hold_many, url)
    most = max(most for most, _ in found)
    entered = sum(entered for _, entered in found)
    assert most == FEW.slots
    assert entered > 500
    with Limiter(url, deadline=PATIENT_S) as limiter:
        assert limiter.slot("door", FEW).acquire().remaining == FEW.slots - 1, "none is left over"


def hold_until_killed(url: str, ready: Any) -> None:
    limiter = Limiter(url, deadline=PATIENT_S)
    with limiter.slot("k", Concurrency(2, lease=1)), limiter.slot("k", Concurrency(2, lease=1)):
        ready.set()
        time.sleep(60)


def test_a_holder_that_is_killed_frees_its_slots_with_the_lease(url: str) -> None:
    two = Concurrency(2, lease=1)
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    holder = spawn.Process(target=hold_until_killed, args=(url, ready))
    holder.start()
    try:
        assert ready.wait(60)
        with Limiter(url, deadline=PATIENT_S) as limiter:
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                assert not limiter.slot("k", two).acquire().allowed, "it renews while it lives"
                time.sleep(0.1)
            os.kill(holder.pid or 0, signal.SIGKILL)
            slots = [limiter.slot("k", two) for _ in range(2)]
            wait_until(lambda: all(slot.acquire().allowed for slot in slots))
    finally:
        holder.kill()
        holder.join(10)


def test_releasing_an_expired_lease_frees_nobody_elses_slot(url: str) -> None:
    one = Concurrency(1, lease=0.1)
    with Limiter(url, deadline=PATIENT_S) as limiter:
        late, holder = limiter.slot("k", one), limiter.slot("k", Concurrency(1, lease=30))
        assert late.acquire().allowed
        time.sleep(0.15)
        assert holder.acquire().allowed
        assert not late.release()
        assert not late.renew()
        assert not limiter.slot("k", one).acquire().allowed
        assert holder.release()


def test_a_refused_holder_is_told_when_the_first_lease_ends(url: str) -> None:
    one = Concurrency(1, lease=30)
    with Limiter(url, deadline=PATIENT_S) as limiter, limiter.slot("k", one):
        with pytest.raises(RateLimitExceeded) as caught, limiter.slot("k", one):
            pass
        retry_after = caught.value.decision.retry_after
        assert retry_after is not None
        assert 25 < retry_after <= 30


def test_a_slot_whose_grant_was_lost_on_the_way_is_released_there_too(
    url: str, valkey: servers.Server
) -> None:
    one = Concurrency(1, lease=30)
    with proxy(valkey.port) as between, Limiter(url, deadline=PATIENT_S) as direct:
        limiter = Limiter(f"redis://127.0.0.1:{between.port}", deadline=0.3)
        limiter.ping()
        slot = limiter.slot("k", one)
        between.drop_replies()
        assert slot.acquire().source == "local"
        assert not direct.slot("k", one).acquire().allowed, "the store has granted it, too"
        between.drop_replies(False)
        wait_until(lambda: not limiter.check("again", "1000000/day fixed_window").degraded)
        assert slot.release()
        assert direct.slot("k", one).acquire().allowed
        limiter.close()
