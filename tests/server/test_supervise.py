"""A parent and its workers: replaced one by one, killed, orphaned."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from limen.errors import ConfigurationError
from limen.server.process.listen import bind
from limen.server.process.main import run
from limen.server.process.supervisor import INHERITED, Parent, parent, supervise
from limen.server.settings import load
from tests.server.processes import Process, is_worker, process
from tests.server.raw import Raw, request
from tests.waiting import wait_until


class Load:
    """Clients that ask on and on: some keep their connection, some take a new one each time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_over = threading.Event()
        self.answers: Counter[str] = Counter()
        """By the process that gave them."""
        self.failures: list[str] = []
        self._threads = [
            *(threading.Thread(target=self._ask, args=(True,)) for _ in range(4)),
            *(threading.Thread(target=self._ask, args=(False,)) for _ in range(2)),
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: sum(self.answers.values()) > 100)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(20)

    def _ask(self, keeps: bool) -> None:
        while not self._is_over.is_set():
            try:
                with Raw(self._port) as raw:
                    self._ask_on(raw, keeps)
            except Exception as error:  # whatever it is, it is a failed request
                self.failures.append(repr(error))

    def _ask_on(self, raw: Raw, keeps: bool) -> None:
        while not self._is_over.is_set():
            response = raw.get("/", *([] if keeps else ["Connection: close"]))
            assert response.status == 200
            self.answers[response.body.decode()] += 1
            if response.closes:
                return
            time.sleep(0.002)


@contextmanager
def two_workers(**asked: object) -> Iterator[Process]:
    with process(workers=2, **asked) as served:
        served.start(2)
        yield served


def test_a_rolling_restart_under_load_fails_no_request() -> None:
    with two_workers() as served, Load(served.port) as load:
        for round_ in (1, 2):
            old = served.ready[-2:]
            served.signal(signal.SIGHUP)
            served.start(2 + 2 * round_)
            wait_until(lambda: not any(map(is_worker, old)))  # noqa: B023
            load.answers.clear()
            new = {str(pid) for pid in served.ready[-2:]}
            wait_until(lambda: set(load.answers) == new)  # noqa: B023
        assert load.failures == []
        served.signal(signal.SIGTERM)
        load._is_over.set()
        assert served.code() == 0
    assert served.complained == []


def test_requests_under_way_outlive_their_worker(tmp_path: Path) -> None:
    with two_workers() as served:
        with served.raw() as raw:
            worker = int(raw.get().body)
            raw.send(request(f"/until{tmp_path}/go"))
            served.line("begun")
            served.signal(signal.SIGHUP)
            served.start(4)
            wait_until(lambda: said_by_others(served, worker))
            (tmp_path / "go").touch()
            response = raw.response()
            assert (response.body, response.closes) == (b"slept", True)
        wait_until(lambda: not is_worker(worker))


def said_by_others(served: Process, worker: int) -> bool:
    with served.raw() as raw:
        return int(raw.get().body) != worker


def test_a_worker_that_is_killed_is_replaced() -> None:
    with two_workers() as served:
        for round_ in (1, 2):
            victim = served.ready[-1]
            os.kill(victim, signal.SIGKILL)
            served.start(2 + round_)
            assert f"worker {victim} was ended by SIGKILL" in served.complained
        with served.raw() as raw:
            assert raw.get().status == 200
        assert not served.has_ended


def test_nobody_outlives_a_parent_that_is_killed() -> None:
    with two_workers() as served:
        with served.raw() as raw:
            raw.send(request("/sleep/0.5"))
            served.line("begun")
            os.kill(served.pid, signal.SIGKILL)
            assert raw.response().body == b"slept"
        wait_until(lambda: not any(map(is_worker, served.ready)))
        with pytest.raises(ConnectionRefusedError):
            Raw(served.port)


def test_a_stop_lets_all_of_them_finish() -> None:
    with two_workers() as served, served.raw() as raw:
        raw.send(request("/sleep/1"))
        served.line("begun")
        served.signal(signal.SIGINT)
        assert raw.response().body == b"slept"
        assert served.code() == 0
        assert not any(map(is_worker, served.ready))
        assert served.said.count("ended") == 2
        assert served.complained == []


def test_workers_heed_a_stop_that_they_are_told_twice() -> None:
    with two_workers() as served, served.raw() as raw:
        worker = int(raw.get().body)
        raw.send(request("/sleep/1"))
        served.line("begun")
        os.kill(worker, signal.SIGTERM)  # as systemd does, which tells everybody
        served.signal(signal.SIGTERM)
        assert raw.response().body == b"slept"
        assert served.code() == 0


def test_a_second_signal_kills() -> None:
    with two_workers() as served, served.raw() as raw:
        raw.send(request("/sleep/60"))
        served.line("begun")
        served.signal(signal.SIGTERM)
        wait_until(lambda: served.said.count("ended") == 1)
        served.signal(signal.SIGTERM)
        assert served.code(20) == 128 + signal.SIGTERM
        assert not any(map(is_worker, served.ready))


