"""The short way of `/v1/check` says what the long way says, and ends as it does."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from msgspec import structs

from limen.rules import parse_text
from limen.rules.stores.tokens import Token, digest_of
from limen.server.protocol import Connection
from tests.server.admin.driving import CHECK
from tests.server.quick.site import Site, packet, steady
from tests.server.raw import HOST
from tests.servers import Server


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
