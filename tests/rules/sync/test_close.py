"""Closing is prompt, whatever is broken, and leaves nothing behind."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Follower
from tests.faults.proxy import Proxy, proxy
from tests.postgres import Postgres
from tests.rules.sync.conftest import (
    DATABASE,
    HOST,
    at_cache,
    publish,
    save,
    times,
)
from tests.rules.sync.processes import NAMESPACE, rule_set
from tests.servers import Server
from tests.waiting import wait_until

PROMPT_S = 20.0
"""How long closing may take on a busy machine; it takes 3 s at most on an idle one."""


@pytest.fixture(autouse=True)
def nothing_left_behind(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No thread, and no word of asyncio, of a driver or of a warning."""
    caplog.set_level(logging.WARNING)
    yield
    gc.collect()
    assert not [one for one in threading.enumerate() if one.name == "limen-rules"]
    others = [one for one in caplog.get_records("call") if one.name != "limen"]
    assert not others, [one.getMessage() for one in others]


def connections(admin: redis.Redis) -> int:
    """Return how many there are to Redis, ours to look with left out."""
    return len(admin.client_list()) - 1


def sessions(post: Postgres) -> int:
    query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{DATABASE}'"
    return int(post.execute(query))


def seconds_to_close(follower: Follower) -> float:
    start = time.monotonic()
    follower.close()
    return time.monotonic() - start


def make(database: str | None, redis_url: str | None, **options: Any) -> Follower:
    store = None if database is None else SqlStore(database)
    return Follower(store, lambda _: None, redis=redis_url, namespace=NAMESPACE, **options)


def test_no_connection_is_left_open(
    post: Postgres, database: str, redis_url: str, admin: redis.Redis
) -> None:
    publish(database, redis_url, rule_set(1, 5))
    follower = make(database, redis_url)
    follower.start()
    follower.wait()
    wait_until(lambda: follower.status.is_listening)
    assert connections(admin) == 2
    assert seconds_to_close(follower) < PROMPT_S
    wait_until(lambda: connections(admin) == 0)
    wait_until(lambda: sessions(post) == 0)
    assert at_cache(redis_url, lambda cache: cache.instances()) == []
    # It can be started once more, and closed twice.
    follower.start()
    wait_until(lambda: at_cache(redis_url, lambda cache: cache.instances()))
    follower.close()
    follower.close()


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05])
def test_it_may_be_closed_at_any_moment_of_its_start(
    post: Postgres, database: str, redis_url: str, admin: redis.Redis, after_s: float
) -> None:
    save(database, rule_set(1, 5))
    for _ in range(times(2, 20)):
        admin.delete("limen:{rules}entry")
        follower = make(database, redis_url, interval=0.01)
        follower.start()
        time.sleep(after_s)
        assert seconds_to_close(follower) < PROMPT_S
    wait_until(lambda: connections(admin) == 0)
    wait_until(lambda: sessions(post) == 0)


def test_a_follower_that_was_never_started_closes(redis_url: str) -> None:
    make(None, redis_url).close()


@pytest.mark.parametrize("what", ["hangs", "is away"])
def test_it_closes_promptly_when_redis_is_no_help(
    valkey: Server, lite: str, redis_url: str, what: str
) -> None:
    save(lite, rule_set(1, 5))
    follower = make(lite, redis_url, ping_interval=0.2)
    follower.start()
    follower.wait()
    wait_until(lambda: follower.status.is_listening)
    if what == "hangs":
        valkey.pause()
    else:
        valkey.kill()
    time.sleep(0.3)
    assert seconds_to_close(follower) < PROMPT_S


def test_it_closes_promptly_when_the_database_hangs(
    post: Postgres, database: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(database, rule_set(1, 5))
    with proxy(post.port) as far:
        url = database.replace(f":{post.port}/", f":{far.port}/")
        follower = make(url, redis_url, interval=0.05)
        follower.start()
        follower.wait()
        # It claims its turn, and hangs in the middle of a query.
        far.delay = 0.1
        at_cache(redis_url, _forget_claim)
        wait_until(lambda: far.live)
        far.stall()
        time.sleep(0.1)
        assert seconds_to_close(follower) < PROMPT_S


async def _forget_claim(cache: Any) -> None:
    await cache._link.call("DEL", "limen:{rules}claim")


def test_a_line_that_hangs_does_not_hold_up_the_closing(
    lite: str, redis_url: str, line: Proxy
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    follower = make(None, f"redis://{HOST}:{line.port}")
    follower.start()
    follower.wait()
    line.stall()
    assert seconds_to_close(follower) < PROMPT_S
    line.flow()


def test_the_status_after_waiting_names_the_rules(
    lite: str, redis_url: str, follow: Callable[..., Follower]
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    for _ in range(times(30, 300)):
        follower = make(lite, redis_url)
        follower.start()
        status = follower.wait()
        assert (status.version, status.source) in [("1", "cache"), ("1", "store")]
        follower.close()
