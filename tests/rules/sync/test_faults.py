"""Database and Redis away, hung, and back again: rules stay in force, and the status tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from limen.errors import StoreError
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Follower, Status, seek
from limen.rules.sync import cache as cache_module
from limen.rules.sync import follow as follow_module
from limen.rules.sync.files import LastGood
from limen.rules.sync.switch import turned_on
from tests.faults.proxy import Proxy, proxy
from tests.postgres import Postgres
from tests.rules.sync.conftest import (
    DATABASE,
    HARD,
    Watched,
    at_cache,
    publish,
    save,
)
from tests.rules.sync.processes import Fleet, Plan, rule_set
from tests.servers import Server
from tests.waiting import wait_until

START_S = 20.0
Follow = Callable[..., Follower]


@pytest.fixture
def far(post: Postgres) -> Iterator[tuple[Proxy, str]]:
    """A way to the database that can be disturbed, and the address of the database by it."""
    with proxy(post.port) as made:
        url = post.url(DATABASE).replace(f":{post.port}/", f":{made.port}/")
        yield made, url


def started(follow: Follow, *arguments: Any, **options: Any) -> tuple[Follower, Status]:
    """Start a follower; it must have rules in time."""
    follower = follow(*arguments, **options)
    return follower, follower.wait(START_S)


# the start


def last_good(folder: Path, database: str) -> LastGood:
    """Return the last good file of the follower that `follow` starts."""
    return LastGood(folder / "host", SqlStore(database).source)


def test_without_the_database_a_process_starts_from_the_cache(
    post: Postgres, database: str, redis_url: str, follow: Follow
) -> None:
    before = time.time()
    publish(database, redis_url, rule_set(1, 5))
    post.kill()
    follower, status = started(follow, database, redis_url)
    assert (status.version, status.source) == ("1", "cache")
    assert before <= status.written_at <= time.time()
    wait_until(lambda: "store" in follower.status.trouble)
    assert "nobody answers there" in follower.status.trouble["store"]


@pytest.mark.parametrize("cache", ["empty", "away"])
def test_without_database_and_cache_a_process_starts_from_the_last_good_file(
    post: Postgres,
    valkey: Server,
    database: str,
    redis_url: str,
    follow: Follow,
    tmp_path: Path,
    cache: str,
) -> None:
    last_good(tmp_path, database).write(save(database, rule_set(1, 5)))
    kept_at = time.time()
    post.kill()
    if cache == "away":
        valkey.kill()
    follower, status = started(follow, database, redis_url)
    assert (status.version, status.source) == ("1", "last-good")
    assert kept_at - 5 < status.written_at <= kept_at
    wait_until(lambda: "store" in follower.status.trouble)
    assert ("cache" in follower.status.trouble) == (cache == "away")


def test_a_process_that_has_followed_leaves_a_last_good_file_for_the_next(
    post: Postgres, valkey: Server, database: str, redis_url: str, follow: Follow, tmp_path: Path
) -> None:
    publish(database, redis_url, rule_set(1, 5))
    follower, _ = started(follow, database, redis_url)
    publish(database, redis_url, rule_set(2, 5))
    wait_until(lambda: follower.status.version == "2")
    follower.close()
    post.kill()
    valkey.kill()
    follower, status = started(follow, database, redis_url)
    assert (status.version, status.source) == ("2", "last-good")
    # Back again, it says so by itself.
    valkey.restart()
    post.start()
    wait_until(lambda: follower.status.source == "store")
    wait_until(lambda: not follower.status.trouble)


@pytest.mark.parametrize("how", ["stalled", "and Redis too"] if HARD else ["and Redis too"])
def test_a_database_that_hangs_does_not_hold_up_the_start(
    post: Postgres,
    valkey: Server,
    database: str,
    far: tuple[Proxy, str],
    redis_url: str,
    follow: Follow,
    tmp_path: Path,
    how: str,
) -> None:
    last_good(tmp_path, far[1]).write(save(database, rule_set(1, 5)))
    if how == "stalled":
        far[0].stall()
    else:
        post.pause()
        valkey.pause()
    _, status = started(follow, far[1], redis_url)
    assert (status.version, status.source) == ("1", "last-good")


def test_a_database_that_stops_answering_in_the_middle_does_not_hold_up_the_start(
    far: tuple[Proxy, str],
    database: str,
    follow: Follow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seek, "_STORE_S", 0.8)
    last_good(tmp_path, far[1]).write(save(database, rule_set(1, 5)))
    # A query takes many round trips: login, settings, the transaction. So it is called off there.
    far[0].delay = 0.1
    _, status = started(follow, far[1])
    assert status.source == "last-good"


def test_without_anything_a_process_says_so_and_goes_on_trying(
    post: Postgres, database: str, redis_url: str, follow: Follow
) -> None:
    post.kill()
    follower = follow(database, redis_url)
    with pytest.raises(StoreError, match=r"no rules in 0\.5 s: rules at postgresql://"):
        follower.wait(0.5)
    assert follower.status.source == "none"
    post.start()
    save(database, rule_set(1, 5))
    assert follower.wait(10).source == "store"


def test_database_without_rules_does_not_get_the_last_good_rules_of_another_database(
    database: str, lite: str, follow: Follow, tmp_path: Path
) -> None:
    last_good(tmp_path, lite).write(save(lite, rule_set(1, 5)))
    follower = follow(database, None)
    with pytest.raises(StoreError, match="there are none yet"):
        follower.wait(0.7)
    assert follower.status.trouble == {}
    save(database, rule_set(1, 6))
    assert follower.wait(10).source == "store"
    wait_until(lambda: last_good(tmp_path, database).is_usable)


def test_a_last_good_file_that_is_broken_is_told_and_not_believed(
    post: Postgres, database: str, follow: Follow, tmp_path: Path
) -> None:
    good = last_good(tmp_path, database)
    good.write(save(database, rule_set(1, 5)))
    good.path.write_bytes(good.path.read_bytes()[:-10])
    post.kill()
    follower = follow(database, None)
    with pytest.raises(StoreError, match="it cannot be read"):
        follower.wait(0.7)
    assert "last-good" in follower.status.trouble
    post.start()
    assert follower.wait(10).source == "store"
    wait_until(lambda: not follower.status.trouble)
    entry = good.read()
    assert entry is not None
    assert entry.version == "1"


# the database, later


def test_decisions_do_not_notice_that_the_database_is_away(
    post: Postgres, database: str, redis_url: str, fleet: Fleet, tmp_path: Path
) -> None:
    publish(database, redis_url, rule_set(1, 40))
    fleet.start(2, Plan(redis_url, database, redis_url, str(tmp_path)))
    fleet.wait_for("1")
    post.kill()
    fleet.wait(lambda report: report.status.trouble or report.refused > 300)
    with pytest.raises(StoreError, match="nobody answers there"):
        save(database, rule_set(2, 80))
    post.start()
    publish(database, redis_url, rule_set(2, 80))
    reports = fleet.wait_for("2")
    for report in reports:
        assert (report.mixed, report.error) == (0, "")
        assert report.slowest_s < 5


def test_a_database_that_hangs_holds_up_neither_the_cache_nor_the_kill_switch(
    database: str,
    far: tuple[Proxy, str],
    redis_url: str,
    admin: redis.Redis,
    follow: Follow,
) -> None:
    publish(database, redis_url, rule_set(1, 5))
    # It looks once a minute, so it is the announcement that it follows; and it asks at once.
    follower, _ = started(follow, far[1], redis_url, interval=60)
    wait_until(lambda: follower.status.is_listening)
    far[0].stall()
    # It is its turn, it hears something and asks: and there it hangs.
    admin.delete("limen:{rules}claim")
    at_cache(redis_url, lambda cache: cache.announce("nothing"))
    wait_until(lambda: far[0].live)
    for number in range(2, 6):
        publish(database, redis_url, rule_set(number, 5))
        wait_until(lambda v=str(number): follower.status.version == v)  # type: ignore[misc]
    at_cache(redis_url, lambda cache: cache.turn_switch(turned_on()))
    wait_until(lambda: follower.status.switch.all)
    far[0].flow()


def test_a_process_that_cannot_reach_the_database_leaves_the_asking_to_others(
    database: str,
    far: tuple[Proxy, str],
    redis_url: str,
    follow: Follow,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (seek, cache_module):
        monkeypatch.setattr(module, "CLAIM_S", 1)
    publish(database, redis_url, rule_set(1, 5))
    cut_off, _ = started(follow, far[1], redis_url, folder=tmp_path / "a")
    far[0].refuse()
    wait_until(lambda: "store" in cut_off.status.trouble)
    follower, _ = started(follow, database, redis_url, folder=tmp_path / "b")
    save(database, rule_set(2, 5))
    wait_until(lambda: follower.status.version == cut_off.status.version == "2")
    # And it finds out by itself that it is there again, though it may never be its turn.
    far[0].refuse(False)
    wait_until(lambda: not cut_off.status.trouble)


def test_a_database_that_comes_back_is_followed_by_itself(
    post: Postgres, database: str, follow: Follow
) -> None:
    save(database, rule_set(1, 5))
    follower, _ = started(follow, database, None, interval=0.2)
    post.kill()
    wait_until(lambda: "store" in follower.status.trouble)
    post.start()
    save(database, rule_set(2, 5))
    wait_until(lambda: follower.status.version == "2")
    wait_until(lambda: not follower.status.trouble)


def test_rules_of_another_database_with_the_same_number_are_followed(
    post: Postgres,
    admin: redis.Redis,
    database: str,
    redis_url: str,
    follow: Follow,
    watched: Watched,
) -> None:
    publish(database, redis_url, rule_set(1, 5))
    without, follows = Watched(), [follow(database, redis_url)]
    follows.append(follow(None, redis_url, use=without.use))
    for follower in follows:
        follower.wait()
    follows[0].close()
    # As after a database was lost and made anew, while Redis still has the old rules.
    post.empty_database(DATABASE)
    asyncio.run(SqlStore(database).prepare())
    save(database, rule_set(1, 7))
    started(follow, database, redis_url)

    def quota(of: Watched) -> int:
        return of.sets[-1].rules[0].allowances.own.limits[0].quota

    admin.delete("limen:{rules}claim")
    wait_until(lambda: quota(watched) == 7)
    # And whoever has them from the cache, follows.
    wait_until(lambda: quota(without) == 7)
    assert without.versions == ["1", "1"]


# Redis, later


@pytest.mark.parametrize("how", ["killed", "paused"] if HARD else ["killed"])
def test_without_redis_every_process_asks_the_database_and_comes_back_by_itself(
    valkey: Server,
    database: str,
    redis_url: str,
    follow: Follow,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow_module, "_BEAT_S", 0.3)
    publish(database, redis_url, rule_set(1, 5))
    follower, _ = started(follow, database, redis_url, interval=0.3, ping_interval=0.3)
    wait_until(lambda: follower.status.is_listening)
    if how == "killed":
        valkey.kill()
    else:
        valkey.pause()
    wait_until(lambda: {"cache", "news"} <= set(follower.status.trouble))
    assert not follower.status.is_listening
    save(database, rule_set(2, 5))
    wait_until(lambda: follower.status.version == "2")
    assert follower.status.source == "store"
    if how == "killed":
        valkey.restart()
    else:
        valkey.resume()
    wait_until(lambda: follower.status.is_listening)
    # The cache is filled, with the new rules; the old ones of a server that slept give way.
    wait_until(lambda: at_cache(redis_url, lambda cache: cache.look()).version == b"2")
    wait_until(lambda: not follower.status.trouble)
    wait_until(lambda: len(at_cache(redis_url, lambda cache: cache.instances())) == 1)
    publish(database, redis_url, rule_set(3, 5))
    wait_until(lambda: follower.status.version == "3")


@pytest.mark.parametrize("how", ["away", "paused"])
def test_without_redis_at_the_start_rules_come_from_the_database(
    valkey: Server, database: str, redis_url: str, follow: Follow, how: str
) -> None:
    save(database, rule_set(1, 5))
    if how == "away":
        valkey.kill()
    else:
        valkey.pause()
    _, status = started(follow, database, redis_url)
    assert (status.version, status.source, status.is_listening) == ("1", "store", False)
    assert "cache" in status.trouble


def test_a_cache_that_was_emptied_is_filled_again(
    admin: redis.Redis, database: str, redis_url: str, follow: Follow
) -> None:
    publish(database, redis_url, rule_set(1, 5))
    follower, _ = started(follow, database, redis_url)
    time.sleep(0.1)
    admin.flushall()
    wait_until(lambda: at_cache(redis_url, lambda cache: cache.look()).version == b"1")
    wait_until(lambda: not follower.status.trouble)


def test_a_server_that_takes_no_writes_is_told_once_and_the_database_followed(
    admin: redis.Redis,
    database: str,
    redis_url: str,
    follow: Follow,
    logged: Callable[[], list[str]],
) -> None:
    publish(database, redis_url, rule_set(1, 5))
    admin.config_set("min-replicas-to-write", 1)
    try:
        follower, _ = started(follow, database, redis_url, interval=0.05)
        wait_until(lambda: "NOREPLICAS" in follower.status.trouble.get("sharing", ""))
        save(database, rule_set(2, 5))
        wait_until(lambda: follower.status.version == "2")
        time.sleep(0.5)
        # Each thing that it cannot write is a reason of its own.
        assert 1 <= len(logged()) == len(set(logged())) <= 2
    finally:
        admin.config_set("min-replicas-to-write", 0)
    wait_until(lambda: not follower.status.trouble)
    assert at_cache(redis_url, lambda cache: cache.look()).version == b"2"


# a line that is dead and was not cut


@pytest.mark.parametrize("direction", ["both", "replies"] if HARD else ["both"])
def test_a_half_open_subscription_is_noticed_and_a_change_meanwhile_picked_up(
    database: str, redis_url: str, line: Proxy, follow: Follow, direction: str
) -> None:
    ping_s = 0.4
    publish(database, redis_url, rule_set(1, 5))
    url = f"redis://127.0.0.1:{line.port}"
    # Without a database, and looking once a minute: it is the new subscription that tells.
    follower, _ = started(follow, None, url, interval=60, ping_interval=ping_s)
    wait_until(lambda: follower.status.is_listening)
    time.sleep(2.5 * ping_s)
    assert follower.status.is_listening
    if direction == "both":
        line.stall()
    else:
        line.drop_replies()
    publish(database, redis_url, rule_set(2, 5))
    wait_until(lambda: not follower.status.is_listening)
    assert "no answer to a ping" in follower.status.trouble["news"]
    # What was held is lost, as with a firewall that forgets a connection.
    line.cut()
    line.flow()
    line.drop_replies(False)
    wait_until(lambda: follower.status.version == "2")
    assert follower.status.is_listening


def test_only_the_line_of_announcements_is_dead_and_the_look_finds_the_change(
    database: str, redis_url: str, admin: redis.Redis, follow: Follow
) -> None:
    publish(database, redis_url, rule_set(1, 5))
    follower, _ = started(follow, database, redis_url, ping_interval=60)
    wait_until(lambda: follower.status.is_listening)
    # The server forgets the subscriber, who is not told.
    admin.client_kill_filter(_type="pubsub", skipme=True)
    publish(database, redis_url, rule_set(2, 5))
    wait_until(lambda: follower.status.version == "2")
    wait_until(lambda: follower.status.is_listening)
