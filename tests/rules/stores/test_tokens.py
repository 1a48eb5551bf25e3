"""Tokens: what a secret looks like, and what a store keeps of it, alike on both databases."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from limen.errors import InvalidInput, StoreError
from limen.rules.stores import keyring
from limen.rules.stores.ledger import Act
from limen.rules.stores.sql import SqlStore, Token
from limen.rules.stores.tokens import (
    ROLES,
    digest_of,
    id_of,
    new_secret,
)
from tests.rules.stores.acts import FIRST, run, save

NOW = datetime(2026, 12, 24, 18, tzinfo=UTC)
SECRET = "limen_3f2a91c0_" + "aB3-_" * 8 + "xyz"


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def in_two_hours(author: str, comment: str) -> Act:
    return Act(author, comment, datetime.now(UTC) + timedelta(hours=2))


def token(**more: Any) -> Token:
    return Token(
        id="3f2a91c0",
        role="check",
        name="ci",
        digest=digest_of(SECRET),
        created_at=NOW,
        created_by="ann",
        **more,
    )


def test_secrets_have_256_random_bits_and_an_id() -> None:
    made = {new_secret() for _ in range(1_000)}
    assert len(made) == 1_000
    for secret in made:
        prefix, id, rest = secret.split("_", 2)
        assert (prefix, id, len(rest)) == ("limen", id_of(secret), 43)


@pytest.mark.parametrize("text", [SECRET, "3f2a91c0"])
def test_id_is_read_from_a_secret_or_an_id(text: str) -> None:
    assert id_of(text) == "3f2a91c0"


@pytest.mark.parametrize(
    "text",
    [
        f"{SECRET}\n",
        f" {SECRET}",
        SECRET[:-1],
        f"{SECRET}a",
        SECRET.upper(),
        SECRET.replace("3f2a91c0", "3f2a91cg"),
        "",
        None,
    ],
)
def test_other_text_has_no_id_and_is_not_repeated(text: Any) -> None:
    with pytest.raises(InvalidInput, match="that is no id of a token") as raised:
        id_of(text)
    assert SECRET[10:20] not in str(raised.value)


def test_digest_is_of_the_whole_secret_whatever_somebody_sends() -> None:
    assert digest_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert len({digest_of(text) for text in (SECRET, SECRET[:-1] + "a", "", "\ud800", "é")}) == 5


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({}, "active"),
        ({"expires_at": NOW + timedelta(microseconds=1)}, "active"),
        ({"expires_at": NOW}, "expired"),
        ({"revoked_at": NOW, "revoked_by": "bob"}, "revoked"),
        ({"revoked_at": NOW, "revoked_by": "bob", "expires_at": NOW}, "revoked"),
    ],
)
def test_token_holds_until_it_expires_or_is_revoked(more: dict[str, Any], state: str) -> None:
    assert token(**more).state(NOW) == state


def test_token_shows_neither_secret_nor_digest() -> None:
    assert repr(token()) == "<Token 3f2a91c0 (check) 'ci'>"
    assert f"{token()}" == "token 3f2a91c0 (check)"
    assert digest_of(SECRET) not in f"{[token()]} {token()!r}"


def test_new_store_has_no_tokens(store: SqlStore) -> None:
    assert run(store.tokens()) == []
    assert run(store.tokens_version()) == 0


@pytest.mark.parametrize("role", ROLES)
def test_created_token_is_kept_without_its_secret(store: SqlStore, role: Any) -> None:
    expires_at = in_an_hour()
    made, secret = run(store.create_token(role, "für 'Zoë' 🚦", "ann", expires_at))
    assert run(store.tokens()) == [made]
    assert (made.id, made.digest) == (id_of(secret), digest_of(secret))
    assert (made.role, made.name, made.created_by) == (role, "für 'Zoë' 🚦", "ann")
    assert made.expires_at == expires_at
    assert timedelta() <= datetime.now(UTC) - made.created_at < timedelta(minutes=1)
    assert (made.revoked_at, made.revoked_by) == (None, None)
    assert made.state(datetime.now(UTC)) == "active"
    assert run(store.tokens_version()) == 1


def test_secret_is_in_no_byte_of_the_database(sqlite_url: str, tmp_path: Path) -> None:
    store = SqlStore(sqlite_url)
    run(store.prepare())
    _, secret = run(store.create_token("admin", "ann", "ann"))
    [row] = run(store.audit())
    assert secret not in repr(row) + repr(store)
    files = list(tmp_path.glob("rules.db*"))
    assert files
    for file in files:
        assert secret[-43:].encode() not in file.read_bytes()


def test_tokens_are_listed_newest_first(store: SqlStore) -> None:
    made = [run(store.create_token("check", f"t{number}", "ann"))[0] for number in range(3)]
    assert run(store.tokens()) == made[::-1]


def test_expiry_of_another_time_zone_is_kept_in_utc(store: SqlStore) -> None:
    there = datetime(2099, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    made, _ = run(store.create_token("check", "ci", "ann", there))
    assert made.expires_at == there
    assert msgspec.json.encode(run(store.tokens())[0].expires_at) == b'"2098-12-31T22:00:00Z"'


def test_revoked_token_is_kept_and_told(store: SqlStore) -> None:
    made, _ = run(store.create_token("editor", "ann", "ann"))
    other, _ = run(store.create_token("check", "ci", "ann"))
    revoked = run(store.revoke_token(made.id, "bob"))
    assert revoked in run(store.tokens())
    assert revoked.revoked_by == "bob"
    assert revoked.revoked_at is not None
    assert revoked.state(datetime.now(UTC)) == "revoked"
    assert (revoked.id, revoked.created_at, revoked.digest) == (
        made.id,
        made.created_at,
        made.digest,
    )
    assert other in run(store.tokens())
    assert run(store.tokens_version()) == 3


def test_revoking_twice_changes_nothing(store: SqlStore) -> None:
    made, secret = run(store.create_token("check", "ci", "ann"))
    revoked = run(store.revoke_token(made.id, "bob"))
    assert run(store.revoke_token(made.id, "cyd")) == revoked
    assert run(store.revoke_token(secret, "cyd")) == revoked
    assert run(store.tokens_version()) == 2
    assert len(run(store.audit())) == 2


def test_leaked_secret_is_as_good_as_an_id_to_revoke_it(store: SqlStore) -> None:
    made, secret = run(store.create_token("check", "ci", "ann"))
    assert run(store.revoke_token(secret, "ann")).id == made.id


def test_unknown_token_is_an_error_that_repeats_no_secret(store: SqlStore) -> None:
    with pytest.raises(InvalidInput, match=r"^there is no token 3f2a91c0; look at"):
        run(store.revoke_token(SECRET, "ann"))
    for odd in (SECRET[:-1], "3F2A91C0", "", None, "'; DROP TABLE limen_tokens; --"):
        with pytest.raises(InvalidInput, match=r"^that is no id of a token") as caught:
            run(store.revoke_token(odd, "ann"))  # type: ignore[arg-type]
        assert not odd or odd not in str(caught.value)
    assert (run(store.audit()), run(store.tokens_version())) == ([], 0)


def test_each_change_is_a_row_of_the_audit(store: SqlStore) -> None:
    made, _ = run(store.create_token("check", "ci", "ann"))
    save(store, FIRST)
    run(store.revoke_token(made.id, "bob"))
    revoked, _, _, created = run(store.audit())
    subject = f"token {made.id} (check)"
    assert (created.action, created.actor, created.at) == ("token-create", "ann", made.created_at)
    assert (revoked.action, revoked.actor) == ("token-revoke", "bob")
    for row in (created, revoked):
        assert (row.subject, row.version, row.before, row.comment) == (subject, None, 0, "ci")
        # It holds the token, and is not what a secret is found by.
        assert row.digest not in ("", made.digest)
    run(store.verify_audit())


def test_full_store_makes_room_by_what_has_ended(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "MAX_TOKENS", 3)
    short, _ = run(store.create_token("check", "short", "ann", in_an_hour()))
    for name in ("a", "b"):
        run(store.create_token("check", name, "ann"))
    monkeypatch.setattr("limen.rules.stores.ledger.act", in_two_hours)
    run(store.create_token("check", "c", "ann"))
    assert [each.name for each in run(store.tokens())] == ["c", "b", "a"]
    before = (run(store.audit()), run(store.tokens_version()))
    with pytest.raises(InvalidInput, match="there are 3 tokens already; revoke those that nobody"):
        run(store.create_token("check", "d", "ann"))
    assert (run(store.audit()), run(store.tokens_version())) == before
    [_, b, _] = run(store.tokens())
    run(store.revoke_token(b.id, "ann"))
    run(store.create_token("check", "d", "ann"))
    assert {each.name for each in run(store.tokens())} == {"a", "c", "d"}
    assert short.id in " ".join(row.subject for row in run(store.audit()))
    run(store.verify_audit())


def test_failure_in_the_middle_leaves_no_half_of_it(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = run(store.create_token("check", "ci", "ann"))
    before = (run(store.tokens()), run(store.tokens_version()), run(store.audit()))

    async def fail(*_: object, **__: object) -> None:
        raise StoreError("the disk is gone")

    monkeypatch.setattr("limen.rules.stores.ledger.Ledger.record", fail)
    for call in (store.create_token("admin", "eve", "eve"), store.revoke_token(made.id, "eve")):
        with pytest.raises(StoreError, match="the disk is gone"):
            run(call)
    assert (run(store.tokens()), run(store.tokens_version()), run(store.audit())) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("root", "ci", "ann"), "role must be check, viewer, editor or admin, got 'root'"),
        (("CHECK", "ci", "ann"), "role must be check, viewer, editor or admin, got 'CHECK'"),
        ((None, "ci", "ann"), "role must be"),
        ((["check"], "ci", "ann"), "role must be"),
        (("check", "", "ann"), "name must say what the token is for, got ''"),
        (("check", " \n", "ann"), "name must say"),
        (("check", 7, "ann"), "name must say"),
        (("check", "a" * 101, "ann"), "name must be text of at most 100 characters"),
        (("check", "a\0b", "ann"), "name has characters that no database keeps"),
        (("check", f"x {SECRET}", "ann"), "got the secret of a token$"),
        (("check", "ci", ""), "author must say"),
        (("check", "ci", "ann", "2099-01-01"), "expires_at must be a time with a time zone"),
        (("check", "ci", "ann", datetime(2099, 1, 1)), "with a time zone"),  # noqa: DTZ001  # meant
        (("check", "ci", "ann", NOW.replace(year=2020)), "must be in the future, got 2020-12-24T"),
        (
            ("check", "ci", "ann", datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))),
            "expires_at is out of reach",
        ),
    ],
)
def test_odd_tokens_are_refused_before_the_database_is_touched(
    arguments: tuple[Any, ...], said: str
) -> None:
    never_prepared = SqlStore("sqlite:////nowhere/rules.db")
    with pytest.raises(InvalidInput, match=said) as caught:
        run(never_prepared.create_token(*arguments))
    assert SECRET not in str(caught.value)


def test_database_keeps_no_digest_twice(sqlite_url: str, tmp_path: Path) -> None:
    run(SqlStore(sqlite_url).prepare())
    row = "('{}', 'd', 'check', 'n', 't', 'a')"
    database = sqlite3.connect(tmp_path / "rules.db")
    columns = "(id, digest, role, name, created_at, created_by)"
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        database.execute(
            f"INSERT INTO limen_tokens {columns} VALUES {row.format(1)}, {row.format(2)}"
        )
    database.close()
