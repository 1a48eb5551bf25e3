"""The servers that tests start do what the tests rely on, for every binary there is."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import servers
from tests.waiting import wait_until


@pytest.fixture(scope="module", params=sorted(servers.binaries()))
def binary(request: pytest.FixtureRequest) -> Path:
    return servers.binaries()[request.param]


@pytest.fixture(scope="module")
def cluster(binary: Path) -> Iterator[servers.Cluster]:
    with servers.cluster(binary) as cluster:
        yield cluster


def connect(port: int) -> redis.Redis:
    return redis.Redis(port=port, socket_timeout=10, retry=Retry(NoBackoff(), 0))


def test_killed_server_refuses_until_it_is_started_again(binary: Path) -> None:
    options = ["--appendonly", "yes", "--appendfsync", "always"]
    with servers.process(binary, *options) as server, connect(server.port) as client:
        client.set("kept", 1)
        server.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.restart()
        assert client.get("kept") == b"1"
    assert not server.alive


def test_paused_server_does_not_answer_until_it_goes_on(binary: Path) -> None:
    with (
        servers.process(binary) as server,
        connect(server.port) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        server.pause()
        answer = pool.submit(client.ping)
        with pytest.raises(TimeoutError):
            answer.result(0.1)
        server.resume()
        assert answer.result(10)


def test_paused_server_can_be_ended(binary: Path) -> None:
    with servers.process(binary) as server:
        server.pause()
    assert not server.alive


def test_server_with_a_password_counts_as_started(binary: Path) -> None:
    with servers.server(binary, "--requirepass", "secret") as port:
        with connect(port) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
        with redis.Redis(port=port, password="secret") as client:
            assert client.ping()


def test_server_that_cannot_start_says_why(binary: Path) -> None:
    with pytest.raises(servers.NotStarted, match="no-such-option"):
        servers.server(binary, "--no-such-option", "1").__enter__()


@pytest.mark.parametrize("offset", [0, 10_000], ids=["port", "bus"])
def test_another_port_is_tried_when_one_is_taken(
    binary: Path, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, free = servers.free_port(), servers.free_port()
    ports = iter([taken, free])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    with socket.socket() as rival:
        rival.bind((servers.HOST, taken + offset))
        with servers.process(binary, "--cluster-enabled", "yes") as server:
            assert server.port == free


def test_cluster_answers_on_every_node(cluster: servers.Cluster) -> None:
    assert len(cluster.ports) == 3
    assert [cluster.owner_port(slot) for slot in (0, 8_000, 16_383)] == cluster.ports
    with redis.RedisCluster(servers.HOST, cluster.ports[0]) as client:
        for number in range(20):
            client.set(f"key-{number}", number)
        assert {client.get(f"key-{number}") for number in range(20)} == {
            str(number).encode() for number in range(20)
        }


def test_moved_slot_keeps_its_keys_under_its_new_owner(cluster: servers.Cluster) -> None:
    slot = 5  # owned by the first master
    tag = name_in(slot)
    source, target = (cluster.client(port) for port in cluster.ports[:2])
    for number in range(250):  # more than one MIGRATE carries
        source.set(f"{{{tag}}}{number}", number, px=1_000_000)
    cluster.move_slots([slot, slot + 1], cluster.ports[1])
    assert cluster.owner_port(slot) == cluster.owner_port(slot + 1) == cluster.ports[1]
    assert [target.get(f"{{{tag}}}{number}") for number in range(250)] == [
        str(number) for number in range(250)
    ]
    assert 0 < target.pttl(f"{{{tag}}}0") <= 1_000_000
    for port in (cluster.ports[0], cluster.ports[2]):
        with pytest.raises(redis.exceptions.MovedError) as moved:
            cluster.client(port).get(f"{{{tag}}}0")
        assert moved.value.port == cluster.ports[1]


def test_slot_on_the_move_asks_for_absent_keys_until_the_move_is_completed(
    cluster: servers.Cluster,
) -> None:
    slot = 7
    tag = name_in(slot)
    source = cluster.client(cluster.ports[0])
    source.set(f"{{{tag}}}here", 1)
    cluster.begin_move(slot, cluster.ports[2])
    assert cluster.owner_port(slot) == cluster.ports[0]
    assert source.get(f"{{{tag}}}here") == "1"
    with pytest.raises(redis.exceptions.AskError) as ask:
        source.get(f"{{{tag}}}absent")
    assert ask.value.port == cluster.ports[2]
    cluster.move_slot(slot, cluster.ports[2])
    assert cluster.client(cluster.ports[2]).get(f"{{{tag}}}here") == "1"


def test_slot_moved_in_circles_keeps_its_keys(cluster: servers.Cluster) -> None:
    slot = 9
    key = name_in(slot)
    cluster.client(cluster.ports[0]).set(key, 1)
    for turn in range(1, 31):
        cluster.move_slot(slot, cluster.ports[turn % 3])
        assert cluster.client(cluster.ports[turn % 3]).get(key) == "1"


@pytest.mark.slow
def test_replica_takes_over_from_a_killed_master() -> None:
    with servers.cluster(servers.binaries()["valkey"], masters=3, replicas=1) as cluster:
        slot = 7
        key = name_in(slot)
        cluster.client(cluster.ports[0]).set(key, 1)
        cluster.client(cluster.ports[0]).wait(1, 5_000)
        cluster.nodes[0].kill()
        wait_until(lambda: cluster.owner_port(slot) == cluster.ports[3])
        assert cluster.client(cluster.ports[3]).get(key) == "1"


@pytest.mark.slow
def test_sentinels_make_a_replica_the_primary_when_told() -> None:
    with servers.sentinel(servers.binaries()["redis-6.2"]) as watched:
        old = watched.primary_port()
        assert old == watched.ports[0]
        watched.failover()
        assert watched.wait_for_primary(other_than=old) in watched.ports[1:]


@pytest.mark.slow
def test_sentinels_replace_a_killed_primary() -> None:
    with servers.sentinel(servers.binaries()["valkey"]) as watched:
        killed = watched.kill_primary()
        assert not killed.alive
        with connect(watched.wait_for_primary(other_than=killed.port)) as client:
            assert client.set("key", 1)


def name_in(slot: int) -> str:
    return next(
        str(number) for number in range(10**6) if redis.crc.key_slot(b"%d" % number) == slot
    )
