"""A server that answers, but not what it was asked for: full, busy, loading, forbidden, emptied.

Each fault is lived through by both forms of the limiter at once, under a paced load. No caller sees
an error, decisions are in time and say what is wrong, and the way back is found by itself.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from limen import Check, Limit, Limiter, StoreError
from limen.keys import redis_key
from tests import servers
from tests.faults.callers import (
    FORMS,
    PATIENT_S,
    WIDE,
    Form,
    Load,
    Stalls,
    opened,
    url_of,
    wait_for_the_store,
)
from tests.faults.figures import say
from tests.faults.rig import DEADLINE_S, FIRST_P99_S
from tests.waiting import FULL, generous, wait_until

BROKEN_S = 5.0 if FULL else 0.5
LATER_P99_S = generous(0.012)
"""What p99 may be after the first second. All callers of both forms share one interpreter here."""
BACK_S = 1.0
LASTING_BACK_S = 2.0
"""For faults that somebody has to mend: those are looked at every second only."""
QUIET_S = 1.0 if FULL else 0.2
"""For how long all must be well to be believed."""
MOST_LINES_A_SECOND = 10
VALKEY = servers.binaries()["valkey"]


@pytest.fixture
def admin(own_valkey: servers.Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=own_valkey.port) as client:
        yield client


@dataclass
class Seen:
    """What one form lived through."""

    load: Load
    broken_at: float
    mended_at: float

    @property
    def form(self) -> Form:
        return self.load.form

    @property
    def shard(self) -> Any:
        [shard] = self.form.limiter.shards
        return shard

    def kinds(self) -> set[str]:
        """Return why the store did not decide while it was broken.

        On a busy machine an answer may come late besides.
        """
        kinds = set(self.load.faults(self.broken_at, self.mended_at))
        return kinds if FULL or kinds == {"timeout"} else kinds - {"timeout"}


@contextmanager
def both(url: str, deadline: float = DEADLINE_S) -> Iterator[list[Form]]:
    with ExitStack() as stack:
        yield [stack.enter_context(opened(form, url, deadline=deadline)) for form in FORMS]


def live_through(
    name: str,
    forms: list[Form],
    caplog: pytest.LogCaptureFixture,
    broken: Callable[[], Any],
    *,
    seconds: float = BROKEN_S,
    back_s: float = BACK_S,
    keys: tuple[str, ...] = ("hot",),
) -> list[Seen]:
    """Break the server under load for a while; see what callers are promised in any case.

    `broken` is entered to break it, and left to mend it.
    """
    with ExitStack() as stack:
        stalls = stack.enter_context(Stalls())
        loads = [stack.enter_context(Load(form, keys=keys)) for form in forms]
        time.sleep(0.2)
        broken_at, broken_time = time.monotonic(), time.time()
        with broken():
            time.sleep(seconds)
            mending_time = time.time()
        mended_at = time.monotonic()
        while time.monotonic() < mended_at + generous(back_s) + 0.3:
            time.sleep(0.1)
            quiet = time.monotonic() - QUIET_S
            if quiet > mended_at and not any(load.faults(quiet) for load in loads):
                break
    seen = [Seen(load, broken_at, mended_at) for load in loads]
    lines = [record for record in caplog.records if record.created >= broken_time]
    if seconds:
        early = [line for line in lines if "answers again" in line.getMessage()]
        assert [line for line in early if line.created < mending_time] == [], "it flaps"
    took = time.monotonic() - broken_at
    for each in seen:
        load = each.load
        first = load.p99(broken_at, broken_at + 1)
        later = load.p99(broken_at + 1, mended_at)
        back = load.back_after(mended_at)
        opened_times = each.shard.opened
        say(
            f"{name}, {each.form.name}",
            p99_first=first,
            p99_after=later,
            back=back,
            opened=opened_times,
            kinds=dict(load.faults(broken_at)),
            lines=len(lines),
        )
        assert load.errors() == []
        before = load.sources(0, broken_at)
        assert before["store"] > 0.8 * before.total(), "it was not well before"
        # What the machine itself adds, beside another test process, is not the limiter's.
        assert first <= FIRST_P99_S + stalls.worst(broken_at, broken_at + 1)
        assert later <= LATER_P99_S + stalls.worst(broken_at + 1, mended_at)
        assert back <= generous(back_s)
        assert each.shard.state == "closed"
        assert "" not in load.faults(), "a decision does not say why"
    assert len(lines) <= MOST_LINES_A_SECOND * (took + 1)
    return seen


def close_others(admin: redis.Redis, *kept: str) -> None:
    """Close every connection but the administrator's own, and those from the given addresses."""
    own = admin.client_id()
    for each in admin.client_list():
        if int(each["id"]) != own and each["addr"] not in kept:
            with suppress(redis.ResponseError):  # it has just gone by itself
                admin.client_kill(each["addr"])


