"""`limen rules` and `limen explain`: what a user types, sees and gets as exit code."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
import typer

from limen import Limiter
from limen.cli import draw, main, place
from limen.engine import Engine
from limen.rules import load, parse
from limen.rules.stores.sql import SqlStore
from tests import servers
from tests.postgres import ESCAPED_PASSWORD, PASSWORD, postgres

DATABASE = "sqlite:///.limen/rules.db"
FORCING_COLOUR = ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
SECRET = "s3cret"

RULES = """\
rules:
  - name: search-per-user
    match: {path: /search/*, method: [GET, POST]}
    key: [user]
    limits: [100/minute, 1000/day]
    tiers: {by: plan, limits: {pro: 600/minute, max: unlimited}, default: 60/minute}
    overrides:
      - {key: {user: 42}, limits: 5000/hour, ends: 2099-12-24}
  - name: login
    match: {path: /login}
    key: [ip]
    missing: deny
    limits: 5/minute
  - name: bots
    match: {agent: "*bot*"}
    mode: block
    ends: 2099-01-01
  - name: everybody
    limits: 1000/minute
    mode: shadow
  - name: exports
    match: {path: /export}
    key: [user]
    concurrency: {slots: 3, lease: 60s}
  - name: old
    limits: 1/day
    mode: "off"
exemptions:
  - {name: internal, match: {ip: 10.0.0.0/8}}
  - {name: ops, match: {user: [root, ops]}, rules: [login, exports]}
"""
BAD = """\
rules:
  - name: search
    limts: 100/minute
  - name: search
    key: [user]
    limits: 100/fortnight
"""


class Ran(NamedTuple):
    exit_code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def limen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    """Run the command in this process, in a folder of its own; no password may be printed."""
    for name in (*FORCING_COLOUR, "LIMEN_RULES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["limen", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            main()
        code = exit_info.value.code
        assert code is None or isinstance(code, int)
        printed = capsys.readouterr()
        for secret in (SECRET, PASSWORD, ESCAPED_PASSWORD):
            assert secret not in printed.out + printed.err
        assert "Traceback" not in printed.err
        return Ran(code or 0, printed.out, printed.err)

    return run


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A good file of rules, in the folder where the command runs."""
    return write(tmp_path, RULES)


@pytest.fixture
def applied(limen: Run, file: str) -> str:
    """The same, applied as version 1."""
    assert limen("rules", "apply", file, "--comment", "first").exit_code == 0
    return file


def write(folder: Path, text: str, name: str = "rules.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return name


def edit(folder: Path, old: str, new: str) -> str:
    assert old in RULES
    return write(folder, RULES.replace(old, new))


def latest_version() -> int:
    async def ask() -> int:
        found = await SqlStore(DATABASE).latest()
        return found.version if found else 0

    return asyncio.run(ask())


# --- validate


def test_validate_counts_what_is_valid(limen: Run, file: str) -> None:
    assert limen("rules", "validate", file) == Ran(
        0, "rules.yaml: 6 rules, 2 exemptions, valid\n", ""
    )


def test_validate_says_all_errors_at_once_with_file_and_line(limen: Run, tmp_path: Path) -> None:
    ran = limen("rules", "validate", write(tmp_path, BAD, "bad.yaml"))
    assert ran.exit_code == 1
    assert ran.err == ""
    starts = [line.split(" ")[:2] for line in ran.out.splitlines()]
    assert ["bad.yaml:3:", "rules[0].limts:"] in starts
    assert ["bad.yaml:4:", "rules[1].name:"] in starts
    assert ["bad.yaml:6:", "rules[1].limits:"] in starts
    assert "(did you mean 'limits'?)" in ran.out


def test_validate_goes_on_after_a_bad_file(limen: Run, file: str, tmp_path: Path) -> None:
    ran = limen("rules", "validate", write(tmp_path, "rules: 7\n", "bad.yaml"), "no.yaml", file)
    assert ran.exit_code == 2
    assert ran.out.splitlines() == [
        "bad.yaml:1: rules: expected a list, got 7",
        "rules.yaml: 6 rules, 2 exemptions, valid",
    ]
    assert ran.err == "limen: cannot read the rules in no.yaml: No such file or directory\n"


def test_validate_says_what_is_wrong_with_a_file_as_a_whole(limen: Run, tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"rules:\n  - name: caf\xe9\n")
    assert limen("rules", "validate", "latin.yaml") == Ran(
        1, "latin.yaml:2: this is not text in UTF-8\n", ""
    )


@pytest.mark.parametrize(
    ("raw", "exit_code", "out"),
    [
        (RULES.encode(), 0, "stdin: 6 rules, 2 exemptions, valid\n"),
        (b'{"rules": []}', 0, "stdin: 0 rules, valid\n"),
        (b"rules:\n- 7\n", 1, "stdin:2: rules[0]: expected a mapping, got 7\n"),
        (b"rules: []\n\xff", 1, "stdin:2: this is not text in UTF-8\n"),
    ],
)
def test_validate_reads_standard_input(
    limen: Run, monkeypatch: pytest.MonkeyPatch, raw: bytes, exit_code: int, out: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert limen("rules", "validate", "-") == Ran(exit_code, out, "")


def test_validate_tells_machines(limen: Run, file: str, tmp_path: Path) -> None:
    ran = limen("rules", "validate", file, write(tmp_path, "rules: 7\n", "bad.yaml"), "--json")
    assert ran.exit_code == 1
    good, bad = json.loads(ran.out)
    assert (good["valid"], good["rules"], good["problems"]) == (True, 6, [])
    assert bad["problems"] == [{"path": "rules", "message": "expected a list, got 7", "line": 1}]


# --- apply


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


def test_apply_from_a_stale_base_is_a_conflict_on_one_line(
    limen: Run, applied: str, tmp_path: Path
) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied)
    edit(tmp_path, "5/minute", "7/minute")
    ran = limen("rules", "apply", applied, "--base", "1")
    assert ran.exit_code == 1
    assert ran.err == (
        "limen: the rules are at version 2, and this edit was made from version 1; "
        "look at `limen rules diff 1 2`, and apply again\n"
    )
    assert latest_version() == 2
    assert limen("rules", "apply", applied, "--base", "2").exit_code == 0


def test_apply_loses_no_change_that_came_while_it_asked(
    limen: Run, applied: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_another(question: str, **_: Any) -> bool:
        assert question == "Let this hold from now on?"
        asyncio.run(SqlStore(DATABASE).save({"rules": []}, author="bob", base=None))
        return True

    edit(tmp_path, "5/minute", "6/minute")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", save_another)
    ran = limen("rules", "apply", applied)
    assert ran.exit_code == 1
    assert "the rules are at version 2, and this edit was made from version 1" in ran.err
    assert limen("rules", "export").out == "rules: []\n"


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


# --- diff


def test_diff_of_two_versions(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied)
    assert limen("rules", "diff", "1", "2") == Ran(
        0,
        "version 1 -> version 2 (active): +0 ~1 -0\n~ rules.login.limits: 5/minute -> 6/minute\n",
        "",
    )
    told = json.loads(limen("rules", "diff", "2", "1", "--json").out)
    assert (told["from"], told["to"]) == ("version 2", "version 1")
    [change] = told["changes"]
    assert (change["path"], change["after"]) == ("rules.login.limits", "5/minute")


def test_diff_of_a_file_against_the_active_version(
    limen: Run, applied: str, tmp_path: Path
) -> None:
    edit(tmp_path, '  - name: old\n    limits: 1/day\n    mode: "off"\n', "")
    ran = limen("rules", "diff", applied)
    assert ran == Ran(0, "version 1 (active) -> rules.yaml: +0 ~0 -1\n- rules.old\n", "")


def test_diff_of_two_files_needs_no_database(limen: Run, file: str, tmp_path: Path) -> None:
    other = write(tmp_path, RULES.replace("5/minute", "6/minute"), "other.yaml")
    ran = limen("rules", "diff", file, other)
    assert ran.out.splitlines()[0] == "rules.yaml -> other.yaml: +0 ~1 -0"
    assert limen("rules", "diff", other, "--rules", file).out == ran.out


def test_diff_of_the_newest_draft(limen: Run, applied: str, tmp_path: Path) -> None:
    assert limen("rules", "diff") == Ran(
        0, "version 1 is active and the newest: there is no draft to compare it with\n", ""
    )
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied, "--draft")
    assert limen("rules", "diff").out.startswith("version 1 (active) -> version 2: +0 ~1 -0\n")


def test_diff_of_a_file_with_itself_needs_another(limen: Run, file: str) -> None:
    ran = limen("rules", "diff", "--rules", file)
    assert (ran.exit_code, ran.err) == (
        2,
        "limen: a file has no drafts; name another file to compare it with\n",
    )


# --- show, export, schema


def test_show_lists_the_rules_that_hold(limen: Run, applied: str) -> None:
    ran = limen("rules", "show")
    title, *lines = ran.out.splitlines()
    assert title == f"{DATABASE}, version 1 (active): 6 rules, 2 exemptions"
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    assert rows == [
        ["NAME", "MATCH", "KEY", "LIMITS", "MODE", "TIME (UTC)"],
        [
            "search-per-user",
            "path is /search/*; method is GET or POST",
            "user",
            "100/minute, 1000/day; pro: 600/minute; max: unlimited; other: 60/minute; 1 override",
            "enforce",
        ],
        ["login", "path is /login", "ip", "5/minute", "enforce"],
        ["bots", "agent is *bot*", "-", "-", "block", "until 2099-01-01"],
        ["everybody", "everything", "-", "1000/minute", "shadow"],
        ["exports", "path is /export", "user", "3 at once, lease 1 minute", "enforce"],
        ["old", "everything", "-", "1/day", "off"],
        [],
        ["EXEMPT", "MATCH", "FROM"],
        ["internal", "ip is 10.0.0.0/8", "all rules"],
        ["ops", "user is ops or root", "exports, login"],
    ]


def test_show_tells_shares_and_variants_of_a_file(limen: Run, tmp_path: Path) -> None:
    text = """\
rules:
  - name: rollout
    key: [user]
    limits: 10/s
    enforce_percent: 12.5
    starts: 2026-01-01
    variants: [{percent: 10, limits: unlimited}]
"""
    title, _, row = limen("rules", "show", "--rules", write(tmp_path, text)).out.splitlines()
    assert title == "rules.yaml: 1 rule"
    assert "10/second; 1 variant  enforce 12.5 %  from 2026-01-01" in row


def test_show_prints_one_rule_in_full(limen: Run, applied: str) -> None:
    ran = limen("rules", "show", "login")
    assert ran.exit_code == 0
    assert ran.out.startswith("name: login\nmatch:\n  path: /login\n")
    told = json.loads(limen("rules", "show", "internal", "--json").out)
    assert told == {"name": "internal", "match": {"ip": "10.0.0.0/8"}}


def test_show_of_another_version(limen: Run, applied: str, tmp_path: Path) -> None:
    write(tmp_path, "rules: []\n")
    limen("rules", "apply", applied)
    assert limen("rules", "show").out == f"{DATABASE}, version 2 (active): 0 rules\n"
    assert limen("rules", "show", "--version", "1").out.startswith(f"{DATABASE}, version 1: 6 rul")
    told = json.loads(limen("rules", "show", "--version", "1", "--json").out)
    assert (told["version"], told["active"], len(told["rules"])) == (1, False, 6)


def test_show_on_a_terminal_folds_to_its_width(
    limen: Run, applied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = limen("rules", "show").out
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert lines != out.splitlines()
    assert max(map(len, lines)) <= 80
    first = next(number for number, line in enumerate(lines) if line.startswith("search-per-user"))
    assert "600/minute" not in lines[first]
    assert any("pro: 600/minute" in line for line in lines)


def test_export_is_valid_again_and_says_the_same(limen: Run, applied: str, tmp_path: Path) -> None:
    assert limen("rules", "export", "--output", "out.yaml") == Ran(
        0, "out.yaml: version 1 (active), 6 rules\n", ""
    )
    assert limen("rules", "validate", "out.yaml").exit_code == 0
    assert limen("rules", "apply", "out.yaml").out == (
        "out.yaml: no change, version 1 is active already\n"
    )
    write(tmp_path, limen("rules", "export", "--json").out, "out.json")
    assert load("out.json").document == load("out.yaml").document == load(applied).document


def test_schema_is_json(limen: Run) -> None:
    assert "rules" in json.loads(limen("rules", "schema").out)["properties"]


# --- history, audit, activate, rollback


def test_history_lists_versions_newest_first(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied, "--author", "bob", "--comment", "more\x1b[31m\nlogins")
    heading, second, first = limen("rules", "history").out.splitlines()
    assert heading.split() == ["VERSION", "TIME", "(UTC)", "AUTHOR", "CHANGES", "COMMENT"]
    assert second.split()[:2] == ["2", "active"]
    # What somebody wrote neither breaks the line nor colours the terminal.
    assert second.endswith("bob     +0 ~1 -0  more\\x1b[31m\\nlogins")
    assert first.split()[0] == "1"
    assert first.endswith("ada     +8 ~0 -0  first")
    assert limen("rules", "history", "--limit", "1").out.splitlines()[-1] == (
        "and 1 older version; add --limit to see more"
    )
    [told, _] = json.loads(limen("rules", "history", "--json").out)
    assert (told["version"], told["active"], told["author"]) == (2, True, "bob")
    assert told["changes"][0]["path"] == "rules.login.limits"


def test_audit_lists_acts_and_says_that_the_chain_holds(limen: Run, applied: str) -> None:
    ran = limen("rules", "audit")
    heading, *rows, verdict = ran.out.splitlines()
    assert ran.exit_code == 0
    assert heading.startswith("ROW  TIME (UTC)")
    assert [row.split()[3:] for row in rows] == [
        ["ada", "activate", "1", "-", "first"],
        ["ada", "save", "1", "-", "first"],
    ]
    assert verdict == "2 rows in all, and the chain of their hashes holds"
    told = json.loads(limen("rules", "audit", "--json").out)
    assert (told["holds"], told["problem"], len(told["rows"])) == (True, None, 2)


def test_audit_says_when_somebody_changed_the_books(limen: Run, applied: str) -> None:
    database = sqlite3.connect(".limen/rules.db")
    database.execute("DROP TRIGGER limen_audit_no_update")
    database.execute("UPDATE limen_audit SET actor = 'eve' WHERE id = 2")
    database.commit()
    database.close()
    ran = limen("rules", "audit")
    assert ran.exit_code == 1
    assert "eve" in ran.out
    assert ran.err.startswith("limen: the rules were changed past limen: row 2 of the audit")
    assert ran.err.count("\n") == 1
    told = json.loads(limen("rules", "audit", "--json").out)
    assert told["holds"] is False
    assert "row 2 of the audit" in told["problem"]


def test_activate_and_rollback(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied, "--draft")
    assert limen("rules", "activate", "2").out == (
        "version 2 is active now; before, version 1 was\n"
    )
    assert limen("rules", "activate", "2").out == "version 2 is active already\n"
    assert limen("rules", "rollback", "1", "--comment", "too lax") == Ran(
        0,
        "version 3 is active now, with the rules of version 1\n"
        "~ rules.login.limits: 6/minute -> 5/minute\n",
        "",
    )
    newest = limen("rules", "history").out.splitlines()[1]
    assert newest.startswith("3        active")
    assert newest.endswith("too lax")


def test_a_draft_alone_is_not_taken_for_rules_that_hold(limen: Run, file: str) -> None:
    limen("rules", "apply", file, "--draft")
    ran = limen("rules", "show")
    assert (ran.exit_code, ran.err) == (
        1,
        "limen: no version is active; version 1 is a draft: "
        "run `limen rules activate 1`, or add --version 1\n",
    )
    assert limen("rules", "activate", "1").out == "version 1 is active now\n"


# --- places


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
        ("history", 1, "there is no such file; run `limen rules apply FILE`"),
        ("show", 1, "there is no such file; run `limen rules apply FILE`"),
        ("history --rules rules.yaml", 2, "a file keeps no versions; use --rules 'sqlite:///"),
        ("show --rules no.yaml", 2, "cannot read the rules in no.yaml: No such file"),
        ("show --rules rules.yaml --version 1", 2, "rules.yaml is a file, and has no version 1"),
        (f"show --rules joe:{SECRET}@host/x", 2, "the address of the rules has no scheme"),
        (f"show --rules mysql://joe:{SECRET}@host/x", 2, "rules cannot be kept in 'mysql://'"),
        (f"show --rules postgresql://joe:{SECRET}@127.0.0.1:1/x", 1, "joe:***@127.0.0.1:1/x: nob"),
        ("show --version 0", 2, "(see limen rules show --help)"),
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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("activate 7", "there is no version 7 of the rules; the newest is 1"),
        ("rollback 7", "there is no version 7 of the rules; the newest is 1"),
        ("diff 1 7", "there is no version 7 of the rules; the newest is 1"),
        ("show logn", "there is no rule 'logn' in version 1 (did you mean 'login'?)"),
        ("show zzz", "there is no rule 'zzz' in version 1; there are: search-per-user, login"),
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
    held = place.Held("version 3", {"rules": [{"name": "x"}], "more": 1}, "", 3)
    with pytest.raises(typer.Exit):
        place.rules_of(held)
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("version 3: more: unknown field 'more'")
    assert last == "limen: version 3 has 2 errors"


@pytest.mark.parametrize(
    "command",
    ["", "validate", "apply", "diff", "show", "history", "audit", "activate", "rollback", "export"],
)
def test_help_teaches_and_fits_80_columns(limen: Run, command: str) -> None:
    ran = limen("rules", command, "--help") if command else limen("rules")
    assert ran.exit_code == 0
    assert f"limen rules {command}".strip() in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_help_shows_rules_that_are_valid(limen: Run, tmp_path: Path) -> None:
    lines = [line.strip("│").rstrip() for line in limen("rules").out.splitlines()]
    start = lines.index("     rules:")
    example = "\n".join(line[5:] for line in lines[start : start + 5])
    assert limen("rules", "validate", write(tmp_path, example)).out == "rules.yaml: 1 rule, valid\n"


def test_the_life_of_rules_on_postgresql(limen: Run, file: str, tmp_path: Path) -> None:
    with postgres() as server:
        where = ("--rules", server.create_database("limen"))
        assert limen("rules", "show", *where).err.endswith(
            "there are no tables of limen yet; run `limen rules apply FILE`, "
            "or call `prepare()` once\n"
        )
        assert limen("rules", "apply", file, "--dry-run", *where).exit_code == 0
        assert limen("rules", "apply", file, *where).out.endswith("version 1 is active now\n")
        edit(tmp_path, "5/minute", "6/minute")
        limen("rules", "apply", file, *where)
        assert limen("rules", "rollback", "1", *where).out.startswith("version 3 is active now")
        assert limen("rules", "diff", file, *where).out == (
            "version 3 (active) -> rules.yaml: +0 ~1 -0\n"
            "~ rules.login.limits: 5/minute -> 6/minute\n"
        )
        assert len(limen("rules", "history", *where).out.splitlines()) == 4
        assert limen("rules", "audit", *where).out.endswith("the chain of their hashes holds\n")
        title = limen("explain", "path=/login", "ip=1.2.3.4", *where).out.splitlines()[0]
        assert title.startswith("rules  postgresql://limen:***@127.0.0.1:")
        assert title.endswith("/limen, version 3: 2 of 6 apply")


# --- explain


@pytest.fixture
def explain(limen: Run, file: str) -> Run:
    """Ask about the rules in the file."""
    return lambda *arguments: limen("explain", "--rules", file, *arguments)


def test_explain_tells_which_rules_apply_why_and_the_verdict(explain: Run) -> None:
    assert explain("user=7", "plan=pro", "path=/search/a", "method=GET") == Ran(
        0,
        """\
rules  rules.yaml: 2 of 6 apply
store  memory://: no counters here, so this is what a first request meets (see --store)

search-per-user  enforced, tier pro
    path is /search/* : got /search/a
    method is GET or POST : got GET
    counted by user=7, cost 1
    600/minute: 600 of 600 left

everybody  shadow
    counted by everybody together, cost 1
    1000/minute: 1000 of 1000 left

4 other rules do not apply (--all tells why)

allowed; nearest is search-per-user (600/minute), 600 left
""",
        "",
    )


def test_explain_all_tells_what_stands_against_the_others(explain: Run) -> None:
    out = explain("user=7", "path=/search/a", "method=GET", "--all").out
    assert (
        "4 other rules do not apply\n"
        "    login  path is /login : got /search/a\n"
        "    bots  agent is *bot* : absent\n"
        "    exports  path is /export : got /search/a\n"
        "    old  mode is off\n"
    ) in out


@pytest.mark.parametrize(
    ("attributes", "line"),
    [
        ("user=42 path=/search/a method=GET", "search-per-user  enforced, override for this key"),
        ("user=7 path=/search/a method=GET", "search-per-user  enforced, no plan, so no tier"),
        (
            "user=7 plan=x path=/search/a method=GET",
            "search-per-user  enforced, plan=x is no tier",
        ),
        ("user=7 plan=max path=/search/a method=GET", "    unlimited"),
        ("user=7 path=/export", "    counted by user=7"),
        ("user=7 path=/export", "    3 at once, lease 1 minute: 3 of 3 left"),
        ("ip=10.1.1.1", "exempt internal: from all rules"),
        ("ip=10.1.1.1", "6 rules do not apply (--all tells why)"),
        ("ip=10.1.1.1", "allowed: exempt by internal"),
        ("user=ops path=/export", "exempt ops: from exports, login"),
        ("user=7", "allowed: no limit is enforced"),
        ("agent=abot", "    refuses: it blocks whoever matches until 2099-01-01"),
        ("agent=abot", "refused by bots: it blocks whoever matches until 2099-01-01"),
        ("agent=abot", "    not asked: bots refuses already"),
        (
            "path=/login",
            "refused by login: it is counted by ip; ip is absent (missing: deny)",
        ),
        ("path=/login ip=::1 --cost 9", "    5/minute: 5 of 5 left, refused, and no wait helps"),
        ("path=/login ip=::1 --cost 9", "refused by login (5/minute), and no wait helps"),
        (
            "user=7 --cost 5000",
            "    1000/minute: 1000 of 1000 left, would be refused, and no wait helps",
        ),
        ("user=7 --at 2100-01-01", "rules  rules.yaml: 1 of 6 apply at 2100-01-01"),
        ("agent=abot --at 2100-01-01 --all", "    bots  ended at 2099-01-01"),
    ],
)
def test_explain_tells(explain: Run, attributes: str, line: str) -> None:
    ran = explain(*attributes.split())
    assert ran.exit_code == 0
    assert line in ran.out.splitlines()


def test_explain_tells_whether_a_key_is_in_the_enforced_share(limen: Run, tmp_path: Path) -> None:
    text = """\
rules:
  - name: some
    key: [user]
    limits: 10/s
    enforce_percent: 50
    variants: [{name: smooth, percent: 50, limits: 10/s leaky_bucket}]
"""
    said = set()
    for user in range(12):
        out = limen("explain", f"user={user}", "--rules", write(tmp_path, text)).out
        said.add(out.splitlines()[3])
    assert said == {
        f"some  {how} for this key (50 % of keys are enforced){variant}"
        for how in ("enforced", "shadow")
        for variant in ("", ", variant smooth")
    }


def test_explain_tells_what_a_shadow_would_refuse(limen: Run, tmp_path: Path) -> None:
    text = "rules: [{name: a, key: [user], missing: deny, mode: shadow, limits: 1/s}]\n"
    ran = limen("explain", "user=7", "--rules", write(tmp_path, text))
    assert ran.out.splitlines()[-1] == "allowed: no limit is enforced"
    text += "exemptions: [{name: e, match: {ip: 10.0.0.1}}]\n"
    ran = limen("explain", "ip=::1", "--rules", write(tmp_path, text))
    said = "    would refuse: it is counted by user; user is absent (missing: deny)"
    assert said in ran.out.splitlines()


def test_explain_says_when_no_rule_applies(limen: Run, tmp_path: Path) -> None:
    text = "rules: [{name: a, key: [user], limits: 1/s}, {name: b, match: {x: y}, limits: 1/s}]\n"
    ran = limen("explain", "x=z", "--rules", write(tmp_path, text))
    assert ran.out.splitlines()[-1] == "allowed: no rule applies"
    assert ran.out.splitlines()[0] == "rules  rules.yaml: 0 of 2 apply"


def test_explain_tells_of_rules_beyond_the_hundredth_limit(limen: Run, tmp_path: Path) -> None:
    rules = [{"name": f"r{number}", "limits": "10/s"} for number in range(102)]
    rules[0]["match"] = {"user": "7"}  # type: ignore[assignment]  # any shape will do
    write(tmp_path, json.dumps({"rules": rules}), "many.json")
    out = limen("explain", "user=7", "--rules", "many.json").out
    assert out.count("    not applied: a request is held to 100 limits at most") >= 1


def test_explain_tells_machines(explain: Run) -> None:
    told = json.loads(explain("user=7", "path=/search/a", "method=GET", "--json").out)
    assert (told["allowed"], told["rule"], told["limit"]) == (True, "search-per-user", "100/minute")
    assert (told["has_state"], told["store"], told["retry_after"]) == (False, "memory://", 0.0)
    assert told["attributes"] == {"user": "7", "path": "/search/a", "method": "GET"}
    assert [part["limit"] for part in told["parts"]] == ["100/minute", "1000/day", "1000/minute"]
    assert told["applying"][0]["because"][0] == {
        "attribute": "path",
        "asked": "is /search/*",
        "got": "/search/a",
        "holds": True,
    }
    assert told["others"][0] == {"rule": "login", "because": "path is /login : got /search/a"}


def test_explain_can_ask_a_draft(limen: Run, applied: str, tmp_path: Path) -> None:
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", applied, "--draft")
    asked = ("explain", "path=/login", "ip=::1")
    assert "    5/minute: 5 of 5 left\n" in limen(*asked).out
    assert "    6/minute: 6 of 6 left\n" in limen(*asked, "--version", "2").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["user"], "'user' is no attribute; write it as name=value"),
        (["=7"], "'=7' has no name; write it as name=value"),
        (["user="], "the attribute 'user' is empty; leave it out if it is absent"),
        (["user=\udcff"], "'user=\\udcff' is not text in UTF-8"),
        (["user=1", "user=2"], "the attribute 'user' stands twice"),
        (["usr=1"], "no rule uses the attribute 'usr' (did you mean 'user'?)"),
        (
            ["zzz=1"],
            "no rule uses the attribute 'zzz'; they use: agent, ip, method, path, plan, user",
        ),
        (["user=1", "--at", "friday"], "--at takes a date such as 2026-12-24 or a time such as"),
        (["user=1", "--at", "9999-12-31T23:59-12:00"], "--at takes a date such as 2026-12-24"),
        (["user=1", "--cost", "-1"], "(see limen explain --help)"),
        (["user=1", "--cost", "9999999999"], "cost must be a whole number from 0 to 1,000,000,000"),
        (["user=1", "--store", "ftp://x"], "unknown store 'ftp://'"),
        (["user=1", "--namespace", "a b"], "namespace must be 1 to"),
    ],
)
def test_explain_answers_a_mistake_by_one_line_and_exit_code_2(
    explain: Run, arguments: list[str], said: str
) -> None:
    ran = explain(*arguments)
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err.startswith("limen: ")
    assert ran.err.count("\n") == 1
    assert said in ran.err


def test_explain_without_rules_knows_no_attribute(limen: Run, tmp_path: Path) -> None:
    ran = limen("explain", "user=1", "--rules", write(tmp_path, "rules: []\n"))
    assert ran.err == "limen: no rule uses the attribute 'user': there are no rules\n"


def test_explain_without_a_request_teaches(limen: Run) -> None:
    ran = limen("explain")
    assert ran.exit_code == 0
    assert "limen explain user=42 path=/search/a method=GET" in ran.out


@pytest.fixture(scope="module")
def valkey() -> Iterator[servers.Server]:
    with servers.process(servers.binaries()["valkey"]) as started:
        yield started


def everything_in(client: redis.Redis) -> dict[bytes, Any]:
    found: Any = client.keys("*")
    return {key: client.dump(key) for key in found}


def test_explain_tells_the_counters_of_a_store_and_consumes_nothing(
    explain: Run, valkey: servers.Server
) -> None:
    url = f"redis://127.0.0.1:{valkey.port}"
    facts = {"ip": "1.2.3.4", "path": "/login"}
    with Limiter(url, deadline=5.0) as limiter, redis.Redis(port=valkey.port) as client:
        engine = Engine(parse(load("rules.yaml").document), limiter)
        for _ in range(3):
            assert engine.decide(facts).allowed
        before = everything_in(client)
        assert len(before) == 2
        asked = ("ip=1.2.3.4", "path=/login", "--store", url)
        first, second = explain(*asked), explain(*asked)
        assert (first.exit_code, first.err) == (0, "")
        assert f"store  {url}: counters as they are now; nothing was consumed\n" in first.out
        for ran in (first, second):
            assert "    5/minute: 2 of 5 left, reset in " in ran.out
            assert "    1000/minute: 997 of 1000 left, reset in " in ran.out
            assert ran.out.endswith("allowed; nearest is login (5/minute), 2 left\n")
        assert everything_in(client) == before
        # Also of keys that nobody has used yet, nothing is left behind.
        assert explain("user=new", "path=/export", "--store", url).exit_code == 0
        assert client.dbsize() == 2
        for _ in range(2):
            assert engine.decide(facts).allowed
        refused = explain(*asked).out
        assert "    5/minute: 0 of 5 left, refused, retry in " in refused
        assert refused.splitlines()[-1].startswith("refused by login (5/minute), retry in ")
        assert explain(*asked, "--namespace", "other").out.endswith("(5/minute), 5 left\n")


def test_explain_shows_no_numbers_of_its_own_for_a_store_that_is_gone(explain: Run) -> None:
    port = servers.free_port()
    ran = explain("user=7", "--store", f"redis://joe:{SECRET}@127.0.0.1:{port}")
    assert (ran.exit_code, ran.out) == (1, "")
    assert ran.err.startswith(f"limen: redis://127.0.0.1:{port}: ")
    assert ran.err.count("\n") == 1


def test_explain_shows_no_numbers_of_its_own_for_a_key_that_cannot_be_read(
    explain: Run, valkey: servers.Server
) -> None:
    url = f"redis://127.0.0.1:{valkey.port}"
    with Limiter(url, deadline=5.0) as limiter, redis.Redis(port=valkey.port) as client:
        client.flushall()
        Engine(load("rules.yaml"), limiter).decide({"ip": "7", "path": "/login"})
        for key in everything_in(client):
            client.delete(key)
            client.lpush(key.decode(), "poison")
        ran = explain("ip=7", "path=/login", "--store", url)
    assert (ran.exit_code, ran.out) == (1, "")
    assert ran.err.startswith("limen: the store did not answer")
    assert ran.err.endswith(f"; see `limen doctor {url}`\n")
    assert ran.err.count("\n") == 1


# --- as its own process


def process(code: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    plain = {name: value for name, value in os.environ.items() if name not in FORCING_COLOUR}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; {code}; from limen.cli import main; main()",
            *arguments,
        ],
        env={**plain, "PYTHONIOENCODING": more.pop("encoding", "utf-8")},
        capture_output=True,
        check=False,
        **more,
    )


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("pydantic", "rules need pydantic and PyYAML: pip install 'limen[cli,sql]'"),
        ("yaml", "rules need pydantic and PyYAML: pip install 'limen[cli,sql]'"),
        ("sqlalchemy", "rules in a database need the package sqlalchemy; run: pip install 'limen["),
    ],
)
def test_a_missing_extra_names_the_install_command(missing: str, said: str) -> None:
    ran = process(f"sys.modules[{missing!r}] = None", "rules", "history")
    assert ran.returncode in (1, 2)
    assert ran.stderr.decode().startswith(f"limen: {said}")
    assert ran.stderr.count(b"\n") == 1


def test_other_commands_need_no_packages_of_rules() -> None:
    gone = "sys.modules.update(dict.fromkeys(['yaml', 'sqlalchemy']))"
    assert process(gone, "rules", "--help").returncode == 0
    assert process(gone, "doctor", "memory://").returncode == 0


def test_what_a_terminal_cannot_show_is_written_out(tmp_path: Path) -> None:
    write(tmp_path, "rules: [{name: a, description: café, limits: 1/s, match: {path: /é}}]\n")
    place_of = ("--rules", "rules.yaml")
    shown = process("0", "rules", "show", *place_of, cwd=tmp_path, encoding="ascii")
    assert b"path is /\\xe9" in shown.stdout
    exported = process("0", "rules", "export", *place_of, cwd=tmp_path, encoding="ascii")
    assert "café" in exported.stdout.decode("utf-8")


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'from limen.cli import main; main()' rules schema | head -c 1"
    ran = subprocess.run(command, shell=True, capture_output=True, check=True)
    assert (ran.stdout, ran.stderr) == (b"{", b"")


def test_a_question_on_a_real_terminal(tmp_path: Path, file: str) -> None:
    primary, secondary = pty.openpty()
    command = [sys.executable, "-c", "from limen.cli import main; main()", "rules", "apply", file]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=secondary, stdout=secondary, stderr=secondary
    ) as running:
        os.close(secondary)
        os.write(primary, b"y\n")
        said = b""
        # The terminal ends with the process that used it last.
        while chunk := _read(primary):
            said += chunk
    os.close(primary)
    assert running.returncode == 0
    assert b"Let this hold from now on? [y/N]" in said
    assert b"version 1 is active now" in said


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0 s"),
        (0.25, "0.25 s"),
        (59.94, "59.9 s"),
        (60.0, "1 min"),
        (200.4, "3 min 20 s"),
        (3_600.0, "1 h"),
        (7_261.0, "2 h 1 min"),
        (187_200.0, "2 d 4 h"),
    ],
)
def test_durations_are_written_as_one_would_say_them(number: float, text: str) -> None:
    assert draw.seconds(number) == text
