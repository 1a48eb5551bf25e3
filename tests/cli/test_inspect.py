"""`limen rules` that reads: validate, diff, show, export, schema; and where rules are."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from limen.rules import load
from tests.cli.acts import (
    BAD,
    DATABASE,
    RULES,
    Ran,
    Run,
    edit,
    write,
)


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


ODD = """\
rules:
  - name: search
    match: {path: ^/search/.*$, client: 10.0.0.0/8}
    limits: 10/s
    cost: 50
"""


def test_validate_warns_of_what_is_valid_and_hardly_meant(limen: Run, tmp_path: Path) -> None:
    ran = limen("rules", "validate", write(tmp_path, ODD))
    assert (ran.exit_code, ran.out) == (0, "rules.yaml: 1 rule, valid\n")
    assert ran.err.splitlines() == [
        "rules.yaml:3: rules[0].match.path: warning: '^/search/.*$' looks like a regular "
        "expression, and there are none: only * is special, for any characters",
        "rules.yaml:3: rules[0].match.client: warning: '10.0.0.0/8' is compared as text: "
        "networks are for the attribute 'ip'",
        "rules.yaml:5: rules[0].cost: warning: 50 never fits: '10/second' holds 10 at most",
    ]
    [report] = json.loads(limen("rules", "validate", "rules.yaml", "--json").out)
    assert (report["valid"], len(report["warnings"]), report["warnings"][2]["line"]) == (True, 3, 5)
    assert limen("rules", "apply", "rules.yaml").err == ran.err


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


def test_export_names_the_version_and_the_place_in_its_first_line(limen: Run, applied: str) -> None:
    text = limen("rules", "export").out
    assert text.startswith(f"# limen: version 1 of {DATABASE}\nrules:\n")
    assert limen("rules", "export", "--rules", applied).out.startswith("rules:\n")
    assert json.loads(limen("rules", "export", "--json").out)["rules"]


def test_export_replaces_a_file_by_force_only(limen: Run, applied: str) -> None:
    ran = limen("rules", "export", "-o", applied)
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err == "limen: rules.yaml is there already; add --force to replace it\n"
    assert Path(applied).read_text() == RULES
    assert limen("rules", "export", "-o", applied, "--force").exit_code == 0
    assert Path(applied).read_text() == limen("rules", "export").out


def test_what_is_no_file_is_written_to_without_force(limen: Run, applied: str) -> None:
    assert limen("rules", "export", "-o", "/dev/null").exit_code == 0
    assert limen("rules", "export", "-o", ".").err == "limen: cannot write .: Is a directory\n"


def test_schema_is_json(limen: Run) -> None:
    assert "rules" in json.loads(limen("rules", "schema").out)["properties"]


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
