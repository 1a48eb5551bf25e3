"""Clocks that jump: an application's changes no decision, the server's gives one burst at most.

The server's time is moved by its clock alone, so that a period passes in no time. Every jump is of
an hour, with limits of a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from limen import AsyncLimiter, Concurrency, Limit, Limiter
from limen.model import ALGORITHMS
from tests import servers
from tests.conformance.stores import Blocking
from tests.faults.callers import Stalls
from tests.faults.clocks import VARIABLE, Clock, set_clock
from tests.faults.figures import say
from tests.faults.rig import DEADLINE_S, FIRST_P99_S, P99_S
from tests.waiting import FULL, generous, wait_until

HOUR = 3_600.0
PERIOD = 60.0
QUOTA = 20
PATIENT_S = 5.0
LIMITS = {name: Limit(QUOTA, PERIOD, algorithm=name) for name in ALGORITHMS} | {
    "burst": Limit(QUOTA, PERIOD, burst=30, name="burst"),
}
SLOTS = Concurrency(5, lease=30)
OWN_BOUND = {"packed_window": 1, "rolling_window": 1}
"""What fits in any period without a fault, in quotas; two for those that are not here."""
LONGEST_S = {
    **dict.fromkeys(("fixed_window", "rolling_window", "packed_window"), PERIOD),
    "sliding_counter": PERIOD + PERIOD / QUOTA,
    **dict.fromkeys(("token_bucket", "leaky_bucket", "burst"), PERIOD / QUOTA),
}
"""How long who has used up a limit waits for one unit at most, when no clock jumps."""
KEPT_S = 2 * PERIOD + 1
"""How long a state is kept at most after it was charged."""

every_limit = pytest.mark.parametrize("name", LIMITS)


@dataclass
class Store:
    """A server whose clock is ours, somewhere in the middle of a window."""

    clock: Clock
    server: servers.Server
    admin: redis.Redis
    limiter: Limiter
    base: float

    def jump(self, to: float) -> None:
        """Set the server's clock: so many seconds after what it was at first."""
        self.clock.ahead = self.base + to

    def use_up(self, name: str, most: int = 100) -> int:
        """Ask until it is refused; return how much was admitted."""
        for count in range(most):
            if not self.limiter.check("k", LIMITS[name]).allowed:
                return count
        return most

    def retry_after(self, name: str) -> float:
        """Ask once, and be refused; return for how long."""
        decision = self.limiter.check("k", LIMITS[name])
        assert not decision.allowed
        assert decision.retry_after is not None
        return decision.retry_after

    def ttls(self) -> list[float]:
        """Return for how many seconds each key is kept still; every one has an end."""
        ttls = [int(self.admin.pttl(key)) / 1_000 for key in self.admin.scan_iter()]
        assert -0.001 not in ttls, "a key without TTL"
        return ttls


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def server(clock: Clock) -> Iterator[servers.Server]:
    with servers.process(clock.under(servers.binaries()["valkey"])) as started:
        yield started


@pytest.fixture
def store(clock: Clock, server: servers.Server) -> Iterator[Store]:
    base = base_now()
    clock.ahead = base
    with (
        redis.Redis(port=server.port) as admin,
        Limiter(url_of(server), deadline=PATIENT_S) as limiter,
    ):
        admin.flushall()
        yield Store(clock, server, admin, limiter, base)


def base_now() -> float:
    """Return by how much to be ahead for windows of a minute or an hour not to end meanwhile."""
    return 1_215 - time.time() % HOUR


def url_of(server: servers.Server) -> str:
    return f"redis://127.0.0.1:{server.port}"


