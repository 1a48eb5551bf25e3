"""What went wrong elsewhere and must not here: one test for each bug seen in another limiter.

Found by reading and running the peers; each test says in a sentence who did what.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from limen import (
    AsyncLimiter,
    Check,
    Concurrency,
    InvalidLimit,
    Limit,
    Limiter,
    RateLimitExceeded,
)
from limen.backends.memory import MemoryBackend
from limen.keys import marker_key, redis_key
from limen.model import ALGORITHMS
from limen.testing import ManualClock
from tests import servers
from tests.conformance.stores import LIMITERS, Blocking, Threaded
from tests.faults.proxy import proxy
from tests.waiting import wait_until

DAY = 86_400
SLOW_MACHINE_S = 5.0

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
Open = Callable[..., Any]


@pytest.fixture
def shared(
    valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> Iterator[Limiter]:
    """A limiter on a real server, which makes every decision itself."""
    with Limiter(url_of(valkey.port), deadline=SLOW_MACHINE_S) as limiter:
        yield limiter
    assert [each.getMessage() for each in caplog.get_records("call")] == []


@pytest.fixture(params=["memory", "valkey"])
def limiter(request: pytest.FixtureRequest) -> Limiter:
    """A limiter in this process, and one on a real server."""
    if request.param == "memory":
        return Limiter()
    on_server: Limiter = request.getfixturevalue("shared")
    return on_server


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=LIMITERS)
def either(
    request: pytest.FixtureRequest, runner: asyncio.Runner, admin: redis.Redis
) -> Iterator[Open]:
    """Make limiters of one kind or the other, called in the same way."""
    opened: list[Any] = []

    def make(url: str, **settings: Any) -> Any:
        settings = {"deadline": SLOW_MACHINE_S, **settings}
        if request.param == "Limiter":
            opened.append(Threaded(Limiter(url, **settings)))
        else:
            opened.append(Blocking(AsyncLimiter(url, **settings), runner))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def url_of(port: int) -> str:
    return f"redis://{servers.HOST}:{port}"


def wait_for_the_store(limiter: Any) -> None:
    wait_until(lambda: not limiter.peek("any", "1/day").degraded, sleep=limiter.sleep)


def calm_period() -> float:
    """Return a period of about a day that does not end while a test runs."""
    now = time.time()
    periods = range(90_000, 100_000, 101)
    return next(period for period in periods if 0.1 < now % period / period < 0.9)


class TestLimits:
    @every_algorithm
    def test_01_a_refused_request_is_not_charged(self, limiter: Limiter, algorithm: str) -> None:
        """limits: 10 a minute, 8 used, 5 refused, and then 1 refused although 2 remained."""
        limit = Limit(10, calm_period(), algorithm=algorithm)
        assert limiter.check("k", limit, cost=8).allowed
        assert not limiter.check("k", limit, cost=5).allowed
        assert limiter.check("k", limit, cost=2).allowed

    @every_algorithm
    def test_02_clocks_of_clients_do_not_matter(
        self,
        shared: Limiter,
        valkey: servers.Server,
        algorithm: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """limits: two clients whose clocks were 30 s apart got twice what 5 in 10 s allows."""
        limit = Limit(5, calm_period(), algorithm=algorithm)
        admitted = sum(shared.check("k", limit).allowed for _ in range(5))
        now, now_ns, apart = time.time, time.time_ns, 3 * DAY
        monkeypatch.setattr(time, "time", lambda: now() + apart)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + apart * 10**9)
        with Limiter(url_of(valkey.port), deadline=SLOW_MACHINE_S) as other:
            admitted += sum(other.check("k", limit).allowed for _ in range(5))
        assert admitted == 5

    @every_algorithm
    def test_03_memory_is_given_back_without_a_thread(self, algorithm: str) -> None:
        """limits: keys of moving windows stayed for ever, and a timer was started every 10 ms."""
        threads = set(threading.enumerate())
        clock = ManualClock(1_000_000)
        limiter = Limiter(clock=clock)
        backend = limiter._backend
        assert isinstance(backend, MemoryBackend)
        for number in range(2_000):
            limiter.check(f"user:{number}", f"5/second {algorithm}")
        clock.advance(10)
        for _ in range(2_000 // 8 + 1):
            limiter.check("other", "5/second")
        assert len(backend) == 1
        assert set(threading.enumerate()) <= threads, "others may have ended, and none has begun"

    @every_algorithm
    def test_04_threads_in_one_process_admit_exactly_the_quota(self, algorithm: str) -> None:
        """limits: a count was read again outside the lock, so threads saw each other's."""
        limiter = Threaded(Limiter())
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            limit = Limit(300, calm_period(), algorithm=algorithm)
            decisions = limiter.check_all(["k"] * 600, limit)
        finally:
            sys.setswitchinterval(before)
        assert sum(decision.allowed for decision in decisions) == 300
        assert sorted(each.remaining for each in decisions if each.allowed) == list(range(300))

    @every_algorithm
    def test_05_windows_mean_the_same_in_memory_and_on_a_server(
        self, shared: Limiter, algorithm: str
    ) -> None:
        """limits: a sliding window began at the epoch in memory, and at the first hit in Redis."""
        limit = Limit(3, calm_period(), algorithm=algorithm)
        here, there = Limiter(), shared
        for cost in (1, 2, 1):
            one, two = here.check("k", limit, cost=cost), there.check("k", limit, cost=cost)
            assert (one.allowed, one.remaining) == (two.allowed, two.remaining)
            assert one.reset_after == pytest.approx(two.reset_after, abs=5)
            assert one.retry_after == pytest.approx(two.retry_after, abs=5)

    def test_05_words_for_periods_mean_what_they_say(self) -> None:
        """limits: a month had 30 days and a year 360; no week, and nothing below a second."""
        assert Limit.parse("5/week").period == 7 * DAY
        assert Limit.parse("5/50ms").period == 0.05
        assert Limit.parse("5/month").period == "month"
        with pytest.raises(InvalidLimit):
            Limit.parse("5/year")
        february, clock = 28 * DAY, ManualClock(1_738_368_000)  # 2025-02-01 00:00 UTC
        assert Limiter(clock=clock).check("k", "5/month").reset_after == february

    def test_06_reset_looks_at_no_other_keys(self, shared: Limiter, admin: redis.Redis) -> None:
        """limits: reset ran KEYS inside a script, which holds the server up for everybody."""
        shared.check("k", "1/day")
        admin.config_resetstat()
        shared.reset("k", "1/day")
        ran = {name.removeprefix("cmdstat_") for name in admin.info("commandstats")}
        assert ran & {"keys", "scan", "flushdb", "flushall"} == set()
        assert shared.check("k", "1/day").allowed

    def test_07_a_limit_is_not_used_up_when_another_refuses(self, limiter: Limiter) -> None:
        """limits, Flask-Limiter, slowapi: limits before the refusing one had been charged."""
        loose, strict = Limit(10, DAY), Limit(1, DAY, name="strict")
        for _ in range(5):
            limiter.check("k", loose, strict)
        assert limiter.peek("k", loose).remaining == 9


