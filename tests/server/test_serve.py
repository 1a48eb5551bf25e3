"""One process: its start, its signals, its certificate and its end."""

from __future__ import annotations

import signal
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from limen.errors import ConfigurationError
from limen.server.process.listen import Tls, bind
from tests import servers
from tests.server.processes import process
from tests.server.raw import HOST, Raw, request
from tests.waiting import wait_until

PAIRS = Path(__file__).parent / "tls"


# Listening


def test_an_address_in_use_says_what_to_do() -> None:
    with bind(HOST, 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigurationError, match="in use by another program") as caught:
            bind(HOST, port)
    assert f"{HOST}:{port}" in str(caught.value)
    assert "choose another port" in str(caught.value)


def test_a_port_can_be_taken_again_at_once() -> None:
    with bind(HOST, 0) as first:
        port = first.getsockname()[1]
        with socket.create_connection((HOST, port)) as client:
            first.setblocking(True)
            accepted, _ = first.accept()
            accepted.close()  # the side that closes first keeps the port in TIME_WAIT
            assert client.recv(1) == b""
    bind(HOST, port).close()


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("no such host", 0, "'no such host': no such host"),
        ("host.invalid", 0, "no such host"),
        ("x" * 300, 0, "no such host"),
        ("192.0.2.1", 0, "192.0.2.1 is no address of this host"),
    ],
)
def test_bad_addresses_are_named(host: str, port: int, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        bind(host, port)


def test_a_port_of_the_system_needs_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", forbidden)
    with pytest.raises(ConfigurationError, match=r"may not listen on 127\.0\.0\.1:80: choose"):
        bind(HOST, 80)


@pytest.mark.parametrize("host", ["::1", "[::1]", "::"])
def test_ipv6(host: str) -> None:
    port = servers.free_port()  # on IPv4: any port would do on IPv6, and may be another's there
    with bind(host, port):
        socket.create_connection(("::1", port)).close()
        if host == "::":
            socket.create_connection((HOST, port)).close()
        else:
            assert not accepts(port)


# The start


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("refused", "limen: no such store"),
        ("start", "limen: the store at redis://ann:***@host is away"),
        ("bug", "limen: RuntimeError: a thing"),
    ],
)
def test_a_failed_start_is_one_line_and_code_1(start: str, said: str) -> None:
    with process(start=start) as served:
        assert served.code() == 1
        assert served.complained == [said]
        assert served.ready == []


def test_nobody_is_answered_before_the_app_has_started() -> None:
    with process(start="hang") as served:
        served.line("hangs")
        with served.raw() as raw:
            raw.send(request())
            raw.socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                raw.response()
        served.signal(signal.SIGTERM)
        assert served.code() == 0
        assert served.complained == []


# The end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_finishes_what_is_under_way(number: signal.Signals, tmp_path: Path) -> None:
    with process() as served, served.start().raw() as works, served.raw() as idle:
        idle.get()
        works.send(request(f"/until{tmp_path}/go"))
        served.line("begun")
        served.signal(number)
        wait_until(lambda: not accepts(served.port))
        last = idle.get()
        assert (last.status, last.closes) == (200, True)
        assert idle.ends()
        (tmp_path / "go").touch()
        response = works.response()
        assert (response.body, response.closes) == (b"slept", True)
        assert works.ends()
        assert served.code() == 0
        assert served.said[-1] == "ended"
        assert served.complained == []


def accepts(port: int) -> bool:
    try:
        Raw(port).socket.close()
    except OSError:
        return False
    return True


def test_a_second_signal_does_not_wait() -> None:
    with process() as served, served.start().raw() as works:
        works.send(request("/sleep/60"))
        served.line("begun")
        served.signal(signal.SIGTERM)
        wait_until(lambda: not accepts(served.port))
        served.signal(signal.SIGTERM)
        assert served.code(20) == 128 + signal.SIGTERM
        assert served.complained == []


def test_a_second_signal_ends_an_app_that_does_not_end() -> None:
    with process(stop="hang") as served:
        served.start().signal(signal.SIGINT)
        served.line("hangs")
        served.signal(signal.SIGINT)
        assert served.code(20) == 128 + signal.SIGINT


def test_what_takes_too_long_is_cut_off() -> None:
    with process(limits={"drain_timeout": 0.5}) as served, served.start().raw() as works:
        works.send(request("/sleep/60"))
        served.line("begun")
        served.signal(signal.SIGTERM)
        assert served.code(20) == 0
        assert served.said[-1] == "ended"
        assert served.complained == ["cut off what was still under way: 1 connections"]


