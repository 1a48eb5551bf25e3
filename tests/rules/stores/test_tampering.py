"""Whoever gets past the triggers is found out by the chain."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from limen.errors import StoreError
from limen.rules.stores.records import chained
from limen.rules.stores.sql import SqlStore
from tests.rules.stores.acts import FIRST, SECOND, THIRD, execute, run, save


@pytest.fixture
def store(url: str) -> SqlStore:
    """A store with three versions, whose triggers somebody has removed."""
    store = SqlStore(url)
    asyncio.run(store.prepare())
    save(store, FIRST, SECOND, THIRD)
    run(store.verify_audit())
    for table in ("limen_rule_sets", "limen_audit"):
        if url.startswith("sqlite"):
            names = [f"{table}_no_{verb}" for verb in ("update", "delete", "replace")]
            execute(store, *(f"DROP TRIGGER {name}" for name in names))
        else:
            execute(store, f"DROP TRIGGER {table}_append_only ON {table}")
    run(store.verify_audit())
    return store


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        (["UPDATE limen_audit SET actor = 'eve' WHERE id = 3"], "row 3 of the audit"),
        (["UPDATE limen_audit SET comment = 'x' WHERE id = 1"], "row 1 of the audit"),
        (["UPDATE limen_audit SET active_before = 1 WHERE id = 6"], "row 6 of the audit"),
        (["UPDATE limen_audit SET at = '2020-01-01T00:00:00.000000Z'"], "row 1 of the audit"),
        (["UPDATE limen_audit SET subject = 'x' WHERE id = 2"], "row 2 of the audit"),
        (["UPDATE limen_audit SET version = NULL WHERE id = 2"], "row 2 of the audit"),
        (["DELETE FROM limen_audit WHERE id = 2"], "row 2 of the audit"),
        (["DELETE FROM limen_audit WHERE id = 6"], "ends at row 5 and should at 6"),
        (["DELETE FROM limen_audit"], "ends at row 0 and should at 6"),
        (
            [
                "UPDATE limen_audit SET id = 7 WHERE id = 5",
                "UPDATE limen_audit SET id = 5 WHERE id = 6",
            ],
            "row 5 of the audit",
        ),
        (["UPDATE limen_state SET active = 1"], "version 3 of 3 is active; the state says 1 of 3"),
        (["UPDATE limen_state SET latest = 2"], "not saved then"),
        (
            ["UPDATE limen_rule_sets SET document = '{\"rules\":[]}' WHERE version = 2"],
            "version 2 of the rules is not what was saved",
        ),
        (
            [
                "UPDATE limen_rule_sets SET document = (SELECT r.document FROM limen_rule_sets r "
                "WHERE r.version = 1), digest = (SELECT r.digest FROM limen_rule_sets r "
                "WHERE r.version = 1) WHERE version = 2"
            ],
            "version 2 of the rules is not what was saved",
        ),
        (
            ["UPDATE limen_rule_sets SET author = 'eve' WHERE version = 2"],
            "version 2 of the rules is not what was saved",
        ),
        (
            ["UPDATE limen_rule_sets SET created_at = '2020-01-01T00:00:00.000000Z'"],
            "version 1 of the rules is not what was saved",
        ),
        (
            ["UPDATE limen_rule_sets SET parent = NULL WHERE version = 3"],
            "version 3 of the rules is not what was saved",
        ),
        (
            ["UPDATE limen_rule_sets SET changes = '[]' WHERE version = 2"],
            "the changes of version 2 are not what was saved",
        ),
        (
            [
                "INSERT INTO limen_rule_sets SELECT 4, 3, digest, author, comment, created_at, "
                "document, changes FROM limen_rule_sets WHERE version = 3"
            ],
            "rows behind the last one that was written",
        ),
        (
            [
                "INSERT INTO limen_audit SELECT 7, at, actor, action, version, active_before, "
                "comment, digest, hash, subject FROM limen_audit WHERE id = 6"
            ],
            "rows behind the last one that was written",
        ),
    ],
)
def test_change_past_the_store_is_found(store: SqlStore, statements: list[str], found: str) -> None:
    execute(store, *statements)
    with pytest.raises(StoreError, match=found):
        run(store.verify_audit())


def test_forger_who_knows_the_hash_would_have_to_write_every_later_row_anew(
    store: SqlStore,
) -> None:
    fourth, third = run(store.audit(limit=2, before=5))
    forged = structs.replace(fourth, actor="eve")
    new_hash = chained(third.hash, forged)
    execute(store, f"UPDATE limen_audit SET actor = 'eve', hash = '{new_hash}' WHERE id = 4")
    with pytest.raises(StoreError, match="row 5 of the audit is not what was written"):
        run(store.verify_audit())


def test_rules_that_are_not_what_was_saved_are_not_loaded(store: SqlStore) -> None:
    execute(store, "UPDATE limen_rule_sets SET document = '{\"rules\":[]}' WHERE version = 3")
    with pytest.raises(StoreError, match="version 3 of the rules is not what was saved"):
        run(store.load())


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE limen_rule_sets SET document = '{not json' WHERE version = 3", "not what was"),
        ("UPDATE limen_rule_sets SET changes = 'x' WHERE version = 3", "not what was saved"),
    ],
)
def test_what_cannot_be_read_any_more_is_an_error_of_the_store(
    store: SqlStore, statement: str, found: str
) -> None:
    execute(store, statement)
    for verb in (store.load, store.verify_audit, store.history):
        if verb == store.history and "document" in statement:
            continue
        with pytest.raises(StoreError, match=found):
            run(verb())


FORGED = (
    "INSERT INTO limen_tokens (id, digest, role, name, created_at, created_by) "
    "VALUES ('0badc0de', 'd', 'admin', 'eve', '2026-01-01T00:00:00.000000Z', 'ann')"
)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        (FORGED, "token 0badc0de is not what was created"),
        ("UPDATE limen_tokens SET role = 'admin' WHERE name = 'live'", "is not what was created"),
        ("UPDATE limen_tokens SET digest = 'd' WHERE name = 'live'", "is not what was created"),
        ("UPDATE limen_tokens SET expires_at = NULL WHERE name = 'live'", "not what was created"),
        ("UPDATE limen_tokens SET created_by = 'eve'", "is not what was created"),
        ("UPDATE limen_tokens SET revoked_at = NULL", r"whether token \w+ is revoked is not what"),
        ("UPDATE limen_tokens SET revoked_by = 'eve'", r"whether token \w+ is revoked is not what"),
        (
            "UPDATE limen_tokens SET revoked_at = created_at WHERE name = 'live'",
            r"whether token \w+ is revoked is not what",
        ),
    ],
)
def test_token_that_was_changed_past_the_store_is_found(
    store: SqlStore, statement: str, found: str
) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    run(store.create_token("viewer", "live", "ann", tomorrow))
    ended, _ = run(store.create_token("check", "ended", "ann"))
    run(store.revoke_token(ended.id, "bob"))
    run(store.verify_audit())
    execute(store, statement.replace(":", r"\:"))
    with pytest.raises(StoreError, match=found):
        run(store.verify_audit())


@pytest.mark.parametrize("change", ["role = 'root'", "created_at = 'x'", "expires_at = ''"])
def test_token_that_cannot_be_read_is_an_error_of_the_store(store: SqlStore, change: str) -> None:
    token, _ = run(store.create_token("check", "ci", "ann"))
    execute(store, f"UPDATE limen_tokens SET {change}")
    for call in (store.tokens(), store.revoke_token(token.id, "ann"), store.verify_audit()):
        with pytest.raises(StoreError, match=f"token {token.id} is not what was created"):
            run(call)