class TestThrottled:
    @pytest.mark.parametrize(("quota", "burst"), [(100, 10), (1_000, 1), (90_000, 1)])
    def test_12_a_small_burst_is_a_limit(
        self, limiter: Limiter, admin: redis.Redis, quota: int, burst: int
    ) -> None:
        """throttled-py: a TTL rounded down to 0 deleted the state, and 300 of 300 passed."""
        limit = Limit(quota, 100, algorithm="token_bucket", burst=burst)
        start = time.monotonic()
        admitted = sum(limiter.check("k", limit).allowed for _ in range(300))
        took = time.monotonic() - start
        assert burst <= admitted <= burst + quota / 100 * took + 1

    def test_12_a_bucket_that_fills_in_less_than_a_millisecond_is_kept_that_long(
        self, shared: Limiter, admin: redis.Redis
    ) -> None:
        """throttled-py: the same, where the whole bucket is refilled at once."""
        limit = Limit(5_000, 1, burst=1)  # a unit in 200 microseconds
        start = time.monotonic()
        admitted = sum(shared.check("k", limit).allowed for _ in range(300))
        assert admitted <= 1 + 5_000 * (time.monotonic() - start) + 1

    @every_algorithm
    def test_13_a_key_that_was_used_once_has_an_end(
        self, shared: Limiter, admin: redis.Redis, algorithm: str
    ) -> None:
        """throttled-py: EXPIRE came before HSET, so a key used once stayed for ever."""
        limit = Limit(3, 1_000, algorithm=algorithm)
        shared.check("k", limit)
        assert 0 < admin.pttl(redis_key("limen", Check(limit, "k"))) <= 2 * 1_000_000 + 2

    def test_14_no_fraction_of_a_refill_is_lost(self) -> None:
        """throttled-py: 54 a minute, asked once a second, admitted 300 of 540."""
        for algorithm in ("token_bucket", "leaky_bucket"):
            clock = ManualClock(1_000_000)
            limiter = Limiter(clock=clock)
            limit = Limit(54, 60, algorithm=algorithm)
            limiter.check("k", limit, cost=54)
            admitted = 0
            for _ in range(600):
                clock.advance(1)
                admitted += limiter.check("k", limit).allowed
            assert admitted == 540

    def test_14_no_fraction_of_a_refill_is_lost_on_a_server(self, shared: Limiter) -> None:
        """throttled-py: the same. Who never stops asking gets every refill, however uneven."""
        limit = Limit(485, 5, algorithm="token_bucket")
        before = time.monotonic()
        shared.check("k", limit, cost=485)
        began = asked = time.monotonic()
        admitted, allowed = 0, True
        while asked < began + 0.3 or allowed:  # to a refusal: what came during a pause is taken too
            asked = time.monotonic()
            allowed = shared.check("k", limit).allowed
            admitted += allowed
        assert 97 * (asked - began) - 1 <= admitted <= 97 * (time.monotonic() - before) + 1

    @every_algorithm
    def test_15_all_keys_of_a_request_are_in_one_slot(self, algorithm: str) -> None:
        """throttled-py: two windows of one key were in two slots, which no cluster allows."""
        checks = [
            Check(Limit(3, period, algorithm=algorithm, name=name), "user:42")
            for period in (1, DAY)
            for name in (None, "{other}")
        ]
        keys = [redis_key("limen", check) for check in checks]
        keys += [marker_key(key, "f" * 16) for key in keys]
        assert len({key_slot(key.encode()) for key in keys}) == 1

    @every_algorithm
    def test_15_a_period_may_be_half_a_second(self, limiter: Limiter, algorithm: str) -> None:
        """throttled-py: a period of 500 ms was cut to 0, and divided by."""
        limit = Limit(2, 0.5, algorithm=algorithm)
        decisions = [limiter.check("k", limit) for _ in range(10)]
        assert decisions[0].allowed
        assert all(0 < (decision.retry_after or 0) <= 1 for decision in decisions if not decision)

    @every_algorithm
    def test_15_a_first_request_that_is_refused_is_not_charged(
        self, limiter: Limiter, algorithm: str
    ) -> None:
        """throttled-py: in memory, a sliding window charged its first request in any case."""
        limit = Limit(3, calm_period(), algorithm=algorithm)
        assert not limiter.check("k", limit, cost=4).allowed
        assert limiter.check("k", limit, cost=3).allowed

    @every_algorithm
    def test_16_other_keys_do_not_free_one_that_is_refused(self, algorithm: str) -> None:
        """throttled-py: memory held 1,024 keys, so 1,024 others made everybody forget."""
        limiter = Limiter()
        limit = Limit(1, calm_period(), algorithm=algorithm)
        limiter.check("attacker", limit)
        for number in range(5_000):
            limiter.check(f"user:{number}", limit)
        assert not limiter.check("attacker", limit).allowed

    def test_connections_are_not_shared_with_who_has_another_password(
        self, valkey: servers.Server, admin: redis.Redis, either: Open
    ) -> None:
        """throttled-py: pools were kept by host alone, so a wrong password got in."""
        admin.acl_setuser("one", enabled=True, passwords="+right", keys=["*"], categories=["+@all"])
        where = f"@{servers.HOST}:{valkey.port}"
        assert either(f"redis://one:right{where}").check("k", "9/day").source == "store"
        assert either(f"redis://one:wrong{where}").check("k", "9/day").source == "local"


