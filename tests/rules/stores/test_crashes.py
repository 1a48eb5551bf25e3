"""kill -9 in the middle of saves: what was told is there, and what is there is whole."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from limen.rules.stores.sql import SqlStore
from tests.postgres import Postgres
from tests.rules.stores.acts import FIRST, run, save
from tests.rules.stores.work import processes, save_until_killed

Told = dict[int, str]
"""What a writer was told: the digest of each version."""
ROUNDS = 8
_RANDOM = random.Random(4)


@contextmanager
def writer(url: str) -> Iterator[Connection]:
    """Start a process that saves without end; kill it without a goodbye."""
    ours, theirs = processes().Pipe()
    process = processes().Process(target=save_until_killed, args=(url, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join(10)


def hear(told: Connection, versions: Told, until: int) -> list[str]:
    """Take in what the writer is told until it has made so many saves; return the failures."""
    failures: list[str] = []
    while until > 0 and told.poll(20):
        heard = told.recv()
        if isinstance(heard, str):
            failures.append(heard)
            break
        versions[heard[0]] = heard[1]
        until -= 1
    return failures


def hear_the_rest(told: Connection, versions: Told) -> None:
    """Take in what the writer still said before it was killed."""
    try:
        while told.poll(5):
            version, digest = told.recv()
            versions[version] = digest
    except (EOFError, ConnectionResetError):
        return


def assert_whole(store: SqlStore, told: Told) -> None:
    """See that the store has what was told, that its newest is whole, and that it goes on."""
    run(store.prepare())
    run(store.verify_audit())
    history = run(store.history(limit=1_000))
    assert [each.version for each in history] == [*range(len(history), 0, -1)]
    kept = {each.version: each.digest for each in history}
    assert told.items() <= kept.items()
    # One more may have been committed, whose writer did not live to hear of it.
    assert len(kept) <= len(told) + 1
    latest = run(store.latest())
    assert latest is not None
    assert latest.active
    told.update(kept)


def test_killed_writer_leaves_a_whole_store(store: SqlStore, url: str) -> None:
    told: Told = {}
    for _ in range(ROUNDS):
        with writer(url) as pipe:
            assert hear(pipe, told, until=3) == []
            time.sleep(_RANDOM.uniform(0, 0.02))
        hear_the_rest(pipe, told)
        assert_whole(store, told)
    assert len(told) >= 3 * ROUNDS
    assert save(store, FIRST).version == len(told) + 1


def test_killed_server_leaves_a_whole_store(postgres: Postgres, postgres_url: str) -> None:
    store, told = SqlStore(postgres_url), Told()
    run(store.prepare())
    for _ in range(4):
        try:
            with writer(postgres_url) as pipe:
                assert hear(pipe, told, until=3) == []
                time.sleep(_RANDOM.uniform(0, 0.02))
                postgres.kill()
                # It may have saved a little more before that.
                [failure] = hear(pipe, told, until=1_000)
            assert "canary" not in failure
        finally:
            postgres.start()
        assert_whole(store, told)
    assert save(store, FIRST).version == len(told) + 1
