"""The tables of every older limen come up to date with all that is in them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from limen.errors import StoreError
from limen.rules.stores import migrate, tables
from limen.rules.stores.sql import SqlStore
from limen.rules.stores.tables import REVISIONS
from tests.rules.stores.acts import FIRST, SECOND, THIRD, execute, run, save

NEWEST = "0003"
OLD_ROWS = (
    Path(__file__)
    .with_name("written_at_0002.sql")
    .read_text("utf-8")
    .partition("\n")[2]
    .removesuffix(";\n")
)


def at_revision(url: str, revision: str) -> SqlStore:
    """Return a store as it was when that revision was the newest."""
    store = SqlStore(url)
    store._database.create_file()
    run(store._database.migrate(lambda opened: opened.run_sync(migrate.upgrade, revision)))
    return store


def look(store: SqlStore, at: Any) -> Any:
    """Look at the tables, past the store."""
    return run(store._database.read(lambda opened: opened.run_sync(at)))


def revisions(connection: Connection) -> list[str]:
    return list(connection.scalars(text(f"SELECT version_num FROM {migrate.VERSION_TABLE}")))


def write_old_rows(store: SqlStore) -> None:
    """Fill tables of revision 0001 or 0002 as limen did then."""
    run(store._database.write(insert_old_rows))


async def insert_old_rows(connection: AsyncConnection) -> None:
    for statement in OLD_ROWS.split(";\n"):
        await connection.exec_driver_sql(statement)


def audit_in(connection: Connection) -> list[Any]:
    columns = "id, at, actor, action, version, active_before, comment, digest, hash"
    return list(connection.execute(text(f"SELECT {columns} FROM limen_audit ORDER BY id")))


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_old_tables_come_up_to_date_with_what_is_in_them(url: str, revision: str) -> None:
    store = at_revision(url, revision)
    write_old_rows(store)
    before = [run(store.history()), run(store.active()), look(store, audit_in)]

    run(store.prepare())

    assert look(store, revisions) == [NEWEST]
    assert [run(store.history()), run(store.active()), look(store, audit_in)] == before
    acts = [(row.actor, row.action, row.version, row.subject) for row in run(store.audit())]
    assert acts == [
        ("cyd", "rollback", 3, ""),
        ("bob", "activate", 2, ""),
        ("Zoë 🚦", "save", 2, ""),
        ("ann", "activate", 1, ""),
        ("ann", "save", 1, ""),
    ]
    run(store.verify_audit())
    assert (run(store.tokens()), run(store.tokens_version())) == ([], 0)
    assert save(store, THIRD).version == 4
    run(store.record("reset", "rule a, user=42", "ann"))
    run(store.verify_audit())


@pytest.mark.parametrize("table", ["limen_rule_sets", "limen_audit"])
def test_migrated_tables_still_refuse_to_be_changed(url: str, table: str) -> None:
    store = at_revision(url, "0002")
    write_old_rows(store)
    run(store.prepare())
    by_force = [f"TRUNCATE {table} CASCADE"]
    if url.startswith("sqlite"):
        by_force = [f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}"]
    for statement in (f"UPDATE {table} SET comment = ''", f"DELETE FROM {table}", *by_force):
        with pytest.raises(StoreError, match=f"{table} is append-only"):
            execute(store, statement)
    run(store.verify_audit())


def test_changes_to_first_tables_were_not_refused(url: str) -> None:
    store = at_revision(url, "0001")
    write_old_rows(store)
    execute(store, "UPDATE limen_audit SET comment = comment")


def test_tables_of_an_older_limen_are_told_from_none(url: str) -> None:
    store = at_revision(url, "0002")
    write_old_rows(store)
    # Who only follows the rules need not wait for whoever prepares.
    assert run(store.version()) == "3"
    assert run(store.load()) is not None
    for call in (
        store.audit(),
        store.verify_audit(),
        store.tokens(),
        store.tokens_version(),
        store.create_token("check", "ci", "ann"),
        store.save(THIRD, author="ann", base=None),
    ):
        with pytest.raises(
            StoreError, match="the tables are of an older limen; run `limen rules apply FILE` "
        ):
            run(call)


def test_migration_and_an_older_limen_that_writes_wait_in_one_line(postgres_url: str) -> None:
    store = at_revision(postgres_url, "0002")

    async def write(connection: AsyncConnection) -> asyncio.Task[None]:
        await connection.execute(text("SELECT 1 FROM limen_state FOR UPDATE"))
        migration = asyncio.create_task(store.prepare())
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while True:
            if await connection.scalar(waiting):
                break
            await asyncio.sleep(0.01)
        # A migration that has the audit already, and waits for the state, would wait for ever.
        await insert_old_rows(connection)
        return migration

    async def work() -> None:
        await (await store._database.write(write))

    run(work())
    assert look(store, revisions) == [NEWEST]
    run(store.verify_audit())


def test_waits_longer_for_another_migration_than_for_a_lock(postgres_url: str) -> None:
    other = at_revision(postgres_url, "0002")
    store = SqlStore(postgres_url, busy_timeout=0.1)

    async def migrate_slowly(connection: AsyncConnection) -> asyncio.Task[None]:
        waiting = asyncio.create_task(store.prepare())
        await asyncio.wait([waiting], timeout=1)
        return waiting

    async def work() -> None:
        await (await other._database.migrate(migrate_slowly))

    run(work())
    assert look(store, revisions) == [NEWEST]


def test_an_older_limen_may_still_write_its_rows(store: SqlStore) -> None:
    write_old_rows(store)
    run(store.verify_audit())
    assert run(store.tokens_version()) == 0


def test_prepared_store_is_left_as_it_is(store: SqlStore) -> None:
    save(store, FIRST)
    run(store.prepare())
    assert run(store.version()) == "1"
    assert look(store, revisions) == [NEWEST]


def test_tables_of_a_newer_limen_are_left_alone(store: SqlStore) -> None:
    save(store, FIRST)
    execute(store, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"revision 9999, .* up to 0003; upgrade limen"):
        run(store.prepare())
    assert look(store, revisions) == ["9999"]
    assert run(store.version()) == "1"


def test_tables_of_a_newer_limen_can_be_read_and_not_written(store: SqlStore) -> None:
    save(store, FIRST)
    token, _ = run(store.create_token("viewer", "a viewer", "ann"))
    before = run(store.audit())
    execute(store, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    changes = (
        store.save(SECOND, author="ann", base=None),
        store.activate(1, author="ann"),
        store.rollback(1, author="ann"),
        store.create_token("viewer", "another viewer", "ann"),
        store.revoke_token(token.id, "ann"),
        store.record("reset", "rule a", "ann"),
        store.check_writable(),
    )
    for change in changes:
        with pytest.raises(StoreError, match=r"revision 9999, .* up to 0003; upgrade limen"):
            run(change)
    assert run(store.tokens_version()) == 1
    assert store.obstacle is not None
    assert store.obstacle.kind == "schema"
    loaded = run(store.load())
    assert loaded is not None
    assert loaded.document == FIRST
    assert (run(store.audit()), run(store.tokens())) == (before, [token])
    execute(store, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '{NEWEST}'")
    run(store.tokens_version())
    assert store.obstacle is None
    assert save(store, SECOND).version == 2


def test_tables_that_a_newer_limen_changed_are_named_by_their_revision(store: SqlStore) -> None:
    execute(
        store,
        f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'",
        "ALTER TABLE limen_state RENAME COLUMN tokens TO tokens_version",
        "ALTER TABLE limen_state RENAME COLUMN active TO active_version",
    )
    for call in (store.load(), store.tokens_version(), store.save(FIRST, author="a", base=None)):
        with pytest.raises(StoreError, match="schema revision 9999"):
            run(call)
    assert store.obstacle is not None
    assert store.obstacle.kind == "schema"


def test_known_revisions_are_the_steps() -> None:
    steps = ScriptDirectory(str(Path(migrate.__file__).with_name("migrations")))
    assert tuple(sorted(step.revision for step in steps.walk_revisions())) == REVISIONS


def test_migration_that_fails_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqlStore(url)
    upgrade = migrate.upgrade

    def fail_at_the_end(connection: Connection) -> None:
        upgrade(connection)
        connection.execute(text("SELECT * FROM no_such_table"))

    with monkeypatch.context() as patched:
        patched.setattr(migrate, "upgrade", fail_at_the_end)
        with pytest.raises(StoreError):
            run(store.prepare())
    with pytest.raises(StoreError, match="there are no tables of limen yet"):
        run(store.version())
    run(store.prepare())
    assert run(store.version()) == ""


def test_queries_name_the_columns_of_the_tables(store: SqlStore) -> None:
    def columns(connection: Connection) -> dict[str, set[str]]:
        described = inspect(connection)
        return {
            name: {column["name"] for column in described.get_columns(name)}
            for name in described.get_table_names()
        }

    named = (tables.SCHEMA, tables.RULE_SETS, tables.AUDIT, tables.TOKENS, tables.STATE)
    assert look(store, columns) == {table.name: set(table.c.keys()) for table in named}


def test_two_stores_are_prepared_side_by_side_in_one_loop(url: str, sqlite_url: str) -> None:
    stores = [SqlStore(url), SqlStore(f"{sqlite_url}.other"), SqlStore(f"{sqlite_url}.third")]

    async def work() -> None:
        await asyncio.gather(*(store.prepare() for store in stores))

    run(work())
    assert [run(store.version()) for store in stores] == ["", "", ""]


def test_preparing_leaves_logging_as_it_was(url: str) -> None:
    def logging_now() -> list[object]:
        root = logging.getLogger()
        loggers = [logging.getLogger(name) for name in ("alembic", "sqlalchemy", "limen")]
        return [
            (each.level, list(each.handlers), each.disabled, each.propagate)
            for each in (root, *loggers)
        ]

    before = logging_now()
    run(SqlStore(url).prepare())
    assert logging_now() == before