class TestPyrateLimiter:
    @every_algorithm
    def test_17_a_state_has_an_end(
        self, shared: Limiter, admin: redis.Redis, algorithm: str
    ) -> None:
        """PyrateLimiter: the sorted set of a bucket had no TTL."""
        limit = Limit(5, 1_000, algorithm=algorithm)
        for cost in (1, 2, 9, 2, 1):
            shared.check("k", limit, cost=cost)
        assert [key for key in admin.scan_iter() if admin.pttl(key) == -1] == []
        assert admin.dbsize() == 1

    def test_17_a_server_that_forgot_the_script_is_told_again(
        self, valkey: servers.Server, admin: redis.Redis, either: Open
    ) -> None:
        """PyrateLimiter: after SCRIPT FLUSH, or a failover, every call failed for good."""
        limiter = either(url_of(valkey.port))
        for remaining in (8, 7, 6):
            admin.script_flush()
            decision = limiter.check("k", "9/day")
            assert (decision.source, decision.remaining) == ("store", remaining)

    def test_17_a_server_that_was_restarted_is_told_again(self, either: Open) -> None:
        """PyrateLimiter: the same."""
        with servers.process(servers.binaries()["valkey"]) as server:
            limiter = either(url_of(server.port), deadline=0.2)
            wait_for_the_store(limiter)
            server.restart()
            wait_for_the_store(limiter)

    def test_18_keys_are_counted_apart(self, limiter: Limiter) -> None:
        """PyrateLimiter, fastapi-limiter: names were ignored, so one address blocked all."""
        for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
            decisions = [limiter.check(address, "2/day") for _ in range(3)]
            assert [decision.allowed for decision in decisions] == [True, True, False]

    @pytest.mark.parametrize("store", ["memory", "valkey"])
    def test_19_a_task_that_waits_holds_up_no_other_key(
        self, store: str, valkey: servers.Server, admin: redis.Redis, runner: asyncio.Runner
    ) -> None:
        """PyrateLimiter: one lock for all, so a free key waited 1.5 s behind another's wait."""

        async def run() -> float:
            url = "memory://" if store == "memory" else url_of(valkey.port)
            async with AsyncLimiter(url, deadline=SLOW_MACHINE_S) as limiter:
                await limiter.acquire("slow", "1/hour")
                waiting = asyncio.create_task(limiter.acquire("slow", "1/hour"))
                await asyncio.sleep(0.02)
                start = time.monotonic()
                for number in range(20):
                    await limiter.acquire(f"free:{number}", "1/hour")
                took = time.monotonic() - start
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                return took

        assert runner.run(run()) < SLOW_MACHINE_S

    def test_19_a_thread_that_waits_holds_up_no_other_key(self, limiter: Limiter) -> None:
        """PyrateLimiter: the same, for threads."""
        limiter.acquire("slow", "1/600ms")
        waiting = threading.Thread(target=limiter.acquire, args=("slow", "1/600ms"))
        waiting.start()
        for number in range(20):
            limiter.acquire(f"free:{number}", "1/hour")
        waited_for = waiting.is_alive()
        waiting.join(10)
        assert waited_for, "the free keys came after the slow one"


