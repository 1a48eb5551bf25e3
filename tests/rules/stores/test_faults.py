"""Whatever happens to a database: one clear line, nothing half-written, no password anywhere."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it has no types
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from limen.errors import LimenError, StoreError
from limen.rules.stores.ledger import Ledger, act
from limen.rules.stores.sql import SqlStore
from tests.postgres import ESCAPED_PASSWORD, Postgres
from tests.rules.stores import work
from tests.rules.stores.acts import FIRST, SECOND, THIRD, execute, run, save, written
from tests.rules.stores.conftest import DATABASE
from tests.servers import HOST, free_port
from tests.waiting import generous


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rules.db"


@pytest.fixture
def lite(sqlite_url: str) -> SqlStore:
    store = SqlStore(sqlite_url, busy_timeout=0.2)
    run(store.prepare())
    save(store, FIRST)
    return store


@pytest.fixture
def post(postgres_url: str) -> SqlStore:
    store = SqlStore(postgres_url)
    run(store.prepare())
    save(store, FIRST)
    return store


def in_another_process(action: Callable[[str], Any], url: str) -> Any:
    """Return what came of it: a value, or the error."""
    ours, theirs = work.processes().Pipe()
    process = work.processes().Process(target=work.attempt, args=(action, url, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join(10)


@contextmanager
def write_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the file as another program that writes does."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield other
    finally:
        other.close()


def failure(call: Any) -> str:
    """Return the line of the `StoreError` that it gives."""
    with pytest.raises(StoreError) as caught:
        run(call)
    assert_no_password(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_no_password(error: BaseException) -> None:
    assert "canary" not in "".join(traceback.format_exception(error))
    seen: list[BaseException | None] = [error]
    for each in seen:
        if each is not None:
            assert "canary" not in f"{each} {each!r} {each.args!r} {vars(each)!r}"
            seen += [one for one in (each.__cause__, each.__context__) if one not in seen]


def test_save_waits_for_another_writer_and_then_says_so(lite: SqlStore, path: Path) -> None:
    with write_lock(path):
        start = time.monotonic()
        line = failure(lite.save(SECOND, author="a", base=None))
        assert 0.2 <= time.monotonic() - start < generous(0.3)
    assert "another process has held it for too long; try again" in line
    assert written(lite) == (1, 2, "1")
    assert save(lite, SECOND).version == 2


def test_save_waits_its_turn(lite: SqlStore, path: Path) -> None:
    async def save_meanwhile(other: sqlite3.Connection) -> int:
        patient = SqlStore(f"sqlite:///{path}", busy_timeout=10)
        saving = asyncio.create_task(patient.save(SECOND, author="a", base=None))
        await asyncio.wait([saving], timeout=0.3)
        assert not saving.done()
        other.execute("COMMIT")
        return (await saving).version

    with write_lock(path) as other:
        assert run(save_meanwhile(other)) == 2


def test_rules_that_change_while_they_wait_are_saved_as_they_were_checked(
    lite: SqlStore, path: Path
) -> None:
    rules = work.document(a="2/day")

    async def change_meanwhile(other: sqlite3.Connection) -> dict[str, Any] | None:
        patient = SqlStore(f"sqlite:///{path}", busy_timeout=10)
        saving = asyncio.create_task(patient.save(rules, author="a", base=None))
        await asyncio.wait([saving], timeout=0.1)
        rules["rules"].append("not a rule")
        other.execute("COMMIT")
        return (await saving).document

    with write_lock(path) as other:
        assert run(change_meanwhile(other)) == work.document(a="2/day")


def test_prepare_waits_its_turn(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}", busy_timeout=10)

    async def prepare_meanwhile(other: sqlite3.Connection) -> None:
        preparing = asyncio.create_task(store.prepare())
        await asyncio.wait([preparing], timeout=0.3)
        assert not preparing.done()
        other.execute("COMMIT")
        await preparing

    with write_lock(path) as other:
        run(prepare_meanwhile(other))
    assert run(store.version()) == ""


def test_reader_does_not_wait_for_a_writer(lite: SqlStore, sqlite_url: str, path: Path) -> None:
    patient = SqlStore(sqlite_url, busy_timeout=60)
    with write_lock(path) as other:
        other.execute("UPDATE limen_state SET active = NULL")
        start = time.monotonic()
        assert run(patient.version()) == "1"
        assert run(patient.load()) is not None
        run(patient.prepare())
        assert time.monotonic() - start < 30


def test_writer_does_not_wait_for_a_reader(lite: SqlStore, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN")
        other.execute("SELECT * FROM limen_state").fetchall()
        assert save(lite, SECOND).version == 2
    finally:
        other.close()


def test_cancelled_save_gives_its_lock_back(lite: SqlStore) -> None:
    async def cancel_everywhere() -> None:
        for tenths in range(0, 100, 3):
            with suppress(TimeoutError):
                async with asyncio.timeout(tenths / 10_000):
                    rules = work.document(a=f"{tenths + 10}/day")
                    await lite.save(rules, author="a", base=None)
            await lite.activate(1, author="a")
            await lite.save(SECOND, author="a", base=None)

    run(cancel_everywhere())
    run(lite.verify_audit())


def test_sqlite_is_set_to_lose_nothing(lite: SqlStore) -> None:
    async def settings(connection: AsyncConnection) -> dict[str, object]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return {name: await connection.scalar(text(f"PRAGMA {name}")) for name in names}

    assert run(lite._database.read(settings)) == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 200,
    }
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        execute(lite, "UPDATE limen_state SET active = 99")


def test_replacing_a_row_is_no_way_around_the_triggers(lite: SqlStore) -> None:
    for table in ("limen_rule_sets", "limen_audit"):
        with pytest.raises(StoreError, match="append-only"):
            execute(lite, f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}")


def test_truncating_is_no_way_around_the_triggers(post: SqlStore) -> None:
    for table in ("limen_rule_sets", "limen_audit"):
        with pytest.raises(StoreError, match="append-only"):
            execute(post, f"TRUNCATE {table} CASCADE")


def test_full_disk_writes_nothing(lite: SqlStore, sqlite_url: str) -> None:
    error = in_another_process(work.save_on_full_disk, sqlite_url)
    assert isinstance(error, StoreError), error
    assert "full, over its quota, or broken" in str(error)
    assert written(lite) == (1, 2, "1")
    run(lite.verify_audit())
    assert save(lite, SECOND).version == 2


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let other users look, and nobody write."""
    parents = [each for each in folder.parents if each.stat().st_uid == os.geteuid()]
    before = {each: each.stat().st_mode for each in [*parents, folder, *folder.iterdir()]}
    for each in parents[:2]:  # pytest makes folders that are closed to others
        each.chmod(0o755)
    for each in folder.iterdir():
        each.chmod(0o444)
    folder.chmod(0o555)
    try:
        yield
    finally:
        for each, mode in before.items():
            each.chmod(mode)