def test_who_does_not_end_is_killed_in_the_end() -> None:
    with two_workers(stop="hang", stop_timeout=0.5) as served:
        served.signal(signal.SIGTERM)
        assert served.code(20) == 0
        assert not any(map(is_worker, served.ready))


def test_one_worker_is_told_to_turn_the_kill_switch() -> None:
    with two_workers() as served:
        served.signal(signal.SIGUSR1)
        served.line("usr1")
        served.signal(signal.SIGTERM)
        assert served.code() == 0
        assert served.said.count("usr1") == 1


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("refused", "limen: no such store"),
        ("start", "limen: the store at redis://ann:***@host is away"),
        ("hang", "was not ready in 1 s"),
    ],
)
def test_when_no_worker_gets_ready_it_says_why_and_ends(start: str, said: str) -> None:
    with process(workers=2, start=start, ready_timeout=1.0) as served:
        assert served.code() == 1
        [line] = served.complained
        assert line.endswith(said)


def test_a_worker_that_fails_to_start_and_does_not_exit_is_killed() -> None:
    with process(workers=2, start="linger", ready_timeout=1.0) as served:
        assert served.code(20) == 1
        assert served.complained[-1].endswith("was not ready in 1 s")


def test_a_stop_ends_workers_that_are_not_ready_yet() -> None:
    with process(workers=2, start="hang") as served:
        served.line("hangs")
        served.signal(signal.SIGTERM)
        assert served.code(20) == 0


@pytest.mark.parametrize(("wrong", "said"), [("refused", "no such store"), ("hang", "not ready")])
def test_a_restart_that_fails_keeps_the_old_workers(tmp_path: Path, wrong: str, said: str) -> None:
    file = tmp_path / "start"
    with two_workers(start_file=str(file), ready_timeout=2.0) as served, served.raw() as raw:
        worker = raw.get().body
        file.write_text(wrong)
        served.signal(signal.SIGHUP)
        wait_until(lambda: "the restart was given up; the old workers stay" in served.complained)
        assert any(said in line for line in served.complained)
        assert raw.get().body == worker
        assert all(map(is_worker, served.ready[:2]))
        file.unlink()
        served.signal(signal.SIGHUP)
        served.start(4)


@pytest.mark.slow
def test_workers_that_keep_dying_are_started_ever_more_seldom(tmp_path: Path) -> None:
    file = tmp_path / "start"
    with two_workers(start_file=str(file)) as served:
        file.write_text("refused")
        os.kill(served.ready[-1], signal.SIGKILL)
        wait_until(lambda: served.complained.count("limen: no such store") >= 3)
        assert is_worker(served.ready[0])
        file.unlink()
        served.start(3)


def test_a_command_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        assert supervise(["/no/such/command"], {"data": listener}, 2) == 1
    assert capsys.readouterr().err == (
        "limen: cannot start /no/such/command: No such file or directory\n"
    )


def test_a_process_without_a_parent_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parent() is None


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "{}",
        '{"listeners": {"bind": 9999}, "line": 9999, "folder": null, "others_serve": false}',
    ],
)
def test_a_variable_of_workers_that_names_no_sockets_is_an_error(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INHERITED, text)
    with pytest.raises(ConfigurationError, match="names no open sockets"):
        parent()
    assert INHERITED not in os.environ


@pytest.mark.parametrize(
    "flags",
    [
        {"grpc.bind": "", "admin.bind": "127.0.0.1:{grpc}"},
        {"grpc.bind": "127.0.0.1:1", "admin.bind": ""},
        {"bind": "127.0.0.1:{grpc}", "grpc.bind": "127.0.0.1:{data}", "admin.bind": ""},
    ],
    ids=["another name", "another port", "swapped"],
)
def test_worker_refuses_listeners_that_are_not_those_of_its_settings(
    tmp_path: Path, flags: dict[str, str]
) -> None:
    """After a reload with other addresses, administration must not appear on a public socket."""
    with bind("127.0.0.1", 0) as data, bind("127.0.0.1", 0) as grpc, socket.socket() as line:
        ports = {"data": data.getsockname()[1], "grpc": grpc.getsockname()[1]}
        given = {name: text.format(**ports) for name, text in flags.items()}
        usual = {"bind": f"127.0.0.1:{ports['data']}", "grpc.bind": f"127.0.0.1:{ports['grpc']}"}
        settings = load({"data_dir": str(tmp_path), **usual, **given}, {})
        above = Parent({"bind": data, "grpc.bind": grpc}, line)
        with pytest.raises(ConfigurationError, match="have changed since limen started"):
            run(settings, [], above, lambda _: None)
