"""The short way of `/v1/check` says what the long way says, and takes nothing that is not usual."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httpx
import pytest
import redis
import requests
from msgspec import structs

import limen
from limen.rules import parse_text
from limen.rules.stores.tokens import Token, digest_of
from limen.server.app import App
from limen.server.exchange import Tell
from limen.server.protocol import GRACE_S, Connection, Connections, Limits
from limen.server.questions import Asking
from limen.server.serve import App as AsgiApp
from limen.server.serve import config_of
from tests.server.admin.driving import CHECK
from tests.server.asking import Asker, asking
from tests.server.raw import HOST
from tests.servers import Server, binaries, process

RULES = """
rules:
  - {name: one, match: {path: /a}, key: [user], limits: 4/hour}
  - {name: wide, match: {path: /w}, key: [user], limits: 1000/hour}
  - {name: both, match: {path: /w}, key: [path], limits: 5000000/day token_bucket}
  - {name: two, match: {path: /two}, key: [user], limits: [4/hour, 9/day]}
"""


TLS = Path(__file__).parent / "tls"
END = b"\r\n\r\n"


class Said(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: Any

    def header(self, name: str) -> str | None:
        return dict(self.headers).get(name)


class Client:
    """One connection, which sends packets as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, packet: bytes) -> Said:
        self.writer.write(packet)
        return await self.response()

    async def meet(self, packet: bytes) -> Said:
        """Ask until the next one takes the short way; return what is said last by the long one."""
        await self.ask(packet)
        return await self.ask(packet)

    async def response(self) -> Said:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.rstrip().split("\r\n")
        headers = [(name, value) for name, _, value in (each.partition(": ") for each in lines)]
        body = await self.reader.readexactly(int(dict(headers)["content-length"]))
        return Said(int(status.split()[1]), headers, json.loads(body))


class Counting:
    """Counts what takes the short way."""

    def __init__(self, app: App) -> None:
        self._quick = app.quick
        self.taken = 0

    def learn(self, packet: bytes, scope: Any, *, is_whole: bool) -> None:
        self._quick.learn(packet, scope, is_whole=is_whole)

    def read(self, packet: bytes) -> Asking | None:
        found = self._quick.read(packet)
        self.taken += found is not None
        return found

    def awaits(self, packet: bytes) -> bool:
        return self._quick.awaits(packet)

    def answer(self, asking: Asking, tell: Tell) -> Any:
        return self._quick.answer(asking, tell)


class Site:
    """A service on a socket, in this process."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.quick = Counting(asker.app)
        self.limits = Limits(max_header=asker.service.settings.http.max_header)

    @property
    def taken(self) -> int:
        return self.quick.taken

    def tell(
        self,
        story: Callable[[Callable[[], Awaitable[Client]]], Awaitable[None]],
        *,
        tls: bool = False,
    ) -> None:
        """Let a story happen between clients and the service."""

        async def told() -> None:
            async with self._served(tls) as connect:
                await asyncio.wait_for(story(connect), 20)

        self.asker.run(told())

    @asynccontextmanager
    async def _served(self, tls: bool) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
        loop = asyncio.get_running_loop()
        config = config_of(cast(AsgiApp, self.asker.app))
        self.connections = Connections(config, self.limits, {}, self.quick)
        server = await loop.create_server(
            self.connections.make, HOST, 0, ssl=_certified() if tls else None
        )
        clients: list[Client] = []

        async def connect() -> Client:
            port = server.sockets[0].getsockname()[1]
            context = ssl.create_default_context(cafile=TLS / "one.crt") if tls else None
            if context is not None:
                context.check_hostname = False
            clients.append(Client(*await asyncio.open_connection(HOST, port, ssl=context)))
            return clients[-1]

        try:
            yield connect
        finally:
            server.close()
            for client in clients:
                client.writer.close()
            await self.connections.cut()
            self.connections.close()


def _certified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "one.crt", TLS / "one.key")
    return context


@pytest.fixture(scope="module")
def valkey() -> Iterator[Server]:
    with process(binaries()["valkey"]) as started:
        yield started


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A service that counts in its memory."""
    with asking(tmp_path, RULES, {"http.max_header": 2_048}) as [asker]:
        yield Site(asker)


