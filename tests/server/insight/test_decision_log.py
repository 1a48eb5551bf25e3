"""The decision log, on a real disk and real pipes: whole lines, wherever they go."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limen.observe.hiding import hashed
from limen.observe.recent import DecisionRecord, Recent
from limen.server.insight import decision_log as module
from limen.server.insight.decision_log import DecisionLog
from tests.observe.test_recent import seen

Logged = Callable[[], list[str]]
ROOT = Path(__file__).parents[3]

# What a worker does: decisions of its own, several in each write.
WORKER = """
import sys
from limen.server.insight.decision_log import DecisionLog
from tests.observe.test_recent import seen

path, name, turns, lines = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
log = DecisionLog(path)
for turn in range(turns):
    log.write([seen(id=f"{turn}.{line}", instance=name, key="k" * 250) for line in range(lines)])
"""
# A disk that is full for a while: the kernel takes what fits below the limit, and then nothing.
FULL = """
import resource, sys
from pathlib import Path
from limen.server.insight.decision_log import DecisionLog
from tests.observe.test_recent import seen

log, other = DecisionLog(sys.argv[1]), DecisionLog(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
log.write([seen(id="line 0 0")])
line = Path(sys.argv[1]).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (5 * line + int(sys.argv[2]), hard))
for turn in range(3):
    log.write([seen(id=f"line {turn} {number}") for number in range(1, 9)])
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
# The first to write again knows nothing of it.
other.write([seen(id="other")])
log.write([seen(id="after")])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.log"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    caplog.set_level(logging.WARNING, "limen")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "limen"]


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


def named(*names: str) -> list[DecisionRecord]:
    return [seen(id=name) for name in names]


def start(script: str, *arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, **options)


# lines


def test_a_decision_is_an_object_on_one_line(path: Path) -> None:
    DecisionLog(str(path)).write([seen(at=1_763_228_743.2504, key="user\n1"), seen(shadow=True)])
    first, second = path.read_text().splitlines()
    assert json.loads(first) == {
        "at": "2025-11-15T17:45:43.250+00:00",
        "id": "r1",
        "allowed": False,
        "rule": "login",
        "limit": "5/minute",
        "key": "user\n1",
        "remaining": 0,
        "retry_after": 1.5,
        "cost": 1,
        "reason": "over 5/minute",
        "version": "17",
        "source": "store",
        "fault": "",
        "instance": "a1",
        "surface": "check",
        "shadow": False,
    }
    assert json.loads(second)["shadow"] is True


def test_keys_are_hashed_if_asked_for(path: Path) -> None:
    hide = hashed(b"secret")
    kept = Recent()
    kept.add(seen(key="user:1"))
    kept.add(seen(key="k" * 1_000))
    kept.add(seen(key=None))
    DecisionLog(str(path), hide).write(kept.tick())
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == [
        hide("user:1"),
        hide("k" * 1_000),
        None,
    ]
    assert "user:1" not in path.read_text()


def test_nothing_to_write_makes_no_file(path: Path) -> None:
    DecisionLog(str(path)).write([])
    assert not path.exists()


def test_only_its_owner_may_read_it(path: Path) -> None:
    before = os.umask(0)
    try:
        DecisionLog(str(path)).write(named("1"))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


# several workers


def test_lines_of_several_workers_are_whole(path: Path) -> None:
    workers = [start(WORKER, path, name, 50, 40) for name in "abc"]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == 6_000
    for name in "abc":
        mine = [one["id"] for one in found if one["instance"] == name]
        assert mine == [f"{turn}.{line}" for turn in range(50) for line in range(40)]


def test_lines_of_several_workers_are_whole_also_on_one_pipe() -> None:
    read, write = os.pipe()
    workers = [start(WORKER, "-", name, 50, 40, stdout=write) for name in "ab"]
    os.close(write)
    with open(read, "rb") as pipe:  # noqa: PTH123  # a descriptor, no path
        found = [json.loads(line) for line in pipe.read().splitlines()]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert len(found) == 4_000


