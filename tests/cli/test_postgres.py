"""The commands about rules on a real PostgreSQL."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from limen.cli import kill_switch
from tests.cli.acts import (
    Run,
    edit,
)
from tests.postgres import ESCAPED_PASSWORD, Postgres


def test_the_rights_that_the_documentation_names_are_enough(
    limen: Run, postgres: Postgres, file: str, tmp_path: Path
) -> None:
    owner = postgres.create_database("rights")
    limen("rules", "apply", file, "--rules", owner)
    page = Path(__file__).parents[2] / "docs" / "command-line.md"
    _, begin, rest = page.read_text().partition("```sql\n")
    assert begin
    postgres.execute(rest.partition("```")[0], "rights")
    reader, writer = (
        owner.replace(f"limen:{ESCAPED_PASSWORD}", f"{user}:change-me")
        for user in ("limen_reader", "limen_writer")
    )
    for command in ("show", "history", "audit", "diff 1", "explain"):
        words = ["explain", "user=7"] if command == "explain" else ["rules", *command.split()]
        assert limen(*words, "--rules", reader).exit_code == 0
    edit(tmp_path, "5/minute", "6/minute")
    refused = limen("rules", "apply", file, "--rules", reader)
    assert refused.exit_code == 1
    assert "this user lacks the right" in refused.err
    for command in (f"apply {file}", "rollback 1", "activate 2", "audit"):
        assert limen("rules", *command.split(), "--rules", writer).exit_code == 0
    made = limen("token", "create", "--role", "check", "--name", "ci", "--rules", writer)
    assert made.exit_code == 0
    secret = made.out.strip()
    assert limen("token", "revoke", secret, "--rules", writer).exit_code == 0
    assert secret[6:14] in limen("token", "list", "--rules", reader).out
    refused = limen("token", "revoke", secret, "--rules", reader)
    assert "this user lacks the right" in refused.err


def test_two_who_log_in_by_different_names_edit_the_same_rules(
    limen: Run, postgres: Postgres, file: str
) -> None:
    url = postgres.create_database("together")
    limen("rules", "apply", file, "--rules", url)
    text = limen("rules", "export", "--rules", url).out
    assert text.startswith(
        f"# limen: version 1 of postgresql://limen:***@127.0.0.1:{postgres.port}/"
    )
    for name, limit in (("ann.yaml", "6/minute"), ("bob.yaml", "7/minute")):
        edited = text.replace("5/minute", limit).replace("limen:***@", f"{name[:3]}:***@")
        Path(name).write_text(edited)
    assert limen("rules", "apply", "ann.yaml", "--rules", url).exit_code == 0
    ran = limen("rules", "apply", "bob.yaml", "--rules", url)
    assert ran.exit_code == 1
    assert "the rules are at version 2, and this edit was made from version 1" in ran.err


def test_what_postgresql_does_not_know_or_has_lost_is_told(
    limen: Run, postgres: Postgres, file: str
) -> None:
    url = postgres.create_database("faults")
    ran = limen("rules", "show", "--rules", f"{url}?connect_timeout=1")
    assert (ran.exit_code, ran.out) == (1, "")
    assert ran.err.endswith('parameter "connect_timeout"; take that option out of the address\n')
    limen("rules", "apply", file, "--rules", url)
    postgres.execute("DROP TABLE limen_state", "faults")
    ran = limen("rules", "show", "--rules", url)
    assert ran.err.endswith("/faults: the tables are damaged: restore a backup\n")


def test_the_life_of_rules_on_postgresql(
    limen: Run, postgres: Postgres, file: str, tmp_path: Path
) -> None:
    where = ("--rules", postgres.create_database("limen"))
    assert limen("rules", "show", *where).err.endswith(
        "there are no tables of limen yet; run `limen rules apply FILE` (in a program: "
        "`prepare()`), or name another place\n"
    )
    assert limen("rules", "apply", file, "--dry-run", *where).exit_code == 0
    assert limen("rules", "apply", file, *where).out.endswith("version 1 is active now\n")
    edit(tmp_path, "5/minute", "6/minute")
    limen("rules", "apply", file, *where)
    assert "\nversion 3 is active now" in limen("rules", "rollback", "1", *where).out
    assert limen("rules", "diff", file, *where).out == (
        "version 3 (active) -> rules.yaml: +0 ~1 -0\n~ rules.login.limits: 5/minute -> 6/minute\n"
    )
    assert len(limen("rules", "history", *where).out.splitlines()) == 4
    assert limen("rules", "audit", *where).out.endswith("the chain of their hashes holds\n")
    title = limen("explain", "path=/login", "ip=1.2.3.4", *where).out.splitlines()[0]
    assert title.startswith("rules  postgresql://limen:***@127.0.0.1:")
    assert title.endswith("/limen, version 3: 2 of 6 apply")


def test_a_frozen_database_does_not_delay_the_kill_switch(
    limen: Run, postgres: Postgres, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMEN_RULES", postgres.create_database("frozen"))
    assert limen("rules", "apply", file).exit_code == 0
    monkeypatch.setattr(kill_switch, "_DATABASE_PATIENCE_S", 0.5)
    postgres.pause()
    try:
        began = time.monotonic()
        ran = limen("kill-switch", "on", "login")
        took = time.monotonic() - began
    finally:
        postgres.resume()
    assert ran.exit_code == 0
    assert ran.out.startswith("the kill switch is on for login")
    assert ran.err.count("no answer within 0.5 s") == 2
    assert took < 20