@pytest.fixture
def shared(tmp_path: Path, valkey: Server) -> Iterator[Site]:
    """A service that counts in Valkey: answers take their time."""
    flags = {"store.url": f"redis://{HOST}:{valkey.port}/0", "store.deadline": 0.5}
    with asking(tmp_path, RULES, flags) as [asker]:
        asker.run(asker.service.limiter._backend.ping())
        yield Site(asker)


def packet(body: bytes | None = None, *headers: str, user: str = "ann", path: str = "/a") -> bytes:
    if body is None:
        body = b'{"attributes":{"user":"%b","path":"%b"}}' % (user.encode(), path.encode())
    lines = ["POST /v1/check HTTP/1.1", "Host: limen", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def steady(said: Said) -> Any:
    """What two answers have in common, of which one comes after the other."""
    changing = {"id", "receipt", "remaining", "retry_after", "reset_after", "parts"}
    parts = [
        {name: of for name, of in part.items() if name not in changing}
        for part in said.body["parts"]
    ]
    return {name: of for name, of in said.body.items() if name not in changing}, parts


@pytest.mark.parametrize("store", ["site", "shared"])
@pytest.mark.parametrize("path", ["/a", "/w", "/two", "/none"])
def test_the_short_way_says_what_the_long_way_says(
    store: str, path: str, request: pytest.FixtureRequest
) -> None:
    site: Site = request.getfixturevalue(store)

    async def story(connect: Any) -> None:
        client = await connect()
        long = await client.meet(packet(path=path, user=f"{store}{path}"))
        assert site.taken == 0
        short = await client.ask(packet(path=path, user=f"{store}{path}"))
        assert site.taken == 1
        assert [name for name, _ in long.headers] == [name for name, _ in short.headers]
        same = ["content-type", "cache-control", "ratelimit-policy"]
        assert [long.header(each) for each in same] == [short.header(each) for each in same]
        assert steady(long) == steady(short)
        assert short.header("x-request-id") == short.body["id"] != long.body["id"]
        if short.body["parts"]:
            assert short.body["remaining"] == long.body["remaining"] - 1
            assert short.body["receipt"] != long.body["receipt"]
            refund = json.dumps({"receipt": short.body["receipt"]}).encode()
            given = await client.ask(packet(refund).replace(b"/check", b"/refund"))
            assert given.body == {"changed": True}
            again = await client.ask(packet(path=path, user=f"{store}{path}"))
            assert again.body["remaining"] == short.body["remaining"]

    site.tell(story)


@pytest.mark.parametrize("store", ["site", "shared"])
def test_a_refusal_is_the_same_both_ways(store: str, request: pytest.FixtureRequest) -> None:
    site: Site = request.getfixturevalue(store)

    async def story(connect: Any) -> None:
        client = await connect()
        said = [await client.ask(packet(user=f"eve-{store}")) for _ in range(5)]
        assert [each.body["allowed"] for each in said] == [True, True, True, True, False]
        assert site.taken == 3
        body = packet(user=f"eve-{store}").partition(b"\r\n\r\n")[2]
        long = await client.ask(packet(body, "X-Request-Id: mine"))
        assert site.taken == 3
        assert steady(long)[1] == steady(said[4])[1]
        assert [name for name, _ in long.headers] == [name for name, _ in said[4].headers]
        assert said[4].header("retry-after") in ("3599", "3600")
        assert long.header("x-request-id") == long.body["id"] == "mine"

    site.tell(story)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (packet(b"[" + packet().partition(b"\r\n\r\n")[2] + b"]"), 200),
        (packet(b'{"key":"k","limits":"5/minute"}'), 200),
        (packet(b'{"attributes":'), 400),
        (packet(b'{"attributes":{"user":7}}'), 422),
        (packet(b'{"attributes":{"user":"ann","path":"/a"},"cost":-1}'), 422),
        (packet(None, "X-Request-Id: has a space"), 200),
        (packet(None, "X-Request-Id:  odd"), 200),
        (packet(None, "X-Request-Id: one", "X-Request-Id: two"), 200),
        (packet(None, "X-Request-Id: one", "X-Request-Id:two"), 200),
        (packet(None, f"X-Request-Id: {65 * 'x'}"), 200),
        (packet(None, "Origin: http://localhost"), 200),
        (packet(None, "Origin: https://elsewhere.example"), 403),
        (packet(None, "Expect: nothing"), 200),
        (packet(None, "Connection: keep-alive, x-request-id"), 200),
        (packet(None, "Proxy-Connection: keep-alive"), 200),
        (packet().replace(b"Content-Length: ", b"Content-Length: 0"), 200),
        (packet().replace(b"Content-Length: ", b"Content-Length: " + 1_000 * b"0"), 200),
        (packet(None, "Authorization: Bearer wrong"), 401),
        (packet().replace(b"/v1/check", b"/v1/chek?"), 404),
        (packet().replace(b"POST", b"PUT"), 405),
    ],
)
def test_what_is_not_usual_never_takes_it(site: Site, sent: bytes, status: int) -> None:
    async def story(connect: Any) -> None:
        client = await connect()
        for _ in range(4):
            assert (await client.ask(sent)).status == status
        assert site.taken == 0

    site.tell(story)