def test_read_only_file_writes_nothing(lite: SqlStore, sqlite_url: str, path: Path) -> None:
    with read_only(path.parent):
        error = in_another_process(work.save_as_nobody, sqlite_url)
    assert isinstance(error, StoreError), error
    assert "let this user" in str(error)
    assert written(lite) == (1, 2, "1")


def test_read_only_file_is_seen_without_a_write(
    lite: SqlStore, sqlite_url: str, path: Path
) -> None:
    with read_only(path.parent):
        obstacle = in_another_process(work.obstacle_for_nobody, sqlite_url)
    assert obstacle.kind == "read-only"
    assert f"this user cannot write {path}" in obstacle.reason
    run(lite.tokens_version())
    assert lite.obstacle is None


def test_read_only_default_of_postgresql_is_seen_without_a_write(
    postgres: Postgres, post: SqlStore
) -> None:
    postgres.execute(f"ALTER DATABASE {DATABASE} SET default_transaction_read_only = on")
    try:
        run(post.tokens_version())
        assert post.obstacle is not None
        assert post.obstacle.kind == "read-only"
        assert "turn it off" in post.obstacle.reason
        assert "the server is read-only" in failure(post.save(SECOND, author="a", base=None))
    finally:
        postgres.execute(f"ALTER DATABASE {DATABASE} RESET default_transaction_read_only")
    run(post.tokens_version())
    assert post.obstacle is None


