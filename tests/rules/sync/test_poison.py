"""Whatever somebody writes to the cache: the last good rules stay, and nobody is troubled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limen import Limiter
from limen.engine import Engine
from limen.rules import parse
from limen.rules.document import digest
from limen.rules.stores import Snapshot
from limen.rules.stores.sql import SqlStore
from limen.rules.sync import Follower
from limen.rules.sync.entry import FORMAT, encode
from tests.rules.sync.conftest import Watched, at_cache, publish, save, times
from tests.rules.sync.processes import Fleet, Plan, rule_set
from tests.waiting import wait_until

KEY = "limen:{rules}entry"
CLAIM = "limen:{rules}claim"
"""Without it, it is somebody's turn to ask the database; else it may take three seconds."""
Follow = Callable[..., Follower]
Poison = Callable[[redis.Redis], object]


def put(**fields: bytes | str) -> Poison:
    """Write some fields of the hash, and take away the others."""

    def act(admin: redis.Redis) -> None:
        both = admin.pipeline()
        both.delete(KEY)
        both.hset(KEY, mapping=fields)  # type: ignore[arg-type]  # bytes or text
        both.execute()

    return act


def written(version: str = "9", **changed: Any) -> bytes:
    """Return an entry that is good but for what is changed."""
    document = rule_set(int(version), 9)
    fields = {
        "format": FORMAT,
        "version": version,
        "digest": digest(changed.get("document", document)),
        "written_at": 1.0,
        "document": document,
        **changed,
    }
    return msgspec.json.encode({name: value for name, value in fields.items() if value != ...})


def instead(admin: redis.Redis, verb: str, key: str, *words: str) -> None:
    """Write to a key that is new. Followers are quick: between two calls there may be another."""
    both = admin.pipeline()
    both.delete(key)
    both.execute_command(verb, key, *words)  # type: ignore[no-untyped-call]
    both.execute()


def foreign(verb: str, *words: str) -> Poison:
    return lambda admin: instead(admin, verb, KEY, *words)


# Each with what the status says of it; "" where there is nothing to be said: it is just not there.
POISONS: dict[str, tuple[Poison, str]] = {
    "no JSON": (put(version="9", entry="{{"), "it cannot be read"),
    "nothing": (put(version="9", entry=""), "it cannot be read"),
    "binary": (put(version="9", entry=b"\x00\xff\xfe"), "it cannot be read"),
    "nested": (put(version="9", entry="[" * 100_000), "it cannot be read"),
    "a list": (put(version="9", entry="[]"), "it cannot be read"),
    "wrong types": (put(version="9", entry=written(document="rules")), "it cannot be read"),
    "a number as digest": (put(version="9", entry=written(digest=9)), "it cannot be read"),
    "another format": (put(version="9", entry=written(format=0)), "it has format 0, expected 1"),
    "a newer format": (
        put(version="9", entry=written(format=2, new="field")),
        "it has format 2, expected 1",
    ),
    "an unknown field": (put(version="9", entry=written(new="field")), "it cannot be read"),
    "a missing field": (put(version="9", entry=written(digest=...)), "it cannot be read"),
    "10 MB": (put(version="9", entry=b"x" * 10_000_000), "it has 10,000,000 bytes"),
    "wrong digest": (put(version="9", entry=written(digest="0" * 64)), "its digest is not that"),
    "no such rules": (
        put(version="9", entry=written(document={"rules": [{"name": "a", "limit": "1/day"}]})),
        "unknown field",
    ),
    "another schema": (put(version="9", entry=written(document={"limits": []})), "rules"),
    "no version": (put(entry=written()), ""),
    "no entry": (put(version="9"), "it has a version and no rules"),
    "another version": (put(version="9", entry=written("8")), "its rules are of another version"),
    "a version that is no text": (put(version=b"\xff\x00", entry=written()), "another version"),
    "a long version": (put(version=b"9" * 100_000, entry=written()), "another version"),
    "a string": (foreign("SET", "x"), "something else"),
    "a list of Redis": (foreign("RPUSH", "x"), "something else"),
    "another hash": (foreign("HSET", "color", "red"), ""),
}


def is_healed(redis_url: str, version: str = "1") -> bool:
    found = at_cache(redis_url, lambda cache: cache.look())
    if found.is_foreign or found.version != version.encode():
        return False
    entry, _ = at_cache(redis_url, lambda cache: cache.read())
    return bool(entry.version == version)


