"""Where a message may go, what it carries, and that nothing holds it up or tells its secret."""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from limen.errors import ConfigurationError
from limen.server.insight.webhook import Webhook
from limen.server.settings.webhook_url import WebhookAddress, is_permitted, valid_webhook
from tests.waiting import wait_until

PAIRS = Path(__file__).parents[1] / "tls"
SECRET = "T024BE7LD/xoxb-17653672481"
BODY = b'{"service":"limen"}'
PUBLIC = "93.184.216.34"
NOW = 1_790_000_000.75

OURS = [
    *("127.0.0.1", "127.1.2.3", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1"),
    *("10.255.255.255", "100.64.0.1", "100.100.100.200", "168.63.129.16", "169.254.169.254"),
    *("169.254.170.2", "172.16.0.1", "172.31.255.255", "192.168.1.1", "192.0.0.1", "192.0.0.192"),
    *("192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1"),
    *("239.255.255.250", "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1"),
    *("64:ff9b::127.0.0.1", "64:ff9b::10.1.2.3", "64:ff9b::169.254.169.254", "64:ff9b:1::8.8.8.8"),
    *("2002:7f00:1::", "2002:a00:1::1", "2002:808:808::1", "2001::1", "2001:0:7f00:1::"),
    *("2001:db8::1", "3fff::1", "100::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%1"),
    *("fec0::1", "ff02::1", "ff0e::1", "5f00::1", "4000::1"),
]
"""Addresses that are of no use to somebody on the internet, in whichever dress."""

THEIRS = [
    *("8.8.8.8", PUBLIC, "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700:4700::1111"),
    *("2a00:1450:4001:81b::200e", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
]

Requests = list[tuple[str, dict[str, str], bytes]]


@contextmanager
def receiver(
    status: int = 200,
    *,
    headers: dict[str, str] | None = None,
    tls: str | None = None,
) -> Iterator[tuple[int, Requests]]:
    """A server that answers every POST alike; yields its port and what it was sent."""
    got: Requests = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"] or 0))
            sent = {name.lower(): value for name, value in self.headers.items()}
            got.append((self.path, sent, body))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a handshake may fail
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(PAIRS / f"{tls}.crt", PAIRS / f"{tls}.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port, got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def raw_server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that does with its first connection what it likes; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                line, _ = listening.accept()
                with line, suppress(OSError):
                    line.settimeout(20)
                    serve(line)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.close()
            thread.join()


def here(port: int, path: str = f"/services/{SECRET}?token={SECRET}") -> WebhookAddress:
    return valid_webhook(f"http://127.0.0.1:{port}{path}")


def answers(*addresses: str) -> Callable[[str, int], list[str]]:
    return lambda _name, _port: list(addresses)


def no_dial(to: tuple[str, int], seconds: float) -> socket.socket:
    raise AssertionError(f"nobody may connect to {to}")


# What an address may be


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://hooks.example.com/a/b", WebhookAddress("hooks.example.com", 443, True, "/a/b")),
        ("HTTPS://Hooks.Example.COM/A", WebhookAddress("hooks.example.com", 443, True, "/A")),
        ("http://example.com", WebhookAddress("example.com", 80, False, "/")),
        ("http://example.com:8080?a=b?c", WebhookAddress("example.com", 8080, False, "/?a=b?c")),
        ("https://example.com/@x:y", WebhookAddress("example.com", 443, True, "/@x:y")),
        ("http://[2606:4700::1111]:81/", WebhookAddress("2606:4700::1111", 81, False, "/")),
        ("http://8.8.8.8/", WebhookAddress("8.8.8.8", 80, False, "/")),
        ("http://under_score.internal/", WebhookAddress("under_score.internal", 80, False, "/")),
        ("http://xn--bcher-kva.example/", WebhookAddress("xn--bcher-kva.example", 80, False, "/")),
    ],
)
def test_addresses_are_read_into_their_parts(url: str, place: WebhookAddress) -> None:
    assert valid_webhook(url) == place


@pytest.mark.parametrize(
    "host",
    [
        *(
            "2130706433",
            "0x7f000001",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "017700000001",
            "127.1",
            "127.0.1",
        ),
        *("127.0.0.01", "127.0.0.1.", "0x7f.1", "0", "256.1.1.1", "1.2.3.4.5", "127.0.0.0x1"),
        *("[::1", "::1", "[127.0.0.1]", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[]", "[::1]x"),
        *("", ".", "a..b", ".a", "a.", "localhost.", "a b", "exa%6dple.com", "a\\b", "-a.com"),
        *("x" * 64 + ".com", "a." * 127 + "com", "a_b,c", "host:99999", "host:0", "host:-1"),
        *(
            "host:8a",
            "host:",
            "host:80:80",
            "host:\uff18\uff10",
            "bücher.example",
            "\uff11\uff12\uff17.0.0.1",
            "\u24d4xample",
        ),
    ],
)
def test_hosts_that_programs_read_in_different_ways_are_refused(host: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        valid_webhook(f"http://{host}/{SECRET}")
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"ftp://example.com/{SECRET}", "another beginning"),
        (f"file:///etc/{SECRET}", "another beginning"),
        (f"gopher://example.com/{SECRET}", "another beginning"),
        (f"example.com/{SECRET}", "another beginning"),
        (f"//example.com/{SECRET}", "another beginning"),
        (f"https:/example.com/{SECRET}", "another beginning"),
        ("", "another beginning"),
        (f" https://example.com/{SECRET}", "spaces"),
        (f"https://example.com/a b{SECRET}", "spaces"),
        (f"https://example.com/{SECRET}\r\nX-Evil: 1", "control characters"),
        (f"https://example.com\r\nHost: evil/{SECRET}", "control characters"),
        (f"https://example.com/{SECRET}\t", "control characters"),
        (f"https://example.com/{SECRET}\x00", "control characters"),
        (f"https://example.com/ü{SECRET}", "beyond ASCII"),
        ("https://ann:hunter2@example.com/", "a login"),
        ("https://hunter2@example.com/", "a login"),
        ("https://@example.com/", "a login"),
        (f"https://127.0.0.1\\@example.com/{SECRET}", "a login"),
        (f"https://example.com/{SECRET}#part", "after '#'"),
        (f"https://example.com#@127.0.0.1/{SECRET}", "after '#'"),
        (f"https://example.com\\.evil/{SECRET}", "neither a name"),
        (f"https://example.com/{SECRET}<", "as %XX"),
        (f"https://example.com/{SECRET}\\x", "as %XX"),
        (f"https://example.com/{'x' * 2048}", "2048 characters"),
        (42, "a int"),
        (None, "a NoneType"),
        (b"https://example.com", "a bytes"),
    ],
)
def test_a_bad_address_is_one_line_that_does_not_repeat_it(url: object, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        valid_webhook(url)
    line = str(caught.value)
    assert said in line
    assert line.isprintable()
    assert SECRET not in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "localhost", "LOCALHOST", "a.localhost", "10.0.0.1"]
)
def test_a_host_that_is_surely_private_can_be_told_at_the_start(host: str) -> None:
    valid_webhook(f"http://{host}/")
    with pytest.raises(ConfigurationError, match="private networks must be allowed"):
        valid_webhook(f"http://{host}/", private=False)
    valid_webhook("http://example.com/", private=False)


