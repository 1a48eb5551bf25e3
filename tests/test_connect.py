"""Getting to a store: every form of an address, ready clients, and what is said when it fails."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from limen import AsyncLimiter, ConfigurationError, Limiter, StoreError
from limen.connect import Target, parse
from tests import servers
from tests.conformance.stores import LIMITERS, Blocking, Threaded
from tests.faults.proxy import proxy

SECRET = "hunter2"
HOST = servers.HOST
SLOW_MACHINE_S = 5.0


# Addresses, read.


class TestAddress:
    @pytest.mark.parametrize(
        ("url", "address", "shown", "options"),
        [
            ("redis://host", ("host", 6379), "redis://host:6379", {"db": 0}),
            ("redis://", ("localhost", 6379), "redis://localhost:6379", {"db": 0}),
            ("redis://host:7000", ("host", 7000), "redis://host:7000", {"db": 0}),
            ("redis://host:7000/", ("host", 7000), "redis://host:7000", {"db": 0}),
            ("redis://host/3", ("host", 6379), "redis://host:6379/3", {"db": 3}),
            ("redis://10.0.0.1:1/0", ("10.0.0.1", 1), "redis://10.0.0.1:1", {"db": 0}),
            ("redis://[::1]", ("::1", 6379), "redis://[::1]:6379", {"db": 0}),
            ("redis://[fe80::1]:7000/2", ("fe80::1", 7000), "redis://[fe80::1]:7000/2", {"db": 2}),
            (
                "redis://:hunter2@host",
                ("host", 6379),
                "redis://host:6379",
                {"db": 0, "password": "hunter2"},
            ),
            (
                "redis://me:hunter2@host:1/2",
                ("host", 1),
                "redis://host:1/2",
                {"db": 2, "username": "me", "password": "hunter2"},
            ),
            (
                "redis://m%40e:p%3A%2F%3F%23%40%25%20@[::1]:1",
                ("::1", 1),
                "redis://[::1]:1",
                {"db": 0, "username": "m@e", "password": "p:/?#@% "},
            ),
            (
                "redis://me:a:b@c@host",
                ("host", 6379),
                "redis://host:6379",
                {"db": 0, "username": "me", "password": "a:b@c"},
            ),
            ("valkey://host", ("host", 6379), "valkey://host:6379", {"db": 0}),
        ],
    )
    def test_of_one_server(
        self, url: str, address: tuple[str, int], shown: str, options: dict[str, Any]
    ) -> None:
        assert parse(url) == Target("single", (address,), shown, options)

    @pytest.mark.parametrize(
        "scheme", ["rediss", "valkeys", "rediss+cluster", "valkeys+cluster", "rediss+sentinel"]
    )
    def test_with_tls(self, scheme: str) -> None:
        options = "ssl_ca_certs=/ca.pem&ssl_check_hostname=false&ssl_cert_reqs=optional"
        target = parse(f"{scheme}://host/{'name' if 'sentinel' in scheme else ''}?{options}")
        assert target.tls
        assert target.options == {
            "db": 0,
            "ssl_ca_certs": "/ca.pem",
            "ssl_check_hostname": False,
            "ssl_cert_reqs": "optional",
        }

    @pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "valkey+sentinel", "unix"])
    def test_without_tls(self, scheme: str) -> None:
        host = "" if scheme == "unix" else "host"
        assert not parse(f"{scheme}://{host}/{'' if 'cluster' in scheme else '1'}").tls

    @pytest.mark.parametrize("scheme", ["unix", "redis+unix", "valkey+unix"])
    @pytest.mark.parametrize(
        ("rest", "path", "options"),
        [
            ("/run/redis.sock", "/run/redis.sock", {}),
            ("/run/a%20b.sock", "/run/a b.sock", {}),
            (":hunter2@/run/redis.sock", "/run/redis.sock", {"password": "hunter2"}),
            (
                "me:p%40@/run/redis.sock",
                "/run/redis.sock",
                {"username": "me", "password": "p@"},
            ),
        ],
    )
    def test_of_a_socket_file(
        self, scheme: str, rest: str, path: str, options: dict[str, Any]
    ) -> None:
        target = parse(f"{scheme}://{rest}")
        assert (target.kind, target.addresses) == ("single", ((path, 0),))
        assert target.shown == f"{scheme}://{path}"
        assert target.options == options

    @pytest.mark.parametrize("scheme", ["redis+cluster", "valkey+cluster"])
    def test_of_a_cluster(self, scheme: str) -> None:
        target = parse(f"{scheme}://me:hunter2@a:7000,b,[::1]:7001")
        assert target.kind == "cluster"
        assert target.addresses == (("a", 7000), ("b", 6379), ("::1", 7001))
        assert target.shown == f"{scheme}://a:7000,b:6379,[::1]:7001"
        assert target.options == {"db": 0, "username": "me", "password": "hunter2"}

    @pytest.mark.parametrize("scheme", ["redis+sentinel", "valkey+sentinel"])
    @pytest.mark.parametrize(
        ("path", "service", "db"),
        [("/name", "name", 0), ("/name/", "name", 0), ("/my%20name/2", "my name", 2)],
    )
    def test_of_sentinels(self, scheme: str, path: str, service: str, db: int) -> None:
        target = parse(f"{scheme}://:hunter2@a,b:7000,[::1]{path}")
        assert target.kind == "sentinel"
        assert target.addresses == (("a", 26379), ("b", 7000), ("::1", 26379))
        assert (target.service, target.options) == (service, {"db": db, "password": "hunter2"})
        assert target.sentinel_options == {}
        assert target.shown.startswith(f"{scheme}://a:26379,b:7000,[::1]:26379/{service}")

    def test_of_sentinels_that_have_a_login_of_their_own(self) -> None:
        login = "sentinel_username=watch&sentinel_password=p%26w"
        target = parse(f"redis+sentinel://:hunter2@a/name?{login}")
        assert target.options == {"db": 0, "password": "hunter2"}
        assert target.sentinel_options == {"username": "watch", "password": "p&w"}
        assert "p&w" not in target.shown

    def test_shows_no_password(self) -> None:
        for url in (
            f"redis://me:{SECRET}@host",
            f"redis+cluster://me:{SECRET}@a,b",
            f"redis+sentinel://:{SECRET}@a/name?sentinel_password={SECRET}",
            f"unix://:{SECRET}@/run/redis.sock",
        ):
            target = parse(url)
            assert SECRET not in target.shown + repr(target)


class TestBadAddress:
    """Each is one clear line that says what is wrong, and shows no password."""

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("mongo://me:hunter2@host", "unknown store 'mongo://'"),
            ("http://me:hunter2@host", "unknown store 'http://'"),
            ("redis+mongo://:hunter2@host", "unknown store 'redis+mongo://'"),
            ("://host", "has no scheme"),
            ("redis://hunter2@host", "has a user and no password"),
            ("redis+cluster://hunter2@host", "has a user and no password"),
            ("redis://me:hunter2@host:x", "a host of 'redis://' cannot be read"),
            ("redis://me:hunter2@host:99999", "a host of 'redis://' cannot be read"),
            ("redis://me:hunter2@host:-1", "a host of 'redis://' cannot be read"),
            ("redis://me:hunter2@::1", "a host of 'redis://' cannot be read"),
            ("redis://me:hunter2@[::1", "a host of 'redis://' cannot be read"),
            ("redis+cluster://a:1,b:hunter2", "a host of 'redis+cluster://' cannot be read"),
            ("redis://:hunter2@a,b", "'redis://' takes one host"),
            ("redis://:hunter2@host/x", "the database of 'redis://' must be a number, got 'x'"),
            ("redis://:hunter2@host/-1", "must be a number"),
            ("redis://:hunter2@host/1/2", "must be a number"),
            ("redis+cluster://:hunter2@a/1", "a cluster has a single database"),
            ("redis+sentinel://:hunter2@a", "needs the name of the service"),
            ("redis+sentinel://:hunter2@a/", "needs the name of the service"),
            ("redis+sentinel://:hunter2@a/name/x", "must be a number"),
            ("unix://:hunter2@host/run/redis.sock", "takes the path of a socket"),
            ("unix://", "takes the path of a socket"),
            ("redis://:hunter2@host?timeout=5", "unknown option 'timeout' of 'redis://'"),
            ("redis://host?password=hunter2", "unknown option 'password' of 'redis://'"),
            ("redis://host?ssl_ca_certs=x", "unknown option 'ssl_ca_certs' of 'redis://'"),
            ("rediss://host?ssl_ca=x", "unknown option 'ssl_ca' of 'rediss://'"),
            ("rediss://host?ssl_check_hostname=no", "must be true or false, got 'no'"),
            ("rediss://host?ssl_cert_reqs=never", "must be required, optional or none"),
            ("redis+cluster://a?sentinel_password=hunter2", "unknown option 'sentinel_password'"),
        ],
    )
    def test_says_what_is_wrong(self, url: str, message: str) -> None:
        self.assert_refused(url, message)

    @pytest.mark.parametrize(
        "url",
        [
            "me:hunter2@host:6379",
            "redis:me:hunter2@host:6379",
            "redis:/me:hunter2@host:6379",
            "redis//me:hunter2@host:6379",
        ],
    )
    def test_without_a_scheme_shows_no_password(self, url: str) -> None:
        self.assert_refused(url, "has no scheme")

    @pytest.mark.parametrize("mark", ["/", "?"])
    @pytest.mark.parametrize(
        "form", ["redis://me:a{}hunter2@host", "redis+sentinel://:a{}hunter2@host/name"]
    )
    def test_with_a_password_that_is_not_escaped_shows_no_password(
        self, form: str, mark: str
    ) -> None:
        self.assert_refused(form.format(mark), "")

    @pytest.mark.parametrize(
        "url", ["redis+cluster://a,,b", "redis+cluster://a,", "redis+sentinel://,a/name"]
    )
    def test_does_not_take_an_empty_host_among_others_for_this_machine(self, url: str) -> None:
        self.assert_refused(url, "host")

    def test_does_not_take_port_zero_for_another(self) -> None:
        self.assert_refused("redis://host:0", "a host of 'redis://' cannot be read")

    @pytest.mark.parametrize("scheme", ["rediss+unix", "valkeys+unix"])
    def test_does_not_take_a_socket_file_for_encrypted(self, scheme: str) -> None:
        self.assert_refused(f"{scheme}:///run/redis.sock", scheme)

    def test_does_not_take_the_socket_file_of_something_else(self) -> None:
        self.assert_refused("mongo+unix:///run/mongo.sock", "unknown store 'mongo+unix://'")

    def assert_refused(self, url: str, message: str) -> None:
        with pytest.raises(ConfigurationError, match=r"\A[^\n]*\Z") as caught:
            parse(url)
        assert message in str(caught.value)
        assert SECRET not in str(caught.value)


# Servers, reached.


@dataclass
class World:
    """One server with a password and a socket file; a cluster and sentinels without."""

    port: int
    socket_file: str
    cluster: servers.Cluster
    sentinel: servers.Sentinel


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    binary = servers.binaries()["valkey"]
    path = str(tmp_path_factory.mktemp("socket") / "s")
    options = ["--requirepass", SECRET, "--unixsocket", path]
    with (
        servers.server(binary, *options) as port,
        servers.cluster(binary) as cluster,
        servers.sentinel(binary) as sentinel,
    ):
        yield World(port, path, cluster, sentinel)


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


Open = Callable[..., Any]


@pytest.fixture(params=LIMITERS)
def open_limiter(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Open]:
    """Make a limiter of one kind or the other, called in the same way."""
    opened: list[Any] = []

    def make(store: Any, **settings: Any) -> Any:
        settings = {"deadline": SLOW_MACHINE_S, **settings}
        if request.param == "Limiter":
            opened.append(Threaded(Limiter(store, **settings)))
        else:
            opened.append(Blocking(AsyncLimiter(store, **settings), runner))
        return opened[-1]

    make.modules = (  # type: ignore[attr-defined]  # whose clients it takes, and whose not
        (redis, redis.asyncio) if request.param == "Limiter" else (redis.asyncio, redis)
    )
    yield make
    for limiter in opened:
        limiter.close()


def hosts(ports: list[int]) -> list[tuple[str, int]]:
    return [(HOST, port) for port in ports]


def joined(ports: list[int]) -> str:
    return ",".join(f"{HOST}:{port}" for port in ports)


URLS: dict[str, Callable[[World], str]] = {
    "password": lambda world: f"redis://:{SECRET}@{HOST}:{world.port}",
    "user": lambda world: f"redis://default:{SECRET}@{HOST}:{world.port}",
    "database": lambda world: f"valkey://:{SECRET}@{HOST}:{world.port}/1",
    "name": lambda world: f"redis://:{SECRET}@localhost:{world.port}",
    "socket file": lambda world: f"unix://:{SECRET}@{world.socket_file}",
    "cluster": lambda world: f"redis+cluster://{joined(world.cluster.ports)}",
    "one node of a cluster": lambda world: f"redis+cluster://{HOST}:{world.cluster.ports[1]}",
    "a dead node first": lambda world: (
        f"redis+cluster://{joined([servers.free_port(), *world.cluster.ports])}"
    ),
    "sentinel": lambda world: f"redis+sentinel://{joined(world.sentinel.sentinel_ports)}/limen",
    "sentinel and database": lambda world: (
        f"valkey+sentinel://{joined(world.sentinel.sentinel_ports)}/limen/1"
    ),
    "a dead sentinel first": lambda world: (
        f"redis+sentinel://{joined([servers.free_port(), *world.sentinel.sentinel_ports])}/limen"
    ),
}

CLIENTS: dict[str, Callable[[Any, World], Any]] = {
    "plain": lambda module, world: module.Redis(port=world.port, password=SECRET),
    "decoding": lambda module, world: module.Redis(
        port=world.port, password=SECRET, decode_responses=True, protocol=3
    ),
    "of a database": lambda module, world: module.Redis(port=world.port, password=SECRET, db=1),
    "of an address": lambda module, world: module.Redis.from_url(
        f"redis://default:{SECRET}@{HOST}:{world.port}/1?decode_responses=true"
    ),
    "of a socket file": lambda module, world: module.Redis(
        unix_socket_path=world.socket_file, password=SECRET
    ),
    "of a cluster": lambda module, world: module.RedisCluster(HOST, world.cluster.ports[0]),
    "of a cluster, decoding": lambda module, world: module.RedisCluster(
        HOST, world.cluster.ports[2], decode_responses=True
    ),
    "of sentinels": lambda module, world: module.sentinel.Sentinel(
        hosts(world.sentinel.sentinel_ports)
    ).master_for("limen"),
    "of sentinels, decoding": lambda module, world: module.sentinel.Sentinel(
        hosts(world.sentinel.sentinel_ports), decode_responses=True
    ).master_for("limen", db=1, decode_responses=True),
}


def decides(limiter: Any, key: str) -> None:
    limiter.ping()
    decisions = [limiter.check(key, "2/day") for _ in range(3)]
    assert [decision.allowed for decision in decisions] == [True, True, False]
    assert [decision.source for decision in decisions] == ["store"] * 3
    limiter.reset(key, "2/day")


class TestAddressOfAServer:
    @pytest.mark.parametrize("form", URLS)
    def test_leads_there(self, world: World, open_limiter: Open, form: str) -> None:
        decides(open_limiter(URLS[form](world)), "k")

    def test_leads_to_the_database_it_names(self, world: World, open_limiter: Open) -> None:
        limiter = open_limiter(URLS["database"](world), namespace="database")
        limiter.check("k", "2/day")
        with (
            redis.Redis(port=world.port, password=SECRET) as first,
            redis.Redis(port=world.port, password=SECRET, db=1) as second,
        ):
            assert list(first.scan_iter("database*")) == []
            assert len(list(second.scan_iter("database*"))) == 1
            second.flushdb()


class TestReadyClient:
    @pytest.mark.parametrize("form", CLIENTS)
    def test_says_where_to_go_and_is_left_alone(
        self, world: World, open_limiter: Open, runner: asyncio.Runner, form: str
    ) -> None:
        module = open_limiter.modules[0]  # type: ignore[attr-defined]  # set by the fixture
        client = CLIENTS[form](module, world)

        def finish(answer: Any) -> Any:
            return runner.run(_awaited(answer)) if isinstance(answer, Awaitable) else answer

        limiter = open_limiter(client)
        decides(limiter, "k")
        limiter.close()
        finish(client.set("own", "1", px=60_000))
        assert finish(client.get("own")) in ("1", b"1")
        watchers = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
        for each in (client, *(watchers.sentinels if watchers else ())):
            finish(each.aclose() if hasattr(each, "aclose") else each.close())

    def test_keeps_its_database(self, world: World, open_limiter: Open) -> None:
        module = open_limiter.modules[0]  # type: ignore[attr-defined]  # set by the fixture
        limiter = open_limiter(CLIENTS["of a database"](module, world), namespace="kept")
        limiter.check("k", "2/day")
        with redis.Redis(port=world.port, password=SECRET, db=1) as second:
            assert len(list(second.scan_iter("kept*"))) == 1
            second.flushdb()

    def test_of_the_other_kind_is_an_error(self, open_limiter: Open) -> None:
        ours, other = open_limiter.modules  # type: ignore[attr-defined]  # set by the fixture
        name = "redis" if ours is redis else "redis.asyncio"
        with pytest.raises(ConfigurationError, match=rf"give a client of {name} here"):
            open_limiter(other.Redis(password=SECRET))

    def test_of_another_library_is_an_error(self, open_limiter: Open) -> None:
        for store in (object(), 6379, b"redis://host", None, redis.Redis, ("host", 6379)):
            with pytest.raises(ConfigurationError, match="store must be an address such as"):
                open_limiter(store)


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


# Servers that cannot be used.


class _Web(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def web_port() -> Iterator[int]:
    with HTTPServer((HOST, 0), _Web) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield web.server_port
        web.shutdown()
        thread.join(10)


@pytest.fixture(scope="module")
def poor_user(world: World) -> str:
    with redis.Redis(port=world.port, password=SECRET) as admin:
        rights = ["~*", "+@all", "-eval", "-evalsha"]
        admin.execute_command("ACL", "SETUSER", "poor", "on", f">{SECRET}", *rights)
    return f"redis://poor:{SECRET}@{HOST}:{world.port}"


@pytest.fixture
def trouble(
    request: pytest.FixtureRequest, world: World, web_port: int, poor_user: str
) -> tuple[str, str, str]:
    """The address of a store that cannot be used, as messages show it, and the fault's kind."""
    closed, replica = servers.free_port(), world.sentinel.ports[1]
    here = f"redis://{HOST}"
    return {
        "wrong password": (
            f"redis://:{SECRET}x@{HOST}:{world.port}",
            f"{here}:{world.port}",
            "rights",
        ),
        "no password": (f"{here}:{world.port}", f"{here}:{world.port}", "rights"),
        "no right to run scripts": (poor_user, f"{here}:{world.port}", "rights"),
        "nobody listens": (f"redis://:{SECRET}@{HOST}:{closed}", f"{here}:{closed}", "connection"),
        "no such host": (
            f"redis://:{SECRET}@no.such.host.invalid",
            "redis://no.such.host.invalid:6379",
            "connection",
        ),
        "no such socket file": (f"unix://:{SECRET}@/no/such", "unix:///no/such", "connection"),
        "a web server": (f"{here}:{web_port}", f"{here}:{web_port}", "protocol"),
        "a password for a web server": (
            f"redis://:{SECRET}@{HOST}:{web_port}",
            f"{here}:{web_port}",
            "protocol",
        ),
        "no sentinel": (
            f"redis+sentinel://:{SECRET}@{HOST}:{closed}/limen",
            f"redis+sentinel://{HOST}:{closed}/limen",
            "connection",
        ),
        "no such service": (
            f"redis+sentinel://{joined(world.sentinel.sentinel_ports)}/other",
            f"redis+sentinel://{joined(world.sentinel.sentinel_ports)}/other",
            "(?!internal)[a-z]+",
        ),
        "a replica": (f"{here}:{replica}", f"{here}:{replica}", "readonly"),
        "no cluster": (
            f"redis+cluster://:{SECRET}@{HOST}:{world.port}",
            f"redis+cluster://{HOST}:{world.port}",
            "cluster",
        ),
    }[request.param]


