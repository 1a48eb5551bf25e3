"""`limen rules history` and `limen rules audit`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from tests.cli.acts import (
    Run,
    edit,
)


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