# Where a message may go


@pytest.mark.parametrize("address", OURS)
def test_what_is_not_of_the_internet_is_not_connected_to(address: str) -> None:
    assert not is_permitted(address, private=False)
    hook = Webhook(
        valid_webhook(f"http://hooks.example.com/{SECRET}"), resolve=answers(address), dial=no_dial
    )
    failure = hook.send(BODY, NOW)
    assert failure == (
        f"webhook at hooks.example.com: it leads to {address}, which is no public address"
    )


@pytest.mark.parametrize("address", THEIRS)
def test_what_is_of_the_internet_is(address: str) -> None:
    assert is_permitted(address, private=False)
    assert is_permitted(address, private=True)


@pytest.mark.parametrize("address", [each for each in OURS if "%" not in each])
def test_an_address_in_the_url_is_looked_at_like_one_that_a_name_leads_to(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    place = valid_webhook(f"http://{host}/{SECRET}")
    failure = Webhook(place, dial=no_dial).send(BODY, NOW)
    assert failure is not None
    assert "no public address" in failure


def test_localhost_is_not_connected_to() -> None:
    failure = Webhook(valid_webhook("http://localhost:1/x"), dial=no_dial).send(BODY, NOW)
    assert failure is not None
    assert "no public address" in failure


def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    place = valid_webhook("http://hooks.example.com/")
    hook = Webhook(place, resolve=answers(PUBLIC, "1.1.1.1", "10.0.0.7"), dial=no_dial)
    assert "it leads to 10.0.0.7" in (hook.send(BODY, NOW) or "")


@pytest.mark.parametrize("address", ["not an address", "", "127.1", "2130706433"])
def test_a_resolver_that_answers_nonsense_is_not_believed(address: str) -> None:
    place = valid_webhook("http://hooks.example.com/")
    for private in (False, True):
        hook = Webhook(place, private=private, resolve=answers(address), dial=no_dial)
        assert hook.send(BODY, NOW) is not None


@pytest.mark.parametrize(
    ("address", "permitted"),
    [
        *[(each, True) for each in ("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.0.9", "::1")],
        *[(each, True) for each in ("fd00::1", "100.64.0.1", "::ffff:10.0.0.1", PUBLIC)],
        *[(each, False) for each in ("169.254.169.254", "fe80::1", "::ffff:169.254.169.254")],
        *[(each, False) for each in ("fd00:ec2::254", "100.100.100.200", "168.63.129.16")],
        *[(each, False) for each in ("0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255")],
        *[(each, False) for each in ("::127.0.0.1", "2002:7f00:1::", "192.0.0.192")],
        *[(each, False) for each in ("64:ff9b::169.254.169.254",)],
    ],
)
def test_the_setting_opens_private_networks_and_not_where_clouds_keep_credentials(
    address: str, permitted: bool
) -> None:
    assert is_permitted(address, private=True) is permitted


def test_the_connection_goes_to_the_address_that_was_looked_at() -> None:
    """DNS rebinding: whoever asked twice would be told a private address the second time."""
    told = iter([[PUBLIC], ["127.0.0.1"], ["127.0.0.1"]])
    dialled: list[tuple[str, int]] = []
    with receiver() as (port, got):

        def dial_here(to: tuple[str, int], seconds: float) -> socket.socket:
            dialled.append(to)
            return socket.create_connection(("127.0.0.1", port), seconds)

        place = valid_webhook("http://hooks.example.com:8123/x")
        hook = Webhook(place, resolve=lambda _name, _port: next(told), dial=dial_here)
        assert hook.send(BODY, NOW) is None
        assert dialled == [(PUBLIC, 8123)]
        assert got[0][1]["host"] == "hooks.example.com:8123"
        # The next message is looked up anew, and refused.
        assert "it leads to 127.0.0.1" in (hook.send(BODY, NOW) or "")
        assert len(dialled) == len(got) == 1


def test_nothing_is_looked_up_behind_our_back(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def no_look_up(host: str, *more: Any, **named: Any) -> Any:
        assert host == "127.0.0.1", "a second look-up"
        return real(host, *more, **named)

    with receiver() as (port, got):
        place = valid_webhook(f"http://hooks.example.com:{port}/x")
        hook = Webhook(place, private=True, resolve=answers("127.0.0.1"))
        monkeypatch.setattr(socket, "getaddrinfo", no_look_up)
        assert hook.send(BODY, NOW) is None
    assert len(got) == 1


def test_a_name_is_looked_up_by_the_system() -> None:
    with receiver() as (port, got):
        hook = Webhook(valid_webhook(f"http://localhost:{port}/"), private=True)
        assert hook.send(BODY, NOW) is None
    assert len(got) == 1


def test_another_address_is_tried_when_one_does_not_answer() -> None:
    with receiver() as (port, got):
        place = valid_webhook(f"http://hooks.example.com:{port}/")
        hook = Webhook(place, private=True, resolve=answers("127.9.9.9", "127.0.0.1"))
        assert hook.send(BODY, NOW) is None
    assert len(got) == 1


# What is sent


def test_a_message_is_posted_as_it_is_and_unsigned_without_a_secret() -> None:
    with receiver(204) as (port, got):
        hook = Webhook(here(port, "/a/b?c=d"), private=True)
        assert hook.send(BODY, NOW) is None
    ((path, headers, body),) = got
    assert (path, body) == ("/a/b?c=d", BODY)
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"].startswith("limen/")
    assert headers["host"] == f"127.0.0.1:{port}"
    assert "limen-signature" not in headers
    assert "authorization" not in headers


def test_a_signature_is_over_the_time_and_the_body() -> None:
    with receiver() as (port, got):
        assert Webhook(here(port), private=True, secret="s3cret-ü").send(BODY, NOW) is None
    ((_, headers, body),) = got
    expected = hmac.new("s3cret-ü".encode(), b"1790000000." + body, hashlib.sha256).hexdigest()
    assert headers["limen-signature"] == f"t=1790000000,v1={expected}"


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as (port, got), receiver() as (proxy, asked):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
        monkeypatch.setenv("no_proxy", "")
        assert Webhook(here(port), private=True).send(BODY, NOW) is None
    assert (len(got), asked) == (1, [])


# What comes back


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_is_success(status: int) -> None:
    with receiver(status) as (port, _):
        assert Webhook(here(port), private=True).send(BODY, NOW) is None


@pytest.mark.parametrize("status", [304, 400, 401, 404, 410, 413, 429, 500, 503])
def test_any_other_status_is_a_failure_that_says_which(status: int) -> None:
    with receiver(status) as (port, _):
        failure = Webhook(here(port), private=True).send(BODY, NOW)
    assert failure is not None
    assert failure.startswith(f"webhook at 127.0.0.1:{port}: it answered {status}")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_is_not_followed(status: int) -> None:
    with receiver() as (elsewhere, asked):
        to = {"location": f"http://127.0.0.1:{elsewhere}/"}
        with receiver(status, headers=to) as (port, got):
            failure = Webhook(here(port), private=True).send(BODY, NOW)
    assert failure is not None
    assert failure.endswith(f"it answered {status}, and redirections are not followed")
    assert (len(got), asked) == (1, [])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "hung up without an answer"),
        (b"HTTP/1.1 2", "hung up without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not in HTTP"),
        (b"HTTP/2 200\r\n\r\n", "not in HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "not in HTTP"),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "not in HTTP"),
        (b"HTTP/1.1 " + b"x" * 200_000, "not in HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 No\r\n\r\n", "it answered 500"),
        (b"HTTP/1.1 200\r\n\r\n", None),
        (b"HTTP/1.0 200 OK\n\n", None),
    ],
)
def test_answers_that_are_odd_or_none(answer: bytes, said: str | None) -> None:
    def serve(line: socket.socket) -> None:
        line.recv(65_536)
        line.sendall(answer)
        line.shutdown(socket.SHUT_WR)
        while line.recv(65_536):
            pass

    with raw_server(serve) as port:
        failure = Webhook(here(port), private=True).send(BODY, NOW)
    assert failure is None if said is None else said in (failure or "")