def test_what_comes_in_pieces_or_together_is_answered_all_the_same(site: Site) -> None:
    async def story(connect: Any) -> None:
        client = await connect()
        whole = packet(path="/w")
        assert (await client.meet(whole)).body["remaining"] == 998
        for cut in (1, 20, len(whole) - 60, len(whole) - 1):
            client.writer.write(whole[:cut])
            await asyncio.sleep(0.02)
            assert (await client.ask(whole[cut:])).status == 200
        assert site.taken == 0
        client.writer.write(whole + whole)
        assert [(await client.response()).body["remaining"] for _ in range(2)] == [993, 992]
        assert site.taken == 0
        # A head that is known, and not the body that it says.
        client.writer.write(whole + whole[:70])
        assert (await client.response()).body["remaining"] == 991
        assert (await client.ask(whole[70:])).body["remaining"] == 990
        # JSON may end with an empty line, and so may a request begin.
        assert (await client.ask(whole + b"\r\n")).body["remaining"] == 989
        assert site.taken == 0
        assert (await client.ask(whole)).body["remaining"] == 988
        assert site.taken == 1
        # A head that is all there is of its request.
        healthy = await client.ask(b"GET /healthz HTTP/1.1\r\nHost: limen\r\n\r\n")
        assert healthy.body == {"status": "ok"}

    site.tell(story)


@pytest.mark.parametrize(
    "headers",
    [
        ("X-Request-Id: {}",),
        ("traceparent: 00-{:032x}-0123456789abcdef-01", "tracestate: a={},b=2", "Accept: */*"),
        ("X-B3-TraceId: {:016x}", "x-request-id: {}", "X-B3-SpanId: {:x}", "Accept: */*"),
        ("Connection: keep-alive", "X-Amzn-Trace-Id: Root=1-{};Parent=0;Sampled=1"),
    ],
)
def test_ids_that_change_with_each_request_do_not_matter(
    shared: Site, headers: tuple[str, ...]
) -> None:
    async def story(connect: Any) -> None:
        client, gives_id = await connect(), "x-request-id" in "".join(headers).lower()
        said = [
            await client.ask(packet(None, *[line.format(n) for line in headers], path="/w"))
            for n in range(20)
        ]
        assert shared.taken == 18
        assert [each.body["allowed"] for each in said] == 20 * [True]
        ids = [each.body["id"] for each in said]
        assert ids == [each.header("x-request-id") for each in said]
        assert len(set(ids)) == 20
        assert (ids == [str(n) for n in range(20)]) is gives_id
        # An id that is too long is none.
        too_long = packet(None, *[line.format(10**65) for line in headers], path="/w")
        other = (await client.ask(too_long)).body["id"]
        assert len(other) < 65
        assert shared.taken == 18 + (not gives_id)

    shared.tell(story)