def test_an_app_that_does_not_end_well_is_heard_of() -> None:
    with process(stop="bug") as served:
        served.start().signal(signal.SIGTERM)
        assert served.code() == 1
        assert "the program did not end well: RuntimeError: no end" in served.complained


def test_whoever_the_kernel_let_in_is_answered() -> None:
    with process() as served:
        served.start()
        # While the process sleeps, the kernel takes requests, and then the signal.
        served.signal(signal.SIGSTOP)
        with ExitStack() as stack:
            waiting = [stack.enter_context(served.raw()) for _ in range(50)]
            for raw in waiting:
                raw.send(request())
            served.signal(signal.SIGTERM)
            served.signal(signal.SIGCONT)
            assert {raw.response().status for raw in waiting} == {200}
        assert served.code() == 0


def test_a_hangup_without_tls_changes_nothing() -> None:
    with process() as served:
        served.start().signal(signal.SIGHUP)
        served.line("SIGHUP: rules and tokens are followed all the time")
        with served.raw() as raw:
            assert raw.get().body == str(served.pid).encode()


# TLS


class Secure(Raw):
    """A connection over TLS to a server whose certificate is `one` or `two`."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        context = ssl.create_default_context()
        context.load_verify_locations(PAIRS / "one.crt")
        context.load_verify_locations(PAIRS / "two.crt")
        self.socket = self._tls = context.wrap_socket(self.socket, server_hostname="localhost")

    @property
    def name(self) -> str:
        certificate: Any = self._tls.getpeercert()
        [[(_, name)]] = certificate["subject"]
        return str(name)


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    place("one", tmp_path)
    return [str(tmp_path / "crt"), str(tmp_path / "key")]


def place(name: str, folder: Path, key: str | None = None) -> None:
    (folder / "crt").write_bytes((PAIRS / f"{name}.crt").read_bytes())
    (folder / "key").write_bytes((PAIRS / f"{key or name}.key").read_bytes())


def test_a_certificate_is_replaced_without_losing_connections(
    pair: list[str], tmp_path: Path
) -> None:
    with process(tls=pair, limits={"read_timeout": 1.0}) as served:
        port = served.start().port
        with Secure(port) as old, Raw(port) as silent:
            assert old.name == "one.limen.test"
            assert old.get().status == 200
            place("two", tmp_path, key="one")
            served.signal(signal.SIGHUP)
            wait_until(lambda: len(served.complained) == 1)
            assert served.complained[0].startswith("the certificate stays as it was: TLS: ")
            with Secure(port) as still:
                assert still.name == "one.limen.test"
            place("two", tmp_path)
            served.signal(signal.SIGHUP)
            served.line("the certificate was loaded anew")
            with Secure(port) as new:
                assert new.name == "two.limen.test"
                assert new.get().status == 200
            assert old.get().status == 200
            # Who does not even shake hands is not waited for either.
            assert silent.ends()
            old.send(request("/sleep/0.5"))
            served.signal(signal.SIGTERM)
            assert old.response().body == b"slept"
        assert served.code() == 0


def test_over_tls_a_request_may_be_refused_too(pair: list[str]) -> None:
    with process(tls=pair, limits={"read_timeout": 0.5}) as served:
        with Secure(served.start().port) as raw:
            raw.send(b"GET / HT")
            assert raw.response().problem["status"] == 408
            assert raw.ends()
        with Secure(served.port) as raw:
            raw.send(request(), packet=1)
            assert raw.response().status == 200
            raw.send(request() + request("/sleep/0.2"))
            assert [raw.response().status for _ in range(2)] == [200, 200]
        with served.raw() as plain:
            plain.send(request())
            plain.ends()  # by an alert, a reset or nothing
        assert served.complained == []


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("one.crt", "two.key", "are no certificate and its private key"),
        ("one.crt", "locked.key", "the key without a password"),
        ("one.key", "one.crt", "are no certificate"),
        ("one.crt", "absent.key", "cannot read .*absent.key: No such file"),
    ],
)
def test_wrong_certificates_are_named(certificate: str, key: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Tls(PAIRS / certificate, PAIRS / key)


def test_tls_before_1_2_is_refused() -> None:
    context = Tls(PAIRS / "one.crt", PAIRS / "one.key").context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
