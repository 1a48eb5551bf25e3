"""The rules in Redis: nobody is led back to older ones, and everybody alive is counted."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from limen import StoreError
from limen.connect import target_of
from limen.rules.stores import Snapshot
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Follower, Instance, Poisoned, RuleCache
from limen.rules.sync import cache as module
from limen.rules.sync import follow as following
from limen.rules.sync.switch import turned_on
from tests.rules.sync.conftest import Watched, at_cache, publish, save, times
from tests.rules.sync.processes import NAMESPACE, Fleet, Plan, rule_set
from tests.waiting import wait_until

Follow = Callable[..., Follower]


def snapshot(version: int | str) -> Snapshot:
    return Snapshot(str(version), {"rules": [{"name": "a", "limits": "5/day"}]})


def there(redis_url: str) -> bytes:
    version: bytes = at_cache(redis_url, lambda cache: cache.look()).version
    return version


def write(redis_url: str, version: int | str, seen: bytes | None = None) -> bool:
    return bool(at_cache(redis_url, lambda cache: cache.write(snapshot(version), seen)))


@pytest.mark.parametrize(
    ("before", "version", "seen", "is_written"),
    [
        (None, "1", None, True),
        (None, "1", b"", True),
        (None, "1", b"7", False),
        ("1", "2", None, True),
        ("2", "2", None, True),
        ("10", "9", None, False),
        ("9", "10", None, True),
        ("1", "2", b"1", True),
        ("1", "2", b"", False),
        ("3", "2", b"1", False),
        ("3", "1", b"3", True),
        ("3", "4", b"2", False),
        ("words", "2", None, False),
        ("words", "2", b"words", True),
    ],
)
def test_who_may_write(
    redis_url: str, before: str | None, version: str, seen: bytes | None, is_written: bool
) -> None:
    if before is not None:
        assert write(redis_url, before)
    assert write(redis_url, version, seen) is is_written
    assert there(redis_url) == (version if is_written else before or "").encode()


def test_what_is_written_is_read_with_its_stamp_and_goes_after_a_day(
    redis_url: str, admin: redis.Redis
) -> None:
    start = time.time()
    write(redis_url, 1)
    found = at_cache(redis_url, lambda cache: cache.look())
    entry, stamp = at_cache(redis_url, lambda cache: cache.read())
    assert entry.snapshot == snapshot(1)
    assert start <= entry.written_at <= time.time()
    assert (found.version, found.stamp, found.switch) == (b"1", stamp, None)
    assert 86_300 < admin.ttl("limen:{rules}entry") <= 86_400
    # The same once more is another write.
    write(redis_url, 1)
    assert at_cache(redis_url, lambda cache: cache.look()).stamp != stamp


@pytest.mark.parametrize(("active", "in_cache"), [("1", "1"), ("2", "2")])
def test_publish_replaces_newer_rules_only_with_the_active_version(
    redis_url: str, active: str, in_cache: str
) -> None:
    assert write(redis_url, 2)

    async def active_version() -> str:
        return active

    at_cache(redis_url, lambda cache: cache.publish(snapshot(1), active_version))
    entry, _ = at_cache(redis_url, lambda cache: cache.read())
    assert entry.version == in_cache


def test_rules_that_nobody_would_read_are_not_written(redis_url: str) -> None:
    large = Snapshot("1", {"rules": [], "x": "y" * 8_400_000})
    with pytest.raises(Poisoned, match="8,388,608 are read at most"):
        at_cache(redis_url, lambda cache: cache.write(large))
    assert there(redis_url) == b""


def test_all_keys_are_of_one_slot_and_named_after_the_namespace(
    lite: str, redis_url: str, admin: redis.Redis, follow: Follow
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    follow(lite, redis_url, interval=0.1).wait()
    at_cache(redis_url, lambda cache: cache.turn_switch(turned_on()))
    wait_until(lambda: len(list(admin.scan_iter())) == 5)
    assert all(key.startswith(b"limen:{rules}") for key in admin.scan_iter())


def test_of_writers_who_saw_the_same_one_writes(redis_url: str) -> None:
    async def work(cache: RuleCache) -> list[bool]:
        await cache.write(Snapshot("2", rule_set(2, 5)))
        found = await cache.look()
        # As when an older version is activated: all processes see that it is not the one they have.
        old = Snapshot("1", rule_set(1, 5))
        seen = (found.version, found.version, b"1")
        return [await cache.write(old, each, found.stamp) for each in seen]

    assert at_cache(redis_url, work) == [True, False, False]
    assert there(redis_url) == b"1"


@pytest.mark.parametrize(("ends_ms", "is_ours"), [(None, True), (3_600_000, True), (2_900, False)])
def test_a_claim_that_would_never_end_is_nobodys(
    redis_url: str, admin: redis.Redis, ends_ms: int | None, is_ours: bool
) -> None:
    admin.set("limen:{rules}claim", "somebody", px=ends_ms)
    assert at_cache(redis_url, lambda cache: cache.claim("me")) is is_ours
    assert 0 < admin.pttl("limen:{rules}claim") <= 3_000
    assert not at_cache(redis_url, lambda cache: cache.claim("another"))


def test_a_server_that_has_just_started_takes_nobody_for_gone(
    lite: str, redis_url: str, admin: redis.Redis, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    others = [instance("a"), instance("b")]
    for each in others:
        at_cache(redis_url, lambda cache, one=each: cache.beat(one))  # type: ignore[misc]
    follower = follow(lite, redis_url)
    wait_until(lambda: follower.status.instances == 3)
    admin.flushall()
    monkeypatch.setattr(following, "ALIVE_S", 4)
    wait_until(lambda: admin.zcard("limen:{rules}alive") == 1)
    time.sleep(0.1)
    assert follower.status.instances == 3
    wait_until(lambda: follower.status.instances == 1)


def test_who_was_there_before_an_outage_is_not_forgotten_after_it(
    lite: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[int | None] = [10, None, None, 1, 10, 3]

    class Counted(RuleCache):
        async def beat(self, instance: Instance) -> int:
            found = answers.pop(0)
            if found is None:
                raise StoreError("away")
            return found

    async def work() -> list[int]:
        cache, told = Counted(target_of(redis_url, asynchronous=True), NAMESPACE), []
        for after_s in (0, 4, 4, 4, 2, 60):
            now[0] += after_s
            await follower._beat(cache)
            told.append(follower.status.instances)
        return told

    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    follower = Follower(SqlStore(lite), lambda _: None, redis=redis_url)
    assert asyncio.run(work()) == [10, 10, 10, 10, 10, 3]


def test_of_writers_who_come_together_the_newest_stays(redis_url: str) -> None:
    async def work() -> list[bytes]:
        target = target_of(redis_url, asynchronous=True)
        caches = [RuleCache(target, NAMESPACE) for _ in range(8)]
        seen: list[bytes] = []
        is_done = False

        async def watch() -> None:
            cache = RuleCache(target, NAMESPACE)
            while not is_done:
                seen.append((await cache.look()).version)
            cache.close()

        async def save_some(cache: RuleCache, numbers: list[int]) -> None:
            for number in numbers:
                await cache.write(snapshot(number))

        numbers = list(range(1, 401))
        random.Random(5).shuffle(numbers)
        watching = asyncio.create_task(watch())
        await asyncio.gather(
            *[save_some(cache, numbers[turn::8]) for turn, cache in enumerate(caches)]
        )
        is_done = True
        await watching
        for cache in caches:
            cache.close()
        return [version for version in seen if version]

    seen = [int(version) for version in asyncio.run(work())]
    assert seen == sorted(seen)
    assert there(redis_url) == b"400"


class HeldUp(SqlStore):
    """A store whose answer is held up between the database and whoever asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.go_on = threading.Event()
        self.is_held = False

    async def load(self) -> Snapshot | None:
        found = await super().load()
        self.is_held = True
        await asyncio.to_thread(self.go_on.wait, 10)
        return found


