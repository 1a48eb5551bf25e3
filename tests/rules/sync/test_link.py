"""The connection for rules: finds the owner of the keys, wherever it is, and says what is wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from limen.backends.redis.link import Link
from limen.connect import target_of
from limen.errors import StoreError
from limen.rules.stores import Snapshot
from limen.rules.sync import Follower
from tests import servers
from tests.faults.proxy import Proxy
from tests.rules.sync.conftest import HARD, HOST, at_cache, publish, times
from tests.rules.sync.processes import rule_set
from tests.servers import Cluster, Sentinel, Server
from tests.waiting import wait_until

Follow = Callable[..., Follower]


def with_link(url: str, work: Callable[[Link], Awaitable[Any]], patience: float = 1.0) -> Any:
    async def run() -> Any:
        link = Link(target_of(url, asynchronous=True), patience)
        try:
            return await work(link)
        finally:
            link.close()

    return asyncio.run(run())


# one server


def test_replies_come_back_in_the_order_of_the_commands(redis_url: str) -> None:
    async def work(link: Link) -> Any:
        return await link.call_all(("SET", "a", b"\x00\xff"), ("GET", "a"), ("GET", "b"))

    assert with_link(redis_url, work) == [b"OK", b"\x00\xff", None]


def test_tasks_that_call_together_each_get_their_own_reply(redis_url: str) -> None:
    async def work(link: Link) -> Any:
        return await asyncio.gather(*[link.call("ECHO", str(number)) for number in range(50)])

    assert with_link(redis_url, work) == [str(number).encode() for number in range(50)]


def test_an_error_is_one_line_and_the_next_call_works(redis_url: str) -> None:
    async def work(link: Link) -> Any:
        with pytest.raises(StoreError, match=r"redis://127\.0\.0\.1:\d+: ERR unknown command"):
            await link.call("NOSUCH")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await link.call_all(("SET", "a", "1"), ("HGET", "a", "b"))
        return await link.call("ECHO", "a")

    assert with_link(redis_url, work) == b"a"


def test_an_error_can_be_spared(redis_url: str) -> None:
    async def work(link: Link) -> Any:
        await link.call("SET", "a", "1")
        replies = await link.call_all(("HGET", "a", "b"), ("GET", "a"), spare="WRONGTYPE")
        with pytest.raises(StoreError, match="unknown command"):
            await link.call_all(("NOSUCH",), ("GET", "a"), spare="WRONGTYPE")
        return replies

    error, value = with_link(redis_url, work)
    assert str(error).startswith("WRONGTYPE")
    assert value == b"1"


def test_a_connection_that_was_cut_while_idle_is_replaced_at_once(line: Proxy) -> None:
    async def work(link: Link) -> Any:
        await link.call("ECHO", "a")
        line.cut()
        return await link.call("ECHO", "b")

    assert with_link(f"redis://{HOST}:{line.port}", work) == b"b"


@pytest.mark.parametrize("fault", ["stall", "drop"])
def test_a_server_that_does_not_answer_is_an_error_in_time(line: Proxy, fault: str) -> None:
    async def work(link: Link) -> Any:
        await link.call("ECHO", "a")
        if fault == "stall":
            line.stall()
        else:
            line.drop_replies()
        start = time.monotonic()
        with pytest.raises(StoreError, match="no answer in time"):
            await link.call("ECHO", "b")
        took = time.monotonic() - start
        line.flow()
        line.drop_replies(False)
        # No late reply is taken for that of another command.
        assert await link.call("ECHO", "c") == b"c"
        return took

    assert 0.2 < with_link(f"redis://{HOST}:{line.port}", work, 0.3) < 20


def test_half_a_reply_and_garbage_are_errors_and_the_next_call_works(line: Proxy) -> None:
    async def work(link: Link) -> Any:
        line.cut_reply_after(3)
        with pytest.raises(StoreError):
            await link.call("ECHO", "abcdef")
        line.garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(StoreError, match="is this Redis"):
            await link.call("ECHO", "b")
        return await link.call("ECHO", "c")

    assert with_link(f"redis://{HOST}:{line.port}", work) == b"c"


def test_a_call_that_is_cancelled_leaves_nothing_behind_for_the_next(line: Proxy) -> None:
    async def work(link: Link) -> Any:
        await link.call("ECHO", "a")
        line.delay = 0.1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await link.call("ECHO", "b")
        line.delay = 0.0
        return await link.call("ECHO", "c")

    assert with_link(f"redis://{HOST}:{line.port}", work) == b"c"


def test_nobody_there_is_one_line(valkey: Server) -> None:
    with pytest.raises(StoreError, match=r"is it running, and are host and port right\?"):
        with_link(f"redis://{HOST}:{servers.free_port()}", lambda link: link.call("PING"))


def test_an_error_on_the_line_of_announcements_is_an_error(
    redis_url: str, admin: redis.Redis
) -> None:
    async def work(link: Link) -> Any:
        await link.send("SUBSCRIBE")
        with pytest.raises(StoreError, match="wrong number of arguments"):
            await link.receive(1.0)

    with_link(redis_url, work)


@pytest.mark.parametrize(
    "said",
    [b":1\r\n", b"*0\r\n", b"-ERR no\r\n"] + times(0, 1) * [b"+OK\r\n", b"$-1\r\n", b"x", b"%0"],
)
def test_whatever_comes_on_the_line_of_announcements_it_is_heard_again(
    lite: str, redis_url: str, line: Proxy, follow: Follow, said: bytes
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    url = f"redis://{HOST}:{line.port}"
    follower = follow(None, url, interval=60, ping_interval=0.2)
    follower.wait()
    wait_until(lambda: follower.status.is_listening)
    time.sleep(0.05)
    line.garbage(said)  # in place of the next pong
    time.sleep(0.5)
    wait_until(lambda: follower.status.is_listening)
    wait_until(lambda: not follower.status.trouble)
    publish(lite, redis_url, rule_set(2, 5))
    wait_until(lambda: follower.status.version == "2")


def test_each_event_loop_has_links_of_its_own(lite: str, redis_url: str, follow: Follow) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    followers = [follow(lite, redis_url, folder=None) for _ in range(3)]
    for follower in followers:
        follower.wait()
    publish(lite, redis_url, rule_set(2, 5))
    wait_until(lambda: {one.status.version for one in followers} == {"2"})
    wait_until(lambda: followers[0].status.instances == 3)


# a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with servers.cluster(servers.binaries()["valkey"], masters=3, replicas=int(HARD)) as made:
        yield made


def test_in_a_cluster_the_owner_is_found_and_found_again(
    cluster: Cluster, lite: str, follow: Follow, tmp_path: Path
) -> None:
    slot = key_slot(b"rules")
    nodes = {node.port: node for node in cluster.nodes}
    first = cluster.ports[0]
    hosts = ",".join(f"{HOST}:{port}" for port in cluster.ports[:3])
    url = f"redis+cluster://{hosts}"
    # Wherever it is now, it is somewhere else than whom one asks first.
    cluster.move_slot(slot, cluster.ports[1])
    publish(lite, url, rule_set(1, 5))
    # Without a database: what it follows comes by way of the cluster.
    follower = follow(None, url)
    follower.wait()
    wait_until(lambda: follower.status.is_listening)
    # The slot moves while it follows.
    cluster.move_slot(slot, first)
    publish(lite, url, rule_set(2, 5))
    wait_until(lambda: follower.status.version == "2")
    # One who is asked first hangs, and another one knows.
    nodes[cluster.ports[1]].pause()
    other = f"redis+cluster://{HOST}:{cluster.ports[1]},{HOST}:{first}"
    found = []
    wait_until(lambda: found.append(_version(other)) or found[-1] == b"2")  # type: ignore[func-returns-value]
    nodes[cluster.ports[1]].resume()
    if HARD:
        # The owner dies, and its replica takes over.
        nodes[first].kill()
        wait_until(lambda: _writes(url, "3"))
        wait_until(lambda: follower.status.version == "3")
    wait_until(lambda: not follower.status.trouble)
    assert follower.status.is_listening


def _version(url: str) -> object:
    try:
        return at_cache(url, lambda cache: _second_try(cache))
    except StoreError:
        return None


async def _second_try(cache: Any) -> object:
    try:
        found = await cache.look()
    except StoreError:
        found = await cache.look()
    return found.version


def _writes(url: str, version: str) -> bool:
    try:
        return bool(
            at_cache(url, lambda cache: cache.write(Snapshot(version, rule_set(int(version), 5))))
        )
    except StoreError:
        return False


# sentinels


@pytest.fixture(scope="module")
def sentinel() -> Iterator[Sentinel]:
    with servers.sentinel(servers.binaries()["valkey"]) as made:
        yield made


def test_behind_sentinels_the_new_primary_is_found_whoever_of_them_is_away(
    sentinel: Sentinel, lite: str, follow: Follow
) -> None:
    hosts = ",".join(f"{HOST}:{port}" for port in sentinel.sentinel_ports)
    url = f"redis+sentinel://{hosts}/{sentinel.service}"
    publish(lite, url, rule_set(1, 5))
    follower = follow(None, url, ping_interval=0.5)
    follower.wait()
    wait_until(lambda: follower.status.is_listening)
    old = sentinel.kill_primary()
    sentinel.wait_for_primary(other_than=old.port)
    wait_until(lambda: _writes(url, "2"))
    wait_until(lambda: follower.status.version == "2")
    wait_until(lambda: not follower.status.trouble)
    assert follower.status.is_listening
    # They are asked in any order: one that hangs and one that is away cost time, and no more.
    sentinel.sentinels[0].pause()
    sentinel.sentinels[1].kill()
    try:
        for _ in range(6):
            assert with_link(url, lambda link: link.call("ROLE"))[0] == b"master"
        for _ in range(6):
            with_link(url, _subscribe)
    finally:
        sentinel.sentinels[0].resume()


async def _subscribe(link: Link) -> None:
    await link.send("SUBSCRIBE", "news")
    said = await link.receive(1.0)
    assert said[0] == b"subscribe"
