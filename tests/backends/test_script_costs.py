"""What a state on a server costs: bytes, commands, and the time it stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from limen import Check, Limit
from limen.backends.redis import script
from tests import script_forms, servers

SECOND_US = 1_000_000
NOW_US = 1_790_000_000_000_000


@pytest.fixture(scope="module", params=sorted(servers.binaries()))
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with servers.server(servers.binaries()[request.param]) as port:
        client = redis.Redis(port=port)
        yield client
        client.close()


@pytest.mark.parametrize(
    ("quota", "period", "most_bytes"),
    [
        (100, 60, 6.0),
        (1_000, 60, 5.0),
        (10_000, 60, 5.0),
        (100, 86_400, 7.5),
        (1_000, 86_400, 6.0),
        (10_000, 86_400, 6.0),
    ],
)
def test_a_full_packed_window_takes_few_bytes_for_each_request(
    client: redis.Redis, quota: int, period: int, most_bytes: float
) -> None:
    sha = client.script_load(script_forms.timed())
    [key], packed = script.pack_checks("limen", [Check(Limit(quota, period), "full")], True)
    client.delete(key)
    pipeline = client.pipeline(transaction=False)
    # One after the other, as it is used: what grows step by step may be left with room to spare.
    for index in range(quota):
        pipeline.evalsha(sha, 1, key, packed, str(NOW_US + index * period * SECOND_US // quota))
    replies = pipeline.execute()
    assert all(script.readings(reply)[0][0] for reply in replies)
    taken = client.memory_usage(key, samples=0)
    assert taken is not None
    assert taken / quota <= most_bytes


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_that_100_000_stamps_expire_at_once_takes_few_commands(
    client: redis.Redis, share: float
) -> None:
    run = client.register_script(script_forms.timed())
    limit = Limit(100_000, 60, algorithm="packed_window")
    half = script.pack_checks("limen", [Check(limit, f"many {share}", 50_000)], True)
    one = script.pack_checks("limen", [Check(limit, f"many {share}")], True)
    for keys, packed, now_us in [(*half, NOW_US), (*half, NOW_US + 30 * SECOND_US)]:
        run(keys, [packed, now_us])
    client.config_resetstat()
    reply = run(one[0], [one[1], NOW_US + (60 if share < 1 else 90) * SECOND_US])
    assert script.readings(reply)[0][1] == (49_999 if share < 1 else 99_999)
    calls = [figures["calls"] for figures in client.info("commandstats").values()]
    assert sum(calls) < 50


@pytest.mark.parametrize("algorithm", ["packed_window", "rolling_window"])
def test_a_window_in_use_lives_until_its_newest_stamp_has_left(
    client: redis.Redis, algorithm: str
) -> None:
    """By the server's own clock: the TTL is not set anew by every charge."""
    run = client.register_script(script.text())
    limit = Limit(10_000, 0.2, algorithm=algorithm)
    keys, packed = script.pack_checks("limen", [Check(limit, "alive")], True)
    start_us = newest_us = server_time_us(client)
    while newest_us < start_us + SECOND_US // 2:
        reply = run(keys, [packed])
        newest_us = script.readings(reply)[0][5]
        leaves_us = newest_us + limit.period_us
        ends_us = 1_000 * client.pttl(keys[0]) + server_time_us(client)
        assert ends_us >= leaves_us or server_time_us(client) >= leaves_us


def server_time_us(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds * SECOND_US + micros)