@pytest.mark.parametrize("name", POISONS)
def test_poison_is_refused_and_told_once_and_healed_when_the_database_is_there(
    name: str,
    lite: str,
    redis_url: str,
    admin: redis.Redis,
    watched: Watched,
    follow: Follow,
    logged: Callable[[], list[str]],
) -> None:
    poison, reason = POISONS[name]
    good = publish(lite, redis_url, rule_set(1, 5))
    # Without the database first: what is refused stays where it is.
    alone = follow(None, redis_url, interval=0.02)
    alone.wait()
    poison(admin)
    if reason:
        wait_until(lambda: reason in alone.status.trouble.get("rules", ""))
    time.sleep(0.05)
    assert alone.status.version == good.version
    assert watched.versions == ["1"]
    assert len(logged()) == bool(reason), logged()
    # And with it.
    follower = follow(lite, redis_url, interval=0.02)
    follower.wait()
    wait_until(lambda: is_healed(redis_url))
    wait_until(lambda: not follower.status.trouble and not alone.status.trouble)
    assert set(watched.versions) == {"1"}
    # The same reason, told by each of them.
    assert len(logged()) in (bool(reason), 2 * bool(reason)), logged()
    # What comes next is followed, by the one without a database too.
    publish(lite, redis_url, rule_set(2, 5))
    wait_until(lambda: alone.status.version == follower.status.version == "2")