def test_who_refuses_before_all_is_sent_is_heard() -> None:
    def serve(line: socket.socket) -> None:
        line.recv(10)
        line.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")

    with raw_server(serve) as port:
        failure = Webhook(here(port), private=True).send(b"x" * 5_000_000, NOW)
    assert failure is not None
    assert "it answered 413" in failure


def test_a_huge_response_is_not_read() -> None:
    sent = [0]

    def serve(line: socket.socket) -> None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        line.recv(65_536)
        line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
        chunk = b"x" * 65_536
        while sent[0] < 10**9:
            sent[0] += line.send(chunk)

    read = [0]

    class Counting(socket.socket):
        def recv(self, *args: int) -> bytes:
            data = super().recv(*args)
            read[0] += len(data)
            return data

    def dial_counting(to: tuple[str, int], seconds: float) -> socket.socket:
        plain = socket.create_connection(to, seconds)
        line = Counting(fileno=plain.detach())
        line.settimeout(seconds)
        return line

    with raw_server(serve) as port:
        assert Webhook(here(port), private=True, dial=dial_counting).send(BODY, NOW) is None
    assert read[0] <= 65_536
    assert sent[0] < 50_000_000


# Time


def drips(data: bytes) -> Callable[[socket.socket], None]:
    def serve(line: socket.socket) -> None:
        line.recv(65_536)
        for at in range(len(data)):
            line.send(data[at : at + 1])
            time.sleep(0.05)

    return serve