def test_a_head_may_not_grow_beyond_what_is_allowed(site: Site) -> None:
    async def story(connect: Any) -> None:
        client, lines = await connect(), [f"traceparent: {{}}{n}" for n in range(9)]
        for _ in range(3):
            said = await client.ask(packet(None, *[line.format("x") for line in lines], path="/w"))
            assert said.status == 200
        assert site.taken == 1
        long = packet(None, *[line.format(300 * "x") for line in lines], path="/w")
        assert (await client.ask(long)).status == 431
        assert site.taken == 1

    site.tell(story)


def test_head_and_body_may_come_one_after_the_other(shared: Site) -> None:
    async def story(connect: Any) -> None:
        client = await connect()
        head, _, body = packet(path="/w").partition(END)
        for number in range(8):
            client.writer.write(head + b"\r\nX-Request-Id: %d" % number + END)
            await asyncio.sleep(0.02)
            assert (await client.ask(body)).body["id"] == str(number)
        assert shared.taken == 6
        # The rest may not be what the head says.
        await client.meet(head + END + body)
        assert (await client.ask(head + END + body)).body["id"] != str(number)
        assert shared.taken == 7
        client.writer.write(head + END)
        await asyncio.sleep(0.02)
        client.writer.write(body[:5])
        await asyncio.sleep(0.02)
        assert (await client.ask(body[5:])).status == 200
        client.writer.write(head + END)
        await asyncio.sleep(0.02)
        client.writer.write(body + head + END + body)
        assert [(await client.response()).status for _ in range(2)] == [200, 200]
        assert shared.taken == 7
        client.writer.write(head + END)
        await asyncio.sleep(0.02)
        client.writer.write_eof()
        assert await client.reader.read() == b""

    shared.tell(story)


def _by_httpx(url: str, ask: dict[str, Any], number: int) -> Any:
    with httpx.Client() as client:
        return [client.post(url, json=ask).json() for _ in range(number)]


def _by_requests(url: str, ask: dict[str, Any], number: int) -> Any:
    with requests.Session() as session:
        return [session.post(url, json=ask).json() for _ in range(number)]


def _by_http_client(url: str, ask: dict[str, Any], number: int) -> Any:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    said = []
    for _ in range(number):
        connection.request("POST", "/v1/check", json.dumps(ask), {"traceparent": "00-1-2-03"})
        said.append(json.loads(connection.getresponse().read()))
    connection.close()
    return said


def _by_limen(url: str, ask: dict[str, Any], number: int) -> Any:
    with limen.Client(url.removesuffix("/v1/check")) as client:
        return [{"allowed": client.decide(ask["attributes"]).allowed} for _ in range(number)]


@pytest.mark.parametrize("by", [_by_httpx, _by_requests, _by_http_client, _by_limen])
def test_clients_as_they_are_take_it(shared: Site, by: Callable[..., Any]) -> None:
    async def story(connect: Any) -> None:
        port = (await connect()).writer.get_extra_info("peername")[1]
        ask = {"attributes": {"user": by.__name__, "path": "/w"}}
        said = await asyncio.to_thread(by, f"http://{HOST}:{port}/v1/check", ask, 10)
        assert [each["allowed"] for each in said] == 10 * [True]
        assert shared.taken == 8

    shared.tell(story)