class TestTheServersClock:
    def test_is_ours(self, store: Store) -> None:
        for ahead in (0, HOUR, -HOUR, 0.25, -0.25):
            store.jump(ahead)
            seconds, microseconds = store.admin.time()
            told = seconds + microseconds / 1e6
            assert abs(told - time.time() - store.base - ahead) < 0.2

    @every_limit
    def test_an_hour_ahead_admits_one_burst_more(self, store: Store, name: str) -> None:
        limit = LIMITS[name]
        assert store.use_up(name) == limit.capacity
        store.jump(HOUR)
        more = store.use_up(name)
        assert more <= limit.capacity
        admitted = limit.capacity + more
        for step in range(1, 12):  # the rest of the period
            store.jump(HOUR + step * PERIOD / 12)
            admitted += store.use_up(name)
        own = OWN_BOUND.get(name, 2) * max(QUOTA, (QUOTA + limit.capacity) / 2)
        assert admitted <= own + limit.capacity

    @every_limit
    def test_an_hour_ahead_and_back_admits_one_burst_more(self, store: Store, name: str) -> None:
        store.use_up(name)
        store.jump(HOUR)
        assert store.use_up(name) <= LIMITS[name].capacity
        store.jump(0)
        assert store.use_up(name) == 0
        assert store.retry_after(name) <= LONGEST_S[name]

    @every_limit
    def test_an_hour_back_admits_nothing_and_blocks_nobody_for_long(
        self, store: Store, name: str
    ) -> None:
        store.use_up(name)
        store.jump(-HOUR)
        retry_after = store.retry_after(name)
        assert retry_after <= LONGEST_S[name]
        store.jump(-HOUR + retry_after - 0.5)
        assert store.use_up(name) == 0
        store.jump(-HOUR + retry_after)
        assert store.use_up(name) >= 1
        # Then it goes on as ever: what a whole rest gives back, it gives back.
        store.jump(-HOUR + 5 * PERIOD)
        assert store.use_up(name) == LIMITS[name].capacity

    @every_limit
    def test_an_hour_back_leaves_what_was_left(self, store: Store, name: str) -> None:
        for _ in range(5):
            store.limiter.check("k", LIMITS[name])
        store.jump(-HOUR)
        assert store.use_up(name) == LIMITS[name].capacity - 5

    @every_limit
    def test_no_key_is_left_behind(self, store: Store, name: str) -> None:
        store.use_up(name)
        assert max(store.ttls()) <= KEPT_S
        # Nobody but the server can shorten what it keeps of idle keys. Those in use are kept for
        # no longer than ever, from their next charge on.
        store.jump(-HOUR)
        wait = store.retry_after(name)
        assert max(store.ttls()) <= KEPT_S + HOUR
        store.jump(-HOUR + wait)
        store.limiter.check("k", LIMITS[name])
        assert max(store.ttls()) <= KEPT_S
        store.jump(HOUR)
        assert store.ttls() == []
        store.use_up(name)
        assert max(store.ttls()) <= KEPT_S

    def test_slots_an_hour_back_are_free_after_their_lease(self, store: Store) -> None:
        held = [store.limiter.slot("k", SLOTS) for _ in range(5)]
        assert all(slot.acquire().allowed for slot in held)
        store.jump(-HOUR)
        decision = store.limiter.slot("k", SLOTS).acquire()
        assert not decision.allowed
        assert decision.retry_after is not None
        assert decision.retry_after <= SLOTS.lease
        assert held[0].renew()
        assert max(store.ttls()) <= SLOTS.lease + 1
        store.jump(-HOUR + SLOTS.lease)
        assert store.limiter.slot("k", SLOTS).acquire().allowed
        assert not held[1].renew()

    def test_slots_an_hour_ahead_are_held_by_no_more_than_twice_as_many(self, store: Store) -> None:
        held = [store.limiter.slot("k", SLOTS) for _ in range(5)]
        assert all(slot.acquire().allowed for slot in held)
        store.jump(HOUR)
        others = [store.limiter.slot("k", SLOTS) for _ in range(20)]
        assert sum(slot.acquire().allowed for slot in others) == 5
        assert not any(slot.renew() or slot.release() for slot in held)
        assert not store.limiter.slot("k", SLOTS).acquire().allowed
        store.jump(0)
        assert not store.limiter.slot("k", SLOTS).acquire().allowed
        assert others[0].release()
        assert store.limiter.slot("k", SLOTS).acquire().allowed

    def test_that_swings_keeps_every_state_in_its_bounds(self, store: Store) -> None:
        # Each swing forward gives away the time that it skips, and no more; see ADR 0008.
        seconds, pause = (60.0, 1.0) if FULL else (1.0, 0.05)
        admitted = dict.fromkeys(LIMITS, 0)
        begin, swings = time.monotonic(), 0
        while time.monotonic() < begin + seconds:
            swings += 1
            store.jump(2.0 if swings % 2 else 0.0)
            ends = time.monotonic() + pause
            while time.monotonic() < ends:
                for name, limit in LIMITS.items():
                    decision = store.limiter.check("k", limit)
                    admitted[name] += decision.allowed
                    assert decision.source == "store"
                    assert 0 <= decision.remaining <= limit.capacity
                    assert 0 <= decision.reset_after <= KEPT_S
                    assert decision.allowed or 0 < (decision.retry_after or 0) <= LONGEST_S[name]
                time.sleep(0.005)
        passed = time.monotonic() - begin + 2 * (swings + 1) / 2
        for name, limit in LIMITS.items():
            most = limit.capacity + QUOTA * (passed // PERIOD + 1)
            assert admitted[name] <= most, name
        say("clock swings by 2 s", swings=swings, passed=passed, **admitted)

    def test_of_a_replica_that_takes_over_adds_its_skew(self, store: Store, tmp_path: Path) -> None:
        store.admin.config_set("repl-diskless-sync-delay", 0)
        ahead, behind = Clock(tmp_path, "ahead"), Clock(tmp_path, "behind")
        with replica(store, ahead) as early, replica(store, behind) as late:
            for step in range(12):  # spread over the period, so that something ends at any time
                store.jump(step * 5)
                ahead.ahead, behind.ahead = store.clock.ahead + 5, store.clock.ahead - 5
                for limit in LIMITS.values():
                    for _ in range(limit.capacity // 12 + 1):
                        store.limiter.check("k", limit)
            for name in LIMITS:
                store.use_up(name)
            store.admin.set("last", "word", ex=60)
            assert store.admin.wait(2, 10_000) == 2
            # A clock that is ahead gives what comes back in 5 s, of what was charged 5 s apart.
            for promoted, most in (early, QUOTA / PERIOD * 5 + 2), (late, 1):
                promoted.admin.replicaof("NO", "ONE")
                for name in LIMITS:
                    assert promoted.use_up(name) <= most, name
                    assert promoted.retry_after(name) <= LONGEST_S[name] + 5
                assert promoted.ttls()


@contextmanager
def replica(store: Store, clock: Clock) -> Iterator[Store]:
    """Start a replica under a clock of its own; yield it when it is in sync."""
    clock.ahead = store.clock.ahead
    binary, master = clock.under(servers.binaries()["valkey"]), str(store.server.port)
    with (
        servers.process(binary, "--replicaof", "127.0.0.1", master) as server,
        redis.Redis(port=server.port) as admin,
        Limiter(url_of(server), deadline=PATIENT_S) as limiter,
    ):
        wait_until(lambda: admin.info("replication")["master_link_status"] == "up")
        yield Store(clock, server, admin, limiter, store.base)


class Worker:
    """A process under a clock of its own, which asks what it is told to: see `work`."""

    def __init__(self, clock: Clock, url: str, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, url, kind],
            env={**os.environ, **clock.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=20)
        finally:
            self._process.kill()
            self._process.wait()

    def __call__(self, verb: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([verb, *arguments]).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module", params=["threads", "asyncio"])
def started(
    request: pytest.FixtureRequest, clock: Clock, server: servers.Server
) -> Iterator[Worker]:
    own = Clock(clock.path.parent, request.param)
    with Worker(own, url_of(server), request.param) as worker:
        yield worker


@pytest.fixture
def worker(started: Worker, store: Store) -> Worker:
    """A worker whose clock is right, and which has found the store."""
    started("jump", 0.0)
    started("back")
    return started


@pytest.fixture
def stalls() -> Iterator[Stalls]:
    with Stalls() as watched:
        yield watched


class TestTheApplicationsClock:
    def test_changes_no_decision(self, store: Store, worker: Worker) -> None:
        told = {}
        for ahead in (0.0, HOUR, -HOUR):
            worker("jump", ahead)
            assert abs(worker("time") - time.time() - ahead) < 1
            told[ahead] = worker("play", f"at {ahead}", "store")
        assert told[HOUR] == told[0]
        assert told[-HOUR] == told[0]

    def test_is_nothing_to_those_who_share_a_limit(self, store: Store, worker: Worker) -> None:
        for name, limit in LIMITS.items():
            allowed = []
            for ahead in (0.0, HOUR, -HOUR, 0.0):
                worker("jump", ahead)
                for _ in range(8):
                    allowed.append(worker("check", "k", name)["allowed"])
                    allowed.append(store.limiter.check("k", limit).allowed)
            assert sum(allowed) == limit.capacity, name
            assert all(allowed[: limit.capacity])
            assert abs(worker("check", "k", name)["retry_after"] - store.retry_after(name)) < 1

    def test_neither_hastens_nor_stops_who_waits(self, worker: Worker) -> None:
        for ahead in (HOUR, -HOUR):
            worker("use up", f"at {ahead}")
            assert 0.3 < worker("wait and jump", f"at {ahead}", ahead) < PATIENT_S

    def test_is_nothing_to_the_deadline_or_the_way_back(
        self, store: Store, worker: Worker, stalls: Stalls
    ) -> None:
        for ahead in (HOUR, -HOUR, 0.0) if FULL else (HOUR, -HOUR):
            assert worker("check", "outage", "fixed_window")["source"] == "store"
            store.server.pause()
            began = time.monotonic()
            try:
                worker("jump", ahead)
                first = [worker("check", "outage", "fixed_window") for _ in range(10)]
                then = [worker("check", "outage", "fixed_window") for _ in range(20)]
            finally:
                store.server.resume()
            stall = stalls.worst(began, time.monotonic())
            assert {each["source"] for each in first + then} == {"local"}
            assert max(each["took"] for each in first) <= FIRST_P99_S + stall
            assert sorted(each["took"] for each in then)[10] <= P99_S
            back = worker("back")
            assert back <= generous(1.0)
            say("app clock jumps in an outage", ahead=ahead, back=back)

    def test_in_an_outage_an_hour_ahead_admits_nobody_more(
        self, store: Store, worker: Worker
    ) -> None:
        store.server.pause()
        try:
            admitted = []
            for ahead in (0.0, HOUR, -HOUR, -HOUR):
                worker("jump", ahead)
                asked = [worker("check", "local", "packed_window") for _ in range(QUOTA + 5)]
                assert {each["source"] for each in asked} == {"local"}
                admitted.append(sum(each["allowed"] for each in asked))
                assert (asked[-1]["retry_after"] or 0) <= PERIOD
        finally:
            store.server.resume()
        assert admitted == [QUOTA, 0, 0, 0]


def work(url: str, kind: str) -> None:
    """Answer a line of JSON to each line of JSON, until there is none."""
    limiter: Any
    if kind == "threads":
        limiter = Limiter(url, deadline=DEADLINE_S)
    else:
        import asyncio

        runner = asyncio.Runner()

        async def make() -> AsyncLimiter:
            return AsyncLimiter(url, deadline=DEADLINE_S)

        limiter = Blocking(runner.run(make()), runner)
    verbs = _verbs(limiter, Path(os.environ[VARIABLE]))
    verbs["back"]()
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        sys.stdout.write(json.dumps(verbs[verb](*arguments)) + "\n")
        sys.stdout.flush()
    limiter.close()


def _verbs(limiter: Any, clock: Path) -> dict[str, Callable[..., Any]]:
    soon = Limit(2, 0.5)

    def check(key: str, name: str) -> dict[str, Any]:
        start = time.monotonic()
        decision = limiter.check(key, LIMITS[name])
        return {
            "allowed": decision.allowed,
            "remaining": decision.remaining,
            "retry_after": decision.retry_after,
            "source": decision.source,
            "took": time.monotonic() - start,
        }

    def play(key: str, source: str) -> list[Any]:
        """Use every verb, and tell all that does not depend on when it was asked."""
        told: list[Any] = []
        for limit in LIMITS.values():
            decisions = [limiter.check(key, limit, cost=1 + turn % 3) for turn in range(20)]
            assert {decision.source for decision in decisions} == {source}
            told += [(decision.allowed, decision.remaining) for decision in decisions]
            told += [limiter.refund(decision) for decision in decisions[:3]]
            told += [limiter.settle(decisions[3], 4), limiter.peek(key, limit).remaining]
        slots = [limiter.slot(key, SLOTS) for _ in range(7)]
        told += [slot.acquire().allowed for slot in slots]
        told += [slot.renew() for slot in slots] + [slot.release() for slot in slots]
        return told

    def use_up(key: str) -> None:
        while limiter.check(key, soon).allowed:
            pass

    def wait_and_jump(key: str, ahead: float) -> float:
        import threading

        start = time.monotonic()
        jump = threading.Timer(0.1, set_clock, (clock, ahead))
        jump.start()
        limiter.acquire(key, soon)
        jump.join()
        return time.monotonic() - start

    def back() -> float:
        start = time.monotonic()
        wait_until(lambda: not limiter.check("again", Limit(1_000, 1)).degraded, 60)
        return time.monotonic() - start

    return {
        "time": time.time,
        "jump": lambda ahead: set_clock(clock, ahead),
        "check": check,
        "play": play,
        "use up": use_up,
        "wait and jump": wait_and_jump,
        "back": back,
    }


if __name__ == "__main__":
    work(*sys.argv[1:])