def silent(line: socket.socket) -> None:
    while line.recv(65_536):
        pass


def reads_slowly(line: socket.socket) -> None:
    while line.recv(300_000):
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("serve", "body"),
    [
        (drips(b"HTTP/1.1 200 " + b"o" * 200), BODY),
        (drips(b"HTTP/1.1 100 C\r\n" + b"x: y\r\n" * 40), BODY),
        (silent, BODY),
        (reads_slowly, b"x" * 40_000_000),
    ],
    ids=["drips a status", "drips a head", "says nothing", "reads slowly"],
)
def test_the_whole_exchange_has_an_end(serve: Callable[[socket.socket], None], body: bytes) -> None:
    began = time.monotonic()
    with raw_server(serve) as port:
        failure = Webhook(here(port), private=True, patience_s=0.4).send(body, NOW)
        took = time.monotonic() - began
    assert failure == f"webhook at 127.0.0.1:{port}: no answer in 0.4 s"
    assert 0.3 < took < 8


def test_a_handshake_that_drips_has_an_end() -> None:
    def serve(line: socket.socket) -> None:
        line.recv(65_536)
        for each in b"\x16\x03\x03\x40\x00" + b"\x02" * 200:
            line.send(bytes([each]))
            time.sleep(0.05)

    began = time.monotonic()
    with raw_server(serve) as port:
        place = valid_webhook(f"https://127.0.0.1:{port}/")
        failure = Webhook(place, private=True, patience_s=0.4).send(BODY, NOW)
        took = time.monotonic() - began
    assert failure is not None
    assert took < 8


