"""The kill switch: in every process of a host, and on every host, whatever else is broken."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from limen import Limiter
from limen.engine import Engine
from limen.errors import StoreError
from limen.rules import parse
from limen.rules.stores.file import FileStore
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Follower, RuleCache, Switch, SwitchFile
from limen.rules.sync import follow as follow_module
from limen.rules.sync.files import LastGood
from limen.rules.sync.switch import NAME, decode, encode, turned_off, turned_on
from tests.postgres import Postgres
from tests.rules.sync.conftest import Watched, at_cache, publish, save
from tests.rules.sync.processes import Fleet, Plan, Report, rule_set
from tests.servers import Server
from tests.waiting import wait_until

Follow = Callable[..., Follower]


@pytest.fixture
def file(tmp_path: Path) -> SwitchFile:
    folder = tmp_path / "host"
    folder.mkdir(exist_ok=True)
    return SwitchFile(folder)


def turn_everywhere(redis_url: str, switch: Switch) -> None:
    at_cache(redis_url, lambda cache: cache.turn_switch(switch))


# the file


@pytest.mark.parametrize(
    ("text", "is_all", "rules"),
    [
        ("", True, ()),
        ("\n\n", True, ()),
        ("# why: search is down\n", True, ()),
        ("all\n", True, ()),
        ("a\nall\nb\n", True, ()),
        ("off\n", False, ()),
        ("# a word\noff", False, ()),
        ("search\n", False, ("search",)),
        ("  search  \r\n\r\nlogin\r\n", False, ("search", "login")),
        ("\x00\x01", False, ("\x00\x01",)),
    ],
)
def test_the_file_says_all_or_off_or_names_a_line_each(
    file: SwitchFile, text: str, is_all: bool, rules: tuple[str, ...]
) -> None:
    file.path.write_text(text, newline="")
    found = file.read()
    assert (found.all, found.rules) == (is_all, rules)
    assert found.at == file.path.stat().st_mtime


@pytest.mark.parametrize(
    "switch",
    [
        turned_on(by="ann"),
        turned_off(),
        turned_on(["a", "b"], by="a\nb"),
        Switch(True, (), 1_700_000_000.123456, "x"),
        Switch(True, (), 1.0),
    ],
)
def test_what_is_written_is_read_by_others_down_to_the_time(
    file: SwitchFile, switch: Switch
) -> None:
    file.write(switch)
    found = SwitchFile(file.path.parent).read()
    assert (found.all, found.rules, found.at) == (switch.all, switch.rules, switch.at)
    assert found.by == switch.by.replace("\n", " ")
    # So that it is not taken over and over again.
    assert not file.take(switch)
    assert [path.name for path in file.path.parent.iterdir()] == [NAME]


def test_without_a_file_it_is_off_and_older_than_any_word(tmp_path: Path) -> None:
    assert SwitchFile(tmp_path / "none").read() == Switch()


def test_taking_the_file_away_is_a_newer_word_than_the_file_was(file: SwitchFile) -> None:
    file.write(turned_on())
    on = file.read()
    file.path.unlink()
    off = file.read()
    assert not off.is_on
    assert off.at > on.at
    assert file.read() is off


def test_only_a_newer_word_is_taken(file: SwitchFile) -> None:
    file.write(Switch(True, (), 1_000.0, "ann"))
    assert not file.take(Switch(at=999.0))
    assert not file.take(Switch(at=1_000.0))
    assert file.read().all
    assert file.take(Switch(at=1_000.5))
    assert not SwitchFile(file.path.parent).read().all


@pytest.mark.parametrize(
    "written",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b"null",
        b'"all"',
        b'{"all": 1}',
        b'{"rules": "a"}',
        b'{"all": true, "at": 1e308}',
        b'{"all": true, "at": -5}',
        b'{"by": "\\ud800"}',
        b" " * 1_000_001,
    ],
)
def test_what_is_no_switch_is_none(written: bytes | None) -> None:
    assert decode(written) is None


def test_a_switch_of_a_newer_limen_is_understood() -> None:
    at = time.time()
    assert decode(b'{"all": true, "at": %f, "why": "search"}' % at) is not None


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="kill-switch cannot be written: Not a directory"):
        SwitchFile(tmp_path / "file" / "folder").write(turned_on())


def test_switch_that_cannot_be_written_holds_until_the_file_is_newer(tmp_path: Path) -> None:
    file = SwitchFile(tmp_path / "folder")
    file.path.parent.write_text("in the way")
    on = turned_on()
    with pytest.raises(StoreError):
        file.write(on)
    assert file.read() is on
    with pytest.raises(StoreError):
        file.write_again()
    file.path.parent.unlink()
    file.write_again()
    assert SwitchFile(tmp_path / "folder").read().all
    file.path.unlink()
    file.path.mkdir()  # cannot be replaced by a file
    with pytest.raises(StoreError):
        file.write(turned_on(["search"]))
    assert file.read().rules == ("search",)
    file.path.rmdir()
    SwitchFile(tmp_path / "folder").write(turned_off())
    assert not file.read().is_on
    file.write_again()
    assert not SwitchFile(tmp_path / "folder").read().is_on


def test_switch_that_is_turned_while_an_older_one_is_written_again_holds(tmp_path: Path) -> None:
    class Disturbed(SwitchFile):
        """Turned by another caller after `write_again` has read what it writes."""

        def read(self) -> Switch:
            found = super().read()
            if found is older:
                with pytest.raises(StoreError):
                    self.write(newer)
            return found

    older = turned_on()
    newer = turned_off()
    file = Disturbed(tmp_path / "folder")
    file.path.parent.write_text("in the way")
    with pytest.raises(StoreError):
        file.write(older)
    with pytest.raises(StoreError):
        file.write_again()
    assert file.read() is newer


def test_threads_that_turn_it_together_leave_one_whole_file(file: SwitchFile) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                SwitchFile(file.path.parent).write(turned_on([f"rule-{number}-{turn}"]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(file.read().rules) == 1
    assert [path.name for path in file.path.parent.iterdir()] == [NAME]


# one process


RULES: list[dict[str, Any]] = [
    {"name": "few", "limits": "1/day"},
    {"name": "shut", "match": {"path": "/shut"}, "mode": "block"},
    {"name": "named", "key": "token", "missing": "deny", "limits": "5/day"},
    {"name": "dear", "match": {"path": "/dear"}, "cost": "tokens", "limits": "5/day"},
]
REQUESTS: list[dict[str, str]] = [
    {"token": "t"},
    {"token": "t", "path": "/shut"},
    {"path": "/"},
    {"token": "t", "path": "/dear", "tokens": "6"},
]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Engine, Follower]]:
    """An engine whose rules refuse each of the requests."""
    monkeypatch.setattr(follow_module, "_SWITCH_S", 0.05)
    path = tmp_path / "rules.yaml"
    path.write_text(str({"rules": RULES}).replace("'", '"'))
    made = Engine(parse({"rules": []}), Limiter())
    with Follower(FileStore(path), made.use, folder=tmp_path / "host", interval=0.1) as follower:
        follower.wait()
        while made.decide({"token": "t"}).allowed:
            pass
        yield made, follower


def refuses(engine: Engine) -> list[bool]:
    return [not engine.decide(request).allowed for request in REQUESTS]


def test_all_rules_report_and_refuse_nobody_while_it_is_on(
    engine: tuple[Engine, Follower], file: SwitchFile
) -> None:
    enforcing, follower = engine
    assert refuses(enforcing) == [True] * 4
    file.path.touch()
    wait_until(lambda: follower.status.switch.all)
    assert refuses(enforcing) == [False] * 4
    before = enforcing.decide({"token": "u"}).parts
    parts = enforcing.decide({"token": "u"}).parts
    # Shadows still count, and still say what they would do.
    assert {part.mode for part in parts} == {"shadow"}
    assert not parts[0].allowed
    left = [part.remaining for part in (before[1], parts[1])]
    assert left[0] is not None
    assert left[1] == left[0] - 1
    file.write(turned_off())
    wait_until(lambda: not follower.status.switch.all)
    assert refuses(enforcing) == [True] * 4


def test_single_rules_by_name(engine: tuple[Engine, Follower], file: SwitchFile) -> None:
    enforcing, follower = engine
    file.write(turned_on(["few", "shut"]))
    wait_until(lambda: follower.status.switch.rules == ("few", "shut"))
    assert refuses(enforcing) == [False, False, True, True]
    file.write(turned_on(["named"]))
    wait_until(lambda: follower.status.switch.rules == ("named",))
    assert refuses(enforcing) == [True] * 4  # by `few`, each of them
    file.path.unlink()
    wait_until(lambda: not follower.status.switch.is_on)
    assert refuses(enforcing) == [True] * 4


def test_rules_that_change_while_it_is_on_are_in_shadow_too(
    engine: tuple[Engine, Follower], file: SwitchFile, tmp_path: Path
) -> None:
    enforcing, follower = engine
    file.write(turned_on())
    wait_until(lambda: follower.status.switch.all)
    before = follower.status.version
    (tmp_path / "rules.yaml").write_text("rules: [{name: none, mode: block}]")
    wait_until(lambda: follower.status.version != before)
    assert enforcing.decide({}).allowed
    file.write(turned_off())
    wait_until(lambda: not enforcing.decide({}).allowed)


def test_a_file_that_cannot_be_read_changes_nothing_and_is_told_once(
    engine: tuple[Engine, Follower], file: SwitchFile, logged: Callable[[], list[str]]
) -> None:
    enforcing, follower = engine
    file.write(turned_on())
    wait_until(lambda: follower.status.switch.all)
    file.path.unlink()
    file.path.mkdir()
    wait_until(lambda: "switch" in follower.status.trouble)
    time.sleep(0.2)
    assert follower.status.switch.all
    assert enforcing.decide({}).allowed
    assert len([line for line in logged() if "cannot be read: Is a directory" in line]) == 1
    file.path.rmdir()
    wait_until(lambda: not follower.status.switch.is_on)
    wait_until(lambda: not follower.status.trouble)


def test_a_file_of_garbage_puts_nothing_into_shadow(
    engine: tuple[Engine, Follower], file: SwitchFile
) -> None:
    enforcing, follower = engine
    file.path.write_bytes(b"\xff\xfe garbage \x00\n" * 10)
    wait_until(lambda: follower.status.switch.rules)  # for a moment it is empty, which means all
    assert refuses(enforcing) == [True] * 4


def test_a_signal_turns_it_on_and_off_again_and_never_raises(
    file: SwitchFile, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        file.toggle_on()
        file.write(turned_on(["search"]))
        for expected in (True, False, True):
            os.kill(os.getpid(), signal.SIGUSR1)
            # Some rules are in shadow already: who calls for help wants all of them there.
            assert SwitchFile(file.path.parent).read().all is expected
        assert "SIGUSR1 at " in file.read().by
        file.path.unlink()
        file.path.parent.rmdir()
        file.path.parent.write_text("in the way")
        os.kill(os.getpid(), signal.SIGUSR1)
        assert "the kill switch is not saved: " in caplog.text
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_fails_in_the_program_while_it_turns_is_tried_again(
    tmp_path: Path,
    file: SwitchFile,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(follow_module, "_SWITCH_S", 0.05)
    path = tmp_path / "rules.yaml"
    path.write_text("rules: []")
    turns: list[int] = []

    def use(_: object) -> None:
        turns.append(1)
        if len(turns) == 2:
            raise RuntimeError("of the program")

    with Follower(FileStore(path), use, folder=file.path.parent, interval=0.05) as follower:
        follower.wait()
        file.write(turned_on())
        wait_until(lambda: len(turns) == 3)
        wait_until(lambda: follower.status.switch.is_on and not follower.status.trouble)
        assert "kill-switch: RuntimeError: of the program" in caplog.text
        file.write(turned_off())
        wait_until(lambda: len(turns) == 4)


def test_rules_that_cannot_be_turned_hold_up_no_others(
    lite: str, redis_url: str, tmp_path: Path
) -> None:
    used: list[Any] = []

    def use(rules: Any) -> None:
        if used and rules.version == "1":
            raise RuntimeError("of the program")
        used.append(rules)

    publish(lite, redis_url, rule_set(1, 4))
    with Follower(SqlStore(lite), use, redis=redis_url, interval=0.05) as follower:
        follower.wait()
        turn_everywhere(redis_url, turned_on())
        wait_until(lambda: "kill-switch" in follower.status.trouble)
        publish(lite, redis_url, rule_set(2, 4))
        wait_until(lambda: follower.status.version == "2")
        wait_until(lambda: follower.status.switch.is_on and not follower.status.trouble)
    assert {rule.enforced for rule in used[-1].rules} == {0}


# all processes of a host, with everything else stopped


def test_all_processes_of_a_host_follow_each_of_three_ways_with_redis_and_database_stopped(
    post: Postgres,
    valkey: Server,
    database: str,
    redis_url: str,
    fleet: Fleet,
    tmp_path: Path,
) -> None:
    LastGood(tmp_path, SqlStore(database).source).write(
        save(database, rule_set(1, 4, mode="enforce"))
    )
    post.kill()
    valkey.kill()
    # `closed`: whoever is enforced is refused while the store is away.
    plan = Plan(
        redis_url, database, redis_url, str(tmp_path), on_error="closed", toggles=True, pause_s=0.01
    )
    processes = fleet.start(4, plan)
    fleet.wait(lambda report: report.version == "1" and not report.allowed)
    file = SwitchFile(tmp_path)
    ways: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (lambda: subprocess.run(["touch", str(file.path)], check=True), file.path.unlink),
        (processes[0].signal, processes[1].signal),
        (lambda: file.write(turned_on()), lambda: file.write(turned_off())),
    ]
    for on, off in ways:
        on()
        fleet.wait(lambda report: report.allowed)
        off()
        fleet.wait(lambda report: not report.allowed)
    for report in fleet.reports():
        assert report.error == ""


def test_whoever_starts_with_the_switch_on_never_refuses_anybody(
    database: str, redis_url: str, fleet: Fleet, tmp_path: Path
) -> None:
    publish(database, redis_url, rule_set(1, 1))
    # On this host by its file; on the other one, which has none, by Redis.
    SwitchFile(tmp_path / "a").write(turned_on())
    turn_everywhere(redis_url, turned_on())
    for host in ("a", "b"):
        fleet.start(1, Plan(redis_url, database, redis_url, str(tmp_path / host), pause_s=0.0005))
    reports = fleet.wait(lambda report: report.admitted > 50)
    assert [report.refused for report in reports] == [0, 0]


# every host, by way of Redis


def test_one_call_reaches_every_host_and_is_written_down_there(
    database: str,
    redis_url: str,
    admin: redis.Redis,
    valkey: Server,
    fleet: Fleet,
    tmp_path: Path,
) -> None:
    publish(database, redis_url, rule_set(1, 4))
    files = [SwitchFile(tmp_path / host) for host in "abc"]
    for file in files:
        fleet.start(1, Plan(redis_url, database, redis_url, str(file.path.parent), pause_s=0.01))
    fleet.wait(lambda report: report.version == "1" and not report.allowed)
    for switch, allowed in (
        (turned_on(by="ann"), True),
        (turned_off(by="ben"), False),
        (turned_on(["all"], by="cat"), True),
    ):
        fresh = Switch(switch.all, switch.rules, time.time(), switch.by)
        turn_everywhere(redis_url, fresh)
        fleet.wait(lambda report, allowed=allowed: report.allowed is allowed)  # type: ignore[misc]
        assert [file.read().by for file in files] == [switch.by] * 3
    # A newer word on one host is that host's own, and an older one is not heard.
    files[0].write(turned_off(by="dan"))
    wait_until(lambda: not fleet.processes[0].report().allowed)
    admin.set("limen:{rules}switch", encode(Switch(True, (), time.time() - 60, "late")))
    time.sleep(0.3)
    reports = fleet.reports()
    assert [report.allowed for report in reports] == [False, True, True]
    # What was written down outlives Redis, and a restart.
    valkey.kill()
    fleet.start(1, Plan(redis_url, database, redis_url, str(tmp_path / "b"), pause_s=0.01))
    report = wait_for_rules(fleet.processes[-1].report)
    assert (report.refused, report.status.switch.by) == (0, "cat")


def test_of_many_who_turn_it_at_once_each_is_dated_after_another(redis_url: str) -> None:
    """Else who follows already would go by one of them, and who starts later by another."""
    at, count = time.time(), 5

    async def turn(cache: RuleCache) -> Switch | None:
        switches = [Switch(False, (), at, str(number)) for number in range(count)]
        await asyncio.gather(*[cache.turn_switch(switch) for switch in switches])
        return decode((await cache.look()).switch)

    last = at_cache(redis_url, turn)
    assert last.at == pytest.approx(at + 0.001 * (count - 1), abs=0.0005)


@pytest.mark.parametrize("what", [{"field": "value"}, b"x" * 1_000_100, b"{}"])
def test_a_switch_takes_the_place_of_what_is_none(
    redis_url: str, admin: redis.Redis, what: Any
) -> None:
    key = "limen:{rules}switch"
    if isinstance(what, dict):
        admin.hset(key, mapping=what)
    else:
        admin.set(key, what)
    turn_everywhere(redis_url, turned_on(by="somebody"))
    written: Any = admin.get(key)
    found = decode(written)
    assert found is not None
    assert found.by == "somebody"


def test_who_speaks_last_is_heard_whatever_the_clocks_say(
    lite: str, redis_url: str, follow: Callable[..., Follower]
) -> None:
    publish(lite, redis_url, rule_set(1, 4))
    follower = follow(lite, redis_url, interval=0.05)
    follower.wait()
    # By a host whose clock is half a minute ahead, and then by one whose is right.
    turn_everywhere(redis_url, Switch(False, (), time.time() + 30, "ahead"))
    wait_until(lambda: follower.status.switch.by == "ahead")
    turn_everywhere(redis_url, turned_on(by="right"))
    wait_until(lambda: follower.status.switch.by == "right")
    assert follower.status.switch.is_on


def wait_for_rules(report: Callable[[], Report]) -> Report:
    wait_until(lambda: report().version)
    return report()


def test_a_word_from_redis_holds_where_it_cannot_be_written_down(
    lite: str,
    redis_url: str,
    follow: Follow,
    watched: Watched,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow_module, "_SWITCH_S", 0.05)
    publish(lite, redis_url, rule_set(1, 4))
    folder = tmp_path / "gone"
    folder.symlink_to(tmp_path / "nowhere" / "at all")  # which can be looked at, and not written
    follower = follow(lite, redis_url, folder=folder, interval=0.1)
    follower.wait()
    turn_everywhere(redis_url, turned_on())
    wait_until(lambda: follower.status.switch.all)
    count = len(watched.sets)
    wait_until(lambda: "switch" in follower.status.trouble)
    time.sleep(0.5)
    assert follower.status.switch.all
    assert len(watched.sets) == count
    assert "cannot be written" in follower.status.trouble["switch"]
    turn_everywhere(redis_url, turned_off())
    wait_until(lambda: not follower.status.switch.is_on)


def test_rules_in_a_file_hear_the_switch_of_redis_too(
    redis_url: str, tmp_path: Path, admin: redis.Redis
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{name: none, mode: block}]")
    engine = Engine(parse({"rules": []}), Limiter())
    with Follower(FileStore(path), engine.use, redis=redis_url, folder=tmp_path) as follower:
        follower.wait()
        wait_until(lambda: follower.status.is_listening)
        turn_everywhere(redis_url, turned_on())
        wait_until(lambda: engine.decide({}).allowed)
        # The file is this host's own: it is not put into Redis.
        assert not admin.exists("limen:{rules}entry")


def test_the_log_says_when_it_turns(
    tmp_path: Path, file: SwitchFile, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "limen")
    path = tmp_path / "rules.yaml"
    path.write_text("rules: []")
    with Follower(FileStore(path), print, folder=file.path.parent) as follower:
        follower.wait()
        file.write(turned_on(["a", "b"]))
        wait_until(lambda: "the kill switch is on for a, b" in caplog.text)
        file.write(turned_off())
        wait_until(lambda: "the kill switch is off" in caplog.text)


def test_to_touch_what_was_turned_off_turns_it_on(tmp_path: Path) -> None:
    """An operator at three in the morning knows `touch`, and not what stands in the file."""
    file = SwitchFile(tmp_path)
    file.write(turned_off("ann"))
    assert not SwitchFile(tmp_path).read().is_on
    later = time.time() + 5
    os.utime(file.path, (later, later))
    found = SwitchFile(tmp_path).read()
    assert (found.all, found.by) == (True, "touch")
    assert found.at == pytest.approx(later)
    file.path.write_text("off\n")
    assert not SwitchFile(tmp_path).read().is_on


def test_following_a_file_and_turning_the_switch_need_no_redis_py(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['redis'] = sys.modules['hiredis'] = None\n"
        "from limen.rules.sync import Follower, SwitchFile\n"
        "from limen.rules.stores.file import FileStore\n"
        "Follower(FileStore('rules.yaml'), print, folder=sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == 0