def test_a_follower_who_was_held_up_leads_nobody_back(
    lite: str, redis_url: str, watched: Watched, follow: Follow
) -> None:
    """It has read version 1 in the database when 2 is saved and announced, and goes on then."""
    save(lite, rule_set(1, 5))
    other = follow(lite, redis_url, interval=60)
    other.wait()
    wait_until(lambda: other.status.is_listening and there(redis_url) == b"1")
    held = HeldUp(lite)
    slow: list[str] = []
    follower = Follower(
        held, lambda rules: slow.append(rules.version), redis=redis_url, interval=0.05
    )
    # The cache is emptied, so that it has to ask.
    at_cache(redis_url, lambda cache: cache._link.call("DEL", "limen:{rules}entry"))
    with follower:
        wait_until(lambda: held.is_held)
        publish(lite, redis_url, rule_set(2, 5))
        wait_until(lambda: slow[-1:] == ["2"] and other.status.version == "2")
        held.go_on.set()
        time.sleep(0.5)
        # Before 2 it may have had 1, if the other one was so late that it filled the cache again.
        assert slow[slow.index("2") :] == ["2"]
        assert there(redis_url) == b"2"
    assert "1" not in watched.versions[watched.versions.index("2") :]


@pytest.mark.parametrize("seed", range(times(1, 10)))
def test_whatever_writers_do_together_nobody_goes_back(
    lite: str, redis_url: str, admin: redis.Redis, follow: Follow, seed: int
) -> None:
    """Commands that save and announce, some late, a cache that is emptied now and then."""
    save(lite, rule_set(1, 5))
    seen: list[list[int]] = [[], [], []]

    def watch(mine: list[int]) -> Callable[[object], None]:
        return lambda rules: mine.append(int(rules.version))  # type: ignore[attr-defined]

    followers = [follow(lite, redis_url, interval=0.02, use=watch(mine)) for mine in seen]
    for follower in followers:
        follower.wait()
    chance = random.Random(seed)

    async def work() -> None:
        async def one(number: int) -> None:
            store = SqlStore(lite, busy_timeout=20)
            cache = RuleCache(target_of(redis_url, asynchronous=True), NAMESPACE)
            await asyncio.sleep(chance.random())
            saved = await store.save(rule_set(number, 5), author="a", base=None)
            await asyncio.sleep(chance.random() * 0.3)
            await cache.write(Snapshot(str(saved.version), saved.document or {}))
            cache.close()

        async def empty() -> None:
            for _ in range(5):
                await asyncio.sleep(0.2)
                admin.delete("limen:{rules}entry")

        await asyncio.gather(empty(), *[one(number) for number in range(2, 22)])

    asyncio.run(work())
    last = asyncio.run(SqlStore(lite).version())
    wait_until(lambda: {one.status.version for one in followers} == {last})
    for mine in seen:
        assert mine == sorted(mine)