def test_who_sends_a_head_and_no_body_is_told_so_in_time(site: Site) -> None:
    async def story(connect: Any) -> None:
        head, _, body = packet(path="/w").partition(END)
        await (await connect()).meet(head + END + body)
        silent, slow, late = [await connect() for _ in range(3)]
        for client in (silent, slow, late):
            client.writer.write(head + END)
        await asyncio.sleep(1)
        # Some of it does not win more time.
        slow.writer.write(body[:3])
        began = asyncio.get_running_loop().time()
        late.writer.write(body)
        assert (await late.response()).status == 200
        assert [(await client.response()).status for client in (silent, slow)] == [408, 408]
        assert asyncio.get_running_loop().time() - began < 1.9
        assert site.taken == 1

    site.limits = structs.replace(site.limits, read_timeout=2)
    site.tell(story)


def test_a_server_that_ends_waits_for_a_body(site: Site) -> None:
    async def story(connect: Any) -> None:
        head, _, body = packet(path="/w").partition(END)
        client = await connect()
        await client.meet(head + END + body)
        client.writer.write(head + END)
        await asyncio.sleep(0.05)
        site.connections.drain()
        await asyncio.sleep(GRACE_S + 0.7)
        said = await client.ask(body)
        assert said.status == 200
        assert said.header("connection") == "close"

    site.tell(story)


def test_what_comes_behind_a_head_cannot_change_what_is_known_of_it(site: Site) -> None:
    """Two requests in one packet, of which the second says the length that fits to the first."""

    async def story(connect: Any) -> None:
        first = packet(path="/w")
        head, _, body = first.partition(END)
        heads = site.asker.app.quick._heads
        for has_body in (False, True):
            for _ in range(4):
                client = await connect()
                second = head + END
                for _ in range(3):
                    length = len(body) + len(second) + 3 * has_body
                    second = re.sub(rb"Length: \d+", b"Length: %d" % length, head) + END
                client.writer.write(first + second + b"abc"[: 3 * has_body])
                assert (await client.response()).status == 200
        assert not heads._known
        client = await connect()
        await client.meet(first)
        assert [each.length for each in heads._known.values()] == [len(body)]

    site.tell(story)


def test_it_is_taken_over_tls_too(shared: Site) -> None:
    async def story(connect: Any) -> None:
        client = await connect()
        long = await client.meet(packet(path="/w", user="tls"))
        short = await client.ask(packet(path="/w", user="tls"))
        assert shared.taken == 1
        assert short.body["remaining"] == long.body["remaining"] - 1
        assert steady(short) == steady(long)

    shared.tell(story, tls=True)


def test_answers_come_in_the_order_of_the_questions(shared: Site, valkey: Server) -> None:
    async def story(connect: Any) -> None:
        client = await connect()
        first = await client.meet(packet(path="/w", user="order"))
        left = first.body["remaining"]
        valkey.pause()
        try:
            for number in range(6):
                # One of them goes the long way, between others that do not.
                given = ["X-Request-Id: x"] if number == 3 else []
                client.writer.write(packet(None, *given, path="/w", user="order"))
                await asyncio.sleep(0.01)
        finally:
            valkey.resume()
        said = [await client.response() for _ in range(6)]
        assert [each.body["remaining"] for each in said] == [left - 1 - n for n in range(6)]
        assert said[3].body["id"] == "x"
        assert shared.taken >= 2

    shared.tell(story)


