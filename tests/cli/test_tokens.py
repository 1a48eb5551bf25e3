"""`limen token`: create, list, revoke."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from limen.rules.stores.sql import SqlStore
from limen.rules.stores.tokens import ROLES, digest_of, id_of
from tests.cli.acts import DATABASE, SECRET, Run, process

CREATE = ("token", "create", "--role", "check", "--name", "checkout")
SOME = "limen_3f2a91c0_" + "x" * 43


def create(limen: Run, *more: str) -> str:
    """Create a token; return its secret."""
    ran = limen(*CREATE, *more)
    assert ran.exit_code == 0
    return ran.out.removesuffix("\n")


def test_create_prints_the_secret_alone_and_says_the_rest_on_stderr(limen: Run) -> None:
    ran = limen(*CREATE)
    secret = ran.out.removesuffix("\n")
    assert (ran.exit_code, secret.startswith(f"limen_{id_of(secret)}_")) == (0, True)
    id = secret[6:14]
    assert ran.err == f"token {id} (check) is for checkout; its secret is not shown again\n"
    [token] = asyncio.run(SqlStore(DATABASE).tokens())
    assert (token.id, token.digest, token.created_by) == (id, digest_of(secret), "ada")


def test_create_as_json_has_all_but_the_digest(limen: Run) -> None:
    ran = limen(*CREATE, "--author", "bob", "--json")
    told = json.loads(ran.out)
    assert told["secret"].startswith(f"limen_{id_of(told['secret'])}_")
    assert (told["role"], told["name"], told["created_by"]) == ("check", "checkout", "bob")
    assert (told["expires_at"], told["state"]) == (None, "active")
    assert "digest" not in told
    assert ran.err.endswith("not shown again\n")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("2099-01-01", datetime(2099, 1, 1, tzinfo=UTC)),
        ("2099-01-01T12:00+02:00", datetime(2099, 1, 1, 10, tzinfo=UTC)),
        ("30d", timedelta(days=30)),
        ("12 hours", timedelta(hours=12)),
    ],
)
def test_expiry_is_a_duration_or_a_date(
    limen: Run, typed: str, expected: datetime | timedelta
) -> None:
    began = datetime.now(UTC)
    ran = limen(*CREATE, "--expires", typed)
    [token] = json.loads(limen("token", "list", "--json").out)
    expires_at = datetime.fromisoformat(token["expires_at"])
    if isinstance(expected, timedelta):
        assert began + expected <= expires_at <= datetime.now(UTC) + expected
    else:
        assert expires_at == expected
    assert f"is for checkout, until {expires_at:%Y-%m-%d %H:%M:%S} UTC; " in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--role root --name x", "role must be check, viewer, editor or admin, got 'root'"),
        ("--role check", "Missing option '--name'. (see limen token create --help)"),
        ("--name x", "Missing option '--role'. (see limen token create --help)"),
        ("--role check --name ", "name must say what the token is for, got ''"),
        (f"--role check --name {'x' * 101}", "name must be text of at most 100 characters"),
        (f"--role check --name {SOME}", "name must say what the token is for, got the secret"),
        (
            f"--role check --name redis://:{SECRET}@host",
            "that is an address, not a name; did you mean --store?",
        ),
        (
            "--role check --name x --expires soon",
            "--expires takes a duration such as 30d or 12h, or a date such as 2099-01-01, "
            "got 'soon'",
        ),
        ("--role check --name x --expires 30", "--expires takes a duration"),
        ("--role check --name x --expires 2099-13-01", "--expires takes a duration"),
        ("--role check --name x --expires 999999999w", "--expires takes a duration"),
        ("--role check --name x --expires 0s", "--expires must be in the future, got '0s'"),
        ("--role check --name x --expires 2020-01-01", "--expires must be in the future, got"),
        ("--role check --name x --author ", "author must say who made the change"),
    ],
)
def test_what_cannot_be_a_token_is_one_line_and_makes_nothing(
    limen: Run, tmp_path: Path, arguments: str, said: str
) -> None:
    ran = limen("token", "create", *arguments.split(" "))
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith(f"limen: {said}")
    assert ran.err.count("\n") == 1
    assert SOME not in ran.err
    assert list(tmp_path.iterdir()) == []


def test_list_shows_no_secret(limen: Run, applied: str) -> None:
    assert limen("token", "list").out == (
        "there are no tokens yet; run `limen token create --role check --name NAME`\n"
    )
    first, second = create(limen), create(limen, "--expires", "2099-01-01")
    limen("token", "revoke", first[6:14])
    ran = limen("token", "list")
    heading, newest, oldest = ran.out.splitlines()
    assert heading.startswith("ID        ROLE   NAME      STATE    CREATED (UTC)")
    assert newest.split()[:4] == [second[6:14], "check", "checkout", "active"]
    assert newest.endswith("ada  2099-01-01 00:00:00")
    assert oldest.split()[:4] == [first[6:14], "check", "checkout", "revoked"]
    assert oldest.endswith("ada  never")
    told = limen("token", "list", "--json").out
    assert [each["state"] for each in json.loads(told)] == ["active", "revoked"]
    for secret in (first, second):
        for hidden in (secret[-43:], digest_of(secret)):
            assert hidden not in ran.out + told


def test_expired_token_is_listed_as_such(limen: Run) -> None:
    create(limen, "--expires", "1d")
    with contextlib.closing(sqlite3.connect(".limen/rules.db")) as database:
        database.execute("UPDATE limen_tokens SET expires_at = '2020-01-01T00:00:00.000000Z'")
        database.commit()
    assert " expired " in limen("token", "list").out


@pytest.mark.parametrize("by_secret", [False, True])
def test_revoke_ends_a_token_once(limen: Run, by_secret: bool) -> None:
    secret = create(limen)
    id = secret[6:14]
    typed = secret if by_secret else id
    ran = limen("token", "revoke", typed)
    assert (ran.exit_code, ran.err) == (0, "")
    assert ran.out == f"token {id} (check) for checkout is revoked now\n"
    again = limen("token", "revoke", typed, "--author", "bob")
    assert again.exit_code == 0
    assert again.out.startswith(f"token {id} (check) was revoked already, ")
    assert again.out.endswith(" by ada\n")
    assert limen("rules", "audit").out.endswith(
        "2 rows in all, and the chain of their hashes holds\n"
    )


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("3f2a91c0", "there is no token 3f2a91c0; look at `limen token list`"),
        (SOME, "there is no token 3f2a91c0; look at `limen token list`"),
        (SOME[:-1], "that is no id of a token: it has eight digits from 0 to f, such as"),
        (f"redis://:{SECRET}@host", "that is an address, not the id of a token; did you mean"),
    ],
)
def test_what_cannot_be_revoked_is_one_line_without_a_secret(
    limen: Run, applied: str, typed: str, said: str
) -> None:
    ran = limen("token", "revoke", typed)
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith(f"limen: {said}")
    assert ran.err.count("\n") == 1
    assert SOME[-40:] not in ran.err


def test_where_nothing_is_prepared_there_is_nothing_to_list(limen: Run, tmp_path: Path) -> None:
    for command in ("list", "revoke 3f2a91c0"):
        ran = limen("token", *command.split())
        assert (ran.exit_code, ran.out) == (1, "")
        assert "there is no such file; run `limen rules apply FILE` (in a" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_audit_tells_of_tokens_beside_rules(limen: Run, applied: str) -> None:
    id = create(limen)[6:14]
    asyncio.run(SqlStore(DATABASE).record("reset", "rule login, ip=::1", "ann", "by mistake"))
    heading, reset, created, activated, _, verdict = limen("rules", "audit").out.splitlines()
    assert heading.split()[-4:] == ["VERSION", "BEFORE", "ABOUT", "COMMENT"]
    assert " ".join(reset.split()[3:]) == "ann reset - - rule login, ip=::1 by mistake"
    assert " ".join(created.split()[3:]) == f"ada token-create - - token {id} (check) checkout"
    assert " ".join(activated.split()[3:]) == "ada activate 1 - first"
    assert verdict == "4 rows in all, and the chain of their hashes holds"
    row = json.loads(limen("rules", "audit", "--json").out)["rows"][1]
    assert (row["version"], row["subject"]) == (None, f"token {id} (check)")


def test_audit_finds_a_token_that_somebody_slipped_in(limen: Run) -> None:
    create(limen)
    with contextlib.closing(sqlite3.connect(".limen/rules.db")) as database:
        database.execute("UPDATE limen_tokens SET role = 'admin'")
        database.commit()
    ran = limen("rules", "audit")
    assert ran.exit_code == 1
    assert "is not what was created; compare with a backup" in ran.err


@pytest.mark.parametrize("command", ["", "create", "list", "revoke"])
def test_help_teaches_by_examples(limen: Run, command: str) -> None:
    ran = limen(*f"token {command}".split(), "--help")
    assert ran.exit_code == 0
    assert f"     limen token {command or 'create'} " in ran.out


def test_without_a_command_the_roles_are_told(limen: Run) -> None:
    told = limen("token").out
    assert re.findall(r"^ {5}(\w+) {3}", told, re.MULTILINE)[:4] == [*ROLES]


def test_the_shell_takes_the_secret_alone(tmp_path: Path) -> None:
    ran = process("0", *CREATE, cwd=tmp_path)
    secret = ran.stdout.decode().removesuffix("\n")
    assert secret.startswith(f"limen_{id_of(secret)}_")
    assert ran.stderr.count(b"\n") == 1


def test_with_rules_in_a_file_tokens_are_in_the_database_of_the_service(
    limen: Run, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMEN_RULES", file)
    assert limen("token", "create", "--role", "check", "--name", "checkout").exit_code == 0
    assert "checkout" in limen("token", "list").out
    assert "token-create" in limen("rules", "audit").out
    assert limen("token", "list", "--rules", "sqlite:///.limen/rules.db").exit_code == 0
