"""The tables of every older limen come up to date with all that is in them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from limen.errors import StoreError
from limen.rules.stores import migrate
from limen.rules.stores.sql import SqlStore
from limen.rules.stores.tables import metadata
from tests.rules.stores.acts import FIRST, SECOND, THIRD, execute, run, save


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


def test_first_tables_come_up_to_date_with_what_is_in_them(url: str) -> None:
    store = at_revision(url, "0001")
    save(store, FIRST, SECOND, comment="old")
    execute(store, "UPDATE limen_audit SET comment = comment")  # nobody forbids it yet
    before = [run(store.history()), run(store.audit()), run(store.active())]

    run(store.prepare())

    assert look(store, revisions) == ["0002"]
    assert [run(store.history()), run(store.audit()), run(store.active())] == before
    run(store.verify_audit())
    with pytest.raises(StoreError, match="append-only"):
        execute(store, "UPDATE limen_audit SET comment = comment")
    assert save(store, THIRD).version == 3


def test_prepared_store_is_left_as_it_is(store: SqlStore) -> None:
    save(store, FIRST)
    run(store.prepare())
    assert run(store.version()) == "1"
    assert look(store, revisions) == ["0002"]


def test_tables_of_a_newer_limen_are_left_alone(store: SqlStore) -> None:
    save(store, FIRST)
    execute(store, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"revision 9999, .* upgrade limen here"):
        run(store.prepare())
    assert look(store, revisions) == ["9999"]
    assert run(store.version()) == "1"


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


def test_tables_are_what_the_queries_take_them_for(store: SqlStore) -> None:
    def differences(connection: Connection) -> list[Any]:
        options = {"version_table": migrate.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, metadata))

    assert look(store, differences) == []


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
