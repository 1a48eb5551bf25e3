"""Figures of the workers of one host: each is counted once, whoever ends, and whatever breaks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from limen.observe.figures import Figures, merged
from limen.server.insight.workers import Gathering, Workers, gathering
from limen.server.process.supervisor import supervise
from tests.waiting import wait_until

NOW = 1_000.0


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Gathering]:
    with gathering(tmp_path) as made:
        assert made is not None
        yield made


class Host:
    """Workers that are objects here, each under a process id of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._pids = itertools.count(101)
        self._monkeypatch = monkeypatch

    def start(self) -> tuple[int, Workers]:
        pid = next(self._pids)
        self._monkeypatch.setattr(os, "getpid", lambda: pid)
        return pid, Workers(self._folder, f"{pid:x}abcdef")


@pytest.fixture
def host(shared: Gathering, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(shared.path, monkeypatch)


def counted(allowed: int, name: str = "x", at: float = NOW) -> Figures:
    return Figures(name, at, {"login": [allowed, 0, 0, 0]}, [allowed, 0], rules_version="7")


def total(worker: Workers) -> int:
    return merged(worker.read(), NOW).requests[0]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_every_worker_sees_the_figures_of_all(host: Host) -> None:
    made = [host.start()[1] for _ in range(3)]
    for number, worker in enumerate(made):
        worker.write(counted(10**number, str(number)))
    for worker in made:
        assert {each.instance for each in worker.read()} == {"0", "1", "2", ""}
        assert total(worker) == 111


def test_without_a_folder_there_is_only_the_own() -> None:
    alone = Workers(None, "abc")
    assert alone.read() == []
    alone.write(counted(5))
    assert alone.read() == [counted(5)]


def test_no_worker_shows_less_than_another_has_shown(host: Host) -> None:
    (_, first), (_, second) = host.start(), host.start()
    shown = []
    for number in range(10):
        answers = first if number % 2 else second
        shown.append(merged(answers.exchange(counted(number, at=NOW + number)), NOW).requests[0])
    assert shown == [0, 1, 3, 5, 7, 9, 11, 13, 15, 17]


def test_figures_that_were_overtaken_are_not_written(host: Host) -> None:
    (_, first), (_, second) = host.start(), host.start()
    first.write(counted(7, at=NOW))
    first.write(counted(6, at=NOW - 0.5))
    assert total(first) == total(second) == 7
    first.write(counted(8, at=NOW - 3_600))  # the clock was set back
    assert total(first) == total(second) == 8


def test_what_a_worker_counted_stays_when_it_has_ended(shared: Gathering, host: Host) -> None:
    (one, first), (_, second) = host.start(), host.start()
    first.write(counted(7))
    second.write(counted(5))
    shared.take_in({one})
    assert total(first) == 12
    assert sorted(each.name for each in shared.path.iterdir()) == ["101-65abcdef", "ended", "lock"]
    # Its counters stay, and its gauges go.
    [_, ended] = first.read()
    assert (ended.requests, ended.decisions) == ([5, 0], {"login": [5, 0, 0, 0]})
    assert (ended.rules_version, ended.at) == ("", 0.0)


def test_old_and_new_workers_are_alive_at_once(shared: Gathering, host: Host) -> None:
    (one, old), (two, other) = host.start(), host.start()
    old.write(counted(7))
    other.write(counted(5))
    three, new = host.start()
    shared.take_in({one, two, three})
    new.write(counted(1))
    assert total(old) == total(new) == 13
    old.write(counted(8))  # it drains, and still counts
    assert total(new) == 14
    shared.take_in({two, three})
    assert total(new) == total(other) == 14


def test_a_file_that_cannot_be_deleted_is_not_counted_twice(
    shared: Gathering, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (one, first), (_, second) = host.start(), host.start()
    first.write(counted(7))
    second.write(counted(5))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", _failing(errno.EIO))
        for _ in range(3):
            shared.take_in({one})
            assert total(first) == 12
    assert len(warnings(caplog)) == 1
    shared.take_in({one})
    assert len(list(shared.path.iterdir())) == 3
    assert total(first) == 12


def test_a_folder_that_is_gone_leaves_what_was_known(
    shared: Gathering, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    (one, first), (_, second) = host.start(), host.start()
    first.write(counted(7))
    second.write(counted(5))
    assert total(first) == 12
    for each in shared.path.iterdir():
        each.unlink()
    shared.path.rmdir()
    for allowed in (8, 9):
        first.write(counted(allowed))
        assert total(first) == allowed + 5
    shared.take_in({one})
    assert len(warnings(caplog)) == 3  # who writes, who reads, and the parent: each once
    assert not shared.path.exists()


def test_a_crash_loop_leaves_one_file_of_a_fixed_size(shared: Gathering, host: Host) -> None:
    one, first = host.start()
    first.write(counted(1))
    sizes = []
    for number in range(600):
        _, other = host.start()
        other.write(counted(1))
        shared.take_in({one})
        if number >= 300:
            sizes.append((shared.path / "ended").stat().st_size)
    assert total(first) == 601
    assert sorted(each.name for each in shared.path.iterdir()) == ["101-65abcdef", "ended", "lock"]
    assert max(sizes) - min(sizes) < 300
    assert max(sizes) < 10_000


def test_whoever_reads_while_workers_come_and_go_sees_each_once(
    shared: Gathering, host: Host
) -> None:
    one, reader = host.start()
    reader.write(counted(0))
    is_over = threading.Event()
    seen: list[list[int]] = [[], []]

    def look(mine: list[int]) -> None:
        while not is_over.is_set():
            mine.append(total(reader))

    threads = [threading.Thread(target=look, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            _, other = host.start()
            other.write(counted(1))
            shared.take_in({one})
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert total(reader) == 300
    for mine in seen:
        assert mine == sorted(mine)
        assert max(mine) <= 300


@pytest.mark.parametrize("moment", range(5))
def test_a_worker_that_ends_while_another_reads_is_counted_once(
    shared: Gathering, host: Host, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """The moments: before each file is read."""
    (one, reader), (_, other) = host.start(), host.start()
    reader.write(counted(7))
    other.write(counted(5))
    _, gone = host.start()
    gone.write(counted(100))
    shared.take_in({one, one + 1})
    steps = itertools.count()
    read_bytes = Path.read_bytes

    def step(path: Path) -> bytes:
        if next(steps) == moment:
            shared.take_in({one})
        return read_bytes(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", step)
        assert total(reader) == 112
    shared.take_in({one})
    assert total(reader) == 112


@pytest.mark.parametrize("file", ["102-66abcdef", "ended"])
@pytest.mark.parametrize("garbage", [b"", b"\x00", b"\x81" * 50])
def test_garbage_in_a_file_leaves_what_was_known(
    shared: Gathering, host: Host, caplog: pytest.LogCaptureFixture, file: str, garbage: bytes
) -> None:
    (_, first), (_, second) = host.start(), host.start()
    first.write(counted(1))
    second.write(counted(10))
    assert total(first) == 11
    (shared.path / file).write_bytes(garbage)
    for allowed in (2, 3, 4):
        first.write(counted(allowed))
        assert total(first) == allowed + 10
    assert len(warnings(caplog)) == 1


def test_a_full_disk_loses_no_figures_of_a_worker_that_ended(
    shared: Gathering, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (one, first), (_, second) = host.start(), host.start()
    first.write(counted(7))
    second.write(counted(5))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", _failing(errno.ENOSPC))
        for _ in range(3):
            shared.take_in({one})
            first.write(counted(8))
            assert total(first) == 13
    assert len(warnings(caplog)) == 2
    shared.take_in({one})
    assert total(first) == 13


def test_the_folder_is_for_its_owner_alone_and_is_removed(tmp_path: Path) -> None:
    with gathering(tmp_path) as made:
        assert made is not None
        assert made.path.parent == tmp_path
        assert made.path.stat().st_mode & 0o777 == 0o700
        (made.path / "1-a").touch()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_parents_that_were_killed_are_swept_and_those_of_others_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "rules.db").touch()
    for name in ("workers-old", "workers-without-lock"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "7-abc").touch()
    (tmp_path / "workers-old" / "lock").touch()
    with gathering(tmp_path) as first, gathering(tmp_path) as second:
        assert first is not None
        assert second is not None
        found = {each.name for each in tmp_path.iterdir()}
        assert found == {"rules.db", first.path.name, second.path.name}
    assert [each.name for each in tmp_path.iterdir()] == ["rules.db"]


def test_a_parent_that_can_have_no_folder_says_so_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gathering(tmp_path / "nowhere") as made:
        assert made is None
    monkeypatch.setattr(fcntl, "flock", _failing(errno.ENOLCK))
    with gathering(tmp_path) as made:
        assert made is None
    assert list(tmp_path.iterdir()) == []
    assert [line.split(":")[0] for line in warnings(caplog)] == [
        "/metrics shows one worker at a time"
    ] * 2


# With processes

WORKER = """
import os, select, time
from limen.observe.figures import Figures
from limen.server.insight.workers import Workers
from limen.server.process.supervisor import parent

by = parent()
workers = Workers(by.folder, f"{os.getpid():x}")
workers.write(Figures("x", time.time(), requests=[1, 0]))
by.tell_ready()
print(by.folder, flush=True)
select.select([by.line], [], [])  # until the parent has gone, or ends it
"""
PARENT = """
import socket, sys
from pathlib import Path
from limen.server.insight.workers import gathering
from limen.server.process.supervisor import supervise

command = [sys.executable, "-c", sys.argv[2]]
with gathering(Path(sys.argv[1])) as shared:
    sys.exit(supervise(command, {"data": socket.socket()}, 2, shared=shared))
"""


@contextlib.contextmanager
def parent(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT, str(folder), WORKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_worker_that_is_killed_stays_in_the_sum_and_no_folder_stays(tmp_path: Path) -> None:
    with parent(tmp_path) as running:
        assert running.stdout is not None
        folder = Path(running.stdout.readline().strip())
        assert folder.parent == tmp_path
        look = Workers(folder, "looks")
        wait_until(lambda: merged(look.read(), time.time()).requests == [2, 0])
        victim = min(int(each.name.partition("-")[0]) for each in folder.glob("[1-9]*"))
        os.kill(victim, signal.SIGKILL)
        # Another takes its place, and what it had counted stays.
        wait_until(lambda: merged(look.read(), time.time()).requests == [3, 0])
        assert len(list(folder.glob("[1-9]*"))) == 2
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_was_killed_leaves_a_folder_for_the_next_one_to_sweep(
    tmp_path: Path,
) -> None:
    with parent(tmp_path) as running:
        assert running.stdout is not None
        folder = Path(running.stdout.readline().strip())
        wait_until(lambda: len(list(folder.glob("[1-9]*"))) == 2)
        with gathering(tmp_path):
            assert folder.exists()
        running.kill()
        running.wait()
        with gathering(tmp_path):
            assert not folder.exists()


def test_nothing_is_shared_unless_it_is_asked_for() -> None:
    assert supervise(["/no/such/command"], {}, 2) == 1


def _failing(number: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail
