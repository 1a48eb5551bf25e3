"""`limen rules` that changes: apply, activate, rollback; and the books about it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.cli.acts import (
    BAD,
    RULES,
    Ran,
    Run,
    edit,
    latest_version,
    write,
)


def test_apply_shows_what_changes_and_lets_it_hold(
    limen: Run, applied: str, tmp_path: Path
) -> None:
    edit(tmp_path, "100/minute, 1000/day", "200/minute, 1000/day")
    ran = limen("rules", "apply", applied)
    assert ran == Ran(
        0,
        "version 1 (active) -> rules.yaml: +0 ~1 -0\n"
        "~ rules.search-per-user.limits: "
        '["100/minute", "1000/day"] -> ["200/minute", "1000/day"]\n'
        "version 2 is active now\n",
        "",
    )


def test_apply_to_nothing_makes_the_database_and_the_first_version(limen: Run, file: str) -> None:
    ran = limen("rules", "apply", file)
    assert ran.exit_code == 0
    assert ran.out.startswith("no rules -> rules.yaml: +8 ~0 -0\n+ rules.search-per-user\n")
    assert ran.out.endswith("version 1 is active now\n")


def test_apply_of_what_holds_already_saves_nothing(limen: Run, applied: str) -> None:
    assert limen("rules", "apply", applied) == Ran(
        0, "rules.yaml: no change, version 1 is active already\n", ""
    )
    assert latest_version() == 1


def test_apply_dry_run_leaves_nothing_behind(limen: Run, file: str, tmp_path: Path) -> None:
    ran = limen("rules", "apply", file, "--dry-run")
    assert ran.exit_code == 0
    assert ran.out.startswith("no rules -> rules.yaml: +8 ~0 -0\n")
    assert ran.out.endswith("dry run: nothing was saved\n")
    assert not (tmp_path / ".limen").exists()


def test_apply_dry_run_shows_what_would_change(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    ran = limen("rules", "apply", applied, "--dry-run")
    assert "~ rules.login.limits: 5/minute -> 6/minute\n" in ran.out
    assert latest_version() == 1


def test_apply_draft_saves_and_activates_nothing(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    ran = limen("rules", "apply", applied, "--draft")
    assert ran.out.endswith("version 2 is saved as a draft\n")
    assert "active" in limen("rules", "history").out.splitlines()[2]
    again = limen("rules", "apply", applied, "--draft")
    assert again == Ran(0, "rules.yaml: no change, version 2 is a draft already\n", "")
    # The same file without --draft is that draft, activated.
    assert limen("rules", "apply", applied).out.endswith("version 2 is active now\n")


def test_apply_says_whose_draft_it_leaves_behind(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied, "--draft", "--author", "bob")
    edit(tmp_path, "5/minute", "7/minute")
    ran = limen("rules", "apply", applied)
    assert ran.exit_code == 0
    assert (
        "version 2 by bob is a draft that is not in this; see `limen rules diff 2`\n"
        "version 3 is active now\n"
    ) in ran.out


@pytest.mark.parametrize(
    ("arguments", "answer", "exit_code"), [([], False, 1), ([], True, 0), (["--yes"], None, 0)]
)
def test_apply_asks_on_a_terminal_unless_told_not_to(
    limen: Run,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    answer: bool | None,
    exit_code: int,
) -> None:
    questions: list[str] = []

    def confirm(question: str, **_: Any) -> bool | None:
        questions.append(question)
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", confirm)
    ran = limen("rules", "apply", file, "--draft", *arguments)
    assert ran.exit_code == exit_code
    assert questions == ([] if arguments else ["Save this as a draft?"])
    assert ran.err == ("limen: nothing was changed\n" if exit_code else "")
    assert latest_version() == (0 if exit_code else 1)


def test_apply_refuses_a_bad_file_as_a_whole(limen: Run, tmp_path: Path) -> None:
    ran = limen("rules", "apply", write(tmp_path, BAD, "bad.yaml"))
    assert ran.exit_code == 1
    assert ran.out == ""
    first, *_, last = ran.err.splitlines()
    assert first.startswith("bad.yaml:3: rules[0].limts: unknown field")
    assert last == f"limen: bad.yaml has {len(ran.err.splitlines()) - 1} errors"
    assert not (tmp_path / ".limen").exists()


def test_apply_reads_standard_input(limen: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(RULES.encode())))
    assert limen("rules", "apply", "-").out.startswith("no rules -> stdin: +8 ~0 -0\n")


def test_apply_without_a_login_name_asks_for_one(
    limen: Run, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr("getpass.getuser", nobody)
    ran = limen("rules", "apply", file)
    assert (ran.exit_code, ran.err) == (
        2,
        "limen: this user has no login name; add --author NAME\n",
    )


def test_activate_and_rollback(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied, "--draft")
    assert limen("rules", "activate", "2").out == (
        "version 1 (active) -> version 2: +0 ~1 -0\n"
        "~ rules.login.limits: 5/minute -> 6/minute\n"
        "version 2 is active now; before, version 1 was\n"
    )
    assert limen("rules", "activate", "2").out == "version 2 is active already\n"
    assert limen("rules", "rollback", "1", "--comment", "too lax") == Ran(
        0,
        "version 2 (active) -> version 1: +0 ~1 -0\n"
        "~ rules.login.limits: 6/minute -> 5/minute\n"
        "version 3 is active now, with the rules of version 1\n",
        "",
    )
    newest = limen("rules", "history").out.splitlines()[1]
    assert newest.startswith("3        active")
    assert newest.endswith("too lax")


def test_rollback_to_what_is_active_makes_no_version(limen: Run, applied: str) -> None:
    assert limen("rules", "rollback", "1") == Ran(0, "version 1 is active already\n", "")
    assert latest_version() == 1


def test_rollback_twice_makes_one_version(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied)
    limen("rules", "rollback", "1")
    assert limen("rules", "rollback", "1").out == (
        "version 3 is active already, with the rules of version 1\n"
    )
    assert latest_version() == 3


@pytest.mark.parametrize(
    ("arguments", "answer", "exit_code"), [([], False, 1), ([], True, 0), (["--yes"], None, 0)]
)
def test_rollback_asks_on_a_terminal_unless_told_not_to(
    limen: Run,
    applied: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    answer: bool | None,
    exit_code: int,
) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda question, **_: answer)
    ran = limen("rules", "rollback", "1", *arguments)
    assert ran.exit_code == exit_code
    assert ran.out.startswith("version 2 (active) -> version 1: +0 ~1 -0\n")
    assert ran.err == ("limen: nothing was changed\n" if exit_code else "")
    assert latest_version() == (2 if exit_code else 3)


def test_a_version_that_was_active_is_no_draft(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied)
    limen("rules", "activate", "1")
    assert limen("rules", "apply", applied, "--draft").out == (
        "rules.yaml: no change, version 2 is the newest already, and not active\n"
    )
    edit(tmp_path, "5/minute", "7/minute")
    assert (
        "version 2 by ada is not active, and is not in this; see `limen rules diff 2`\n"
    ) in limen("rules", "apply", applied, "--dry-run").out


def test_a_draft_alone_is_not_taken_for_rules_that_hold(limen: Run, file: str) -> None:
    limen("rules", "apply", file, "--draft")
    ran = limen("rules", "show")
    assert (ran.exit_code, ran.err) == (
        1,
        "limen: no version is active; version 1 is a draft: "
        "run `limen rules activate 1`, or add --version 1\n",
    )
    said = limen("rules", "activate", "1").out
    assert said.startswith("no rules -> version 1: +8 ~0 -0\n")
    assert said.endswith("\nversion 1 is active now\n")
