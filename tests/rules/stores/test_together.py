"""Many processes on one store: no update is lost, and no two prepare it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from limen.rules.stores.sql import SqlStore
from tests.rules.stores.acts import run
from tests.rules.stores.conftest import WRITERS
from tests.rules.stores.work import add_rules, create_tokens, prepare_at

EMPTY: dict[str, Any] = {"rules": []}
EACH = 2
SAVES = WRITERS * EACH
Crowd = Callable[..., list[Any]]


def test_two_loops_may_open_the_same_store_at_the_same_time(store: SqlStore, url: str) -> None:
    """As a service does: its follower has a thread and a loop of its own."""
    run(store.save(EMPTY, author="ann", base=None))
    for _ in range(10):
        both, at_once = SqlStore(url), threading.Barrier(2)

        def look(both: SqlStore = both, at_once: threading.Barrier = at_once) -> str:
            async def work() -> str:
                at_once.wait(30)
                async with asyncio.timeout(20):
                    return await both.version()

            return asyncio.run(work())

        with ThreadPoolExecutor(2) as threads:
            looks = [threads.submit(look) for _ in range(2)]
            assert [each.result() for each in looks] == ["1", "1"]


def test_loops_that_have_ended_are_forgotten(store: SqlStore, url: str) -> None:
    async def look() -> None:
        await asyncio.gather(*[store.version() for _ in range(4)])

    for _ in range(4):
        asyncio.run(look())
    assert len(store._database._engines) <= 2


def test_twenty_writers_lose_no_update(store: SqlStore, url: str, crowd: Crowd) -> None:
    told = crowd(add_rules, [(url, EACH, number) for number in range(WRITERS)])
    # Everybody was told of versions of their own, and together these are all there are.
    assert sorted(version for versions in told for version in versions) == [*range(1, SAVES + 1)]
    history = run(store.history(limit=1_000))
    assert [each.version for each in history] == [*range(SAVES, 0, -1)]
    assert [each.parent for each in history] == [*range(SAVES - 1, -1, -1)]
    authors = {version: f"writer {number}" for number, mine in enumerate(told) for version in mine}
    assert {each.version: each.author for each in history} == authors
    # Each version is the one before it and one rule more, so the last has every rule.
    assert all([change.kind for change in each.changes] == ["added"] for each in history)
    snapshot = run(store.load())
    assert snapshot is not None
    names = {rule["name"] for rule in snapshot.document["rules"]}
    assert names == {f"w{number}-{turn}" for number in range(WRITERS) for turn in range(EACH)}
    audit = run(store.audit(limit=1_000))
    assert Counter(row.action for row in audit) == {"save": SAVES, "activate": SAVES}
    assert {row.version: row.actor for row in audit} == authors
    run(store.verify_audit())


def test_tokens_that_many_create_and_revoke_are_all_there(
    store: SqlStore, url: str, crowd: Crowd
) -> None:
    few = 6
    told = crowd(create_tokens, [(url, EACH, number) for number in range(few)])
    tokens = run(store.tokens())
    assert sorted(token.id for token in tokens) == sorted(id for mine in told for id in mine)
    assert {token.name for token in tokens} == {
        f"w{number}-{turn}" for number in range(few) for turn in range(EACH)
    }
    assert sum(token.revoked_at is not None for token in tokens) == few
    # Twelve came and six went.
    assert run(store.tokens_version()) == few * EACH + few
    audit = run(store.audit(limit=1_000))
    assert Counter(row.action for row in audit) == {"token-create": 12, "token-revoke": 6}
    run(store.verify_audit())


def test_books_are_verified_while_tokens_come_and_go(store: SqlStore) -> None:
    async def change() -> None:
        for number in range(15):
            token, _ = await store.create_token("check", f"t{number}", "ann")
            await store.revoke_token(token.id, "bob")

    async def work() -> int:
        changing, times = asyncio.create_task(change()), 0
        while not changing.done():
            await store.verify_audit()
            times += 1
        await changing
        return times

    assert run(work()) > 3


def test_of_eight_that_start_at_once_one_migrates(url: str, crowd: Crowd) -> None:
    # A migration that ran twice fails: the tables are there already.
    crowd(prepare_at, [(url, time.time() + 0.3)] * 8)
    store = SqlStore(url)
    assert run(store.version()) == ""
    run(store.prepare())
    run(store.verify_audit())