class TestDjangoRatelimit:
    def test_20_parts_of_a_key_cannot_be_confused(self, limiter: Limiter) -> None:
        """django-ratelimit: parts were joined without a separator, so `a` `bc` was `ab` `c`."""
        pairs = [("ab", "c"), ("a", "bc"), ("a:", "bc"), ("a", ":bc"), ("a|", "bc")]
        for name, key in pairs:
            assert limiter.check(key, Limit(1, DAY, name=name)).allowed
        subjects = [Check(Limit(1, DAY), f"{one}{two}", subject=one) for one, two in pairs[2:]]
        keys = {redis_key("limen", check) for check in subjects}
        assert len(keys) == len({(check.key, check.subject) for check in subjects})

    @pytest.mark.parametrize("text", ["10/x", "10/minutely", "10/m2", "x10/m", "10/month-ish"])
    def test_20_a_rate_that_is_not_understood_is_an_error(self, text: str) -> None:
        """django-ratelimit: the pattern was not anchored, so `10/month` was 10 a minute."""
        with pytest.raises(InvalidLimit):
            Limit.parse(text)

    def test_20_a_month_is_no_minute(self) -> None:
        """django-ratelimit: the same."""
        assert Limit.parse("10/month") != Limit.parse("10/minute")


class TestAiolimiter:
    @pytest.mark.parametrize("store", ["memory", "valkey"])
    def test_small_requests_do_not_starve_a_big_one(
        self, store: str, valkey: servers.Server, admin: redis.Redis, runner: asyncio.Runner
    ) -> None:
        """aiolimiter: waiters stood in the order of what they asked for, the small ones first."""

        async def run() -> list[str]:
            url = "memory://" if store == "memory" else url_of(valkey.port)
            limit = Limit(10, 0.1, algorithm="token_bucket")
            served: list[str] = []
            async with AsyncLimiter(url, deadline=SLOW_MACHINE_S) as limiter:

                async def ask(name: str, cost: int) -> None:
                    await limiter.acquire("k", limit, cost=cost)
                    served.append(name)

                await limiter.check("k", limit, cost=10)
                waiting = [asyncio.create_task(ask("big", 10))]
                await asyncio.sleep(0)
                for number in range(5):
                    waiting.append(asyncio.create_task(ask(f"small {number}", 1)))
                    await asyncio.sleep(0.002)
                await asyncio.gather(*waiting)
            return served

        assert runner.run(run()) == ["big", *(f"small {number}" for number in range(5))]

    def test_small_requests_do_not_starve_a_big_one_of_another_thread(
        self, limiter: Limiter
    ) -> None:
        """aiolimiter: the same, for threads."""
        limit = Limit(10, 0.2, algorithm="token_bucket")
        served: list[str] = []

        def ask(name: str, cost: int) -> None:
            limiter.acquire("k", limit, cost=cost)
            served.append(name)

        limiter.check("k", limit, cost=10)
        threads = [threading.Thread(target=ask, args=("big", 10))]
        threads += [threading.Thread(target=ask, args=("small", 1)) for _ in range(3)]
        for place, thread in enumerate(threads):
            thread.start()
            wait_until(
                lambda count=place + 1: (  # type: ignore[misc]
                    served or len(limiter._lines._lines.get("k", ())) == count
                ),
                interval_s=0.0005,
            )
        for thread in threads:
            thread.join(10)
        assert served == ["big", "small", "small", "small"]


