"""Following a store of rules: the newest good ones are in force, whatever the store does."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from limen import ConfigurationError, InvalidRules, Limiter, StoreError
from limen.engine import Engine
from limen.rules import RuleSet, load, parse
from limen.rules.stores import Snapshot
from limen.rules.stores.file import FileStore
from limen.rules.sync import Follower, seek
from limen.rules.sync.files import LastGood, replace
from tests.waiting import wait_until, wait_until_async

TICK_S = 0.01


def rules(quota: int) -> str:
    return f"rules: [{{name: all, limits: {quota}/hour}}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(rules(1))
    return path


class Watched:
    """Rule sets as they come into force, and a way to wait for them."""

    def __init__(self) -> None:
        self.sets: list[RuleSet] = []
        self._came = threading.Condition()

    def use(self, found: RuleSet) -> None:
        with self._came:
            self.sets.append(found)
            self._came.notify_all()

    def wait_for(self, count: int) -> RuleSet:
        with self._came:
            assert self._came.wait_for(lambda: len(self.sets) >= count, 10)
        return self.sets[-1]


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def follow(watched: Watched) -> Iterator[Callable[..., Follower]]:
    started: list[Follower] = []

    def start(store: object) -> Follower:
        follower = Follower(store, watched.use, interval=TICK_S)  # type: ignore[arg-type]  # or a stand-in
        follower.start()
        started.append(follower)
        return follower

    yield start
    for follower in started:
        follower.close()


def quota_of(found: RuleSet) -> int:
    return found.rules[0].allowances.own.limits[0].quota


# the file


def test_a_file_is_named_by_what_it_says(file: Path) -> None:
    store = FileStore(file)
    snapshot = asyncio.run(store.load())
    assert snapshot.version == asyncio.run(store.version()) == load(file).version
    file.write_text(
        "# the same, said otherwise\n" + rules(1).replace("name: all", "'name': \"all\"")
    )
    assert asyncio.run(store.version()) == snapshot.version
    file.write_text(rules(2))
    assert asyncio.run(store.version()) != snapshot.version


def test_a_change_within_one_tick_of_the_clock_of_files_is_seen(file: Path) -> None:
    """The same length, the same file, and the same time: only what it says is another."""
    before = file.stat()
    store = FileStore(file)
    first = asyncio.run(store.version())
    file.write_text(rules(2))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert asyncio.run(store.version()) != first


def test_a_bad_file_is_an_error_with_lines(file: Path) -> None:
    file.write_text("rules:\n  - name: all\n    limits: 1/fortnight\n")
    with pytest.raises(InvalidRules, match=r"line 3: rules\[0\]\.limits: cannot read"):
        asyncio.run(FileStore(file).load())


def test_a_bad_file_is_not_parsed_again_before_it_changes(file: Path) -> None:
    file.write_text("rules: 5")
    store = FileStore(file)
    for _ in range(2):
        with pytest.raises(InvalidRules, match="line 1: rules: expected a list, got 5"):
            asyncio.run(store.version())
    found = store._parsed
    with pytest.raises(InvalidRules):
        asyncio.run(store.load())
    assert store._parsed is found


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read the rules in .*none\.yaml: No such"):
        asyncio.run(FileStore(tmp_path / "none.yaml").load())


# following


def test_rules_come_into_force_at_once_and_after_each_change(
    file: Path, watched: Watched, follow: Callable[..., Follower]
) -> None:
    follow(FileStore(file))
    assert quota_of(watched.wait_for(1)) == 1
    file.write_text(rules(2))
    assert quota_of(watched.wait_for(2)) == 2


def test_an_engine_follows_without_a_restart(file: Path) -> None:
    engine = Engine(load(file), Limiter())
    assert engine.decide({}).allowed
    assert not engine.decide({}).allowed
    with Follower(FileStore(file), engine.use, interval=TICK_S):
        file.write_text(rules(3))
        wait_until(lambda: engine.rules.rules[0].allowances.own.limits[0].quota == 3)
    # What was used stays used.
    assert engine.peek({}).remaining == 2


@pytest.mark.parametrize("bad", ["rules: [{}]", "rules: [", "\x00", "rules: 5", ""])
def test_a_bad_file_is_logged_once_and_the_last_good_rules_stay(
    file: Path,
    watched: Watched,
    follow: Callable[..., Follower],
    caplog: pytest.LogCaptureFixture,
    bad: str,
) -> None:
    started = follow(FileStore(file))
    good = watched.wait_for(1).version
    replace(file, bad.encode())  # as a whole: a file that is empty for a moment would be a second
    wait_until(lambda: caplog.records)
    time.sleep(5 * TICK_S)
    assert len(caplog.records) == 1
    assert "rules, store: " in caplog.text
    assert started.status.version == good
    assert list(started.status.trouble) == ["store"]
    file.write_text(rules(2))
    assert quota_of(watched.wait_for(2)) == 2
    assert len(watched.sets) == 2


def test_a_failing_loop_is_logged_once_beside_loops_that_succeed(
    follow: Callable[..., Follower], file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower, calls = follow(FileStore(file)), [0, 0]

    async def fails() -> None:
        calls[0] += 1
        raise ValueError("a strange reply")

    async def succeeds() -> None:
        calls[1] += 1

    async def run() -> None:
        loops = [asyncio.create_task(follower._every(0.001, work)) for work in (fails, succeeds)]
        await wait_until_async(lambda: min(calls) >= 10)
        for loop in loops:
            loop.cancel()

    asyncio.run(run())
    assert follower.status.trouble == {"callback": "ValueError: a strange reply"}
    assert len([record for record in caplog.records if "strange" in record.message]) == 1


class Flaky:
    """A store that fails now and then, as a database does."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.document: dict[str, object] = {"rules": []}
        self.number = 1
        self.loads = 0

    async def version(self) -> str:
        if self.fault is not None:
            raise self.fault
        return str(self.number)

    async def load(self) -> Snapshot:
        self.loads += 1
        return Snapshot(str(self.number), self.document)