def test_standby_of_postgresql_is_seen_without_a_write(postgres: Postgres, post: SqlStore) -> None:
    postgres.stop()
    signal_file = postgres.folder / "data" / "standby.signal"
    signal_file.touch()
    try:
        postgres.start()
        run(post.tokens_version())
        assert post.obstacle is not None
        assert "the server is a standby" in post.obstacle.reason
    finally:
        postgres.stop()
        signal_file.unlink()
        postgres.start()
    run(post.tokens_version())
    assert post.obstacle is None


def test_read_only_folder_takes_no_new_store(lite: SqlStore, sqlite_url: str, path: Path) -> None:
    with read_only(path.parent):
        error = in_another_process(work.prepare_as_nobody, sqlite_url)
    assert isinstance(error, StoreError), error
    assert "Permission denied; let this user write there" in str(error)


def test_folder_of_the_file_is_made(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/a/b/c %20#.db")
    run(store.prepare())
    assert save(store, FIRST).version == 1
    assert [each.name for each in (tmp_path / "a" / "b").iterdir()] == ["c %20#.db"]


def test_looking_at_a_store_that_is_not_there_makes_no_file(path: Path) -> None:
    store = SqlStore(f"sqlite:///{path}")
    assert "there is no such file; run `limen rules apply FILE`" in failure(store.version())
    assert "there is no such file" in failure(store.save(FIRST, author="a", base=None))
    assert not path.exists()


def test_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.write_text("rules: []\n" * 100)
    store = SqlStore(f"sqlite:///{path}")
    for call in (store.prepare, store.version, store.load):
        assert "the file is not a database of SQLite; check the address" in failure(call())
    assert path.read_text() == "rules: []\n" * 100


def test_folder_in_place_of_the_file_is_told(path: Path) -> None:
    path.mkdir()
    assert "the file cannot be opened" in failure(SqlStore(f"sqlite:///{path}").prepare())


def test_store_that_was_not_prepared_says_what_to_do(url: str) -> None:
    store = SqlStore(url)
    if url.startswith("sqlite"):
        store._database.create_file()
    for call in (store.version(), store.load(), store.save(FIRST, author="a", base=None)):
        assert "there are no tables of limen yet; run `limen rules apply FILE`" in failure(call)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://limen:canary@{host}:{port}/postgres", "the password was refused"),
        ("postgresql://eve:canary@{host}:{port}/postgres", "the password was refused"),
        ("postgresql://limen:{password}@{host}:{port}/nowhere", "there is no such database"),
        ("postgresql://limen:{password}@{host}:{free}/postgres", "nobody answers there"),
        ("postgresql://limen:{password}@nowhere.invalid/postgres", "no such host is known"),
        ("postgresql://limen:{password}@{host}:{port}/postgres?sslmode=require", "SSL"),
        ("postgresql://limen:{password}@{host}:{port}/postgres?sslmode=odd", "`sslmode`"),
        ("postgresql://limen:{password}@{host}:{port}/postgres?odd=canary", '"odd"'),
        ("postgresql://limen@{host}:{port}/postgres?password=canary", "password was refused"),
    ],
)
def test_postgresql_that_lets_nobody_in_says_why_and_shows_no_password(
    postgres: Postgres, address: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = address.format(host=HOST, port=postgres.port, free=free_port(), password=ESCAPED_PASSWORD)
    store = SqlStore(url)
    assert expected in failure(store.prepare())
    assert expected in failure(store.save(FIRST, author="a", base=None))
    assert "canary" not in f"{store!r} {vars(store)!r} {vars(store._database)!r}"
    assert "canary" not in caplog.text


def test_good_password_is_in_no_log(
    postgres: Postgres, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = SqlStore(postgres_url)
    run(store.prepare())
    save(store, FIRST)
    with pytest.raises(LimenError) as caught:
        save(store, FIRST, base=7)
    assert_no_password(caught.value)
    assert "canary" not in caplog.text


def test_frozen_server_is_given_up(postgres: Postgres, post: SqlStore) -> None:
    postgres.pause()
    try:
        start = time.monotonic()
        line = failure(post.save(SECOND, author="a", base=None))
        assert time.monotonic() - start < 30
    finally:
        postgres.resume()
    assert "the server did not answer in time" in line
    assert written(post) == (1, 2, "1")


def test_server_that_dies_in_the_middle_of_a_save_writes_nothing(
    postgres: Postgres, post: SqlStore
) -> None:
    async def save_half(connection: AsyncConnection) -> None:
        ledger = await Ledger.locked(connection)
        saved = await ledger.append(SECOND, act("ann", ""))
        postgres.kill()
        await ledger.record("save", act("ann", ""), saved)

    try:
        start = time.monotonic()
        assert "there as a whole or not at all" in failure(post._database.write(save_half))
        assert "nobody answers there" in failure(post.save(THIRD, author="a", base=None))
        assert "nobody answers there" in failure(post.version())
        assert time.monotonic() - start < 30
    finally:
        postgres.start()
    assert written(post) == (1, 2, "1")
    run(post.verify_audit())
    assert save(post, SECOND).version == 2


def test_connection_that_an_administrator_ends_writes_nothing(
    postgres: Postgres, post: SqlStore
) -> None:
    async def save_half(connection: AsyncConnection) -> None:
        ledger = await Ledger.locked(connection)
        await ledger.append(SECOND, act("ann", ""))
        pid = await connection.scalar(text("SELECT pg_backend_pid()"))
        postgres.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
        await ledger.find(1)

    assert "rules at postgresql://limen:***@" in failure(post._database.write(save_half))
    assert written(post) == (1, 2, "1")


def test_a_row_lock_of_another_session_is_named_as_the_cause(
    post: SqlStore, postgres_url: str
) -> None:
    """The message must not ask whether PostgreSQL runs: it does. Its query finds the session."""
    store = SqlStore(postgres_url, busy_timeout=0.2)

    async def locked() -> tuple[str, int, list[int]]:
        other = await asyncpg.connect(postgres_url)
        try:
            async with other.transaction():
                await other.execute("SELECT * FROM limen_state FOR UPDATE")
                with pytest.raises(StoreError) as caught:
                    await store.save(SECOND, author="ada", base=1)
                _, _, query = str(caught.value).partition("to find it: ")
                rows = await other.fetch(query.partition(" (pg_terminate")[0])
                pid = await other.fetchval("SELECT pg_backend_pid()")
                return str(caught.value), pid, [row["pid"] for row in rows]
        finally:
            await other.close()
            await store.close()

    message, pid, found = run(locked())
    assert "another session of the database holds a lock" in message
    assert "check that" not in message
    assert pid in found
    assert ESCAPED_PASSWORD not in message


def test_a_missing_ca_file_is_named(postgres_url: str, tmp_path: Path) -> None:
    missing = tmp_path / "ca.pem"
    store = SqlStore(f"{postgres_url}?sslmode=verify-ca&sslrootcert={missing}")
    with pytest.raises(LimenError) as caught:
        run(store.version())
    assert str(missing) in str(caught.value)
    assert "check that it runs" not in str(caught.value)
