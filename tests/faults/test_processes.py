"""What befalls the processes that ask: crowds, blocked loops, freezing, death, no files left.

A server that is well is never blamed for it, and nothing is lost for good.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from limen import AsyncLimiter, Check, Concurrency, Decision, Limiter
from limen.backends import Shard
from tests import servers
from tests.faults.callers import (
    FORMS,
    PATIENT_S,
    WIDE,
    Form,
    Load,
    Looped,
    Stalls,
    opened,
    url_of,
    wait_for_the_store,
)
from tests.faults.figures import say
from tests.faults.rig import DEADLINE_S, FIRST_P99_S
from tests.waiting import FULL, generous, wait_until

CROWD = 300


@pytest.fixture
def url(port: int, admin: redis.Redis) -> str:
    return url_of(port)


def held(limiter: Limiter, key: str, slots: Concurrency) -> int:
    decision = limiter.decide(Check(slots, key), charge=False)
    assert decision.source == "store"
    return slots.slots - decision.remaining


@pytest.mark.parametrize("name", FORMS)
def test_hundreds_at_once_are_all_served(name: str, url: str, admin: redis.Redis) -> None:
    rounds = 20 if FULL else 3
    took: list[float] = []
    told: list[Decision] = []

    def ask_timed(form: Form) -> Any:
        def ask() -> Decision:
            start = time.monotonic()
            told.append(form.limiter.check("k", WIDE))
            took.append(time.monotonic() - start)
            return told[-1]

        async def ask_async() -> Decision:
            start = time.monotonic()
            told.append(await form.limiter.check("k", WIDE))
            took.append(time.monotonic() - start)
            return told[-1]

        return ask_async if isinstance(form, Looped) else ask

    # Threads of one process share one interpreter: to start 300 of them takes longer than 50 ms.
    deadline = DEADLINE_S if name == "asyncio" else 1.0
    with opened(name, url, deadline=deadline) as form:
        with Stalls() as stalls:
            start = time.monotonic()
            for _ in range(rounds):
                form.at_once([ask_timed(form)] * CROWD)
            stall = stalls.worst(start, time.monotonic())
        [shard] = form.limiter.shards
        most = 1 if name == "asyncio" else 16  # and the one that asks
        wait_until(lambda: len(admin.client_list()) - 1 <= most)
        connections = len(admin.client_list()) - 1
        numbers = sorted(WIDE.quota - each.remaining for each in told if each.source == "store")
    p99 = sorted(took)[int(0.99 * len(took))]
    local = len(told) - len(numbers)
    say(f"{CROWD} at once, {name}", p99=p99, local=local, connections=connections)
    assert len(told) == rounds * CROWD
    assert len(set(numbers)) == len(numbers), "two were told the same"
    assert shard.state == "closed"
    assert 1 <= connections <= most
    if name == "asyncio":
        assert p99 <= FIRST_P99_S + stall


class TestBlockedLoop:
    def test_a_loop_that_is_blocked_again_and_again_blames_nobody(self, url: str) -> None:
        blocks = 20 if FULL else 2

        async def block(seconds: float) -> None:
            time.sleep(seconds)  # noqa: ASYNC251  # the fault itself

        with opened("asyncio", url, deadline=DEADLINE_S) as form:
            assert isinstance(form, Looped)
            with Load(form, rate=400, callers=16) as load:
                for _ in range(blocks):
                    time.sleep(0.15)
                    form.run(block(0.5))
                time.sleep(0.2)
            [shard] = form.limiter.shards
        say(
            "blocked loop",
            blocks=blocks,
            asked=len(load.asked),
            sources=dict(load.sources()),
            faults=dict(load.faults()),
            opened=shard.opened,
        )
        assert load.errors() == []
        assert shard.state == "closed"
        assert shard.opened == 0
        # Who was under way, or asked in the very turn in which it was blocked, may get no answer.
        assert load.sources()["local"] <= blocks * 16

    def test_a_loop_that_is_blocked_while_it_connects_blames_nobody(self, url: str) -> None:
        async def first_round() -> Shard:
            async with AsyncLimiter(url, deadline=DEADLINE_S) as limiter:
                asking = [asyncio.create_task(limiter.check("k", WIDE)) for _ in range(3)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                time.sleep(0.12)  # noqa: ASYNC251  # the fault itself
                await asyncio.gather(*asking)
                await asyncio.sleep(0.05)
                [shard] = limiter.shards
                told = [(await limiter.check("k", WIDE)).source for _ in range(20)]
                assert "store" in told
                return shard

        # Blocked as it begins to connect, and at each step of the way.
        for turns in range(2, 7):
            shard = asyncio.run(first_round())
            assert (shard.opened, shard.faults) == (0, {}), turns


FROZEN = """
import asyncio, sys, threading, time
from limen import AsyncLimiter, Limit, Limiter
url, form, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
wide = Limit(1_000_000, 86_400, algorithm="fixed_window")
sources, errors = {}, []
def note(decision):
    sources[decision.source] = sources.get(decision.source, 0) + 1