troubles = [
    "wrong password",
    "no password",
    "no right to run scripts",
    "nobody listens",
    "no such host",
    "no such socket file",
    "a web server",
    "a password for a web server",
    "no sentinel",
    "no such service",
    "a replica",
    "no cluster",
]
every_trouble = pytest.mark.parametrize("trouble", troubles, indirect=True)


class TestTrouble:
    @every_trouble
    def test_ping_raises_and_says_where_and_what_to_do(
        self, open_limiter: Open, trouble: tuple[str, str, str]
    ) -> None:
        url, shown, _ = trouble
        with pytest.raises(StoreError, match=r"\A[^\n]{20,400}\Z") as caught:
            open_limiter(url).ping()
        message = str(caught.value)
        assert message.startswith(f"{shown}: ")
        assert SECRET not in message
        assert re.search(r"\([^()]{20,}\)\Z", message), "says nothing of what to do"

    @every_trouble
    def test_check_is_decided_here_and_the_log_says_why(
        self, open_limiter: Open, trouble: tuple[str, str, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        url, shown, kind = trouble
        # The shape of a cluster is waited for as long as there is time.
        limiter = open_limiter(url, deadline=0.1 if "cluster" in url else SLOW_MACHINE_S)
        decisions = [limiter.check("somebody's key", "2/day") for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert [decision.source for decision in decisions] == ["local"] * 3
        assert all(decision.degraded for decision in decisions)
        assert re.search(rf"\({kind}\): {re.escape(shown)}: ", caplog.text)
        assert SECRET not in caplog.text
        assert "somebody" not in caplog.text


# TLS: the wheels have servers without it, so a proxy speaks it for them.


@dataclass
class Certificates:
    """Files: each a certificate that vouches for itself, with its key."""

    right: Path
    """For localhost and 127.0.0.1."""
    foreign: Path
    """For the same names, by somebody else."""
    misnamed: Path
    """For another host."""

    @staticmethod
    def key_of(certificate: Path) -> Path:
        return certificate.with_suffix(".key")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: there is nothing to make certificates with")
    folder = tmp_path_factory.mktemp("certificates")

    def make(name: str, names: str) -> Path:
        path = folder / f"{name}.pem"
        command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-addext", f"subjectAltName={names}", "-out", str(path)]
        command += ["-keyout", str(Certificates.key_of(path))]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
        return path

    here = "DNS:localhost,IP:127.0.0.1"
    return Certificates(
        make("right", here), make("foreign", here), make("misnamed", "DNS:elsewhere.example")
    )


class Encrypting:
    """Speaks TLS in front of a port, and keeps what arrives behind the encryption."""

    def __init__(self, certificate: Path, target_port: int) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, Certificates.key_of(certificate))
        self._target_port = target_port
        self._stop = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()
        self.received = bytearray()
        self.port = 0

    async def run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        loop = asyncio.get_running_loop()
        # A handshake that the client breaks off is what the tests are about, and no news.
        loop.set_exception_handler(lambda loop, context: None)
        listener = await asyncio.start_server(self._accept, HOST, 0, ssl=self._context)
        self.port = listener.sockets[0].getsockname()[1]
        started.set_result(loop)
        await self._stop.wait()
        listener.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def stop(self) -> None:
        self._stop.set()

    def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(client, to_client))
        self._serving.add(task)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(HOST, self._target_port)

        async def forward(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError, ssl.SSLError):
                while data := await source.read(65_536):
                    if source is client:
                        self.received += data
                    to.write(data)

        ways = [forward(client, to_server), forward(server, to_client)]
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for writer in (to_server, to_client):
                writer.transport.abort()


@contextmanager
def encrypting(certificate: Path, target_port: int) -> Iterator[Encrypting]:
    made = Encrypting(certificate, target_port)
    started: Future[asyncio.AbstractEventLoop] = Future()
    thread = threading.Thread(target=lambda: asyncio.run(made.run(started)), daemon=True)
    thread.start()
    loop = started.result(10)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(made.stop)
        thread.join(10)


FORMS = [("", ""), ("+cluster", ""), ("+sentinel", "/primary")]


class TestTls:
    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
    @pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
    def test_works_with_the_right_certificate(
        self,
        world: World,
        certificates: Certificates,
        open_limiter: Open,
        scheme: str,
        host: str,
    ) -> None:
        with encrypting(certificates.right, world.port) as front:
            trust = f"ssl_ca_certs={certificates.right}"
            limiter = open_limiter(f"{scheme}://:{SECRET}@{host}:{front.port}/2?{trust}")
            decides(limiter, "k")
            limiter.close()
        assert SECRET.encode() in front.received

    def test_the_first_decisions_on_a_cold_cluster_are_made_by_the_store(
        self, certificates: Certificates
    ) -> None:
        """With the usual deadline, which is too short for a handshake with two servers."""
        with ExitStack() as stack:
            cluster = stack.enter_context(servers.cluster(servers.binaries()["valkey"]))
            fronts = []
            for port in cluster.ports:
                slow = stack.enter_context(proxy(port))
                slow.connect_delay = 0.06
                fronts.append(stack.enter_context(encrypting(certificates.right, slow.port)))
            cluster.announce([front.port for front in fronts])
            trust = f"ssl_ca_certs={certificates.right}"
            url = f"rediss+cluster://{HOST}:{fronts[0].port}?{trust}"
            for _ in range(3):
                with Limiter(url) as limiter:
                    assert limiter.check("k", "1000/minute").source == "store"
                assert asyncio.run(_first_source(url)) == "store"

    def test_works_with_a_ready_client(
        self, world: World, certificates: Certificates, open_limiter: Open
    ) -> None:
        module = open_limiter.modules[0]  # type: ignore[attr-defined]  # set by the fixture
        with encrypting(certificates.right, world.port) as front:
            client = module.Redis(
                host="localhost",
                port=front.port,
                password=SECRET,
                ssl=True,
                ssl_ca_certs=str(certificates.right),
            )
            limiter = open_limiter(client)
            decides(limiter, "k")
            limiter.close()

    @pytest.mark.parametrize(
        ("served", "trusted"),
        [("foreign", "right"), ("misnamed", "misnamed"), ("right", None)],
        ids=["wrong authority", "wrong host name", "no authority"],
    )
    def test_sends_nothing_to_who_cannot_prove_who_he_is(
        self,
        world: World,
        certificates: Certificates,
        open_limiter: Open,
        caplog: pytest.LogCaptureFixture,
        served: str,
        trusted: str | None,
    ) -> None:
        trust = f"?ssl_ca_certs={getattr(certificates, trusted)}" if trusted else ""
        with encrypting(getattr(certificates, served), world.port) as front:
            limiter = open_limiter(f"rediss://:{SECRET}@localhost:{front.port}{trust}")
            with pytest.raises(StoreError, match=r"check certificates and host name") as caught:
                limiter.ping()
            assert limiter.check("k", "2/day").source == "local"
        assert str(caught.value).startswith(f"rediss://localhost:{front.port}: ")
        assert SECRET not in str(caught.value) + caplog.text
        assert f"(tls): rediss://localhost:{front.port}" in caplog.text
        assert front.received == b""

    def test_another_host_name_passes_only_if_that_is_asked_for(
        self, world: World, certificates: Certificates, open_limiter: Open
    ) -> None:
        options = f"ssl_ca_certs={certificates.misnamed}&ssl_check_hostname=false"
        with encrypting(certificates.misnamed, world.port) as front:
            limiter = open_limiter(f"rediss://:{SECRET}@localhost:{front.port}?{options}")
            decides(limiter, "k")
            limiter.close()

    def test_does_not_go_on_in_the_clear_with_a_server_without_it(
        self, world: World, open_limiter: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It does not answer a handshake, so nobody can know what it is."""
        limiter = open_limiter(f"rediss://:{SECRET}@{HOST}:{world.port}", deadline=0.05)
        with pytest.raises(StoreError, match=rf"\Arediss://{HOST}:{world.port}: "):
            limiter.ping()
        assert limiter.check("k", "2/day").degraded
        assert "did not answer" in caplog.text

    @pytest.mark.parametrize(("form", "path"), FORMS)
    def test_an_address_with_tls_names_the_one_for_a_server_without_it(
        self,
        world: World,
        open_limiter: Open,
        caplog: pytest.LogCaptureFixture,
        form: str,
        path: str,
    ) -> None:
        limiter = open_limiter(f"rediss{form}://{HOST}:{world.port}{path}", deadline=0.05)
        advice = f"if the server has no TLS, write redis{form}://"
        with pytest.raises(StoreError) as caught:
            limiter.ping()
        assert advice in str(caught.value)
        assert limiter.check("k", "2/day").degraded
        assert advice in caplog.text

    @pytest.mark.parametrize(("form", "path"), FORMS)
    def test_an_address_without_tls_names_the_one_for_a_server_with_it(
        self,
        world: World,
        certificates: Certificates,
        open_limiter: Open,
        caplog: pytest.LogCaptureFixture,
        form: str,
        path: str,
    ) -> None:
        advice = f"if the server has TLS, write rediss{form}://"
        with encrypting(certificates.right, world.port) as front:
            limiter = open_limiter(f"redis{form}://{HOST}:{front.port}{path}")
            with pytest.raises(StoreError) as caught:
                limiter.ping()
            assert advice in str(caught.value)
            assert limiter.check("k", "2/day").degraded
            assert advice in caplog.text

    @pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile"])
    def test_a_missing_file_for_tls_is_named(
        self, open_limiter: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture, option: str
    ) -> None:
        missing = tmp_path / "missing.pem"
        limiter = open_limiter(f"rediss://:{SECRET}@{HOST}:1?{option}={missing}")
        reason = f"cannot read {missing} ({option}): No such file or directory"
        with pytest.raises(StoreError) as caught:
            limiter.ping()
        assert reason in str(caught.value)
        assert "running" not in str(caught.value)
        assert limiter.check("k", "2/day").degraded
        assert f"(tls): rediss://{HOST}:1: {reason}" in caplog.text
        assert SECRET not in caplog.text

    def test_begins_with_a_handshake_and_no_word_before_it(self, open_limiter: Open) -> None:
        heard = bytearray()

        def listen(listener: socket.socket) -> None:
            while True:
                client, _ = listener.accept()
                with client:
                    client.settimeout(5)
                    heard.extend(client.recv(65_536) or b"\x16")

        with socket.create_server((HOST, 0)) as listener:
            threading.Thread(target=_until_closed, args=(listen, listener), daemon=True).start()
            port = listener.getsockname()[1]
            with pytest.raises(StoreError):
                open_limiter(f"rediss://:{SECRET}@{HOST}:{port}").ping()
            listener.shutdown(socket.SHUT_RDWR)
        assert heard[0] == 0x16
        assert SECRET.encode() not in heard


async def _first_source(url: str) -> str:
    async with AsyncLimiter(url) as limiter:
        return (await limiter.check("k", "1000/minute")).source


def _until_closed(work: Callable[[socket.socket], None], listener: socket.socket) -> None:
    with suppress(OSError):
        work(listener)
