"""What a store of rules does, alike on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from limen.errors import Conflict, InvalidInput, InvalidRules, StoreError
from limen.rules.diff import Change
from limen.rules.document import digest
from limen.rules.stores import RuleStore, Snapshot
from limen.rules.stores.sql import SqlStore, StoredRuleSet
from tests.rules.stores.acts import FIRST, SECOND, THIRD, execute, run, save, written
from tests.rules.stores.work import document


def test_new_store_has_no_rules(store: SqlStore) -> None:
    assert run(store.version()) == ""
    assert run(store.load()) is None
    assert run(store.active()) is None
    assert run(store.latest()) is None
    assert run(store.history()) == []
    assert run(store.audit()) == []
    run(store.verify_audit())


def test_saved_rules_are_the_active_ones(store: SqlStore) -> None:
    follower: RuleStore = store
    saved = save(store, FIRST, author="ann", comment="the first")
    assert run(follower.version()) == "1"
    assert run(follower.load()) == Snapshot("1", FIRST)
    assert run(store.active()) == run(store.latest()) == run(store.get(1)) == saved
    assert (saved.version, saved.parent, saved.active) == (1, 0, True)
    assert (saved.author, saved.comment) == ("ann", "the first")
    assert saved.digest == digest(FIRST)
    assert saved.changes == [Change("added", "rules.a", None, FIRST["rules"][0])]
    assert timedelta() <= datetime.now(UTC) - saved.created_at < timedelta(minutes=1)


def test_save_keeps_what_changed_since_the_parent(store: SqlStore) -> None:
    saved = save(store, FIRST, SECOND)
    assert (saved.version, saved.parent) == (2, 1)
    assert saved.changes == [Change("changed", "rules.a.limits", "1/day", "2/day")]


def test_text_and_order_of_keys_come_back_as_they_were_written(store: SqlStore) -> None:
    rule = {"limits": "5/day", "name": "a", "key": [], "description": "für 'Zoë' 🚦\n\\u0000 \0"}
    save(store, {"rules": [rule]}, author="Zoë 🚦", comment="l'été\n")
    loaded = run(store.load())
    assert loaded is not None
    assert list(loaded.document["rules"][0].items()) == list(rule.items())
    [row, _] = run(store.audit())
    assert (row.actor, row.comment) == ("Zoë 🚦", "l'été\n")


def test_invalid_rules_are_refused_before_the_database_is_touched() -> None:
    never_prepared = SqlStore("sqlite:////nowhere/rules.db")
    with pytest.raises(InvalidRules):
        save(never_prepared, ["no", "mapping"])  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", [float("nan"), (1, 2), {3: 4}, {5}, "\ud800", 10**5000], ids=type)
def test_rules_that_would_not_come_back_are_refused(
    store: SqlStore, odd: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limen.rules.stores.sql.check", lambda document: None)
    with pytest.raises(InvalidRules, match="plain JSON data"):
        save(store, {"rules": [], "odd": odd})
    assert written(store) == (0, 0, "")


def test_stale_edit_is_a_conflict_and_writes_nothing(store: SqlStore) -> None:
    save(store, FIRST, SECOND, THIRD)
    with pytest.raises(Conflict) as caught:
        save(store, FIRST, base=1)
    assert str(caught.value) == (
        "the rules are at version 3, and this edit was made from version 1; "
        "look at `limen rules diff 1 3`, and apply again"
    )
    assert written(store) == (3, 6, "3")
    assert save(store, FIRST, base=3).version == 4


def test_base_zero_asks_for_an_empty_store(store: SqlStore) -> None:
    with pytest.raises(Conflict, match=r"^the rules are at version 0, .* version 1; apply again$"):
        save(store, FIRST, base=1)
    assert save(store, FIRST, base=0).version == 1
    with pytest.raises(Conflict, match=r"^the rules are at version 1, .* version 0; apply again$"):
        save(store, SECOND, base=0)


def test_same_rules_are_not_saved_twice(store: SqlStore) -> None:
    saved = save(store, FIRST)
    in_another_order = {"rules": [dict(reversed(FIRST["rules"][0].items()))]}
    assert save(store, FIRST, in_another_order, author="bob", base=1) == saved
    assert written(store) == (1, 2, "1")


def test_draft_is_kept_and_not_active(store: SqlStore) -> None:
    save(store, FIRST)
    draft = save(store, SECOND, activate=False)
    assert (draft.version, draft.active) == (2, False)
    assert run(store.version()) == "1"
    latest = run(store.latest())
    assert latest == draft
    assert save(store, SECOND, activate=False) == draft
    assert written(store) == (2, 3, "1")


def test_draft_that_is_saved_again_to_hold_is_activated(store: SqlStore) -> None:
    save(store, FIRST, SECOND, activate=False)
    assert save(store, SECOND).version == 2
    assert [row.action for row in run(store.audit())] == ["activate", "save", "save"]
    assert run(store.version()) == "2"


def test_activation_is_one_step(store: SqlStore) -> None:
    save(store, FIRST, SECOND)
    activated = run(store.activate(1, author="bob", comment="back", expected=2))
    assert (activated.version, activated.active, activated.document) == (1, True, FIRST)
    assert run(store.version()) == "1"
    row = run(store.audit())[0]
    assert (row.actor, row.action, row.version, row.before) == ("bob", "activate", 1, 2)
    assert row.comment == "back"
    assert not run(store.get(2)).active


def test_activation_on_a_stale_view_is_a_conflict(store: SqlStore) -> None:
    save(store, FIRST, SECOND)
    with pytest.raises(Conflict, match=r"version 2 of the rules is active, .* when 1 was"):
        run(store.activate(1, author="bob", expected=1))
    assert written(store) == (2, 4, "2")


def test_activating_the_active_version_writes_nothing(store: SqlStore) -> None:
    save(store, FIRST)
    assert run(store.activate(1, author="bob")).active
    assert written(store) == (1, 2, "1")


def test_rollback_is_a_new_version_with_old_rules(store: SqlStore) -> None:
    save(store, FIRST, SECOND)
    back = run(store.rollback(1, author="bob", base=2))
    assert (back.version, back.parent, back.active, back.document) == (3, 2, True, FIRST)
    assert back.comment == "rollback to version 1"
    assert back.changes == [Change("changed", "rules.a.limits", "2/day", "1/day")]
    row = run(store.audit())[0]
    assert (row.actor, row.action, row.version, row.before) == ("bob", "rollback", 3, 2)
    run(store.verify_audit())


def test_rollback_on_a_stale_view_is_a_conflict(store: SqlStore) -> None:
    save(store, FIRST, SECOND, THIRD)
    with pytest.raises(Conflict, match="limen rules diff 2 3"):
        run(store.rollback(1, author="bob", base=2))
    assert written(store) == (3, 6, "3")


def test_rollback_to_rules_that_are_not_valid_any_more_is_refused(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, FIRST, SECOND)

    def refuse(document: object) -> None:
        raise InvalidRules([])

    monkeypatch.setattr("limen.rules.stores.sql.check", refuse)
    with pytest.raises(InvalidRules):
        run(store.rollback(1, author="bob"))
    assert written(store) == (2, 4, "2")


@pytest.mark.parametrize("version", [2, 2**31, 2**80])
def test_unknown_version_is_an_error_that_names_the_newest(store: SqlStore, version: int) -> None:
    save(store, FIRST)
    for call in (
        store.get(version),
        store.activate(version, author="a"),
        store.rollback(version, author="a"),
    ):
        with pytest.raises(InvalidInput, match=f"no version {version} .*the newest is 1"):
            run(call)
    assert written(store) == (1, 2, "1")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get(0),
        lambda store: store.get(True),
        lambda store: store.activate("1", author="a"),
        lambda store: store.activate(1, author=""),
        lambda store: store.activate(1, author="a\0b"),
        lambda store: store.activate(1, author="a", expected=-1),
        lambda store: store.save(FIRST, author=" ", base=None),
        lambda store: store.save(FIRST, author="a" * 201, base=None),
        lambda store: store.save(FIRST, author="a", comment="\ud800", base=None),
        lambda store: store.save(FIRST, author="a", comment=None, base=None),
        lambda store: store.save(FIRST, author="a", base="1"),
        lambda store: store.save(FIRST, author="a", base=-1),
        lambda store: store.rollback(1.0, author="a"),
        lambda store: store.history(limit=0),
        lambda store: store.history(limit=1_001),
        lambda store: store.audit(before="3"),
        lambda store: store.record("save", "x", "ann"),
        lambda store: store.record("token-create", "x", "ann"),
        lambda store: store.record(None, "x", "ann"),
        lambda store: store.record("reset", " ", "ann"),
        lambda store: store.record("reset", None, "ann"),
        lambda store: store.record("reset", "x" * 2_001, "ann"),
        lambda store: store.record("reset", "a\0b", "ann"),
        lambda store: store.record("reset", "x", ""),
        lambda store: store.record("reset", "x", "ann", None),
    ],
)
def test_odd_arguments_are_refused_before_the_database_is_touched(call: Any) -> None:
    never_prepared = SqlStore("sqlite:////nowhere/rules.db")
    with pytest.raises(InvalidInput):
        run(call(never_prepared))


def test_history_is_newest_first_in_pages_without_documents(store: SqlStore) -> None:
    save(store, FIRST, SECOND, THIRD)
    history = run(store.history())
    assert [(each.version, each.active, each.document) for each in history] == [
        (3, True, None),
        (2, False, None),
        (1, False, None),
    ]
    assert run(store.history(limit=2)) == history[:2]
    assert run(store.history(limit=2, before=2)) == history[2:]
    assert run(store.history(before=2**80)) == history


def test_audit_tells_every_act_in_pages(store: SqlStore) -> None:
    save(store, FIRST, comment="why")
    save(store, SECOND, author="bob", activate=False)
    run(store.activate(2, author="cyd"))
    run(store.rollback(1, author="dan"))
    audit = run(store.audit())
    told = [(row.id, row.actor, row.action, row.version, row.before, row.comment) for row in audit]
    assert told == [
        (5, "dan", "rollback", 3, 2, "rollback to version 1"),
        (4, "cyd", "activate", 2, 1, ""),
        (3, "bob", "save", 2, 1, ""),
        (2, "ann", "activate", 1, 0, "why"),
        (1, "ann", "save", 1, 0, "why"),
    ]
    assert audit[-1].at == run(store.get(1)).created_at
    assert run(store.audit(limit=2, before=4)) == audit[2:4]


def test_audit_tells_of_other_acts_between_those_about_rules(store: SqlStore) -> None:
    run(store.record("kill-switch", "on for all rules", "bob", "too strict"))
    save(store, FIRST)
    run(store.record("reset", "rule a, user=für 'Zoë' 🚦", "cyd"))
    save(store, SECOND)
    audit = run(store.audit())
    told = [(row.actor, row.action, row.version, row.before, row.subject) for row in audit]
    assert told == [
        ("ann", "activate", 2, 1, ""),
        ("ann", "save", 2, 1, ""),
        ("cyd", "reset", None, 0, "rule a, user=für 'Zoë' 🚦"),
        ("ann", "activate", 1, 0, ""),
        ("ann", "save", 1, 0, ""),
        ("bob", "kill-switch", None, 0, "on for all rules"),
    ]
    assert (audit[-1].comment, audit[-1].digest) == ("too strict", "")
    assert [run(store.was_active(version)) for version in (1, 2)] == [True, True]
    assert run(store.version()) == "2"
    run(store.verify_audit())


@pytest.mark.parametrize("table", ["limen_rule_sets", "limen_audit"])
@pytest.mark.parametrize("statement", ["UPDATE {} SET comment = 'x'", "DELETE FROM {}"])
def test_database_itself_refuses_to_change_what_was_written(
    store: SqlStore, table: str, statement: str
) -> None:
    save(store, FIRST)
    with pytest.raises(StoreError, match=f"{table} is append-only"):
        execute(store, statement.format(table))
    run(store.verify_audit())


def test_cancelled_save_is_there_as_a_whole_or_not_at_all(store: SqlStore) -> None:
    async def work() -> list[int]:
        saved = []
        for milliseconds in range(0, 24, 2):
            try:
                async with asyncio.timeout(milliseconds / 1000):
                    rules = document(a=f"{milliseconds + 10}/day")
                    saved.append((await store.save(rules, author="ann", base=None)).version)
            except TimeoutError:
                continue
        return saved

    saved = run(work())
    history = run(store.history())
    assert [each.version for each in history] == list(range(len(history), 0, -1))
    assert set(saved) <= {each.version for each in history}
    run(store.verify_audit())
    assert save(store, FIRST).version == len(history) + 1


def test_store_is_used_by_many_tasks_at_once(store: SqlStore) -> None:
    async def work() -> list[StoredRuleSet]:
        documents = [document(a=f"{number}/day") for number in range(1, 9)]
        saves = [store.save(each, author="ann", base=None) for each in documents]
        return await asyncio.gather(*saves)

    assert sorted(each.version for each in run(work())) == list(range(1, 9))
    run(store.verify_audit())


def test_closed_store_opens_again(store: SqlStore) -> None:
    save(store, FIRST)
    run(store.close())
    assert run(store.version()) == "1"