@pytest.mark.parametrize("fault", [StoreError("gone"), RuntimeError("a bug of the driver")])
def test_a_store_that_fails_changes_nothing_and_is_asked_again(
    watched: Watched,
    follow: Callable[..., Follower],
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
) -> None:
    store = Flaky()
    follow(store)
    watched.wait_for(1)
    store.fault = fault
    wait_until(lambda: caplog.records)
    store.number, store.fault = 2, None
    assert watched.wait_for(2).version == "2"
    assert len(caplog.records) == 1


def test_a_version_that_is_refused_is_not_loaded_again_and_again(
    watched: Watched, follow: Callable[..., Follower], caplog: pytest.LogCaptureFixture
) -> None:
    store = Flaky()
    store.document = {"rules": 5}
    follow(store)
    wait_until(lambda: caplog.records)
    time.sleep(5 * TICK_S)
    assert (store.loads, watched.sets) == (1, [])
    store.document, store.number = {"rules": []}, 2
    watched.wait_for(1)


def test_closing_stops_the_thread(file: Path, watched: Watched) -> None:
    follower = Follower(FileStore(file), watched.use, interval=60)
    follower.start()
    watched.wait_for(1)
    started = time.monotonic()
    follower.close()
    assert time.monotonic() - started < 30
    assert not [thread for thread in threading.enumerate() if thread.name == "limen-rules"]


@pytest.mark.parametrize("interval", [0, -1, 86_400, float("nan")])
def test_an_interval_without_sense_is_refused(file: Path, interval: float) -> None:
    with pytest.raises(ConfigurationError, match="interval must be seconds above 0"):
        Follower(FileStore(file), print, interval=interval)


def test_a_request_is_decided_by_one_set_from_start_to_end() -> None:
    old = parse({"rules": [{"name": "old", "limits": "1/hour"}]}, version="1")
    new = parse({"rules": [{"name": "new", "limits": "1/hour"}]}, version="2")
    engine = Engine(old, Limiter())
    slot = engine.slot({})
    engine.use(new)
    verdict = slot.acquire()
    assert (verdict.version, verdict.rule) == ("1", "old")


def test_info_says_what_is_in_force(
    file: Path,
    watched: Watched,
    follow: Callable[..., Follower],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "limen")
    follow(FileStore(file))
    version = watched.wait_for(1).version
    wait_until(lambda: f"rules {version} are in force: 1 rules" in caplog.text)


def test_what_is_in_force_is_written_down_by_then(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who ends right after that, and closes nothing, finds it there the next time."""
    monkeypatch.setattr(seek, "_DISK_S", 30.0)
    with Follower(FileStore(file), lambda _: None, folder=tmp_path / "kept") as follower:
        version = follower.wait().version
        kept = LastGood(tmp_path / "kept", FileStore(file).source).read()
        assert kept is not None
        assert kept.version == version


FORKING = """
import os, sys, time
from pathlib import Path
from limen.rules.stores.file import FileStore
from limen.rules.sync import Follower

file, seen = Path(sys.argv[1]), []
follower = Follower(FileStore(file), seen.append, interval=0.01)
follower.start()
first = follower.wait(10).version
child = os.fork()
if child == 0:
    file.write_text(sys.argv[2])
end = time.monotonic() + 10
while seen[-1].version == first and time.monotonic() < end:
    time.sleep(0.01)
if child == 0:
    os._exit(0 if seen[-1].version != first else 1)
follower.close()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or seen[-1].version == first)
"""


def test_the_child_of_a_fork_follows_too(file: Path) -> None:
    """As with gunicorn's preload: threads stay behind in the parent."""
    ran = subprocess.run([sys.executable, "-c", FORKING, str(file), rules(2)], check=False)
    assert ran.returncode == 0
