"""What takes the short way of `/v1/check`: heads that are known, from clients as they are."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import requests
from msgspec import structs

import limen
from limen.server.protocol import GRACE_S
from tests.server.quick.site import END, Site, packet, steady
from tests.server.raw import HOST


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