def test_of_many_who_claim_one_has_the_turn_for_three_seconds(
    redis_url: str, admin: redis.Redis
) -> None:
    claims = [at_cache(redis_url, lambda cache: cache.claim("a")) for _ in range(5)]
    assert claims == [True, False, False, False, False]
    assert 2_000 < admin.pttl("limen:{rules}claim") <= 3_000


# who is alive


def instance(name: str) -> Instance:
    return Instance(name, "host", 1, "1", "cache", 0.0)


def test_the_silent_are_forgotten(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALIVE_S", 1)

    async def work(cache: RuleCache) -> list[object]:
        counts: list[object] = [await cache.beat(instance(name)) for name in ("a", "b", "c", "a")]
        await asyncio.sleep(0.6)
        counts.append(await cache.beat(instance("a")))
        await asyncio.sleep(0.6)
        counts.append(await cache.beat(instance("a")))
        counts.append([one.id for one in await cache.instances()])
        await cache.leave(instance("a"))
        counts.append(await cache.instances())
        return counts

    assert at_cache(redis_url, work) == [1, 2, 3, 3, 3, 1, ["a"], []]


def test_what_is_no_instance_is_left_out(redis_url: str, admin: redis.Redis) -> None:
    admin.hset("limen:{rules}instances", mapping={"x": "{", "y": '{"id": 5}', "z": b"\xff"})
    at_cache(redis_url, lambda cache: cache.beat(instance("a")))
    found = at_cache(redis_url, lambda cache: cache.instances())
    assert [one.id for one in found] == ["a"]


def test_a_function_that_fails_when_it_is_told_of_instances_stops_nothing(
    lite: str, redis_url: str, follow: Follow
) -> None:
    def fail(_: int) -> None:
        raise RuntimeError("of the program")

    publish(lite, redis_url, rule_set(1, 5))
    follower = follow(lite, redis_url, on_instances=fail)
    follower.wait()
    wait_until(lambda: "instances" in follower.status.trouble)
    assert follower.status.trouble["instances"] == "RuntimeError: of the program"
    publish(lite, redis_url, rule_set(2, 5))
    wait_until(lambda: follower.status.version == "2")


@pytest.mark.slow
def test_a_process_that_was_killed_is_forgotten(
    lite: str, redis_url: str, fleet: Fleet, tmp_path: Path
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    first, _ = fleet.start(2, Plan(redis_url, lite, redis_url, str(tmp_path)))
    fleet.wait(lambda report: report.instances == 2)
    fleet.processes.remove(first)
    first.kill()
    fleet.wait(lambda report: report.instances == 1, 60)