async def loop():
    async with AsyncLimiter(url, deadline=0.05) as limiter:
        await limiter.ping()
        print("ready", flush=True)
        end = time.monotonic() + seconds
        async def ask():
            while time.monotonic() < end:
                note(await limiter.check("frozen", wide))
                await asyncio.sleep(0.005)
        await asyncio.gather(*[ask() for _ in range(8)])
        return limiter.shards[0]
def threads():
    with Limiter(url, deadline=0.05) as limiter:
        limiter.ping()
        print("ready", flush=True)
        end = time.monotonic() + seconds
        def ask():
            while time.monotonic() < end:
                note(limiter.check("frozen", wide))
                time.sleep(0.005)
        asking = [threading.Thread(target=ask) for _ in range(4)]
        for each in asking: each.start()
        for each in asking: each.join()
        return limiter.shards[0]
shard = asyncio.run(loop()) if form == "asyncio" else threads()
print(shard.opened, shard.state, sources)
"""


def test_a_process_that_was_frozen_itself_blames_nobody(url: str) -> None:
    # As a laptop that was shut, or a container over its share of the processor.
    freezes = 10 if FULL else 2
    seconds = str(0.45 * freezes + 0.2)
    with ExitStack() as stack:
        frozen: list[subprocess.Popen[str]] = []
        for form in FORMS:
            command = [sys.executable, "-c", FROZEN, url, form, seconds]
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
            frozen.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in frozen:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for _ in range(freezes):
            time.sleep(0.15)
            for process in frozen:
                process.send_signal(signal.SIGSTOP)
            time.sleep(0.25)
            for process in frozen:
                process.send_signal(signal.SIGCONT)
        for form, process in zip(FORMS, frozen, strict=True):
            said, errors = process.communicate(timeout=30)
            assert process.returncode == 0, errors
            say(f"frozen itself, {form}", said=said.strip())
            assert said.startswith("0 closed"), said


FEW_FILES = """
import asyncio, os, resource, sys, time
from limen import AsyncLimiter, Limit, Limiter
url, form = sys.argv[1], sys.argv[2]
wide = Limit(1_000_000, 86_400, algorithm="fixed_window")
def use_up():
    # Whatever is closed from now on is not to be had again, either.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 64))
    try:
        open(os.devnull)
    except OSError:
        return
    raise AssertionError("there is a file left")
def free():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
def cut():
    sys.stdout.write("cut\\n"); sys.stdout.flush(); sys.stdin.readline()
async def loop():
    async with AsyncLimiter(url, deadline=0.05) as limiter:
        await limiter.ping()
        use_up(); cut()
        told = []
        for _ in range(30):
            told.append(await limiter.check("files", wide)); await asyncio.sleep(0.01)
        free()
        start = time.monotonic()
        while (await limiter.check("files", wide)).degraded:
            assert time.monotonic() - start < 20; await asyncio.sleep(0.01)
        return told, time.monotonic() - start
def threads():
    with Limiter(url, deadline=0.05) as limiter:
        limiter.ping()
        use_up(); cut()
        told = []
        for _ in range(30):
            told.append(limiter.check("files", wide)); time.sleep(0.01)
        free()
        start = time.monotonic()
        while limiter.check("files", wide).degraded:
            assert time.monotonic() - start < 20; time.sleep(0.01)
        return told, time.monotonic() - start
