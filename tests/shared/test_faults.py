"""A store that dies, hangs, talks nonsense or forgets: callers get right decisions, in time."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time

import pytest
import redis

from limen import AsyncLimiter, Check, Decision, Limit, Limiter
from tests import servers
from tests.faults.proxy import proxy
from tests.shared.load import WIDE, Tasks, Threads, Told
from tests.waiting import generous, wait_until, wait_until_async

FIRST_S = 0.25
"""How long decisions wait for a first connection."""
DEADLINE_S = 0.05
PATIENT_S = 5.0


def url_of(port: int) -> str:
    return f"redis://127.0.0.1:{port}"


def wait_for_the_store(limiter: Limiter) -> None:
    wait_until(lambda: not limiter.check("again", WIDE).degraded)


async def wait_for_the_store_async(limiter: AsyncLimiter) -> None:
    async def is_back() -> bool:
        return not (await limiter.check("again", WIDE)).degraded

    await wait_until_async(is_back)


class TestKilledUnderLoad:
    def test_threads_get_decisions_in_time(self, own_valkey: servers.Server) -> None:
        with Limiter(url_of(own_valkey.port), deadline=DEADLINE_S) as limiter:
            wait_for_the_store(limiter)
            with Threads(limiter, 8) as threads:
                threads.told.wait_for("store")
                own_valkey.kill()
                threads.told.wait_for("local")
                own_valkey.restart()
                threads.told.wait_for("store")
            assert not threads.told.errors
            assert threads.told.sources.keys() == {"store", "local"}
            assert threads.told.slowest_s < generous(DEADLINE_S)
            wait_for_the_store(limiter)

    def test_tasks_get_decisions_in_time(self, own_valkey: servers.Server) -> None:
        async def ask() -> Told:
            async with AsyncLimiter(url_of(own_valkey.port), deadline=DEADLINE_S) as limiter:
                await wait_for_the_store_async(limiter)
                async with Tasks(limiter, 32) as tasks:
                    await tasks.told.wait_for_async("store")
                    await asyncio.to_thread(own_valkey.kill)
                    await tasks.told.wait_for_async("local")
                    await asyncio.to_thread(own_valkey.restart)
                    await tasks.told.wait_for_async("store")
                return tasks.told

        told = asyncio.run(ask())
        assert not told.errors
        assert told.sources.keys() == {"store", "local"}
        assert told.slowest_s < generous(DEADLINE_S)


class TestFrozenUnderLoad:
    """SIGSTOP is the hard one: connections stay open, and nobody answers."""

    def test_threads_get_decisions_in_time(self, own_valkey: servers.Server) -> None:
        with Limiter(url_of(own_valkey.port), deadline=DEADLINE_S) as limiter:
            wait_for_the_store(limiter)
            with Threads(limiter, 8) as threads:
                threads.told.wait_for("store")
                own_valkey.pause()
                threads.told.wait_for("local")
                own_valkey.resume()
                threads.told.wait_for("store")
            assert not threads.told.errors
            assert threads.told.sources.keys() == {"store", "local"}
            assert threads.told.slowest_s < generous(DEADLINE_S)
            numbers = threads.told.numbers
            assert len(set(numbers)) == len(numbers), "an old reply was taken for a new one"
            wait_for_the_store(limiter)

    def test_tasks_get_decisions_in_time(self, own_valkey: servers.Server) -> None:
        async def ask() -> Told:
            async with AsyncLimiter(url_of(own_valkey.port), deadline=DEADLINE_S) as limiter:
                await wait_for_the_store_async(limiter)
                async with Tasks(limiter, 32) as tasks:
                    await tasks.told.wait_for_async("store")
                    own_valkey.pause()
                    await tasks.told.wait_for_async("local")
                    own_valkey.resume()
                    await tasks.told.wait_for_async("store")
                return tasks.told

        told = asyncio.run(ask())
        assert not told.errors
        assert told.sources.keys() == {"store", "local"}
        assert told.slowest_s < generous(DEADLINE_S)
        assert len(set(told.numbers)) == len(told.numbers)


class TestBrokenConnections:
    """Replies that are cut, replaced, swallowed or late, at random places."""

    def test_no_caller_is_told_anothers_answer(self, url: str, valkey: servers.Server) -> None:
        with proxy(valkey.port) as between, contextlib.ExitStack() as stack:
            limiter = stack.enter_context(Limiter(url_of(between.port), deadline=PATIENT_S))
            with Threads(limiter, 6) as threads:
                for turn in range(60):
                    # On a busy machine an answer takes a while: some are to come in between.
                    threads.told.wait_for("store", 10)
                    if turn % 3 == 0:
                        between.cut_reply_after(turn)
                    elif turn % 3 == 1:
                        between.garbage(b"+HTTP/1.1 200 OK\r\n" * 3)
                    else:
                        between.cut()
        assert not threads.told.errors
        assert threads.told.sources["local"] > 0, "nothing was broken"
        numbers = threads.told.numbers
        assert len(set(numbers)) == len(numbers)

    def test_no_task_is_told_anothers_answer(self, url: str, valkey: servers.Server) -> None:
        async def ask(port: int) -> Told:
            async with AsyncLimiter(url_of(port), deadline=PATIENT_S) as limiter:
                async with Tasks(limiter, 16) as tasks:
                    for turn in range(60):
                        await asyncio.sleep(0.01)
                        if turn % 3 == 0:
                            between.cut_reply_after(turn)
                        elif turn % 3 == 1:
                            between.garbage(b"*1\r\n:7\r\n" * 3)
                        else:
                            between.cut()
                return tasks.told

        with proxy(valkey.port) as between:
            told = asyncio.run(ask(between.port))
        assert not told.errors
        assert told.sources["local"] > 0, "nothing was broken"
        assert len(set(told.numbers)) == len(told.numbers)

    def test_what_is_not_answered_is_charged_once_at_most(
        self, url: str, valkey: servers.Server
    ) -> None:
        with proxy(valkey.port) as between, contextlib.ExitStack() as stack:
            way = url_of(between.port)
            limiter = stack.enter_context(Limiter(way, deadline=DEADLINE_S))
            wait_for_the_store(limiter)
            between.drop_replies()
            asked = [limiter.check("half-open", WIDE) for _ in range(10)]
            between.drop_replies(False)
            wait_for_the_store(limiter)
            charged = WIDE.quota - limiter.peek("half-open", WIDE).remaining
        assert {decision.source for decision in asked} == {"local"}
        assert 1 <= charged <= 10

    def test_a_task_that_is_not_answered_finds_another_way(
        self, url: str, valkey: servers.Server
    ) -> None:
        async def ask(port: int) -> None:
            async with AsyncLimiter(url_of(port), deadline=DEADLINE_S) as limiter:
                await wait_for_the_store_async(limiter)
                between.drop_replies()
                asked = [await limiter.check("half-open", WIDE) for _ in range(5)]
                assert {decision.source for decision in asked} == {"local"}
                between.drop_replies(False)
                await wait_for_the_store_async(limiter)
                charged = WIDE.quota - (await limiter.peek("half-open", WIDE)).remaining
                assert 1 <= charged <= 5

        with proxy(valkey.port) as between:
            asyncio.run(ask(between.port))

    @pytest.mark.parametrize("extra", [b"+nonsense\r\n" * 3, b"$2\r\n\x01\x01\r\n" * 2, b"*0\r\n"])
    def test_replies_that_nobody_asked_for_reach_nobody(
        self, url: str, valkey: servers.Server, extra: bytes
    ) -> None:
        async def ask(port: int) -> list[Decision]:
            async with AsyncLimiter(url_of(port), deadline=PATIENT_S) as limiter:
                await limiter.check("warm", WIDE)
                between.garbage(extra)
                return [await limiter.check(f"async{n}", Limit(n, 3_600)) for n in range(1, 20)]

        with proxy(valkey.port) as between:
            with Limiter(url_of(between.port), deadline=PATIENT_S) as limiter:
                limiter.check("warm", WIDE)
                between.garbage(extra)
                told = [limiter.check(f"sync{n}", Limit(n, 3_600)) for n in range(1, 20)]
            told += asyncio.run(ask(between.port))
        assert [decision.remaining for decision in told] == list(range(19)) * 2
        assert [decision.source for decision in told].count("local") == 2

    def test_signals_do_not_lengthen_the_deadline(self, own_valkey: servers.Server) -> None:
        before = signal.signal(signal.SIGALRM, lambda *_: None)
        try:
            with Limiter(url_of(own_valkey.port), deadline=DEADLINE_S) as limiter:
                wait_for_the_store(limiter)
                own_valkey.pause()
                signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
                start = time.perf_counter()
                assert limiter.check("k", WIDE).source == "local"
                assert time.perf_counter() - start < generous(DEADLINE_S)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            own_valkey.resume()

    def test_a_slow_way_in_is_gone_to_the_end(self, url: str, valkey: servers.Server) -> None:
        # Connecting takes several round trips, longer than any caller has. Somebody has to
        # go on with it after the caller has left, or the store is never reached.
        with proxy(valkey.port) as between:
            between.delay, between.connect_delay = 0.015, FIRST_S
            with Limiter(url_of(between.port), deadline=DEADLINE_S) as limiter:
                assert limiter.check("k", WIDE).degraded
                wait_for_the_store(limiter)

            async def ask() -> None:
                async with AsyncLimiter(url_of(between.port), deadline=DEADLINE_S) as limiter:
                    assert (await limiter.check("k", WIDE)).degraded
                    await wait_for_the_store_async(limiter)

            asyncio.run(ask())

    def test_a_far_server_is_slept_for_and_not_watched(
        self, url: str, valkey: servers.Server
    ) -> None:
        with proxy(valkey.port) as between:
            between.delay = 0.01
            with Limiter(url_of(between.port), deadline=PATIENT_S) as limiter:
                limiter.check("k", WIDE)
                start, cpu = time.perf_counter(), time.process_time()
                for _ in range(15):
                    assert limiter.check("k", WIDE).source == "store"
                share = (time.process_time() - cpu) / (time.perf_counter() - start)
        assert share < 0.5

    def test_a_connection_that_died_while_idle_costs_no_decision(
        self, url: str, admin: redis.Redis
    ) -> None:
        with Limiter(url, deadline=PATIENT_S) as limiter:
            limiter.check("k", WIDE)
            for client in admin.client_list():
                if client["cmd"] != "client|list":
                    admin.client_kill(client["addr"])
            time.sleep(1.1)
            assert limiter.check("k", WIDE).source == "store"

    @pytest.mark.parametrize("threads", [1, 8])
    def test_a_slow_way_in_is_one_fault_and_not_one_for_each_who_waits(
        self, url: str, valkey: servers.Server, threads: int
    ) -> None:
        with proxy(valkey.port) as between:
            between.delay = 0.02
            with Limiter(url_of(between.port), deadline=DEADLINE_S) as limiter:
                asking = [
                    threading.Thread(target=limiter.check, args=(f"k{number}", WIDE))
                    for number in range(threads)
                ]
                for thread in asking:
                    thread.start()
                for thread in asking:
                    thread.join()
                assert limiter.shards[0].opened == 0
                wait_for_the_store(limiter)

    def test_who_has_little_time_notices_a_frozen_server_too(
        self, own_valkey: servers.Server
    ) -> None:
        check = Check(WIDE, "k")
        with Limiter(url_of(own_valkey.port), deadline=DEADLINE_S) as limiter:
            wait_for_the_store(limiter)
            own_valkey.pause()
            try:
                for _ in range(40):
                    assert limiter.decide(check, within=0.02).degraded
                assert limiter.shards[0].state == "open"
            finally:
                own_valkey.resume()

    def test_a_limiter_that_was_closed_in_an_outage_begins_anew(
        self, own_valkey: servers.Server
    ) -> None:
        limiter = Limiter(url_of(own_valkey.port), deadline=DEADLINE_S)
        wait_for_the_store(limiter)
        own_valkey.kill()
        while limiter.shards[0].state != "open":
            limiter.check("k", WIDE)
        limiter.close()
        own_valkey.restart()
        wait_for_the_store(limiter)
        limiter.close()

    def test_a_blocked_loop_is_no_fault_of_the_store(self, url: str) -> None:
        async def ask() -> str:
            async with AsyncLimiter(url, deadline=DEADLINE_S) as limiter:
                await wait_for_the_store_async(limiter)
                task = asyncio.create_task(limiter.check("k", WIDE))
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # it is on its way
                time.sleep(4 * DEADLINE_S)  # noqa: ASYNC251  # the fault itself
                return (await task).source

        assert asyncio.run(ask()) == "store"


class TestForgetful:
    def test_a_flushed_script_is_no_fault(self, url: str, admin: redis.Redis) -> None:
        stop = threading.Event()

        def flush() -> None:
            with redis.Redis(port=admin.connection_pool.connection_kwargs["port"]) as client:
                while not stop.wait(0.01):
                    client.script_flush()

        async def ask() -> Told:
            async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:
                async with Tasks(limiter, 16) as tasks:
                    await asyncio.sleep(0.7)
                return tasks.told

        flushing = threading.Thread(target=flush)
        flushing.start()
        try:
            with Limiter(url, deadline=PATIENT_S) as limiter, Threads(limiter, 4) as threads:
                time.sleep(0.7)
            told = asyncio.run(ask())
        finally:
            stop.set()
            flushing.join()
        numbers = sorted([*threads.told.numbers, *told.numbers])
        assert not threads.told.errors
        assert not told.errors
        assert numbers == list(range(1, len(numbers) + 1)), "counts are exact"
        assert threads.told.sources.keys() == told.sources.keys() == {"store"}
        assert admin.info("errorstats")["errorstat_NOSCRIPT"]["count"] > 20

    def test_a_clock_that_is_an_hour_off_changes_no_decision(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limit = Limit(3, 60)
        with Limiter(url, deadline=PATIENT_S) as limiter:
            limiter.check("k", limit)
            true_time, true_time_ns = time.time, time.time_ns
            monkeypatch.setattr(time, "time", lambda: true_time() + 3_600)
            monkeypatch.setattr(time, "time_ns", lambda: true_time_ns() + 3_600 * 10**9)
            with Limiter(url, deadline=PATIENT_S) as other:
                answers = [other.check("k", limit) for _ in range(3)]
        assert [answer.allowed for answer in answers] == [True, True, False]
        retry_after = answers[-1].retry_after
        assert retry_after is not None
        assert 50 < retry_after <= 60

    @pytest.mark.parametrize("command", ["rpush", "set"], ids=["type", "content"])
    def test_a_poisoned_key_is_the_fault_of_one_request(
        self, url: str, admin: redis.Redis, command: str
    ) -> None:
        from limen.keys import redis_key
        from limen.model import Check

        limit = Limit(100, 60)
        poisoned = redis_key("limen", Check(limit, "bad"))
        getattr(admin, command)(poisoned, "not ours")
        dump = admin.dump(poisoned)

        async def ask() -> list[tuple[str, str]]:
            async with AsyncLimiter(url, deadline=PATIENT_S) as limiter:
                await limiter.check("warm", limit)
                keys = ["good"] * 10 + ["bad"] + ["good"] * 10
                decisions = await asyncio.gather(*[limiter.check(key, limit) for key in keys])
                return [(decision.source, decision.fault) for decision in decisions]

        others = [("store", "")] * 10
        assert asyncio.run(ask()) == [*others, ("local", "poisoned"), *others]
        assert admin.dump(poisoned) == dump

    def test_a_full_server_is_a_fault_with_its_kind(
        self, own_valkey: servers.Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            redis.Redis(port=own_valkey.port) as client,
            Limiter(url_of(own_valkey.port)) as limiter,
        ):
            wait_for_the_store(limiter)
            client.config_set("maxmemory", 1)
            assert limiter.check("k", WIDE).source == "local"
            assert "(memory)" in caplog.text
            client.config_set("maxmemory", 0)
            wait_for_the_store(limiter)