def charged(form: Form, key: str) -> int:
    decision = form.do(form.limiter.peek, key, WIDE)
    assert decision.source == "store"
    return WIDE.quota - int(decision.remaining)


class TestFull:
    def test_out_of_memory(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        @contextmanager
        def full() -> Iterator[None]:
            admin.config_set("maxmemory", 1)
            yield
            admin.config_set("maxmemory", 0)

        with both(url_of(own_valkey.port)) as forms:
            for _ in range(7):
                forms[0].do(forms[0].limiter.check, "victim", WIDE)
            seen = live_through("out of memory", forms, caplog, full, back_s=LASTING_BACK_S)
            for each in seen:
                assert each.kinds() == {"memory"}
                assert each.shard.opened >= 1
                assert each.shard.faults["memory"] >= 5
            assert charged(forms[0], "victim") == 7, "a key that lives was reset"
        assert "maxmemory" in caplog.text

    def test_too_many_clients(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        @contextmanager
        def crowded() -> Iterator[None]:
            with ExitStack() as stack:
                address = ("127.0.0.1", own_valkey.port)
                crowd = [stack.enter_context(socket.create_connection(address)) for _ in range(3)]
                admin.config_set("maxclients", 4)
                close_others(admin, *["{}:{}".format(*each.getsockname()) for each in crowd])
                yield
                admin.config_set("maxclients", 10_000)

        with both(url_of(own_valkey.port)) as forms:
            for each in live_through("too many clients", forms, caplog, crowded):
                assert each.kinds() == {"connection"}
                assert each.shard.opened >= 1
        # The server says so and closes at once, which may overtake what it says.
        with crowded():
            assert any("max number of clients" in told(own_valkey) for _ in range(50))


def told(own_valkey: servers.Server) -> str:
    """Return what a new limiter says of a server that does not let it in."""
    with Limiter(url_of(own_valkey.port), deadline=1) as limiter:
        try:
            limiter.ping()
        except StoreError as error:
            return str(error)
    return ""


class TestForgetful:
    def test_emptied_in_the_middle_of_a_window(
        self, own_valkey: servers.Server, admin: redis.Redis
    ) -> None:
        # A window that lasts longer than the test: what it admits in all, it admits in one.
        limit = Limit(40, 60, algorithm="packed_window")
        url = url_of(own_valkey.port)
        with both(url, PATIENT_S) as forms, ExitStack() as stack:
            loads = [stack.enter_context(Load(form, limit=limit, rate=150)) for form in forms]
            time.sleep(0.4)
            admin.flushall()
            time.sleep(0.4)
        decisions = [each.decision for load in loads for each in load.asked if each.decision]
        assert {decision.source for decision in decisions} == {"store"}
        admitted = sum(decision.allowed for decision in decisions)
        say("emptied", admitted=admitted, bound=2 * limit.quota, asked=len(decisions))
        assert limit.quota < admitted <= 2 * limit.quota
        for form in forms:
            assert form.limiter.shards[0].opened == 0

    def test_scripts_forgotten_every_moment(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        @contextmanager
        def forgetful() -> Iterator[None]:
            stop = threading.Event()

            def forget() -> None:
                while not stop.wait(0.01):
                    admin.script_flush()

            forgetting = threading.Thread(target=forget)
            forgetting.start()
            yield
            stop.set()
            forgetting.join()

        with both(url_of(own_valkey.port), PATIENT_S) as forms:
            seen = live_through("scripts forgotten", forms, caplog, forgetful)
            for each in seen:
                assert each.load.sources().keys() == {"store"}
                assert each.shard.opened == 0
                assert each.shard.faults == {}
            assert charged(forms[0], "hot") == sum(len(each.load.asked) for each in seen)
        assert admin.info("errorstats")["errorstat_NOSCRIPT"]["count"] > 10


class TestHeldUp:
    def test_a_script_of_somebody_else(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        admin.config_set("busy-reply-threshold", 100)

        def run_for_ever() -> None:
            client = redis.Redis(port=own_valkey.port, socket_timeout=60)
            with client, suppress(redis.ResponseError):
                client.eval("while true do end", 0)

        @contextmanager
        def busy() -> Iterator[None]:
            running = threading.Thread(target=run_for_ever)
            running.start()
            yield
            with redis.Redis(port=own_valkey.port) as client:
                client.script_kill()
            running.join(10)

        with both(url_of(own_valkey.port)) as forms:
            for each in live_through("busy", forms, caplog, busy):
                assert each.kinds() <= {"timeout", "busy"}
                assert each.shard.faults["busy"] >= 1
                assert each.shard.opened >= 1

    def test_loading_after_a_restart(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with servers.process(VALKEY, "--appendonly", "yes") as server:
            with redis.Redis(port=server.port) as admin:
                pipeline = admin.pipeline(transaction=False)
                for number in range(3_000):
                    pipeline.set(f"filler {number}", "x" * 100)
                pipeline.execute()

            @contextmanager
            def loading() -> Iterator[None]:
                server.kill()
                per_key_us = int(BROKEN_S * 1e6 / 3_000)
                server.command += ["--key-load-delay", str(per_key_us)]
                server.command += ["--loading-process-events-interval-bytes", "1024"]
                server.restart()
                yield

            with both(url_of(server.port)) as forms:
                for _ in range(7):
                    forms[0].do(forms[0].limiter.check, "victim", WIDE)
                for each in live_through("loading", forms, caplog, loading, seconds=0):
                    assert each.kinds() <= {"connection", "timeout", "loading"}
                    assert each.shard.faults["loading"] >= 1
                    assert each.shard.opened >= 1
                assert charged(forms[0], "victim") == 7


class TestForbidden:
    """Faults of configuration: counted apart, and told as such within five seconds."""

    def assert_told(self, caplog: pytest.LogCaptureFixture, seen: Seen) -> None:
        assert seen.shard.faults["rights"] >= 1
        lines = [r for r in caplog.records if "(rights)" in r.getMessage()]
        assert lines, "nobody was told that it is the configuration"
        started = time.time() - (time.monotonic() - seen.broken_at)
        assert lines[0].created - started < 5
        assert "ACL" in lines[0].getMessage()
        assert lines[0].levelno >= logging.WARNING

    @pytest.mark.parametrize("user", ["service", pytest.param("default", marks=pytest.mark.slow)])
    def test_password_rotated(
        self,
        own_valkey: servers.Server,
        admin: redis.Redis,
        caplog: pytest.LogCaptureFixture,
        user: str,
    ) -> None:
        old, new = "hunter2-old", "hunter2-new"

        def rotate(password: str) -> None:
            admin.execute_command(
                "ACL", "SETUSER", user, "on", "resetpass", f">{password}", "+@all", "~*"
            )  # type: ignore[no-untyped-call]  # redis-py has no types
            close_others(admin)

        @contextmanager
        def rotated() -> Iterator[None]:
            rotate(new)
            yield
            rotate(old)

        admin.ping()
        rotate(old)
        url = f"redis://{user}:{old}@127.0.0.1:{own_valkey.port}"
        with both(url) as forms:
            name = f"password rotated, {user}"
            # While it has no rights it is tried once a second; and the connections that were made
            # with the old rights are closed once more in the end.
            seen = live_through(name, forms, caplog, rotated, back_s=LASTING_BACK_S)
            for each in seen:
                assert each.kinds() <= {"connection", "rights"}
                assert "rights" in each.kinds()
                self.assert_told(caplog, each)
        assert "hunter2" not in caplog.text

    @pytest.mark.slow
    def test_a_password_where_there_was_none(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        @contextmanager
        def locked() -> Iterator[None]:
            admin.config_set("requirepass", "hunter2")
            close_others(admin)
            yield
            admin.config_set("requirepass", "")

        with both(url_of(own_valkey.port)) as forms:
            for each in live_through("no login", forms, caplog, locked, back_s=LASTING_BACK_S):
                assert each.kinds() <= {"connection", "rights"}
                assert "rights" in each.kinds()
                self.assert_told(caplog, each)
        assert "hunter2" not in caplog.text

    def test_rights_taken_away_from_live_connections(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        def give(*rights: str) -> None:
            admin.execute_command("ACL", "SETUSER", "service", "on", ">pw", "~*", *rights)  # type: ignore[no-untyped-call]  # redis-py has no types

        @contextmanager
        def forbidden() -> Iterator[None]:
            give("-evalsha", "-eval")
            yield
            give("+evalsha", "+eval")

        give("+@all")
        with both(f"redis://service:pw@127.0.0.1:{own_valkey.port}") as forms:
            for each in live_through(
                "rights taken away", forms, caplog, forbidden, back_s=LASTING_BACK_S
            ):
                assert each.kinds() == {"rights"}
                self.assert_told(caplog, each)


class TestNoWrites:
    def test_it_is_a_replica_now(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        nobody = servers.free_port()

        @contextmanager
        def replica() -> Iterator[None]:
            admin.replicaof("127.0.0.1", nobody)
            yield
            admin.replicaof("NO", "ONE")

        with both(url_of(own_valkey.port)) as forms:
            for each in live_through("a replica", forms, caplog, replica):
                # The server may cut off its clients when it changes its role.
                assert {"readonly"} <= each.kinds() <= {"readonly", "connection"}
                assert each.shard.opened >= 1

    @pytest.mark.slow
    def test_too_few_replicas(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        @contextmanager
        def lonely() -> Iterator[None]:
            admin.config_set("min-replicas-to-write", 1)
            yield
            admin.config_set("min-replicas-to-write", 0)

        with both(url_of(own_valkey.port)) as forms:
            for each in live_through("too few replicas", forms, caplog, lonely):
                assert each.kinds() == {"readonly"}
                assert each.shard.opened >= 1

    @pytest.mark.slow
    def test_it_cannot_save(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        in_the_way = own_valkey.folder / "dump.rdb"

        def save(expected: str) -> None:
            admin.bgsave()
            wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == expected)

        @contextmanager
        def unsaved() -> Iterator[None]:
            admin.config_set("save", "3600 1")
            in_the_way.mkdir()
            save("err")
            yield
            in_the_way.rmdir()
            save("ok")

        with both(url_of(own_valkey.port)) as forms:
            for each in live_through("cannot save", forms, caplog, unsaved):
                assert each.kinds() == {"readonly"}
                assert each.shard.opened >= 1


class TestPoisoned:
    def test_one_key_holds_something_else(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        keys = ("poisoned", "well", "too")
        name = redis_key("limen", Check(WIDE, "poisoned"))

        @contextmanager
        def poisoned() -> Iterator[None]:
            pipeline = admin.pipeline()
            pipeline.delete(name)
            pipeline.rpush(name, "not ours")
            pipeline.execute()
            yield
            assert admin.lrange(name, 0, -1) == [b"not ours"], "it was not ours to touch"
            admin.delete(name)

        with both(url_of(own_valkey.port), PATIENT_S) as forms:
            seen = live_through("poisoned", forms, caplog, poisoned, keys=keys)
            for each in seen:
                assert each.kinds() == {"poisoned"}
                told = [row for row in each.load.asked if row.decision and row.decision.degraded]
                assert {row.key for row in told} == {"poisoned"}
                assert len(told) > 5
            with poisoned():
                for form in forms:
                    for _ in range(40):
                        assert form.do(form.limiter.check, "poisoned", WIDE).fault == "poisoned"
                    assert form.do(form.limiter.check, "well", WIDE).source == "store"
                    assert form.limiter.shards[0].opened == 0, "one key is not the server"
        assert "(poisoned)" in caplog.text
        assert name not in caplog.text


def evicting(policy: str, caplog: pytest.LogCaptureFixture, *options: str) -> list[str]:
    """Return what is said about the policy, by both forms, when they connect to such a server."""
    with (
        servers.process(VALKEY, "--maxmemory-policy", policy, *options) as server,
        both(url_of(server.port), PATIENT_S) as forms,
    ):
        for form in forms:
            wait_for_the_store(form)
        # A second connection has nothing new to say.
        with redis.Redis(port=server.port) as admin:
            close_others(admin)
        for form in forms:
            wait_for_the_store(form)
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "limen"
        and record.levelno == logging.WARNING
        and "maxmemory-policy" in record.getMessage()
    ]


class TestEvictionPolicy:
    @pytest.mark.parametrize("policy", ["volatile-ttl", "allkeys-lru"])
    def test_one_that_resets_limits_is_warned_of_once(
        self, policy: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        lines = evicting(policy, caplog, "--maxmemory", "100mb")
        assert len(lines) == 2, "once for each limiter"
        for line in lines:
            assert policy in line
            assert "noeviction" in line

    def test_one_that_refuses_instead_is_not(self, caplog: pytest.LogCaptureFixture) -> None:
        assert evicting("noeviction", caplog, "--maxmemory", "100mb") == []

    def test_one_that_never_applies_is_not(self, caplog: pytest.LogCaptureFixture) -> None:
        assert evicting("allkeys-lru", caplog, "--maxmemory", "0") == []

    def test_whoever_may_not_look_is_served_all_the_same(
        self, own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        rights = ["~limen:*", "-@all", "+evalsha", "+eval", "+script|load", "+script|exists"]
        rights += ["+@hash", "+@string", "+@sortedset", "+@keyspace", "+@scripting", "-config"]
        rights += ["-info", "+time"]
        admin.execute_command("ACL", "SETUSER", "service", "on", ">pw", *rights)  # type: ignore[no-untyped-call]  # redis-py has no types
        with both(f"redis://service:pw@127.0.0.1:{own_valkey.port}", PATIENT_S) as forms:
            for form in forms:
                assert form.limiter.shards[0].faults == {}
        assert "maxmemory" not in caplog.text


@pytest.fixture(scope="module", params=servers.binaries())
def version(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with servers.process(servers.binaries()[request.param]) as started:
        yield started


@pytest.fixture
def control(version: servers.Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=version.port) as client:
        yield client


class TestWords:
    """What each version of a server says inside a script is told by one and the same word."""

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize(
        ("break_it", "mend_it", "kind"),
        [
            ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "memory"),
            (
                "CONFIG SET min-replicas-to-write 1",
                "CONFIG SET min-replicas-to-write 0",
                "readonly",
            ),
            ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "readonly"),
            ("ACL SETUSER service -evalsha -eval", "ACL SETUSER service +@all", "rights"),
            ("ACL SETUSER service -@write", "ACL SETUSER service +@all", "rights"),
            ("ACL SETUSER service resetkeys", "ACL SETUSER service ~*", "rights"),
        ],
    )
    def test_a_fault_is_told_by_its_kind(
        self,
        version: servers.Server,
        control: redis.Redis,
        form: str,
        break_it: str,
        mend_it: str,
        kind: str,
    ) -> None:
        def tell(command: str) -> None:
            control.execute_command(*command.split())  # type: ignore[no-untyped-call]  # redis-py has no types

        tell("ACL SETUSER service on >pw ~* +@all")
        url = f"redis://service:pw@127.0.0.1:{version.port}"
        with opened(form, url, deadline=PATIENT_S) as made:
            tell(break_it)
            try:
                decisions = [made.do(made.limiter.check, "k", WIDE) for _ in range(3)]
            finally:
                tell(mend_it)
            assert {decision.source for decision in decisions} == {"local"}
            assert {decision.fault for decision in decisions} == {kind}
            assert set(made.limiter.shards[0].faults) == {kind}
            wait_for_the_store(made)


def test_the_line_in_the_log_says_what_to_do(
    own_valkey: servers.Server, admin: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with opened("threads", url_of(own_valkey.port), deadline=PATIENT_S) as form:
        admin.config_set("maxmemory", 1)
        form.do(form.limiter.check, "somebody's key", WIDE)
        admin.config_set("maxmemory", 0)
    [line] = [r.getMessage() for r in caplog.records if "(memory)" in r.getMessage()]
    assert re.search(r"out of memory.*raise maxmemory", line)
    assert "somebody" not in line