told, back = asyncio.run(loop()) if form == "asyncio" else threads()
sources, faults = {each.source for each in told}, {each.fault for each in told}
print(",".join(sorted(sources)), ",".join(sorted(faults)), back)
"""


@pytest.mark.parametrize("form", FORMS)
def test_a_process_without_a_file_left_lives_and_comes_back(
    form: str, url: str, admin: redis.Redis
) -> None:
    command = [sys.executable, "-c", FEW_FILES, url, form]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as it:
        try:
            assert it.stdin is not None
            assert it.stdout is not None
            line = it.stdout.readline()
            assert line == "cut\n", it.stderr.read() if it.stderr else line
            own = admin.client_id()
            for each in admin.client_list():
                if int(each["id"]) != own:
                    admin.client_kill(each["addr"])
            said, errors = it.communicate("\n", timeout=30)
        finally:
            it.kill()
    assert it.returncode == 0, errors
    sources, faults, back = said.split()
    say(f"no file left, {form}", back=float(back), faults=faults)
    assert sources == "local"
    # Of the first ones, some may wait in vain for those who try to connect.
    assert {"connection"} <= set(faults.split(",")) <= {"connection", "timeout"}
    assert float(back) <= 1.0
    assert "Traceback" not in errors


def hold_and_release_late(url: str, key: str, lease: float, ready: Any, go: Any, done: Any) -> None:
    """Hold a slot by hand, and let go of it when told to; say whether there was one to let go."""
    limiter = Limiter(url, deadline=PATIENT_S)
    slot = limiter.slot(key, Concurrency(2, lease=lease))
    granted = slot.acquire().allowed
    ready.set()
    go.wait(60)
    done.put((granted, slot.renew(), slot.release()))


class TestHolders:
    def test_one_that_was_paused_beyond_its_lease_frees_nobody_elses_slot(self, url: str) -> None:
        two = Concurrency(2, lease=0.5)
        spawn = multiprocessing.get_context("spawn")
        ready, go, done = spawn.Event(), spawn.Event(), spawn.Queue()
        holder = spawn.Process(
            target=hold_and_release_late, args=(url, "door", two.lease, ready, go, done)
        )
        holder.start()
        try:
            assert ready.wait(60)
            os.kill(holder.pid or 0, signal.SIGSTOP)
            with Limiter(url, deadline=PATIENT_S) as limiter:
                longer = Concurrency(2, lease=60)
                slots = [limiter.slot("door", longer) for _ in range(2)]
                start = time.monotonic()
                while not all(slot.acquire().allowed for slot in slots):
                    assert time.monotonic() - start < generous(two.lease)
                    assert held(limiter, "door", longer) <= 2
                    time.sleep(0.02)
                os.kill(holder.pid or 0, signal.SIGCONT)
                go.set()
                assert done.get(timeout=60) == (True, False, False)
                assert held(limiter, "door", longer) == 2
                assert [slot.release() for slot in slots] == [True, True]
                assert held(limiter, "door", longer) == 0
        finally:
            os.kill(holder.pid or 0, signal.SIGCONT)
            holder.join(10)
            holder.kill()
            done.close()
            done.join_thread()

    @pytest.mark.parametrize("form", FORMS)
    def test_while_the_store_is_away_a_slot_is_neither_lost_nor_doubled(self, form: str) -> None:
        # Granted by the store, released while it is away, and free again when its lease ends.
        two = Concurrency(2, lease=1.0)
        with servers.process(servers.binaries()["valkey"]) as server:
            with opened(form, url_of(server.port), deadline=DEADLINE_S) as made:
                slot = made.limiter.slot("door", two)
                assert made.do(slot.acquire).source == "store"
                granted_at = time.monotonic()
                server.pause()
                try:
                    made.do(slot.release)
                    others = [made.limiter.slot("door", two) for _ in range(3)]
                    allowed = [bool(made.do(other.acquire).allowed) for other in others]
                    assert allowed == [True, True, False], "here the whole limit is its own"
                finally:
                    server.resume()
                wait_for_the_store(made)
                for other in others:
                    made.do(other.release)
            with Limiter(url_of(server.port), deadline=PATIENT_S) as limiter:
                while held(limiter, "door", two):
                    assert time.monotonic() - granted_at < generous(two.lease)
                    time.sleep(0.02)