def test_a_body_that_drips_after_success_is_success() -> None:
    began = time.monotonic()
    with raw_server(drips(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200)) as port:
        assert Webhook(here(port), private=True, patience_s=2).send(BODY, NOW) is None
        assert time.monotonic() - began < 8


def test_a_look_up_that_hangs_has_an_end_and_is_not_begun_again_meanwhile() -> None:
    release, begun = threading.Event(), []

    def hang(name: str, port: int) -> list[str]:
        begun.append(name)
        release.wait(20)
        return [PUBLIC]

    place = valid_webhook(f"http://hooks.example.com/{SECRET}")
    hook = Webhook(place, patience_s=0.2, resolve=hang, dial=no_dial)
    said = "webhook at hooks.example.com: to look up its name takes too long"
    try:
        assert [hook.send(BODY, NOW) for _ in range(3)] == [said] * 3
        assert len(begun) == 1
    finally:
        release.set()


def test_a_message_is_not_sent_after_its_time_is_over() -> None:
    release = threading.Event()

    def slow(name: str, port: int) -> list[str]:
        release.wait(20)
        return ["127.0.0.1"]

    with receiver() as (port, got):
        place = valid_webhook(f"http://hooks.example.com:{port}/")
        hook = Webhook(place, private=True, patience_s=0.1, resolve=slow)
        assert hook.send(BODY, NOW) is not None
        release.set()
        wait_until(lambda: all(thread.name != "limen-webhook" for thread in threading.enumerate()))
    assert got == []