def test_a_token_counts_as_long_as_it_is_good(site: Site) -> None:
    def token(name: str, role: Any) -> Token:
        now = datetime.now(UTC)
        return Token(name, role, name, digest_of(name), now, "tests")

    async def story(connect: Any) -> None:
        client, access = await connect(), site.asker.service.access
        fixed = packet(None, f"Authorization: Bearer {CHECK}", path="/w")
        assert [(await client.ask(fixed)).status for _ in range(3)] == [200, 200, 200]
        assert site.taken == 1
        access.take(1, [token("asks", "check"), token("looks", "viewer")])
        asks = packet(None, "Authorization: Bearer asks", path="/w")
        looks = packet(None, "Authorization: Bearer looks", path="/w")
        assert [(await client.ask(asks)).status for _ in range(3)] == [200, 200, 200]
        assert [(await client.ask(looks)).status for _ in range(3)] == [403, 403, 403]
        assert site.taken == 2
        soon = datetime.now(UTC) + timedelta(seconds=0.3)
        access.take(2, [structs.replace(token("asks", "check"), expires_at=soon)])
        assert (await client.ask(asks)).status == 200
        assert site.taken == 3
        await asyncio.sleep(0.35)
        assert (await client.ask(asks)).status == 401
        access.take(3, [])
        assert (await client.ask(asks)).status == 401
        assert site.taken == 3

    site.tell(story)


def test_other_rules_hold_at_once(site: Site) -> None:
    async def story(connect: Any) -> None:
        client = await connect()
        assert [(await client.ask(packet())).body["rule"] for _ in range(3)] == ["one"] * 3
        other = "rules: [{name: other, match: {path: /a}, key: [user], limits: 9/hour}]"
        site.asker.service.engine.use(parse_text(other))
        assert (await client.ask(packet())).body["rule"] == "other"
        assert site.taken == 2

    site.tell(story)


def test_who_has_asked_and_says_no_more_is_answered(shared: Site) -> None:
    async def story(connect: Any) -> None:
        client = await connect()
        await client.meet(packet(path="/w"))
        client.writer.write(packet(path="/w"))
        client.writer.write_eof()
        said = await client.response()
        assert (said.status, shared.taken) == (200, 1)
        assert said.header("connection") == "close"
        assert await client.reader.read() == b""

    shared.tell(story)


@pytest.mark.parametrize("end", ["half-close", "drain"])
@pytest.mark.parametrize("second", ["short", "long"])
def test_what_came_meanwhile_is_answered_before_the_end(
    shared: Site, valkey: Server, end: str, second: str
) -> None:
    async def story(connect: Any) -> None:
        client = await connect()
        await client.meet(packet(path="/w"))
        valkey.pause()
        try:
            client.writer.write(packet(path="/w"))
            await asyncio.sleep(0.05)
            given = ["X-Request-Id: x"] if second == "long" else []
            client.writer.write(packet(None, *given, path="/w"))
            await asyncio.sleep(0.05)
            if end == "drain":
                shared.connections.drain()
            else:
                client.writer.write_eof()
                await asyncio.sleep(0.05)
        finally:
            valkey.resume()
        said = [await client.response() for _ in range(2)]
        assert [each.status for each in said] == [200, 200]
        assert [each.header("connection") for each in said] == [None, "close"]
        assert await client.reader.read() == b""

    shared.tell(story)


def test_when_the_store_is_away_it_is_decided_here_and_the_server_may_end(
    shared: Site, valkey: Server
) -> None:
    async def story(connect: Any) -> None:
        client, leaver = await connect(), await connect()
        before = await client.meet(packet(path="/w", user="away"))
        valkey.pause()
        try:
            leaver.writer.write(packet(path="/w", user="away"))
            client.writer.write(packet(path="/w", user="away"))
            await asyncio.sleep(0.1)
            leaver.writer.transport.abort()
            shared.connections.drain()
            said = await client.response()
        finally:
            valkey.resume()
        assert shared.taken == 2
        assert (said.body["source"], said.body["degraded"]) == ("local", True)
        assert before.body["source"] == "store"
        assert said.header("connection") == "close"
        assert await client.reader.read() == b""
        await shared.connections.wait_until_done()

    shared.tell(story)


def test_a_server_that_forgot_the_script_is_given_it(shared: Site, valkey: Server) -> None:
    async def story(connect: Any) -> None:
        client = await connect()
        first = await client.meet(packet(path="/w", user="flush"))
        redis.Redis(HOST, valkey.port).script_flush()
        second = await client.ask(packet(path="/w", user="flush"))
        assert shared.taken == 1
        assert second.body["source"] == "store"
        assert second.body["remaining"] == first.body["remaining"] - 1

    shared.tell(story)


