"""The proxy misbehaves exactly as told, seen by a client and by the server behind it."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import servers
from tests.faults.proxy import HOST, Proxy, proxy
from tests.waiting import wait_until


@pytest.fixture
def direct(port: int) -> Iterator[redis.Redis]:
    """A client of the server itself, which no fault touches."""
    with connect(port) as client:
        client.flushall()
        yield client


@pytest.fixture
def faulty(port: int) -> Iterator[Proxy]:
    with proxy(port) as made:
        yield made


@pytest.fixture
def client(faulty: Proxy, direct: redis.Redis) -> Iterator[redis.Redis]:
    """A client behind the proxy, already connected: what follows is one request, one reply."""
    with connect(faulty.port) as client:
        client.ping()
        yield client


def connect(port: int) -> redis.Redis:
    return redis.Redis(port=port, socket_timeout=10, retry=Retry(NoBackoff(), 0))


def wait_for_hits(direct: redis.Redis, hits: bytes) -> None:
    wait_until(lambda: direct.get("hits") == hits)


def read(raw: socket.socket, size: int) -> bytes:
    raw.settimeout(10)
    data = b""
    while len(data) < size:
        data += raw.recv(size - len(data))
    return data


def packets_received(raw: socket.socket) -> int:
    """Return how many packets with data have arrived (`tcpi_data_segs_in` of Linux)."""
    info = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (count,) = struct.unpack_from("I", info, 152)
    return int(count)


def test_forwards_what_it_gets(client: redis.Redis) -> None:
    large = b"x" * 3_000_000
    client.set("large", large)
    assert client.get("large") == large


def test_counts_connections(faulty: Proxy, client: redis.Redis) -> None:
    with connect(faulty.port) as second:
        second.ping()
        assert (faulty.connections, faulty.live) == (2, 2)
    end = time.monotonic() + 10
    while faulty.live > 1:
        assert time.monotonic() < end
    client.ping()
    assert (faulty.connections, faulty.live) == (2, 1)


def test_delays_each_direction(faulty: Proxy, client: redis.Redis) -> None:
    faulty.delay = 0.1
    start = time.monotonic()
    client.ping()
    assert 0.19 < time.monotonic() - start < 5


def test_delays_chunks_behind_one_another_by_the_same_time(
    faulty: Proxy, client: redis.Redis
) -> None:
    client.set("large", b"x" * 6_000_000)  # 90 chunks: 9 s if each waited for the one before
    faulty.delay = 0.1
    start = time.monotonic()
    client.get("large")
    assert 0.19 < time.monotonic() - start < 5


def test_jitter_adds_a_time_of_its_own_to_each_chunk(faulty: Proxy, client: redis.Redis) -> None:
    faulty.jitter, faulty.random = 0.05, Random(9)
    same = Random(9)
    for _ in range(5):
        late = 0.05 * (same.random() + same.random())
        start = time.monotonic()
        client.ping()
        assert late - 0.001 < time.monotonic() - start < late + 5


def test_jitter_keeps_the_order(faulty: Proxy, port: int) -> None:
    faulty.jitter = 0.02
    words = b"".join(b"%06d" % number for number in range(50))
    with socket.create_connection((HOST, faulty.port)) as raw:
        for start in range(0, len(words), 6):
            raw.sendall(b"ECHO %s\r\n" % words[start : start + 6])
            time.sleep(0.002)  # to be chunks of their own
        assert read(raw, 50 * 12) == b"".join(
            b"$6\r\n%s\r\n" % words[start : start + 6] for start in range(0, len(words), 6)
        )


@pytest.mark.parametrize(("slices", "packets"), [(0, 1), (1, 7), (3, 3)])
def test_slices_are_packets_of_their_own(faulty: Proxy, slices: int, packets: int) -> None:
    faulty.slices = slices
    with socket.create_connection((HOST, faulty.port)) as raw:
        raw.sendall(b"PING\r\n")
        assert read(raw, 7) == b"+PONG\r\n"
        assert packets_received(raw) == packets


def test_slices_change_nothing_of_what_is_said(faulty: Proxy, client: redis.Redis) -> None:
    faulty.slices = 7
    large = bytes(range(256)) * 40
    client.set("large", large)
    assert client.get("large") == large


def test_stall_holds_requests_until_flow(
    faulty: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    faulty.stall()
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(client.incr, "hits")
        with pytest.raises(TimeoutError):
            reply.result(0.2)
        assert direct.get("hits") is None
        faulty.flow()
        assert reply.result(10) == 1


def test_stall_accepts_connections_and_answers_none(faulty: Proxy) -> None:
    faulty.stall()
    with socket.create_connection((HOST, faulty.port)) as raw:
        raw.sendall(b"PING\r\n")
        raw.settimeout(0.1)
        with pytest.raises(TimeoutError):
            raw.recv(100)
        raw.settimeout(10)
        faulty.flow()
        assert raw.recv(100) == b"+PONG\r\n"


def test_request_of_a_client_that_left_during_a_stall_still_arrives(
    faulty: Proxy, direct: redis.Redis
) -> None:
    faulty.stall()
    with socket.create_connection((HOST, faulty.port)) as raw:
        raw.sendall(b"INCR hits\r\n")
    faulty.flow()
    wait_for_hits(direct, b"1")


def test_dropped_reply_never_comes_though_the_server_did_the_work(
    faulty: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    faulty.drop_replies()
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(client.incr, "hits")
        wait_for_hits(direct, b"1")
        with pytest.raises(TimeoutError):
            reply.result(0.1)
        faulty.drop_replies(False)
        faulty.cut()
        with pytest.raises(redis.ConnectionError):
            reply.result(10)
    assert client.incr("hits") == 2


def test_cut_resets_a_waiting_client(faulty: Proxy, client: redis.Redis) -> None:
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(client.blpop, ["nothing"], 10)
        with pytest.raises(TimeoutError):
            reply.result(0.1)
        faulty.cut()
        with pytest.raises(redis.ConnectionError, match="reset"):
            reply.result(10)
    assert faulty.live == 0
    assert client.ping()  # on a new connection


def test_cut_during_a_stall_drops_what_was_held(
    faulty: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    faulty.stall()
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(client.incr, "hits")
        with pytest.raises(TimeoutError):
            reply.result(0.1)
        faulty.cut()
        with pytest.raises(redis.ConnectionError):
            reply.result(10)
    faulty.flow()
    assert client.incr("hits") == 1


def test_refuses_new_connections_and_keeps_the_old(faulty: Proxy, client: redis.Redis) -> None:
    faulty.refuse()
    with connect(faulty.port) as second:
        with pytest.raises(redis.ConnectionError):
            second.ping()
        assert client.ping()
        faulty.refuse(False)
        assert second.ping()


def test_closes_when_nobody_listens_at_the_target() -> None:
    with (
        proxy(servers.free_port()) as faulty,
        connect(faulty.port) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()


def test_garbage_replaces_one_reply(
    faulty: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    faulty.garbage(b"\x00\xff no protocol\r\n")
    with pytest.raises(redis.RedisError, match=r"(?i)protocol"):
        client.incr("hits")
    assert direct.get("hits") == b"1"
    assert client.incr("hits") == 2


def test_cuts_a_reply_in_the_middle(
    faulty: Proxy, client: redis.Redis, direct: redis.Redis
) -> None:
    direct.set("word", "threshold")
    faulty.cut_reply_after(6)
    with pytest.raises(redis.ConnectionError):
        client.get("word")
    assert client.get("word") == b"threshold"


def test_serves_an_event_loop_in_the_same_thread(faulty: Proxy) -> None:
    async def use() -> None:
        async with AsyncRedis(port=faulty.port, retry=AsyncRetry(NoBackoff(), 0)) as client:
            await client.ping()
            faulty.cut_reply_after(1)
            with pytest.raises(redis.ConnectionError):
                await client.ping()
            assert await client.ping()

    asyncio.run(use())
