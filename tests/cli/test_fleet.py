"""`limen kill-switch`, `limen rules instances`, and news of rules by `--store`."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from limen.rules import RuleSet
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Follower
from tests import servers
from tests.cli.acts import DATABASE, SECRET, Run, edit
from tests.server.raw import until

NOW = r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}"


@pytest.fixture
def redis() -> Iterator[str]:
    with servers.process(servers.binaries()["valkey"]) as started:
        yield f"redis://127.0.0.1:{started.port}"


@pytest.fixture
def follower(applied: str, redis: str) -> Iterator[list[RuleSet]]:
    """A process that enforces rules, this one; the rule sets that it was given."""
    used: list[RuleSet] = []
    with Follower(SqlStore(DATABASE), used.append, redis=redis, interval=0.1) as following:
        following.wait()
        yield used


def test_running_processes_follow_at_once(
    limen: Run, follower: list[RuleSet], applied: str, redis: str, tmp_path: Path
) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    ran = limen("rules", "apply", applied, "--store", redis)
    assert ran.out.endswith("version 2 is active now\n1 of 1 running process follows\n")
    assert follower[-1].version == "2"
    ran = limen("rules", "rollback", "1", "--store", redis)
    assert ran.out.endswith("of version 1\n1 of 1 running process follows\n")
    ran = limen("rules", "activate", "2", "--store", redis)
    assert ran.out.endswith("version 3 was\n1 of 1 running process follows\n")


def test_instances_lists_who_enforces_which_version(
    limen: Run, follower: list[RuleSet], redis: str
) -> None:
    heading, row = limen("rules", "instances", "--store", redis).out.splitlines()
    assert heading.split("  ") != [heading]
    assert row.split()[:3] == [socket.gethostname(), str(os.getpid()), "1"]
    [told] = json.loads(limen("rules", "instances", "--store", redis, "--json").out)
    assert (told["host"], told["pid"], told["version"]) == (socket.gethostname(), os.getpid(), "1")


def test_instances_are_told_row_by_row_on_a_narrow_terminal(
    limen: Run, follower: list[RuleSet], redis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    out = re.sub(r"\x1b\[[0-9;]*m", "", limen("rules", "instances", "--store", redis).out)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 30
    assert f"  pid: {os.getpid()}" in [line.rstrip() for line in out.splitlines()]


def test_a_redis_that_nobody_uses_has_no_instances(limen: Run, redis: str) -> None:
    ran = limen("rules", "instances", "--store", redis)
    assert (ran.exit_code, ran.out) == (0, "no process enforces rules there\n")
    assert limen("rules", "instances", "--store", redis, "--json").out == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "add --store: the Redis by which processes show that they run"),
        (["--store", "memory://"], "processes are reached by way of Redis; use --store redis://"),
    ],
)
def test_instances_need_a_redis(limen: Run, arguments: list[str], said: str) -> None:
    ran = limen("rules", "instances", *arguments)
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith(f"limen: {said}")


def test_rules_are_saved_whether_or_not_anybody_can_be_told(limen: Run, file: str) -> None:
    gone = f"redis://joe:{SECRET}@127.0.0.1:{servers.free_port()}"
    ran = limen("rules", "apply", file, "--store", gone)
    assert ran.exit_code == 0
    assert ran.out.endswith("version 1 is active now\n")
    assert ran.err.startswith("limen: saved, and not announced (")
    assert ran.err.endswith("; processes find it in the database\n")


def test_the_kill_switch_of_a_host(limen: Run, tmp_path: Path) -> None:
    assert limen("kill-switch", "show").out == "the kill switch is off\n"
    assert limen("kill-switch", "on").out == (
        "on this host (.limen), the kill switch is on for all rules\n"
        "on this host only; add --store to reach every host\n"
    )
    by = f"by ada at {re.escape(socket.gethostname())}"
    shown = limen("kill-switch", "show").out
    assert re.fullmatch(rf"the kill switch is on for all rules, since {NOW} UTC {by}\n", shown)
    limen("kill-switch", "on", "login", "bots")
    assert "is on for login, bots, since" in limen("kill-switch", "show").out
    assert limen("kill-switch", "off").out.startswith(
        "on this host (.limen), the kill switch is of"
    )
    assert re.fullmatch(
        rf"the kill switch is off, since {NOW} UTC {by}\n", limen("kill-switch", "show").out
    )


def test_the_kill_switch_reaches_every_host(limen: Run, redis: str) -> None:
    ran = limen("kill-switch", "on", "--store", redis, "--folder", "data")
    assert ran.exit_code == 0
    assert ran.out.endswith("every host that Redis reaches follows\n")
    assert Path("data/kill-switch").exists()


def test_kill_switch_that_is_not_saved_reaches_every_host_by_redis(
    limen: Run, follower: list[RuleSet], redis: str
) -> None:
    Path("data").write_text("in the way of the folder")
    ran = limen("kill-switch", "on", "--store", redis, "--folder", "data")
    assert ran.exit_code == 1
    assert ran.err.startswith("limen: the kill switch is not saved on this host: data/kill-switch")
    assert ran.out == "every host that Redis reaches follows\n"
    until(lambda: len(follower) == 2)  # the same rules, in shadow
    alone = limen("kill-switch", "on", "--folder", "data")
    assert (alone.exit_code, alone.out) == (1, "")
    assert "data/kill-switch cannot be written" in alone.err


def test_the_kill_switch_works_on_this_host_when_redis_is_gone(limen: Run) -> None:
    gone = f"redis://127.0.0.1:{servers.free_port()}"
    ran = limen("kill-switch", "on", "--store", gone)
    assert ran.exit_code == 1
    assert ran.err.startswith("limen: other hosts were not reached: ")
    assert "is on for all rules" in limen("kill-switch", "show").out


@pytest.mark.parametrize("command", ["", "on", "off", "show"])
def test_help_of_the_kill_switch_fits_80_columns(limen: Run, command: str) -> None:
    ran = limen("kill-switch", command, "--help") if command else limen("kill-switch")
    assert ran.exit_code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