def test_a_name_that_does_not_exist_is_named() -> None:
    def fail(name: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    for resolve in (fail, answers()):
        hook = Webhook(valid_webhook("https://hooks.example.com/x"), resolve=resolve)
        failure = hook.send(BODY, NOW)
        assert failure == "webhook at hooks.example.com: its name leads to no address"


def test_nobody_listening_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    failure = Webhook(here(port), private=True).send(BODY, NOW)
    assert failure == f"webhook at 127.0.0.1:{port}: connection refused"


# TLS


def trusting(name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(PAIRS / f"{name}.crt"))


def test_a_certificate_is_verified_against_the_name_and_not_the_address() -> None:
    with receiver(tls="one") as (port, got):

        def send(host: str, context: ssl.SSLContext | None) -> str | None:
            place = valid_webhook(f"https://{host}:{port}/{SECRET}")
            return Webhook(place, private=True, context=context, resolve=answers("127.0.0.1")).send(
                BODY, NOW
            )

        assert send("localhost", trusting("one")) is None
        assert send("127.0.0.1", trusting("one")) is None
        assert len(got) == 2
        # Its certificate is for 127.0.0.1, where this name leads to; but not for the name.
        wrong_name = send("hooks.example.com", trusting("one"))
        untrusted = send("localhost", None)
        assert "certificate is not trusted" in (wrong_name or "")
        assert "certificate is not trusted" in (untrusted or "")
        assert len(got) == 2


def test_tls_to_a_server_without_it_is_a_failure_and_not_sent_in_plain() -> None:
    with receiver() as (port, got):
        place = valid_webhook(f"https://127.0.0.1:{port}/{SECRET}")
        failure = Webhook(place, private=True, patience_s=2).send(BODY, NOW)
    assert failure is not None
    assert got == []


# Secrets


def test_no_secret_is_in_any_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    signing = "signing-secret-9"
    place = valid_webhook(f"https://hooks.example.com/{SECRET}?k={SECRET}")
    texts += [repr(place), str(place), repr(place.__rich_repr__()), f"{place}"]
    hooks = [
        Webhook(place, secret=signing, resolve=answers("10.0.0.1")),
        Webhook(place, secret=signing, resolve=answers()),
    ]
    with receiver(500) as (port, _):
        hooks.append(Webhook(here(port), secret=signing, private=True))
        hooks.append(
            Webhook(
                valid_webhook(f"https://127.0.0.1:{port}/{SECRET}"), secret=signing, private=True
            )
        )
        texts += [hook.send(BODY, NOW) or "" for hook in hooks]
    texts += [repr(hook) for hook in hooks]
    assert all(texts)
    everything = "\n".join([*texts, caplog.text])
    for part in (SECRET, *SECRET.split("/"), signing):
        assert part not in everything


def test_sockets_are_closed_also_after_failures() -> None:
    """A socket that is left open is a ResourceWarning, and that is an error here."""
    with receiver(500) as (port, _):
        for url in (f"http://127.0.0.1:{port}/", f"https://127.0.0.1:{port}/"):
            assert Webhook(valid_webhook(url), private=True, patience_s=2).send(BODY, NOW)