def test_rules_of_the_same_version_are_taken_once_the_cache_was_healed(
    lite: str, redis_url: str, admin: redis.Redis, follow: Follow
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    follower = follow(None, redis_url, interval=0.02)
    follower.wait()
    second = save(lite, rule_set(2, 5))
    put(version="2", entry="{{")(admin)
    wait_until(lambda: follower.status.trouble)
    assert follower.status.version == "1"
    assert at_cache(redis_url, lambda cache: cache.write(second, seen=b"2"))
    wait_until(lambda: follower.status.version == "2" and not follower.status.trouble)


def test_a_number_above_that_of_the_database_gives_way(
    lite: str, redis_url: str, admin: redis.Redis, follow: Follow
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    follower = follow(lite, redis_url, interval=0.02)
    follower.wait()
    # Good in itself: somebody's who has the right to write there.
    at_cache(redis_url, lambda cache: cache.write(Snapshot("99", rule_set(99, 5))))
    wait_until(lambda: follower.status.version == "99" or is_healed(redis_url))
    admin.delete(CLAIM)
    wait_until(lambda: is_healed(redis_url))
    wait_until(lambda: follower.status.version == "1" and not follower.status.trouble)


def test_a_number_below_that_of_the_database_is_never_in_force(
    lite: str, redis_url: str, admin: redis.Redis, watched: Watched, follow: Follow
) -> None:
    old = save(lite, rule_set(1, 5))
    publish(lite, redis_url, rule_set(2, 5))
    follower = follow(lite, redis_url, interval=0.02)
    follower.wait()
    put(version="1", stamp="x", entry=encode(old))(admin)
    wait_until(lambda: is_healed(redis_url, "2"))
    assert watched.versions == ["2"]
    wait_until(lambda: not follower.status.trouble)


def test_activating_an_older_version_is_followed(
    lite: str, redis_url: str, admin: redis.Redis, follow: Follow
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    publish(lite, redis_url, rule_set(2, 5))
    followers = [follow(lite, redis_url, interval=0.1) for _ in range(2)]
    for follower in followers:
        assert follower.wait().version == "2"
    asyncio.run(SqlStore(lite).activate(1, author="ann"))
    admin.delete(CLAIM)
    wait_until(lambda: {one.status.version for one in followers} == {"1"})
    wait_until(lambda: is_healed(redis_url))


def test_a_newly_started_process_refuses_poison_and_asks_the_database(
    lite: str, redis_url: str, admin: redis.Redis, watched: Watched, follow: Follow
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    put(version="1", entry=written("1", digest="0" * 64))(admin)
    status = follow(lite, redis_url).wait()
    assert (status.version, status.source, watched.versions) == ("1", "store", ["1"])
    wait_until(lambda: is_healed(redis_url))


def test_poison_in_the_place_of_the_switch_or_of_the_instances_stops_nothing(
    lite: str, redis_url: str, admin: redis.Redis, follow: Follow
) -> None:
    publish(lite, redis_url, rule_set(1, 5))
    follower = follow(lite, redis_url, interval=0.02)
    follower.wait()
    poisons: list[tuple[str, str, *tuple[str, ...]]] = [
        ("SET", "limen:{rules}switch", '{"all": true, "at": 1e308}'),
        ("SET", "limen:{rules}switch", '{"all": true, "at": -1}'),
        ("SET", "limen:{rules}switch", '{"all": true, "at": "soon"}'),
        ("SET", "limen:{rules}switch", '{"rules": 5, "at": 1}'),
        ("SET", "limen:{rules}switch", "all"),
        ("SET", "limen:{rules}switch", "x" * 2_000_000),
        ("HSET", "limen:{rules}switch", "x", "y"),
        ("SET", "limen:{rules}alive", "x"),
        ("SET", "limen:{rules}instances", "x"),
        ("HSET", "limen:{rules}claim", "x", "y"),
    ]
    for number, words in enumerate(poisons):
        instead(admin, *words)
        publish(lite, redis_url, rule_set(number + 2, 5))
        wait_until(lambda v=str(number + 2): follower.status.version == v)  # type: ignore[misc]
        assert not follower.status.switch.is_on
        assert not {"callback", "instances"} & set(follower.status.trouble)


def test_decisions_go_on_under_every_poison(
    lite: str, redis_url: str, admin: redis.Redis, fleet: Fleet, tmp_path: Any
) -> None:
    publish(lite, redis_url, rule_set(1, 40))
    fleet.start(2, Plan(redis_url, lite, redis_url, str(tmp_path)))
    fleet.wait_for("1")
    for poison, _ in POISONS.values():
        poison(admin)
        at_cache(redis_url, lambda cache: cache.announce("poison"))
        time.sleep(0.05)
    publish_anew = save(lite, rule_set(2, 80))
    at_cache(redis_url, lambda cache: cache.write(publish_anew))
    reports = fleet.wait_for("2")
    for report in reports:
        assert (report.error, report.mixed) == ("", 0)
        assert {version for _, version, _ in report.changes} == {"1", "2"}
        assert report.slowest_s < 5


# fuzz


GOOD = written("9")


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """Return a good entry in which some bytes were changed, taken away or put in."""
    data = bytearray(GOOD)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data) - 1))
        how = draw(st.sampled_from(["change", "delete", "insert", "double", "cut"]))
        if how == "change":
            data[place] = draw(st.integers(0, 255))
        elif how == "delete":
            del data[place]
        elif how == "insert":
            data.insert(place, draw(st.integers(0, 255)))
        elif how == "double":
            data[place:place] = data[place : place + draw(st.integers(1, 50))]
        else:
            del data[place : place + draw(st.integers(1, 200))]
        if not data:
            return b"{}"
    return bytes(data)


# Whatever JSON there is, in the places where an entry has its fields.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=8,
)
FORMS = st.fixed_dictionaries(
    {},
    optional={name: st.just(value) | VALUES for name, value in msgspec.json.decode(GOOD).items()},
).map(msgspec.json.encode)
DOCUMENTS = st.dictionaries(
    st.sampled_from(["rules", "exemptions", "x"]),
    VALUES
    | st.lists(
        st.dictionaries(
            st.sampled_from(["name", "limits", "key", "match", "mode", "cost", "tiers"]), VALUES
        ),
        max_size=3,
    ),
).map(lambda document: written("9", document=document))


@settings(
    max_examples=times(60, 3_000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.binary(max_size=300) | mutations() | FORMS | DOCUMENTS)
def test_whatever_is_in_the_cache_the_last_good_rules_decide(
    data: bytes, redis_url: str, admin: redis.Redis
) -> None:
    engine = Engine(parse({"rules": []}), Limiter())
    admin.delete(KEY)
    at_cache(redis_url, lambda cache: cache.write(Snapshot("1", rule_set(1, 5))))
    with Follower(None, engine.use, redis=redis_url, interval=60) as follower:
        follower.wait()
        wait_until(lambda: follower.status.is_listening)
        put(version="9", entry=data)(admin)
        at_cache(redis_url, lambda cache: cache.announce("9"))
        wait_until(lambda: follower.status.trouble or follower.status.version == "9")
        verdict = engine.decide({"user": "42"})
        if follower.status.trouble:
            assert (verdict.version, list(follower.status.trouble)) == ("1", ["rules"])
            assert verdict.allowed
        else:
            # It was changed where it does not matter, or into rules that are good.
            assert follower.status.version == "9"
        at_cache(redis_url, lambda cache: cache.write(Snapshot("10", rule_set(10, 5))))
        wait_until(lambda: follower.status.version == "10" and not follower.status.trouble)