def test_a_mistake_is_told_under_its_id_and_ends_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a secret")

    async def story(connect: Any) -> None:
        client = await connect()
        await client.meet(packet(path="/w"))
        with monkeypatch.context() as patched:
            patched.setattr(site.asker.service.decisions, "_passed", fail)
            said = await client.ask(packet(path="/w"))
        assert site.taken == 1
        assert (said.status, said.header("content-type")) == (500, "application/problem+json")
        assert said.body["instance"] == f"urn:limen:{said.header('x-request-id')}"
        assert "secret" not in said.body["detail"]
        assert (await client.ask(packet(path="/w"))).status == 200

    site.tell(story)
    assert "a mistake in the service" in caplog.text


@pytest.mark.parametrize("where", ["read", "asked"])
def test_a_mistake_before_that_is_told_too(
    site: Site, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def story(connect: Any) -> None:
        client, decisions = await connect(), site.asker.service.decisions
        await client.meet(packet(path="/w"))
        with monkeypatch.context() as patched:
            if where == "read":
                patched.setattr(decisions.questions, "one", fail)
            else:
                patched.setattr(decisions, "answer_soon", fail)
            assert (await client.ask(packet(path="/w"))).status == 500
        assert (await client.ask(packet(path="/w"))).status == 200

    site.tell(story)


@pytest.mark.parametrize(
    ("step", "logged"),
    [("_tell", "a mistake of who was told a decision"), ("send", "an answer could not be sent")],
)
def test_a_connection_that_fails_takes_nobody_along(
    step: str, logged: str, shared: Site, valkey: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A step fails for the first of a batch: the others share its call of the store."""
    true_step, failing = getattr(Connection, step), [True]

    def take(connection: Connection, *said: Any) -> None:
        if failing:
            failing.pop()
            raise ZeroDivisionError
        true_step(connection, *said)

    async def story(connect: Any) -> None:
        clients = [await connect() for _ in range(5)]
        await clients[0].meet(packet(path="/w"))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Connection, step, take)
            for client in clients:
                client.writer.write(packet(path="/w"))
            said = await asyncio.gather(*[client.response() for client in clients[1:]])
        assert [each.body["source"] for each in said] == ["store"] * 4
        assert shared.taken == 5
        if step == "send":
            # Of the first nobody knows any more what it was sent.
            with suppress(ConnectionError):
                assert await clients[0].reader.read() == b""

    shared.tell(story)
    assert logged in caplog.text


def test_heads_that_change_each_time_and_heads_of_strangers_are_not_kept(site: Site) -> None:
    async def story(connect: Any) -> None:
        client, heads = await connect(), site.asker.app.quick._heads
        for number in range(20):
            await client.ask(packet(None, f"x-number: {number}"))
            await client.ask(packet(None, f"Authorization: Bearer wrong-{number % 2}"))
        assert not heads._known
        await client.meet(packet(path="/w"))
        used = heads._used
        for _ in range(5):
            await client.ask(packet(b'{"key":"k","limits":"5/minute"         }'))
        assert len(heads._known) == 2
        assert heads._used < 3 * used

    site.tell(story)


def test_a_list_is_decided_in_its_order(site: Site) -> None:
    """Also where some of it takes a closer look: the unit that is left goes to who asked first."""

    async def story(connect: Any) -> None:
        client = await connect()
        ask = {"attributes": {"user": "list", "path": "/a"}}
        look = {**ask, "peek": True}
        body = json.dumps([look, ask, look, ask, ask, ask, ask, look]).encode()
        said = (await client.ask(packet(body))).body
        assert [each["allowed"] for each in said] == [True] * 6 + [False] * 2
        assert [each["remaining"] for each in said] == [4, 3, 3, 2, 1, 0, 0, 0]

    site.tell(story)