class TestSelfLimiters:
    def test_slots_of_crashed_holders_come_back(self, limiter: Limiter) -> None:
        """self-limiters, steindamm: slots of who died were lost until nobody used the rest."""
        crashed = [limiter.slot("k", Concurrency(2, lease=0.05)) for _ in range(2)]
        assert all(slot.acquire().allowed for slot in crashed)
        busy = Concurrency(2, lease=30)
        for _ in crashed:
            # Others keep trying, as they always do.
            wait_until(lambda: limiter.slot("k", busy).acquire().allowed)
        assert not limiter.slot("k", busy).acquire().allowed

    def test_a_turn_in_an_hour_is_not_forgotten_in_thirty_seconds(
        self, shared: Limiter, admin: redis.Redis
    ) -> None:
        """self-limiters: state ended after 30 s, and with it every turn that was further away."""
        limit = Limit(1, 3_600, algorithm="leaky_bucket", burst=10)
        last = [shared.check("k", limit) for _ in range(3)][2]
        assert last.delay == pytest.approx(7_200, abs=5)
        assert admin.pttl(redis_key("limen", Check(limit, "k"))) / 1_000 > last.delay


class TestDjangoSmartRatelimit:
    @pytest.mark.parametrize(
        ("algorithm", "count_denied"),
        [(name, False) for name in ALGORITHMS]
        + [("packed_window", True), ("rolling_window", True)],
    )
    def test_refused_requests_need_no_memory(
        self, shared: Limiter, admin: redis.Redis, algorithm: str, count_denied: bool
    ) -> None:
        """django-smart-ratelimit: each refusal was a member more, so an attack filled memory."""
        limit = Limit(20, calm_period(), algorithm=algorithm, count_denied=count_denied)
        for _ in range(25):
            shared.check("k", limit)
        key = redis_key("limen", Check(limit, "k"))
        before = admin.memory_usage(key, samples=0)
        assert before is not None
        for _ in range(200):
            assert not shared.check("k", limit).allowed
        after = admin.memory_usage(key, samples=0)
        assert after is not None
        assert after <= before * 1.1 + 64
        assert admin.dbsize() == 1

    def test_refused_requests_need_no_memory_in_this_process(self) -> None:
        """django-smart-ratelimit: the same."""
        limiter = Limiter(clock=ManualClock())
        backend = limiter._backend
        assert isinstance(backend, MemoryBackend)
        for algorithm in ALGORITHMS:
            limiter.check("k", f"2/day {algorithm}", cost=2)
        for number in range(1_000):
            for algorithm in ALGORITHMS:
                assert not limiter.check("k", f"2/day {algorithm}").allowed
                limiter.check(f"new:{number}", f"2/day {algorithm}", cost=3)
        assert len(backend) == len(ALGORITHMS)

    def test_a_call_that_may_have_run_is_not_sent_again(
        self, valkey: servers.Server, admin: redis.Redis, either: Open
    ) -> None:
        """django-smart-ratelimit: after a timeout the call was repeated, and counted thrice."""
        limit = Limit(100, DAY)
        direct = either(url_of(valkey.port))
        with proxy(valkey.port) as way:
            limiter = either(url_of(way.port), deadline=0.1)
            wait_for_the_store(limiter)
            way.drop_replies()
            assert limiter.check("k", limit).source == "local"
            wait_until(lambda: direct.peek("k", limit).remaining < 100, sleep=limiter.sleep)
            way.drop_replies(False)
            wait_for_the_store(limiter)
            limiter.sleep(0.05)
            assert direct.peek("k", limit).remaining == 99
            limiter.close()

    def test_a_cut_off_call_is_not_sent_again(
        self, valkey: servers.Server, admin: redis.Redis, either: Open
    ) -> None:
        """django-smart-ratelimit: the same, where the connection broke."""
        limit = Limit(100, DAY)
        direct = either(url_of(valkey.port))
        with proxy(valkey.port) as way:
            limiter = either(url_of(way.port))
            wait_for_the_store(limiter)
            way.cut_reply_after(3)
            assert limiter.check("k", limit).source == "local"
            assert limiter.check("warm", limit).source == "store"
            limiter.sleep(0.05)
            assert direct.peek("k", limit).remaining == 99
            limiter.close()

    @every_algorithm
    def test_a_wait_below_a_second_is_not_zero(self, limiter: Limiter, algorithm: str) -> None:
        """django-smart-ratelimit: Redis cut the fractions, so clients came back at once."""
        limit = Limit(3, 0.1, algorithm=algorithm)
        while limiter.check("k", limit).allowed:
            pass
        refused = limiter.check("k", limit)
        if not refused.allowed:  # else the period has just ended
            assert refused.retry_after is not None
            assert 0 < refused.retry_after < 1
            time.sleep(refused.retry_after)
            assert limiter.check("k", limit).allowed

    def test_a_wait_is_told_to_the_microsecond(self) -> None:
        """django-smart-ratelimit: the same; refused a microsecond before, allowed at it."""
        for algorithm in ALGORITHMS:
            clock = ManualClock(1_000_000.000123)
            limiter = Limiter(clock=clock)
            limit = Limit(7, 0.9, algorithm=algorithm)
            limiter.check("k", limit, cost=7)
            wait = limiter.check("k", limit).retry_after
            assert wait is not None
            clock.advance(wait - 0.000001)
            assert not limiter.check("k", limit).allowed
            clock.advance(0.000001)
            assert limiter.check("k", limit).allowed

    def test_an_exception_has_the_wait_too(self, limiter: Limiter) -> None:
        """django-smart-ratelimit, django-ratelimit: who was refused was not told for how long."""
        guarded = limiter.limit("1/day")(lambda: None)
        guarded()
        with pytest.raises(RateLimitExceeded, match=r"retry in 86[\d.]+ s") as caught:
            guarded()
        assert caught.value.decision.retry_after == pytest.approx(DAY, abs=5)
