"""The board, on real servers: what instances tell each other, its bounds, and whatever is there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from limen.connect import target_of
from limen.errors import StoreError
from limen.observe import board as module
from limen.observe.board import Board
from tests import servers
from tests.faults.proxy import proxy
from tests.servers import HOST, Server

PREFIX = "limen:{insight}"
SLICES = f"{PREFIX}5:100"
SEEN = f"{PREFIX}seen"
CLAIM = f"{PREFIX}claim:alerts"


@pytest.fixture(params=["valkey", "redis-6.2"], scope="module")
def any_server(request: pytest.FixtureRequest, module_valkey: Server) -> Iterator[Server]:
    """The newest server and the oldest: their scripts differ in what they say of errors."""
    if request.param == "valkey":
        yield module_valkey
        return
    with servers.process(servers.binaries()[request.param]) as started:
        yield started


@pytest.fixture
def admin(any_server: Server) -> Iterator[redis.Redis]:
    """A client of another kind, to look and to disturb; the server is empty."""
    with redis.Redis(port=any_server.port) as client:
        client.flushall()
        yield client


@pytest.fixture
def url(any_server: Server, admin: redis.Redis) -> str:
    return f"redis://{HOST}:{any_server.port}"


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "limen")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "limen"]


def at_boards(url: str, work: Callable[..., Awaitable[Any]], *names: str) -> Any:
    """Do something with the boards of some instances, "a" and "b" if none are named."""

    async def run() -> Any:
        target = target_of(url, asynchronous=True)
        boards = [Board(target, "limen", name) for name in names or ("a", "b")]
        try:
            return await work(*boards)
        finally:
            for board in boards:
                board.close()

    return asyncio.run(run())


def ttls(admin: redis.Redis) -> dict[bytes, int]:
    return {key: admin.ttl(key) for key in admin.scan_iter()}


# what instances tell each other


def test_each_instance_sees_the_slices_of_all(url: str) -> None:
    async def work(a: Board, b: Board) -> None:
        await a.write([(5, 100, b"a 100"), (5, 105, b"a 105"), (60, 60, b"a long")])
        await b.write([(5, 105, b"\x00b\xff")])
        await a.write([(5, 105, b"a again")])
        found = {100: {"a": b"a 100"}, 105: {"a": b"a again", "b": b"\x00b\xff"}, 110: {}}
        assert await a.slices(5, [100, 105, 110]) == found
        assert await b.slices(5, [100, 105, 110]) == found
        assert await b.slices(60, [60]) == {60: {"a": b"a long"}}
        assert await b.slices(60, []) == {}

    at_boards(url, work)


def test_each_instance_sees_the_decisions_of_all_the_newest_first(url: str) -> None:
    async def work(a: Board, b: Board) -> None:
        assert await a.seen(10) == []
        await a.write([], [b"1", b"2"])
        await b.write([(5, 100, b"b")], [b"3"])
        assert await a.seen(10) == await b.seen(10) == [b"3", b"2", b"1"]
        assert await a.seen(2) == [b"3", b"2"]
        assert await a.seen(0) == await a.seen(-1) == []

    at_boards(url, work)


def test_namespaces_do_not_see_each_other(url: str) -> None:
    async def work(a: Board) -> None:
        other = Board(target_of(url, asynchronous=True), "other", "a")
        await other.write([(5, 100, b"a")], [b"1"])
        assert await other.claim("alerts", 5)
        assert await a.slices(5, [100]) == {100: {}}
        assert await a.seen(10) == []
        assert await a.claim("alerts", 5)
        other.close()

    at_boards(url, work, "a")


def test_every_key_ends_by_itself(url: str, admin: redis.Redis) -> None:
    async def work(a: Board) -> None:
        await a.write([(5, 100, b"a"), (60, 60, b"a")], [b"1"])
        await a.claim("alerts", 7)

    at_boards(url, work, "a")
    left = ttls(admin)
    expected = {SLICES: 310, f"{PREFIX}60:60": 3_720, SEEN: 3_600, CLAIM: 7}
    assert set(left) == {key.encode() for key in expected}
    for key, most in expected.items():
        assert most - 6 < left[key.encode()] <= most


def test_nothing_to_tell_is_no_call(module_valkey: Server) -> None:
    async def work(a: Board) -> None:
        await a.write([], [])
        assert await a.slices(5, []) == {}

    at_boards(f"redis://{HOST}:{servers.free_port()}", work, "a")


# bounds


def test_no_more_instances_are_told_than_fit_and_that_is_said_once(
    url: str, admin: redis.Redis, logged: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_INSTANCES", 2)

    async def work(a: Board, b: Board, c: Board) -> None:
        await a.write([(5, 100, b"a")])
        await b.write([(5, 100, b"b")])
        await c.write([(5, 100, b"c"), (5, 105, b"c")])
        await c.write([(5, 100, b"c"), (5, 105, b"c")])
        # Who is there already is not shut out.
        await a.write([(5, 100, b"a again")])
        assert await c.slices(5, [100, 105]) == {
            100: {"a": b"a again", "b": b"b"},
            105: {"c": b"c"},
        }

    at_boards(url, work, "a", "b", "c")
    [line] = logged()
    assert line.startswith("insight: 2 instances share their figures already")


def test_of_the_decisions_only_the_newest_are_kept(url: str, admin: redis.Redis) -> None:
    async def work(a: Board) -> None:
        for first in range(0, 7_000, 1_000):
            await a.write([], [b"%d" % number for number in range(first, first + 1_000)])
        found = await a.seen(10_000)
        assert len(found) == 5_000
        assert (found[0], found[-1]) == (b"6999", b"2000")
        # More than one write takes: the newest of them.
        await a.write([], [b"%d" % number for number in range(20_000)])
        assert (await a.seen(1_001))[::1_000] == [b"19999", b"6999"]

    at_boards(url, work, "a")
    assert admin.llen(SEEN) == 5_000


def test_a_decision_that_is_too_long_to_be_read_is_not_written(url: str) -> None:
    async def work(a: Board) -> None:
        await a.write([], [bytes(2_049), b"1"])
        assert await a.seen(10) == [b"1"]

    at_boards(url, work, "a")


def test_no_more_is_read_at_once_than_fits_in_memory(
    url: str, logged: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_READ_BYTES", 200)

    async def work(a: Board, b: Board) -> None:
        await a.write([(5, 100, bytes(60)), (5, 105, bytes(60))])
        await b.write([(5, 100, bytes(60)), (5, 105, bytes(10))])
        found = await a.slices(5, [100, 105])
        assert (len(found[100]), len(found[105])) == (1, 2)

    at_boards(url, work)
    assert len(logged()) == 1


# whatever is in Redis


@pytest.mark.parametrize("poison", ["string", "list", "huge value", "long name", "many", "bytes"])
def test_slices_that_are_none_are_left_out(
    url: str, admin: redis.Redis, logged: Callable[[], list[str]], poison: str
) -> None:
    there: dict[str, Callable[[], object]] = {
        "string": lambda: admin.set(SLICES, "x"),
        "list": lambda: admin.lpush(SLICES, "x"),
        "huge value": lambda: admin.hset(SLICES, "x", bytes(10_000_000)),
        "long name": lambda: admin.hset(SLICES, "x" * 65, "x"),
        "many": lambda: admin.hset(SLICES, mapping={str(number): "x" for number in range(257)}),
        "bytes": lambda: admin.hset(SLICES, b"\xff", b"x"),
    }
    there[poison]()

    async def work(a: Board) -> None:
        await a.write([(5, 105, b"a")])
        found = await a.slices(5, [100, 105])
        assert found[105] == {"a": b"a"}
        assert found[100] == ({"\ufffd": b"x"} if poison == "bytes" else {})
        # Our own slice takes its place, where there is one.
        await a.write([(5, 100, b"a")])
        assert (await a.slices(5, [100]))[100].get("a") == (None if poison == "many" else b"a")

    at_boards(url, work, "a")
    assert logged()[:1] != [] or poison == "bytes"
    # Also of what others left there for ever.
    assert 0 < admin.ttl(SLICES) <= 310


@pytest.mark.parametrize("poison", ["string", "hash", "huge", "bytes"])
def test_decisions_that_are_none_are_left_out(url: str, admin: redis.Redis, poison: str) -> None:
    there: dict[str, Callable[[], object]] = {
        "string": lambda: admin.set(SEEN, "x"),
        "hash": lambda: admin.hset(SEEN, "err", "x"),
        "huge": lambda: admin.lpush(SEEN, bytes(10_000_000), "short"),
        "bytes": lambda: admin.lpush(SEEN, b"\xff"),
    }
    there[poison]()
    left = {"huge": [b"short"], "bytes": [b"\xff"]}.get(poison, [])

    async def work(a: Board) -> None:
        assert await a.seen(10) == left
        await a.write([], [b"1"])
        assert await a.seen(10) == [b"1", *left]

    at_boards(url, work, "a")
    assert 0 < admin.ttl(SEEN) <= 3_600


@pytest.mark.parametrize("poison", ["string for ever", "hash", "hash that ends"])
def test_a_claim_that_is_none_is_taken(url: str, admin: redis.Redis, poison: str) -> None:
    if poison == "string for ever":
        admin.set(CLAIM, "x")
    else:
        admin.hset(CLAIM, "x", "x")
    if poison == "hash that ends":
        admin.expire(CLAIM, 60)

    async def work(a: Board, b: Board) -> None:
        assert await a.claim("alerts", 5)
        assert not await b.claim("alerts", 5)

    at_boards(url, work)
    assert admin.get(CLAIM) == b"a"


# claims


def test_a_claim_is_held_by_one_who_extends_it(url: str, admin: redis.Redis) -> None:
    async def work(a: Board, b: Board) -> None:
        assert await a.claim("alerts", 5)
        assert not await b.claim("alerts", 60)
        assert await b.claim("something else", 5)
        assert 0 < admin.ttl(CLAIM) <= 5
        assert await a.claim("alerts", 60)
        assert 50 < admin.ttl(CLAIM) <= 60

    at_boards(url, work)


def test_of_many_who_claim_at_once_one_has_it(url: str) -> None:
    async def work(*boards: Board) -> None:
        claims = await asyncio.gather(*[board.claim("alerts", 60) for board in boards])
        assert sum(claims) == 1

    at_boards(url, work, *[str(number) for number in range(20)])


def test_a_claim_passes_on_after_its_time(url: str) -> None:
    async def work(a: Board, b: Board) -> None:
        assert await a.claim("alerts", 0.2)
        for _ in range(100):
            if await b.claim("alerts", 60):
                break
            await asyncio.sleep(0.05)
        assert not await a.claim("alerts", 60)
        # So short that it is over at once, and never for ever.
        await a.claim("another", 0.0)
        await asyncio.sleep(0.01)
        assert await b.claim("another", 60)

    at_boards(url, work)


# Redis away


def test_without_redis_it_says_so_and_works_again_when_it_is_back(module_valkey: Server) -> None:
    async def work(a: Board) -> None:
        await a.write([(5, 100, b"a")], [b"1"])
        await asyncio.to_thread(module_valkey.kill)
        for call in (
            lambda: a.write([(5, 100, b"a")]),
            lambda: a.slices(5, [100]),
            lambda: a.seen(10),
            lambda: a.claim("alerts", 5),
        ):
            with pytest.raises(StoreError, match="is it running"):
                await call()
        await asyncio.to_thread(module_valkey.restart)
        await a.write([(5, 100, b"again")])
        assert await a.slices(5, [100]) == {100: {"a": b"again"}}

    try:
        at_boards(f"redis://{HOST}:{module_valkey.port}", work, "a")
    finally:
        if not module_valkey.alive:
            module_valkey.restart()


def test_a_server_that_hangs_is_an_error_and_no_reply_is_taken_for_another(
    module_valkey: Server,
) -> None:
    async def work(a: Board) -> None:
        await a.write([(5, 100, b"a")], [b"1"])
        line.drop_replies()
        with pytest.raises(StoreError, match="no answer in time"):
            await a.seen(10)
        line.drop_replies(False)
        assert await a.slices(5, [100]) == {100: {"a": b"a"}}

    with proxy(module_valkey.port) as line:
        at_boards(f"redis://{HOST}:{line.port}", work, "a")


def test_in_a_cluster_all_of_it_is_on_one_node_and_found_again_when_it_moves() -> None:
    async def work(a: Board, b: Board) -> None:
        await a.write([(5, 100, b"a"), (60, 60, b"a")], [b"1"])
        assert await a.claim("alerts", 60)
        first = cluster.owner_port(slot)
        [other] = [port for port in cluster.ports if port != first]
        await asyncio.to_thread(cluster.move_slot, slot, other)
        await b.write([(5, 100, b"b"), (60, 60, b"b")], [b"2"])
        assert await a.slices(5, [100, 105]) == {100: {"a": b"a", "b": b"b"}, 105: {}}
        assert await a.seen(5) == [b"2", b"1"]
        assert not await b.claim("alerts", 60)
        assert cluster.client(first).dbsize() == 0

    slot = key_slot(b"insight")
    with servers.cluster(servers.binaries()["valkey"], masters=2) as cluster:
        hosts = ",".join(f"{HOST}:{port}" for port in cluster.ports)
        at_boards(f"redis+cluster://{hosts}", work)
