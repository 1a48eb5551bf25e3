"""`limen doctor`: what it finds on real servers, what it makes of it, and the rights it prints."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from msgspec import structs

from limen import Concurrency, Decision, Limit, Limiter
from limen.backends.redis import script
from limen.cli import main
from limen.connect import parse
from limen.connect.address import Kind
from limen.doctor import checks, examine, judgement, probe, rights
from limen.doctor.checks import Finding, Status, across
from limen.doctor.facts import Facts, Node, SentinelView, ServerProblem
from limen.model import ALGORITHMS
from tests import servers
from tests.server.product import product
from tests.server.raw import Raw, request
from tests.test_connect import encrypting
from tests.waiting import wait_until

BINARIES = {name: servers.binaries()[name] for name in ("valkey", "redis-6.2")}
CERTIFICATE = Path(__file__).parent / "server" / "tls" / "one.crt"
PASSWORD = "hunter2:s3cret"
NEEDED = tuple(rights.needed_commands("single", 0))
SINGLE = Facts(parse("redis://h:1"), "limen", NEEDED, nodes=(Node("h:1"),))


class Ran(NamedTuple):
    exit_code: int
    out: str
    err: str

    @property
    def marks(self) -> dict[str, str]:
        """The mark of each check."""
        lines = [line.split() for line in self.out.splitlines() if line[:1].strip()]
        return {words[1]: words[0] for words in lines if words[0] in ("ok", "skip", "warn", "FAIL")}

    @property
    def failures(self) -> list[str]:
        return [line for line in self.out.splitlines() if line.startswith("FAIL")]


@pytest.fixture
def doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Run the command in this process; no password may be in what it prints."""

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["limen", "doctor", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            main()
        code = exit_info.value.code
        assert code is None or isinstance(code, int)
        printed = capsys.readouterr()
        assert PASSWORD not in printed.out + printed.err
        assert "s3cret" not in printed.out + printed.err
        return Ran(code or 0, printed.out, printed.err)

    return run


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that runs many tests at once must not look like a server that hangs."""
    monkeypatch.setattr(probe, "_STEP_S", 20.0)
    monkeypatch.setattr(probe, "_TOTAL_S", 60.0)


@pytest.fixture(scope="module", params=BINARIES)
def binary(request: pytest.FixtureRequest) -> Path:
    return BINARIES[request.param]


@pytest.fixture(scope="module")
def port(binary: Path) -> Iterator[int]:
    with servers.server(binary) as port:
        yield port


@pytest.fixture(scope="module")
def cluster() -> Iterator[servers.Cluster]:
    with servers.cluster(BINARIES["valkey"], masters=2, replicas=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sentinel() -> Iterator[servers.Sentinel]:
    with servers.sentinel(BINARIES["valkey"]) as sentinel:
        yield sentinel


def do(port: int, command: str) -> Any:
    """Send a command as an administrator types it."""
    with redis.Redis(port=port, decode_responses=True) as client:
        return client.execute_command(*command.split())


def as_limen(port: int, tail: str = "") -> str:
    return f"redis://{rights.USER}:{PASSWORD}@127.0.0.1:{port}{tail}"


def typed(line: str) -> str:
    return line.replace("PASSWORD", PASSWORD)


def use_every_verb(limiter: Limiter, key: str) -> None:
    """Do all that a limiter can do, and see that the store did it."""

    def by_store(decision: Decision) -> Decision:
        assert not decision.degraded
        return decision

    limits = [Limit.parse(f"10/minute {name}") for name in ALGORITHMS]
    for limit in limits:
        decision = by_store(limiter.check(key, limit, cost=3))
        assert decision.allowed
        by_store(limiter.peek(key, limit))
        assert limiter.settle(decision, 1)
        assert limiter.settle(by_store(limiter.check(key, limit)), 2)
        assert limiter.refund(by_store(limiter.check(key, limit)))
        by_store(limiter.check(key, limit, cost=10))  # refused
        limiter.reset(key, limit)
    by_store(limiter.check(key, *limits))
    limiter.reset(key, *limits)
    with limiter.slot(key, Concurrency(2, lease=30)) as slot:
        assert slot.renew()
    assert not slot.release()


# The rights


def test_rights_are_read_off_every_call_in_the_script() -> None:
    text = re.sub(r"--.*", "", script.text())
    calls = re.findall(r"redis\s*\.\s*p?call\b", text)
    named = re.findall(r'redis\.p?call\(\s*"([A-Z]+)"', text)
    assert len(calls) == len(named)
    assert set(named) == set(rights.inner_commands())
    assert "TIME" in named


def test_the_line_allows_what_is_needed_and_nothing_else() -> None:
    line = rights.acl_line("shop", NEEDED)
    assert line.startswith("ACL SETUSER limen reset resetchannels on >PASSWORD ~shop:* +evalsha ")
    assert " +script|exists +script|load " in line
    assert "@" not in line
    assert "select" not in line
    assert "&" not in line
    assert rights.needed_commands("single", 1)[5] == "SELECT"
    assert rights.needed_commands("cluster", 0)[5:7] == ["CLUSTER SLOTS", "ASKING"]
    line = rights.acl_line("shop", rights.needed_commands("single", 0, "service"))
    assert " ~shop:* &shop:{rules}news +evalsha " in line
    assert "@" not in line


def test_a_user_with_the_printed_line_can_do_everything_a_limiter_does(port: int) -> None:
    for database in (0, 1):
        line = rights.acl_line("limen", rights.needed_commands("single", database))
        assert do(port, typed(line)) == "OK"
        with Limiter(as_limen(port, f"/{database}"), deadline=20) as limiter:
            limiter.ping()
            use_every_verb(limiter, f"user:{database}")


ADMINISTRATION = {"acl", "config", "info", "client", "command", "replconf", "psync", "ping"}
"""What the tests themselves and replicas send. That a user may, the ACL LOG shows."""
WITHOUT_RIGHTS = {"auth", "hello"}
"""What every user may send."""


def granted(line: str) -> set[str]:
    """Return the commands that a line allows, without their subcommands."""
    return {word[1:].partition("|")[0] for word in line.split() if word.startswith("+")}


def used(ports: Sequence[int]) -> set[str]:
    """Return the commands that servers have run since the last CONFIG RESETSTAT."""
    names = {name for port in ports for name in do(port, "INFO commandstats")}
    return {name.removeprefix("cmdstat_").partition("|")[0] for name in names}


def denied(ports: Sequence[int]) -> list[Any]:
    """Return what servers have refused the user since the last ACL LOG RESET."""
    return [entry for port in ports for entry in do(port, "ACL LOG")]


def make_user(ports: Sequence[int], line: str) -> None:
    for port in ports:
        do(port, typed(line))
        do(port, "ACL LOG RESET")
        do(port, "CONFIG RESETSTAT")


def test_a_limiter_with_the_printed_line_is_denied_nothing(port: int) -> None:
    line = rights.acl_line("limen", NEEDED)
    make_user([port], line)
    with Limiter(as_limen(port), deadline=20) as limiter:
        limiter.ping()
        use_every_verb(limiter, "user:denied-nothing")
    assert denied([port]) == []
    # Also what a server does not log, such as a command that is tried and not missed.
    assert used([port]) - ADMINISTRATION - WITHOUT_RIGHTS <= granted(line)


SERVICE_RULES = """\
rules:
  - {name: login, match: {path: /login}, key: ip, limits: 2/minute}
  - {name: exports, match: {path: /export}, key: user, concurrency: {slots: 1, lease: 30s}}
"""
SEEN_IN_A_RUN = {
    "evalsha", "eval", "publish", "subscribe", "hmget", "hvals", "getrange", "lpush", "lrange",
    "hset", "hget", "hkeys", "zadd", "set", "get", "info",
}  # fmt: skip
"""Commands that a short run of the service must have used, so that the test shows something."""


def use_whole_service(url: str, folder: Path, ports: Sequence[int]) -> None:
    """Run `limen serve` with two workers, use all that needs the store, and end it."""
    (folder / "rules.yaml").write_text(SERVICE_RULES, encoding="utf-8")
    (folder / "limen.toml").write_text('namespace = "shop"\n', encoding="utf-8")
    settings = {"store__url": url, "store__deadline": "10"}
    apply = [sys.executable, "-m", "limen", "rules", "apply", "rules.yaml", "--yes"]
    with product(folder, "--workers", "2", **settings) as service:
        wait_until(lambda: b'"instances":2' in service.ask("/readyz").body, 40)
        admin = (folder / ".limen" / "admin-token").read_text().strip()
        auth = f"Authorization: Bearer {admin}"
        ran = subprocess.run(
            apply, cwd=folder, env=service.environment, capture_output=True, text=True, check=True
        )
        assert "2 of 2 processes confirmed it" in ran.stdout, ran

        def ask(path: str, method: str = "GET", body: Any = None) -> Any:
            response = service.ask(path, auth, method=method, body=body)
            assert response.status in (200, 201, 204, 429), (path, response)
            return json.loads(response.body) if response.body[:1] == b"{" else {}

        login = {"attributes": {"path": "/login", "ip": "203.0.113.7"}}
        decisions = [ask("/v1/check", "POST", login) for _ in range(5)]
        assert [decision["allowed"] for decision in decisions] == [True] * 2 + [False] * 3
        assert not any(decision["degraded"] for decision in decisions)
        ask("/v1/refund", "POST", {"receipt": decisions[0]["receipt"]})
        slot = ask("/v1/slots", "POST", {"attributes": {"path": "/export", "user": "1"}})["slot"]
        ask(f"/v1/slots/{slot}", "POST")
        ask(f"/v1/slots/{slot}", "DELETE")
        ask("/admin/v1/keys/inspect", "POST", login)
        ask("/admin/v1/keys/reset", "POST", login)
        assert ask("/admin/v1/kill-switch", "PUT", {"on": True})["other_hosts"] == "reached"
        for path in ("instances", "insight", "insight/rules/login", "decisions", "alerts"):
            ask(f"/admin/v1/{path}")
        ask("/metrics")
        with Raw(service.port, timeout=30) as live:
            live.send(request("/admin/v1/live", auth))
            wait_until(live.has_answer)
            wait_until(lambda: used(ports) >= SEEN_IN_A_RUN)
        assert json.loads(service.ask("/readyz").body)["status"] == "ok"
        service.signal(signal.SIGTERM)
        assert service.code() == 0
        assert {"zrem", "hdel"} <= used(ports)  # it has said that it is gone


def assert_service_is_denied_nothing(url: str, kind: Kind, ports: list[int], folder: Path) -> None:
    line = rights.acl_line("shop", rights.needed_commands(kind, 0, "service"))
    make_user(ports, line)
    try:
        use_whole_service(url, folder, ports)
        assert denied(ports) == []
        assert used(ports) - ADMINISTRATION - WITHOUT_RIGHTS <= granted(line)
    finally:  # others use these servers too
        for port in ports:
            do(port, f"ACL DELUSER {rights.USER}")
            if do(port, "ROLE")[0] == "master":
                do(port, "FLUSHALL")


def test_a_service_with_the_printed_line_is_denied_nothing(port: int, tmp_path: Path) -> None:
    do(port, "FLUSHALL")
    assert_service_is_denied_nothing(as_limen(port), "single", [port], tmp_path)


@pytest.mark.slow
def test_a_service_with_the_printed_line_is_denied_nothing_in_a_cluster(
    cluster: servers.Cluster, tmp_path: Path
) -> None:
    nodes = ",".join(f"127.0.0.1:{port}" for port in cluster.ports[:2])
    url = f"redis+cluster://{rights.USER}:{PASSWORD}@{nodes}"
    assert_service_is_denied_nothing(url, "cluster", cluster.ports, tmp_path)


@pytest.mark.slow
def test_a_service_with_the_printed_line_is_denied_nothing_behind_sentinels(
    sentinel: servers.Sentinel, tmp_path: Path
) -> None:
    url = sentinel_url(sentinel, login=f"{rights.USER}:{PASSWORD}@")
    assert_service_is_denied_nothing(url, "sentinel", [sentinel.primary_port()], tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "KEYS *",
        "FLUSHALL",
        "FLUSHDB",
        "CONFIG GET maxmemory",
        "CONFIG SET maxmemory 1",
        "SCRIPT FLUSH",
        "ACL WHOAMI",
        "SELECT 1",
        "PUBLISH channel message",
        "GET other:key",
        "SET other:key 1",
        "DEL limenother",
        "EVAL return_1 1 other:key",
    ],
)
def test_a_user_with_the_printed_line_can_do_nothing_else(port: int, command: str) -> None:
    do(port, typed(rights.acl_line("limen", NEEDED)))
    with (
        redis.Redis(port=port, username=rights.USER, password=PASSWORD) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.execute_command(*command.split())


@pytest.mark.parametrize("call", ['"KEYS", "*"', '"FLUSHALL"', '"GET", "other:key"'])
def test_a_user_with_the_printed_line_can_do_nothing_else_in_a_script(port: int, call: str) -> None:
    do(port, typed(rights.acl_line("limen", NEEDED)))
    with (
        redis.Redis(port=port, username=rights.USER, password=PASSWORD) as client,
        pytest.raises(redis.ResponseError, match=r"ACL failure|can't (run|access)"),
    ):
        client.eval(f"return redis.call({call})", 0)


@pytest.mark.parametrize("role", ["library", "service"])
def test_each_command_of_the_line_is_missed_when_it_is_left_out(
    port: int, role: rights.Role
) -> None:
    needed = rights.needed_commands("single", 0, role)
    for missing in needed:
        do(port, typed(rights.acl_line("limen", [name for name in needed if name != missing])))
        facts = probe.collect(parse(as_limen(port)), "limen", role)
        assert list(facts.nodes[0].refused) == [missing]
        assert judgement.judge(facts)[2].status != "ok"


def test_a_channel_that_is_closed_is_granted_with_its_commands(port: int) -> None:
    needed = rights.needed_commands("single", 0, "service")
    do(port, "FLUSHALL")
    do(port, typed(rights.acl_line("limen", needed)).replace("&limen:{rules}news", "&other"))
    facts = probe.collect(parse(as_limen(port)), "limen", "service")
    assert list(facts.nodes[0].refused) == ["PUBLISH", "SUBSCRIBE"]
    finding = judgement.rights(facts)
    assert "may not run PUBLISH, SUBSCRIBE" in finding.found
    grant = finding.advice.splitlines()[1]
    assert grant == "ACL SETUSER limen ~limen:* &limen:{rules}news +publish +subscribe"
    do(port, grant)
    facts = probe.collect(parse(as_limen(port)), "limen", "service")
    assert judgement.rights(facts).status == "ok"
    assert do(port, "DBSIZE") == 0


def test_trying_the_rights_changes_nothing(port: int) -> None:
    do(port, "FLUSHALL")
    # Without TIME nothing can be decided, so the rights are all that is tried.
    do(port, typed(rights.acl_line("limen", [name for name in NEEDED if name != "TIME"])))
    before = do(port, "INFO persistence")["rdb_changes_since_last_save"]
    facts = probe.collect(parse(as_limen(port)), "limen")
    assert not facts.nodes[0].decided
    assert do(port, "INFO persistence")["rdb_changes_since_last_save"] == before


def rights_with(refused: dict[str, str], user: str = "app") -> Finding:
    target = parse("redis://h:1" if user == "default" else f"redis://{user}:x@h:1")
    facts = structs.replace(SINGLE, target=target, nodes=(Node("h:1", refused=refused),))
    return judgement.rights(facts)


DENIED = "NOPERM User app has no permissions to run the 'x' command"
CLOSED = "NOPERM No permissions to access a key"


@pytest.mark.parametrize(
    ("refused", "status", "found", "granted"),
    [
        ({"EVALSHA": DENIED}, "FAIL", "user app may not run EVALSHA", "~limen:* +evalsha"),
        ({"ZADD": DENIED, "GET": DENIED}, "FAIL", "may not run GET, ZADD", "~limen:* +get +zadd"),
        ({"GET": CLOSED, "SET": CLOSED}, "FAIL", "may not touch keys limen:*", "~limen:*"),
        ({"GET": CLOSED, "EVAL": DENIED}, "FAIL", "keys limen:*, nor run EVAL", "~limen:* +eval"),
        ({"SCRIPT LOAD": DENIED}, "warn", "the whole script", "~limen:* +script|load"),
        ({"EVAL": DENIED}, "warn", "after SCRIPT FLUSH", "~limen:* +eval"),
    ],
)
def test_missing_rights_are_named_with_the_line_that_grants_them(
    refused: dict[str, str], status: Status, found: str, granted: str
) -> None:
    finding = rights_with(refused)
    assert finding.status == status
    assert found in finding.found
    _, grant, whole = finding.advice.splitlines()
    # Never a line that takes other rights from a user who has them.
    assert grant == f"ACL SETUSER app {granted}"
    assert whole == rights.acl_line("limen", NEEDED)


def test_the_default_user_is_never_to_be_changed() -> None:
    advice = rights_with({"EVAL": DENIED, "EVALSHA": DENIED}, user="default").advice
    assert "SETUSER default" not in advice
    assert rights.acl_line("limen", NEEDED) in advice


def test_a_command_the_server_does_not_have_is_not_a_matter_of_rights() -> None:
    finding = rights_with({"EVALSHA": "ERR unknown command 'EVALSHA'"})
    assert finding.status == "FAIL"
    assert finding.found == "the server has no EVALSHA"


# What follows from facts


def test_connections_warn_when_the_server_accepts_fewer() -> None:
    node = Node("h:1", {"maxclients": "10000"})
    assert checks.connections(node, 10_000).status == "ok"
    finding = checks.connections(node, 10_016)
    assert finding.status == "warn"
    assert finding.found.startswith("limiters may open 10,016 connections")
    assert "CONFIG SET maxclients 20032" in finding.advice
    assert checks.connections(Node("h:1"), 16).status == "skip"


@pytest.mark.parametrize(
    ("told", "status", "found"),
    [
        ({"maxmemory": "0", "maxmemory_policy": "noeviction"}, "ok", "nothing is thrown away"),
        ({"maxmemory": "0", "maxmemory-policy": "allkeys-lru"}, "ok", "nothing is thrown away"),
        ({"maxmemory": "1073741824", "maxmemory_policy": "noeviction"}, "ok", "maxmemory 1 GB"),
        ({"maxmemory": "1000", "maxmemory_policy": "allkeys-lru"}, "warn", "may be reset"),
        ({"maxmemory": "1000", "maxmemory_policy": "volatile-lfu"}, "warn", "among the first"),
        ({"maxmemory": "1000", "maxmemory_policy": "volatile-ttl"}, "warn", "first of all"),
        ({}, "skip", "not checked: "),
    ],
)
def test_eviction_warns_where_limits_may_be_reset(
    told: dict[str, str], status: Status, found: str
) -> None:
    finding = checks.eviction(Node("h:1", told))
    assert finding.status == status
    assert found in finding.found
    assert (status == "warn") == ("CONFIG SET maxmemory-policy noeviction" in finding.advice)


@pytest.mark.parametrize(
    ("told", "status", "found"),
    [
        ({"appendonly": "yes", "save": ""}, "ok", "append-only file"),
        ({"aof_enabled": "1"}, "ok", "append-only file"),
        ({"appendonly": "no", "save": "3600 1"}, "ok", "snapshots"),
        ({"appendonly": "no", "save": ""}, "warn", "use up its limit once more"),
        ({"aof_enabled": "0"}, "skip", "not checked: "),
        ({}, "skip", "not checked: "),
    ],
)
def test_persistence_says_what_a_restart_forgets(
    told: dict[str, str], status: Status, found: str
) -> None:
    finding = checks.persistence(Node("h:1", told))
    assert finding.status == status
    assert found in finding.found
    assert (status == "warn") == ("a day or a month" in finding.advice)


@pytest.mark.parametrize(
    ("ahead_s", "status", "found"),
    [
        (0.9, "ok", "agrees"),
        (-0.9, "ok", "agrees"),
        (3600.04, "ok", "3,600.0 s ahead of this machine's: no matter"),
        (-5.0, "ok", "5.0 s behind this machine's: no matter"),
        (None, "skip", "not checked"),
    ],
)
def test_a_clock_apart_is_told_and_never_wrong(
    ahead_s: float | None, status: Status, found: str
) -> None:
    finding = checks.clock([Node("a", ahead_s=0.1), Node("b", ahead_s=ahead_s)])
    if ahead_s is None:
        assert finding.status == "ok"
        finding = checks.clock([Node("a")])
    assert finding.status == status
    assert found in finding.found


@pytest.mark.parametrize(
    ("times_ms", "status", "found"),
    [
        ([1.0] * 99 + [400.0], "ok", "median 1.00 ms, p99 1.00 ms of 100"),
        ([1.0] * 48 + [25.0, 25.0], "ok", "p99 25.00 ms"),
        ([1.0] * 49 + [25.1], "warn", "p99 25.10 ms"),
        ([80.0], "warn", "median 80.00 ms, p99 80.00 ms"),
        ([], "skip", "not checked"),
    ],
)
def test_latency_warns_above_half_the_deadline(
    times_ms: list[float], status: Status, found: str
) -> None:
    finding = checks.latency(times_ms)
    assert finding.status == status
    assert found in finding.found


def test_latency_advises_a_deadline_above_what_was_measured() -> None:
    assert checks.latency([80.0]).advice.endswith("deadline=0.2")


@pytest.mark.parametrize(
    ("nodes", "status", "found"),
    [
        ([(8_192, "ok"), (8_192, "ok")], "ok", "16,384 of 16,384 are served, cluster_state ok"),
        ([(16_384, "")], "ok", "cluster_state not told"),
        ([(16_383, "ok")], "FAIL", "16,383 of 16,384"),
        ([(8_192, "ok"), (8_192, "fail")], "FAIL", "cluster_state fail and ok"),
    ],
)
def test_every_slot_must_be_served(
    nodes: Sequence[tuple[int, str]], status: Status, found: str
) -> None:
    told = [{"cluster_state": state} if state else {} for _, state in nodes]
    finding = checks.slots(
        [Node("h:1", told[index], slots=count) for index, (count, _) in enumerate(nodes)]
    )
    assert finding.status == status
    assert found in finding.found


@pytest.mark.parametrize(
    ("values", "status"),
    [(["no", "no"], "ok"), (["no", "yes"], "warn"), (["no", None], "skip")],
)
def test_full_coverage_is_warned_of(values: list[str | None], status: Status) -> None:
    name = "cluster-require-full-coverage"
    finding = checks.coverage([Node("h:1", {name: value} if value else {}) for value in values])
    assert finding.status == status
    assert (status == "warn") == (f"CONFIG SET {name} no" in finding.advice)


@pytest.mark.parametrize(
    ("counts", "status", "found"),
    [
        ([1, 2], "ok", "every master has 1 replica or more"),
        ([1, 0], "warn", "none for h:1: its keys"),
        ([0, 0], "warn", "none for 2 of 2 masters"),
    ],
)
def test_a_master_without_replica_is_warned_of(
    counts: list[int], status: Status, found: str
) -> None:
    nodes = [Node(f"h:{index}", replicas=count) for index, count in enumerate(counts)]
    finding = checks.replicas(nodes)
    assert finding.status == status
    assert found in finding.found


@pytest.mark.parametrize(
    ("view", "status", "advice"),
    [
        (SentinelView({"a": "p", "b": "p", "c": "p"}, (), 3), "ok", ""),
        (SentinelView({"a": "p", "b": "p", "c": "p"}, ()), "ok", ""),
        (SentinelView({"a": "p", "b": "q"}, (), 3), "warn", "a failover may be going on"),
        (SentinelView({"a": "p"}, ("b", "c"), 3), "warn", "start b, c"),
        (SentinelView({"a": "p"}, (), 1), "warn", "run 3 or more"),
        (SentinelView({"a": "p"}, (), 5), "warn", "name more in the URL"),
    ],
)
def test_sentinels_are_counted(view: SentinelView, status: Status, advice: str) -> None:
    finding = checks.sentinels(view)
    assert finding.status == status
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        ("OK 3 usable Sentinels. Quorum and failover authorization can be reached", "ok"),
        ("NOQUORUM 1 usable Sentinels. Not enough available Sentinels to reach", "FAIL"),
        ("", "skip"),
    ],
)
def test_a_quorum_must_be_within_reach(reply: str, status: Status) -> None:
    assert checks.quorum(reply).status == status


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"min-replicas-to-write": "0"}, "warn"),
        ({"min-replicas-to-write": "1"}, "ok"),
        ({}, "skip"),
    ],
)
def test_a_primary_that_never_stops_is_warned_of(told: dict[str, str], status: Status) -> None:
    assert checks.lag(Node("h:1", told)).status == status


def test_the_gravest_finding_speaks_for_all_nodes() -> None:
    marks: dict[str, Status] = {"a": "ok", "b": "warn", "c": "skip", "d": "warn"}
    nodes = [Node(where) for where in marks]
    one = across(nodes, lambda node: Finding("x", marks[node.where], f"found {node.where}"))
    assert one == Finding("x", "warn", "b: found b (and 1 more like it)")
    same = across(nodes, lambda node: Finding("x", "ok", "found"))
    assert same == Finding("x", "ok", "found")


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (
            {"server_name": "valkey", "valkey_version": "9.1.2", "redis_version": "7.2"},
            "valkey 9.1.2",
        ),
        ({"redis_version": "6.2.14"}, "redis 6.2.14"),
        ({"server_name": "other", "redis_version": "7.0"}, "other 7.0"),
        ({}, "it does not say which (no right to INFO)"),
    ],
)
def test_a_server_is_called_what_it_calls_itself(told: dict[str, str], name: str) -> None:
    assert judgement.server_name(told) == name


@pytest.mark.parametrize(
    ("url", "problem", "check", "advice"),
    [
        ("redis://h:1", ServerProblem("h:1", "connection", "refused"), "reachable", "start"),
        ("redis://h:1", ServerProblem("h:1", "protocol", "got H"), "reachable", "no Redis"),
        ("rediss://h:1", ServerProblem("h:1", "tls", "wrong"), "reachable", "write redis://"),
        ("rediss://h:1", ServerProblem("h:1", "timeout", ""), "reachable", "write redis://"),
        ("redis://h:1", ServerProblem("h:1", "timeout", ""), "reachable", "hangs"),
        ("redis://h:1", ServerProblem("h:1", "rights", "NOAUTH"), "login", "put the password"),
        ("redis://h:1", ServerProblem("h:1", "rights", "bad"), "login", "check user"),
        (
            "redis://h:1",
            ServerProblem("h:1", "rights", "called without any password configured"),
            "login",
            "leave it out",
        ),
        (
            "redis://h:1/1",
            ServerProblem("h:1", "script", "User x has no permissions to run the 'select' command"),
            "rights",
            "ACL SETUSER limen reset",
        ),
        (
            "redis://h:1/99",
            ServerProblem("h:1", "script", "DB index is out of range"),
            "reachable",
            "databases",
        ),
        (
            "redis+cluster://h:1",
            ServerProblem("h:1", "script", "ERR This instance has cluster support disabled"),
            "reachable",
            "write redis://h:1",
        ),
        (
            "redis+cluster://h:1",
            ServerProblem("10.0.0.1:1", "timeout", "no answer"),
            "reachable",
            "cluster-announce-ip",
        ),
        (
            "redis+sentinel://h:1/x",
            ServerProblem("10.0.0.1:1", "timeout", "no answer"),
            "reachable",
            "replica-announce-ip",
        ),
        (
            "redis+sentinel://h:1/x",
            ServerProblem("h:1", "connection", "refused", sentinel=True),
            "reachable",
            "start",
        ),
        (
            "redis+sentinel://h:1/x",
            ServerProblem("h:1", "rights", "NOAUTH", sentinel=True),
            "login",
            "sentinel_password",
        ),
        (
            "redis+sentinel://h:1/x",
            ServerProblem("h:1", "rights", "NOPERM User x has no permissions to", sentinel=True),
            "rights",
            "+sentinel|get-master-addr-by-name",
        ),
        (
            "redis+sentinel://h:1/x",
            ServerProblem("h:1", "script", "ERR unknown command 'SENTINEL'", sentinel=True),
            "reachable",
            "no sentinel",
        ),
        (
            "redis+sentinel://h:1/x",
            ServerProblem("h:1", "service", "", sentinel=True),
            "reachable",
            "behind the /",
        ),
    ],
)
def test_each_trouble_is_one_failure_with_what_to_do(
    url: str, problem: ServerProblem, check: str, advice: str
) -> None:
    findings = judgement.judge(Facts(parse(url), "limen", NEEDED, problems=(problem,)))
    [failure] = [finding for finding in findings if finding.status == "FAIL"]
    assert failure.check == check
    assert problem.where in failure.found
    assert advice in failure.advice
    assert [finding.check for finding in findings[:-1]] in ([], ["reachable"])


def test_a_lost_node_does_not_hide_what_the_others_say() -> None:
    node = Node("h:1", {"cluster_state": "ok"}, decided=True, slots=8_192)
    lost = ServerProblem("h:2", "connection", "Connection refused")
    facts = Facts(parse("redis+cluster://h:1"), "limen", NEEDED, (node,), (lost,))
    marks = {finding.check: finding.status for finding in judgement.judge(facts)}
    assert marks["reachable"] == marks["slots"] == "FAIL"
    assert marks["script"] == "ok"


def test_a_decision_that_was_not_tried_is_not_called_good() -> None:
    assert judgement.script(Node("h:1")).status == "skip"


# On real servers


def test_a_good_server_passes_and_nothing_is_left_behind(
    doctor: Callable[..., Ran], port: int
) -> None:
    do(port, "FLUSHALL")
    ran = doctor(f"redis://127.0.0.1:{port}")
    assert ran.exit_code == 0
    assert ran.err == ""
    assert "\x1b" not in ran.out
    assert ran.marks == {
        "reachable": "ok",
        "login": "ok",
        "rights": "ok",
        "script": "ok",
        "latency": ran.marks["latency"],
        "eviction": "ok",
        "persistence": "warn",
        "clock": "ok",
        "connections": "ok",
    }
    assert rights.acl_line("limen", NEEDED) in ran.out
    assert do(port, "DBSIZE") == 0


def test_connections_are_those_of_all_processes(doctor: Callable[..., Ran], port: int) -> None:
    url = f"redis://127.0.0.1:{port}?max_connections=100"
    ran = doctor(url, "--processes", "101")
    assert ran.marks["connections"] == "warn"
    assert "may open 10,100 connections" in ran.out
    assert "connections" not in doctor(url, "--for", "service").marks


def test_the_user_of_the_printed_line_passes_and_cannot_look_at_settings(
    doctor: Callable[..., Ran], port: int
) -> None:
    do(port, typed(rights.acl_line("shop", NEEDED)))
    ran = doctor(as_limen(port), "--namespace", "shop")
    assert ran.exit_code == 0
    assert [check for check, mark in ran.marks.items() if mark == "skip"] == ["persistence"]
    assert "not checked: no right to CONFIG GET" in ran.out
    other = doctor(as_limen(port))
    assert other.exit_code == 1
    assert "may not touch keys limen:*" in other.failures[0]


def test_settings_that_harm_limits_are_warned_of(doctor: Callable[..., Ran], port: int) -> None:
    do(port, "CONFIG SET maxmemory 1gb")
    do(port, "CONFIG SET maxmemory-policy volatile-ttl")
    try:
        ran = doctor(f"redis://127.0.0.1:{port}")
    finally:
        do(port, "CONFIG SET maxmemory 0")
        do(port, "CONFIG SET maxmemory-policy noeviction")
    assert ran.exit_code == 0
    assert ran.marks["eviction"] == "warn"
    assert "volatile-ttl, maxmemory 1 GB" in ran.out
    assert ran.out.rstrip().endswith("no failure, 2 warnings")


def test_json_is_a_list_of_findings(doctor: Callable[..., Ran], port: int) -> None:
    ran = doctor(f"redis://127.0.0.1:{port}", "--json")
    findings = json.loads(ran.out)
    assert ran.exit_code == 0
    assert [finding["check"] for finding in findings][:3] == ["reachable", "login", "rights"]
    assert {tuple(finding) for finding in findings} == {("check", "status", "found", "advice")}


def test_a_full_server_fails_by_its_decision(doctor: Callable[..., Ran], port: int) -> None:
    do(port, "CONFIG SET maxmemory 1")
    try:
        ran = doctor(f"redis://127.0.0.1:{port}")
    finally:
        do(port, "CONFIG SET maxmemory 0")
    assert ran.exit_code == 1
    [failure] = ran.failures
    assert "OOM" in failure
    assert "raise maxmemory" in ran.out


def test_missing_script_rights_are_one_failure(doctor: Callable[..., Ran], port: int) -> None:
    do(port, f"ACL SETUSER app reset on >{PASSWORD} ~* +@all -@scripting")
    ran = doctor(f"redis://app:{PASSWORD}@127.0.0.1:{port}")
    assert ran.exit_code == 1
    [failure] = ran.failures
    assert "user app may not run EVALSHA, EVAL, SCRIPT EXISTS, SCRIPT LOAD" in failure
    assert "ACL SETUSER app ~limen:* +evalsha +eval +script|exists +script|load\n" in ran.out


@pytest.mark.parametrize(
    ("login", "found"),
    [
        (f"nobody:{PASSWORD}@", "invalid username-password"),
        (f":{PASSWORD}@", "without any password"),
    ],
)
def test_a_wrong_login_is_one_failure(
    doctor: Callable[..., Ran], port: int, login: str, found: str
) -> None:
    ran = doctor(f"redis://{login}127.0.0.1:{port}")
    assert ran.exit_code == 1
    assert ran.marks == {"reachable": "ok", "login": "FAIL"}
    assert found in ran.failures[0]


def test_a_missing_password_is_one_failure(doctor: Callable[..., Ran], binary: Path) -> None:
    with servers.server(binary, "--requirepass", PASSWORD) as port:
        ran = doctor(f"redis://127.0.0.1:{port}")
        assert ran.marks == {"reachable": "ok", "login": "FAIL"}
        assert doctor(f"redis://:{PASSWORD}@127.0.0.1:{port}").exit_code == 0


def test_a_server_that_quotes_the_password_is_not_repeated(
    doctor: Callable[..., Ran], binary: Path
) -> None:
    with servers.server(binary, "--rename-command", "AUTH", "") as port:
        ran = doctor(f"redis://:{PASSWORD}@127.0.0.1:{port}")
    assert ran.exit_code == 1
    assert "unknown command" in ran.failures[0]


@pytest.mark.parametrize("scheme", ["redis+cluster", "redis+sentinel", "rediss"])
def test_a_single_server_under_another_scheme_is_one_failure(
    doctor: Callable[..., Ran], port: int, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_STEP_S", 0.5)
    ran = doctor(f"{scheme}://127.0.0.1:{port}" + ("/x" if "sentinel" in scheme else ""))
    assert ran.exit_code == 1
    assert len(ran.failures) == 1
    assert "write redis://" in ran.out


@pytest.mark.parametrize("form", ["", "+cluster", "+sentinel"])
def test_a_server_with_tls_under_an_address_without_it_is_named(
    doctor: Callable[..., Ran], port: int, form: str
) -> None:
    with encrypting(CERTIFICATE, port) as front:
        path = "/x" if "sentinel" in form else ""
        ran = doctor(f"redis{form}://127.0.0.1:{front.port}{path}")
    assert ran.marks == {"reachable": "FAIL"}
    assert f"if the server has TLS, write rediss{form}://" in ran.out


def test_a_missing_ca_file_is_named(doctor: Callable[..., Ran], tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    ran = doctor(f"rediss://127.0.0.1:1?ssl_ca_certs={missing}")
    assert ran.marks == {"reachable": "FAIL"}
    assert f"cannot read {missing} (ssl_ca_certs)" in ran.failures[0]
    assert "start the server" not in ran.out


def test_nobody_there_is_one_failure(doctor: Callable[..., Ran]) -> None:
    ran = doctor(f"redis://127.0.0.1:{servers.free_port()}")
    assert ran.exit_code == 1
    assert ran.marks == {"reachable": "FAIL"}
    assert "Connection refused" in ran.failures[0]


@pytest.mark.parametrize("login", ["", f":{PASSWORD}@"])
def test_a_web_server_is_one_failure(doctor: Callable[..., Ran], login: str) -> None:
    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    web = HTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        ran = doctor(f"redis://{login}127.0.0.1:{web.server_port}")
    finally:
        web.shutdown()
        thread.join()
        web.server_close()
    assert ran.exit_code == 1
    assert ran.marks == {"reachable": "FAIL"}
    assert "this is no Redis" in ran.out


def test_silence_has_a_bound_however_many_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_STEP_S", 1.0)
    monkeypatch.setattr(probe, "_TOTAL_S", 0.3)
    with socket.create_server(("0.0.0.0", 0)) as silent:
        port = silent.getsockname()[1]
        hosts = [f"127.0.0.{number}:{port}" for number in range(1, 9)]
        began = time.monotonic()
        _, findings = examine(f"redis+cluster://{','.join(hosts)}")
        assert time.monotonic() - began < len(hosts)
        _, [finding] = examine(f"redis://{hosts[0]}")
    assert [finding.check for finding in findings] == ["reachable"]
    assert "no answer within 1.0 s" in finding.found


# A cluster, and sentinels


def cluster_url(cluster: servers.Cluster, login: str = "") -> str:
    return f"redis+cluster://{login}127.0.0.1:{cluster.ports[0]}"


def test_a_cluster_is_looked_at_as_a_whole(
    doctor: Callable[..., Ran], cluster: servers.Cluster
) -> None:
    ran = doctor(cluster_url(cluster))
    assert ran.exit_code == 0
    assert "a cluster with 2 masters: valkey" in ran.out
    assert "16,384 of 16,384 are served, cluster_state ok" in ran.out
    assert [ran.marks[check] for check in ("script", "slots", "coverage")] == ["ok"] * 3
    assert f"none for 127.0.0.1:{cluster.ports[1]}" in ran.out
    assert [do(port, "DBSIZE") for port in cluster.ports] == [0, 0, 0]


def test_a_cluster_that_stops_as_a_whole_is_warned_of(
    doctor: Callable[..., Ran], cluster: servers.Cluster
) -> None:
    do(cluster.ports[1], "CONFIG SET cluster-require-full-coverage yes")
    try:
        ran = doctor(cluster_url(cluster))
    finally:
        do(cluster.ports[1], "CONFIG SET cluster-require-full-coverage no")
    assert ran.marks["coverage"] == "warn"
    assert "CONFIG SET cluster-require-full-coverage no\n" in ran.out


def test_a_node_of_a_cluster_is_no_single_server(
    doctor: Callable[..., Ran], cluster: servers.Cluster
) -> None:
    ran = doctor(f"redis://127.0.0.1:{cluster.ports[0]}")
    assert ran.exit_code == 1
    assert f"write redis+cluster://127.0.0.1:{cluster.ports[0]}" in ran.out


def test_a_user_with_the_printed_line_can_use_a_cluster(
    doctor: Callable[..., Ran], cluster: servers.Cluster
) -> None:
    line = rights.acl_line("limen", rights.needed_commands("cluster", 0))
    login = f"{rights.USER}:{PASSWORD}@"
    do(cluster.ports[0], typed(line))
    ran = doctor(cluster_url(cluster, login))
    assert ran.exit_code == 1
    assert "invalid username-password" in ran.failures[0]
    do(cluster.ports[1], typed(line))
    assert doctor(cluster_url(cluster, login)).exit_code == 0
    with Limiter(cluster_url(cluster, login), deadline=20) as limiter:
        for user in range(4):
            use_every_verb(limiter, f"user:{user}")


def sentinel_url(sentinel: servers.Sentinel, *, login: str = "", tail: str = "") -> str:
    hosts = ",".join(f"127.0.0.1:{port}" for port in sentinel.sentinel_ports)
    return f"redis+sentinel://{login}{hosts}/{sentinel.service}{tail}"


def test_a_primary_under_sentinels_is_found_and_looked_at(
    doctor: Callable[..., Ran], sentinel: servers.Sentinel
) -> None:
    ran = doctor(sentinel_url(sentinel))
    assert ran.exit_code == 0
    assert f"the primary 127.0.0.1:{sentinel.primary_port()}" in ran.out
    assert "3 of 3 in the URL answer, 3 know of each other" in ran.out
    assert ran.marks["quorum"] == "ok"
    assert ran.marks["min-replicas"] == "warn"


def test_an_unknown_service_is_one_failure(
    doctor: Callable[..., Ran], sentinel: servers.Sentinel
) -> None:
    ran = doctor(f"redis+sentinel://127.0.0.1:{sentinel.sentinel_ports[0]}/other")
    assert ran.marks == {"reachable": "FAIL"}
    assert "knows no service 'other'" in ran.failures[0]


def test_sentinels_and_replicas_are_no_single_server(
    doctor: Callable[..., Ran], sentinel: servers.Sentinel
) -> None:
    watcher = doctor(f"redis://127.0.0.1:{sentinel.sentinel_ports[0]}")
    assert watcher.marks == {"reachable": "FAIL"}
    assert "write redis+sentinel://" in watcher.out
    primary = sentinel.primary_port()
    replica = next(port for port in sentinel.ports if port != primary)
    ran = doctor(f"redis://127.0.0.1:{replica}")
    assert ran.marks == {"reachable": "FAIL"}
    assert f"its primary, which is 127.0.0.1:{primary}" in ran.out


def test_users_with_the_printed_lines_can_use_sentinels(
    doctor: Callable[..., Ran], sentinel: servers.Sentinel
) -> None:
    for port in sentinel.sentinel_ports:
        do(port, typed(rights.SENTINEL_LINE))
    needed = rights.needed_commands("sentinel", 0)
    do(sentinel.primary_port(), typed(rights.acl_line("limen", needed)))
    who = f"?sentinel_username={rights.USER}&sentinel_password={PASSWORD}"
    url = sentinel_url(sentinel, login=f"{rights.USER}:{PASSWORD}@", tail=who)
    ran = doctor(url)
    assert ran.exit_code == 0
    assert ran.marks["quorum"] == "skip"
    with Limiter(url, deadline=20) as limiter:
        use_every_verb(limiter, "user:1")


# The command


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_without_a_url_there_is_help(doctor: Callable[..., Ran], arguments: list[str]) -> None:
    ran = doctor(*arguments)
    assert ran.exit_code == 0
    assert "limen doctor redis://localhost:6379" in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["localhost:6379"], "no scheme"),
        ([f"user:{PASSWORD}@host"], "no scheme"),
        (["http://localhost"], "unknown store 'http://'"),
        (["redis://h:port"], "cannot be read"),
        (["redis://h/db"], "must be a number"),
        (["redis+sentinel://h"], "needs the name of the service"),
        ([f"redis://:x/{PASSWORD}@host"], "write / as %2F"),
        ([f"redis://:x?{PASSWORD}@host"], "write / as %2F"),
        ([f"redis://{PASSWORD.partition(':')[2]}@host"], "no password"),
        (["redis://h", "--namespace", "a b"], "namespace must be"),
        (["memory://?max_keys=0"], "max_keys"),
        (["", "--json"], "no scheme"),
        (
            ["redis://h", "--for", "servce"],
            "--for takes library or service, got 'servce' (did you m",
        ),
        (["redis://h", "--for", "service", "--namespace", "a b"], "--namespace: expected 1 to"),
    ],
)
def test_a_url_that_cannot_be_read_is_one_line_and_exit_code_2(
    doctor: Callable[..., Ran], arguments: list[str], said: str
) -> None:
    ran = doctor(*arguments)
    assert ran.exit_code == 2
    assert ran.out == ""
    assert ran.err.startswith("limen: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err


def test_the_rights_of_a_service_are_tried_and_printed(
    doctor: Callable[..., Ran], port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limen.toml").write_text('namespace = "shop"\n', encoding="utf-8")
    line = rights.acl_line("shop", rights.needed_commands("single", 0, "service"))
    address = f"redis://127.0.0.1:{port}"
    assert line in doctor(address, "--for", "service").out
    assert rights.acl_line("limen", NEEDED) in doctor(address).out
    monkeypatch.setenv("LIMEN_STORE__URL", address)
    assert line in doctor().out
    do(port, typed(rights.acl_line("shop", NEEDED)))
    ran = doctor(as_limen(port), "--for", "service")
    assert ran.exit_code == 1
    assert "HMGET" in ran.failures[0]
    assert "SUBSCRIBE" in ran.failures[0]
    do(port, typed(line))
    assert doctor(as_limen(port), "--for", "service").exit_code == 0


def test_memory_has_nothing_to_look_at(doctor: Callable[..., Ran]) -> None:
    ran = doctor("memory://")
    assert ran.exit_code == 0
    assert ran.marks == {"reachable": "ok"}


def test_a_terminal_gets_colour_and_folded_lines_but_whole_commands(
    doctor: Callable[..., Ran], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    out = doctor(f"redis://127.0.0.1:{port}").out
    assert "\x1b[32mok" in out
    plain = re.sub(r"\x1b\[[\d;]*m", "", out)
    wide = [line for line in plain.splitlines() if len(line) > 60]
    assert [line.strip() for line in wide] == [rights.acl_line("limen", NEEDED)]


def test_the_page_explains_every_check() -> None:
    page = (Path(__file__).parent.parent / "docs" / "doctor.md").read_text()
    explained = re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| (`.+?) \|", page, re.MULTILINE)))
    node = Node("h:1", slots=16_384, decided=True)
    facts = structs.replace(
        SINGLE, nodes=(node,), sentinels=SentinelView({"a": "p"}), max_connections=16
    )
    checks = [
        finding.check
        for url in ("redis://h:1", "redis+cluster://h:1")
        for finding in judgement.judge(structs.replace(facts, target=parse(url)))
    ]
    assert set(explained) == set(checks)
    assert rights.SENTINEL_LINE in page
