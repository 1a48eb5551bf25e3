"""Where rules are looked for, and what is said when they are not there."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
import typer

from limen.cli.rules_source import LoadedRules
from tests.cli.acts import (
    DATABASE,
    SECRET,
    Run,
    edit,
    write,
)


def test_the_place_is_taken_from_the_environment(
    limen: Run, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMEN_RULES", "sqlite:///elsewhere.db")
    limen("rules", "apply", file)
    assert Path("elsewhere.db").exists()
    assert limen("rules", "show", "--rules", file).out.startswith("rules.yaml: 6 rules")


@pytest.mark.parametrize(
    ("command", "exit_code", "said"),
    [
        (
            "history",
            1,
            "no such file; run `limen rules apply FILE` (in a program: `prepare()`), or na",
        ),
        (
            "show",
            1,
            "no such file; run `limen rules apply FILE` (in a program: `prepare()`), or na",
        ),
        ("show --rules sqlite:/x.db", 2, "the address of the rules has no scheme; use"),
        ("show --rules sqlite:x.db", 2, "the address of the rules has no scheme; use"),
        ("show --rules postgresql:/host/x", 2, "the address of the rules has no scheme; use"),
        ("rollback x", 2, "'VERSION': expected a whole number, got 'x' (see limen rules rollback"),
        ("rollback 0", 2, "'VERSION': expected 1 or more, got '0' (see limen rules rollback --he"),
        ("history --rules rules.yaml", 2, "a file keeps no versions; use --rules 'sqlite:///"),
        ("show --rules no.yaml", 2, "cannot read the rules in no.yaml: No such file"),
        ("show --rules rules.yaml --version 1", 2, "rules.yaml is a file, and has no version 1"),
        (f"show --rules joe:{SECRET}@host/x", 2, "the address of the rules has no scheme"),
        (f"show --rules mysql://joe:{SECRET}@host/x", 2, "rules cannot be kept in 'mysql://'"),
        (f"show --rules postgresql://joe:{SECRET}@127.0.0.1:1/x", 1, "joe:***@127.0.0.1:1/x: nob"),
        ("show --version 0", 2, "expected 1 or more, got '0' (see limen rules show --help)"),
        ("aply rules.yaml", 2, "'aply'. Did you mean 'apply'? (see limen rules --help)"),
        ("apply", 2, "Missing argument 'FILE'. (see limen rules apply --help)"),
        ("export --rules rules.yaml -o no/where.yaml", 2, "cannot write no/where.yaml: No such"),
    ],
)
def test_a_mistake_is_one_line(
    limen: Run, file: str, command: str, exit_code: int, said: str
) -> None:
    ran = limen("rules", *command.split())
    assert (ran.exit_code, ran.out) == (exit_code, "")
    assert ran.err.startswith("limen: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err


def test_a_blank_place_is_no_place(limen: Run) -> None:
    ran = limen("rules", "show", "--rules", " ")
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith("limen: --rules: the address of the rules has no scheme; use")


def test_the_option_is_stronger_than_the_settings_also_with_the_default(
    limen: Run, applied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMEN_RULES", "sqlite:///elsewhere.db")
    assert limen("rules", "show").exit_code == 1
    assert limen("rules", "show", "--rules", DATABASE).exit_code == 0


def test_a_file_that_is_named_like_an_address_is_a_file(limen: Run, tmp_path: Path) -> None:
    for name in ("sqlite:x", "ann:b@c"):
        write(tmp_path, "rules: []\n", name)
        assert limen("rules", "show", "--rules", name).out == f"{name}: 0 rules\n"
        assert limen("rules", "validate", name).exit_code == 0


def test_a_file_in_the_place_of_the_folder_is_told(limen: Run, file: str, tmp_path: Path) -> None:
    write(tmp_path, "", ".limen")
    for command in ("show", f"apply {file}"):
        ran = limen("rules", *command.split())
        assert ran.exit_code == 1
        assert ran.err == (
            f"limen: rules at {DATABASE}: {tmp_path}/.limen is a file, and should be a folder; "
            "move it, or choose another place\n"
        )


def test_an_at_sign_in_a_password_is_told(limen: Run) -> None:
    ran = limen("rules", "show", "--rules", f"postgresql://joe:{SECRET}@x@127.0.0.1:1/db")
    assert ran.exit_code == 1
    assert ran.err.endswith("no such host is known; in the password, write @ as %40\n")


@pytest.mark.parametrize(
    "statement", ["DELETE FROM limen_state", "DROP TABLE limen_state", "DROP TABLE limen_audit"]
)
def test_damaged_tables_are_not_taken_for_none(
    limen: Run, applied: str, tmp_path: Path, statement: str
) -> None:
    with contextlib.closing(sqlite3.connect(".limen/rules.db")) as database:
        database.execute(statement)
        database.commit()
    edit(tmp_path, "5/minute", "6/minute")
    for command in ("audit", f"apply {applied}"):
        ran = limen("rules", *command.split())
        assert ran.exit_code == 1
        assert ran.err == (
            f"limen: rules at {DATABASE}: the tables are damaged: restore a backup\n"
        )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("activate 7", "there is no version 7 of the rules; the newest is 1"),
        ("rollback 7", "there is no version 7 of the rules; the newest is 1"),
        ("diff 1 7", "there is no version 7 of the rules; the newest is 1"),
        ("show logn", "there is no rule 'logn' in version 1 (did you mean 'login'?)"),
        ("show zzz", "there is no rule 'zzz' in version 1; there are: search-per-user, login"),
        ("apply other.yaml --base 99", "there is no version 99 to start from; the newest is 1"),
        ("apply other.yaml --author ", "author must say who made the change"),
    ],
)
def test_what_is_not_there_is_one_line_and_exit_code_2(
    limen: Run, applied: str, tmp_path: Path, command: str, said: str
) -> None:
    write(tmp_path, "rules: []\n", "other.yaml")
    ran = limen("rules", *command.split(" "))
    assert ran.exit_code == 2
    assert ran.err.startswith("limen: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err


def test_rules_that_were_saved_and_are_not_valid_any_more_are_told_line_by_line(
    limen: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = LoadedRules("version 3", {"rules": [{"name": "x"}], "more": 1}, "", 3)
    with pytest.raises(typer.Exit):
        loaded.rule_set()
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("version 3: more: unknown field 'more'")
    assert last == "limen: version 3 has 2 errors"


@pytest.mark.parametrize(
    "command", ["validate {}", "show --rules {}", "apply {}", "diff {} {}", "import-envoy {}"]
)
def test_a_name_that_no_file_can_have_is_told(limen: Run, command: str) -> None:
    ran = limen("rules", *command.format("x" * 5_000, "y").split())
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.endswith(": File name too long\n")
    assert ran.err.count("\n") == 1
