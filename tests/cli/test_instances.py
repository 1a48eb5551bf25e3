"""`limen kill-switch`, `limen rules instances`, and news of rules by `--store`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from limen.cli import instances
from limen.rules import RuleSet
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Follower
from tests import servers
from tests.cli.acts import DATABASE, RULES, SECRET, Run, edit, write
from tests.server.product import Product, product
from tests.waiting import wait_until

NOW = r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}"


@pytest.fixture
def follower(applied: str, redis_url: str) -> Iterator[list[RuleSet]]:
    """A process that enforces rules, this one; the rule sets that it was given."""
    used: list[RuleSet] = []
    with Follower(SqlStore(DATABASE), used.append, redis=redis_url, interval=0.1) as following:
        following.wait()
        yield used


def test_running_processes_follow_at_once(
    limen: Run, follower: list[RuleSet], applied: str, redis_url: str, tmp_path: Path
) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    ran = limen("rules", "apply", applied, "--store", redis_url)
    assert ran.out.endswith("version 2 is active now\n1 of 1 process confirmed it\n")
    assert follower[-1].version == "2"
    ran = limen("rules", "rollback", "1", "--store", redis_url)
    assert ran.out.endswith("of version 1\n1 of 1 process confirmed it\n")
    ran = limen("rules", "activate", "2", "--store", redis_url)
    assert ran.out.endswith("version 3 was\n1 of 1 process confirmed it\n")


def test_instances_lists_who_enforces_which_version(
    limen: Run, follower: list[RuleSet], redis_url: str
) -> None:
    heading, row = limen("rules", "instances", "--store", redis_url).out.splitlines()
    assert heading.split("  ") != [heading]
    assert row.split()[:3] == [socket.gethostname(), str(os.getpid()), "1"]
    [told] = json.loads(limen("rules", "instances", "--store", redis_url, "--json").out)
    assert (told["host"], told["pid"], told["version"]) == (socket.gethostname(), os.getpid(), "1")


def test_instances_are_told_row_by_row_on_a_narrow_terminal(
    limen: Run, follower: list[RuleSet], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    out = re.sub(r"\x1b\[[0-9;]*m", "", limen("rules", "instances", "--store", redis_url).out)
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 30
    assert f"  pid: {os.getpid()}" in [line.rstrip() for line in out.splitlines()]


def test_a_redis_that_nobody_uses_has_no_instances(limen: Run, redis_url: str) -> None:
    ran = limen("rules", "instances", "--store", redis_url)
    assert (ran.exit_code, ran.out) == (
        0,
        f"no process is visible in namespace limen at {redis_url}\n",
    )
    assert limen("rules", "instances", "--store", redis_url, "--json").out == "[]\n"


@pytest.mark.parametrize("arguments", [[], ["--store", "memory://"]])
def test_instances_need_a_redis(limen: Run, arguments: list[str]) -> None:
    ran = limen("rules", "instances", *arguments)
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith("limen: processes are reached by way of Redis; use --store redis://")


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
        "the kill switch is on for all rules, in .limen/kill-switch\n"
        "on this host only, and unconfirmed: processes with this data directory follow within a "
        "second; add --store to reach every host\n"
    )
    by = f"by ada at {re.escape(socket.gethostname())}"
    shown = limen("kill-switch", "show").out
    assert re.fullmatch(rf"the kill switch is on for all rules, since {NOW} UTC {by}\n", shown)
    limen("kill-switch", "on", "login", "bots")
    assert "is on for login, bots, since" in limen("kill-switch", "show").out
    assert limen("kill-switch", "off").out.startswith("the kill switch is off, in .limen/kill-sw")
    assert re.fullmatch(
        rf"the kill switch is off, since {NOW} UTC {by}\n", limen("kill-switch", "show").out
    )


SETTING = {
    "limen.toml": 'namespace = "shop"\nstore = {{ url = "{0}" }}\n',
    "environment": "",
}


@pytest.fixture(params=["limen.toml", pytest.param("environment", marks=pytest.mark.slow)])
def served(
    request: pytest.FixtureRequest, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Product]:
    """`limen serve` with two workers and a namespace of its own, from a file or the environment.

    The command runs in the same directory with the same environment.
    """
    (tmp_path / "limen.toml").write_text(SETTING[request.param].format(redis_url), encoding="utf-8")
    settings = {}
    if request.param == "environment":
        settings = {"namespace": "shop", "store__url": redis_url}
        for name, value in settings.items():
            monkeypatch.setenv(f"LIMEN_{name.upper()}", value)
    with product(tmp_path, "--workers", "2", **settings) as started:
        wait_until(lambda: started.ask("/readyz").body.find(b'"instances":2') > 0)
        yield started


def test_every_command_uses_the_store_and_the_namespace_of_the_service(
    limen: Run, served: Product, redis_url: str, tmp_path: Path
) -> None:
    assert len(json.loads(limen("rules", "instances", "--json").out)) == 2
    assert limen("kill-switch", "show").out.endswith("2 of 2 processes confirmed it\n")

    ran = limen("kill-switch", "on")
    assert (ran.exit_code, ran.out.splitlines()[-1]) == (0, "2 of 2 processes confirmed it")
    assert json.loads(served.ask("/readyz").body)["kill_switch"] == "on for all rules"
    assert limen("kill-switch", "off").exit_code == 0

    ran = limen("rules", "apply", write(tmp_path, RULES))
    assert ran.out.endswith("version 2 is active now\n2 of 2 processes confirmed it\n")

    asked = {"attributes": {"path": "/login", "ip": "203.0.113.7"}}
    assert served.ask("/v1/check", method="POST", body=asked).status == 200
    ran = limen("explain", "path=/login", "ip=203.0.113.7")
    assert "5/minute: 4 of 5 left" in ran.out


def test_another_namespace_is_not_taken_for_agreement(limen: Run, redis_url: str) -> None:
    ran = limen(
        "kill-switch", "on", "--store", redis_url, "--data-dir", "data", "--namespace", "none"
    )
    assert ran.exit_code == 1
    assert ran.out == "the kill switch is on for all rules, in data/kill-switch\n"
    assert ran.err.splitlines()[0] == (
        f"limen: nobody confirmed it: no process is visible in namespace none at {redis_url}. If "
        "processes run, they have another store or namespace; `limen config show` prints what this "
        "command uses"
    )


@pytest.mark.parametrize("served", ["limen.toml"], indirect=True)
def test_a_process_that_does_not_follow_is_named(
    limen: Run, served: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "_PATIENCE_S", 0.3)
    [stuck, _] = served.workers
    os.kill(stuck, signal.SIGSTOP)
    try:
        ran = limen("kill-switch", "on")
    finally:
        os.kill(stuck, signal.SIGCONT)
    assert ran.exit_code == 1
    assert ran.out.splitlines()[-1] == (
        f"1 of 2 processes confirmed it; not yet: {socket.gethostname()} pid {stuck}"
    )


def test_the_kill_switch_ignores_settings_that_are_wrong(
    limen: Run, redis_url: str, tmp_path: Path
) -> None:
    text = 'data_dir = "data"\nworkers = "many"\ncolour = "red"\n'
    (tmp_path / "limen.toml").write_text(text, encoding="utf-8")
    assert limen("rules", "show").exit_code == 2
    ran = limen("kill-switch", "on")
    assert ran.exit_code == 1, "a process may have other settings"
    assert [line.split(":")[1] for line in ran.err.splitlines()[:2]] == [" ignored"] * 2
    assert Path("data/kill-switch").exists()
    assert limen("kill-switch", "show").exit_code == 1
    for flags in (("--namespace", "a b"), ("--config", "limen.tml")):
        ran = limen("kill-switch", "off", *flags)
        assert (ran.exit_code, ran.out) == (2, "")


def test_kill_switch_that_is_not_saved_reaches_every_host_by_redis(
    limen: Run, follower: list[RuleSet], redis_url: str
) -> None:
    Path("data").write_text("in the way of the folder")
    ran = limen("kill-switch", "on", "--store", redis_url, "--folder", "data")
    assert ran.exit_code == 1
    assert ran.err.startswith("limen: data/kill-switch cannot be written")
    assert ran.out == "1 of 1 process confirmed it\n"
    wait_until(lambda: len(follower) == 2)  # the same rules, in shadow
    alone = limen("kill-switch", "on", "--folder", "data")
    assert alone.exit_code == 1
    assert "data/kill-switch cannot be written" in alone.err


def test_the_kill_switch_works_on_this_host_when_redis_is_gone(limen: Run) -> None:
    gone = f"redis://127.0.0.1:{servers.free_port()}"
    ran = limen("kill-switch", "on", "--store", gone)
    assert ran.exit_code == 1
    assert ran.err.startswith("limen: other hosts were not reached: ")
    assert "is on for all rules" in limen("kill-switch", "show").out


def test_an_unknown_rule_is_not_switched(limen: Run, applied: str) -> None:
    ran = limen("kill-switch", "on", "login", "serch-per-user")
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err == (
        "limen: there is no rule 'serch-per-user' (did you mean 'search-per-user'?)\n"
    )
    assert limen("kill-switch", "on", "--rules", applied, "logn").exit_code == 2
    assert limen("kill-switch", "on", *(f"rule-{n}" for n in range(501))).err == (
        "limen: at most 500 rules can be switched by name, got 501; for all rules, leave the names "
        "out\n"
    )
    assert not Path(".limen/kill-switch").exists()
    assert "kill-switch" not in limen("rules", "audit").out


def test_the_kill_switch_is_in_the_audit(limen: Run, applied: str) -> None:
    assert limen("kill-switch", "on", "login", "--comment", "too strict").err == ""
    assert limen("kill-switch", "off").err == ""
    off, on, *_ = json.loads(limen("rules", "audit", "--json").out)["rows"]
    who = f"ada at {socket.gethostname()}"
    assert (on["actor"], on["action"], on["subject"]) == (who, "kill-switch", "on for login")
    assert on["comment"] == "too strict"
    assert (off["actor"], off["action"], off["subject"]) == (who, "kill-switch", "off")


def test_the_kill_switch_works_without_a_database(limen: Run, redis_url: str) -> None:
    away = f"postgresql://joe:{SECRET}@127.0.0.1:{servers.free_port()}/x"
    ran = limen("kill-switch", "on", "login", "--rules", away)
    assert ran.exit_code == 0
    assert limen("kill-switch", "show").out.startswith("the kill switch is on for login, since")
    first, second = ran.err.splitlines()
    assert first.startswith("limen: the names of the rules were not verified: ")
    assert second.startswith("limen: this is not in the audit: ")
    assert limen("kill-switch", "on", "all", "--rules", away).exit_code == 2


def test_names_are_those_of_the_processes_when_the_database_is_away(
    limen: Run, follower: list[RuleSet], redis_url: str
) -> None:
    away = f"postgresql://joe:{SECRET}@127.0.0.1:{servers.free_port()}/x"
    ran = limen("kill-switch", "on", "logn", "--rules", away, "--store", redis_url)
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err == "limen: there is no rule 'logn' (did you mean 'login'?)\n"


@pytest.mark.parametrize("command", ["", "on", "off", "show"])
def test_help_of_the_kill_switch_fits_80_columns(limen: Run, command: str) -> None:
    ran = limen("kill-switch", command, "--help") if command else limen("kill-switch")
    assert ran.exit_code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