# the file goes away


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced", "emptied"])
def test_a_file_that_was_rotated_away_is_opened_again(path: Path, how: str) -> None:
    log = DecisionLog(str(path))
    log.write(named("1"))
    away = path.with_suffix(".1")
    if how == "emptied":
        os.truncate(path, 0)
    elif how == "deleted":
        path.unlink()
    else:
        path.rename(away)
    if how == "replaced":
        path.touch()
    log.write(named("2"))
    log.write(named("3"))
    assert ids(path) == ["2", "3"]
    assert not away.exists() or ids(away) == ["1"]


def test_no_file_stays_open(path: Path) -> None:
    log = DecisionLog(str(path))
    log.write(named("1"))
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208  # a number is all we want
    for number in range(20):
        path.rename(path.with_suffix(f".{number}"))
        log.write(named("2"))
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208
    log.close()
    log.close()
    log.write(named("3"))
    assert ids(path) == ["2", "3"]


# trouble


def test_a_folder_that_is_not_there_is_logged_once_and_used_when_it_is(
    tmp_path: Path, logged: Logged
) -> None:
    path = tmp_path / "later" / "decisions.log"
    log = DecisionLog(str(path))
    for _ in range(3):
        log.write([seen(key="somebody's secret")])
    [line] = logged()
    assert line == f"the decision log {path} cannot be written: No such file or directory"
    path.parent.mkdir()
    log.write(named("1"))
    assert ids(path) == ["1"]
    # And once more when it goes away, with what was open.
    path.unlink()
    path.parent.rmdir()
    log.write(named("2"))
    assert len(logged()) == 1


def test_a_folder_in_its_place_is_logged(tmp_path: Path, logged: Logged) -> None:
    DecisionLog(str(tmp_path)).write(named("1"))
    assert "Is a directory" in logged()[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_logged_once(logged: Logged) -> None:
    log = DecisionLog("/dev/full")
    for _ in range(3):
        log.write(named("1"))
    assert logged() == ["the decision log /dev/full cannot be written: No space left on device"]


@pytest.mark.parametrize("beyond", [-1, 0, 1, 100])
def test_after_a_disk_was_full_lines_are_whole_again(path: Path, beyond: int) -> None:
    """It has room for five lines and some bytes beyond, which may be a part of the sixth."""
    worker = start(FULL, path, beyond, stderr=subprocess.PIPE)
    _, said = worker.communicate(timeout=60)
    assert worker.returncode == 0, said
    assert said.decode().count("cannot be written: File too large") == 1
    lines = path.read_text().splitlines()
    if beyond > 0:
        assert len(lines.pop(5)) == beyond
    whole = [f"line 0 {number}" for number in range(5)]
    assert [json.loads(line)["id"] for line in lines] == [*whole, "other", "after"]


def test_half_a_line_that_another_left_stays_alone(path: Path) -> None:
    path.write_text('{"id": "1"}\n{"id"')
    log = DecisionLog(str(path))
    log.write(named("2"))
    log.write(named("3"))
    first, half, *rest = path.read_text().splitlines()
    assert (first, half) == ('{"id": "1"}', '{"id"')
    assert [json.loads(line)["id"] for line in rest] == ["2", "3"]


# stdout and pipes


def test_a_dash_is_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    log = DecisionLog("-")
    log.write(named("1"))
    log.close()
    log.write(named("2"))
    assert [json.loads(line)["id"] for line in capfd.readouterr().out.splitlines()] == ["1", "2"]


def test_a_pipe_that_nobody_reads_holds_nobody_up(
    tmp_path: Path, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = DecisionLog(str(path))
    for _ in range(3):
        log.write([seen(id=str(number)) for number in range(1_000)])
    assert logged() == [f"the decision log {path} cannot be written: nobody reads it"]
    read = b""
    while not read.endswith(b"}\n") or len(read) < 4_096:
        read += os.read(reader, 65_536)
    # Then there is room again.
    log.write(named("again"))
    read += os.read(reader, 65_536)
    os.close(reader)
    log.close()
    found = [json.loads(line)["id"] for line in read.splitlines()]
    assert found[:2] == ["0", "1"]
    assert found[-1] == "again"


def test_a_pipe_that_was_closed_is_logged() -> None:
    read, write = os.pipe()
    os.close(read)
    worker = start(WORKER, "-", "a", 3, 3, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    _, said = worker.communicate(timeout=60)
    assert said.decode() == "the decision log to stdout cannot be written: Broken pipe\n"
    assert worker.returncode == 0
