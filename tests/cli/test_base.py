"""Two who edit the same rules: nobody undoes what the other has changed."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from limen.rules.stores.sql import SqlStore
from tests.cli.acts import (
    DATABASE,
    Ran,
    Run,
    edit,
    latest_version,
)


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
        "look at `limen rules diff 1 2`, and apply again with --base 2\n"
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
    assert limen("rules", "export").out == f"# limen: version 2 of {DATABASE}\nrules: []\n"


def exported(limen: Run, name: str, *, limit: str = "5/minute") -> str:
    """Export the active version to a file, and edit it."""
    path = Path(name)
    path.write_text(limen("rules", "export").out.replace("5/minute", limit))
    return name


def test_the_second_of_two_who_edit_an_exported_file_is_told(limen: Run, applied: str) -> None:
    ann = exported(limen, "ann.yaml", limit="6/minute")
    bob = exported(limen, "bob.yaml", limit="7/minute")
    assert limen("rules", "apply", ann).out.endswith("version 2 is active now\n")
    for more in ([], ["--dry-run"], ["--draft"]):
        assert limen("rules", "apply", bob, *more) == Ran(
            1,
            "",
            "limen: the rules are at version 2, and this edit was made from version 1; "
            "look at `limen rules diff 1 2`, and apply again with --base 2\n",
        )
    assert latest_version() == 2
    # Who has looked may go on.
    assert limen("rules", "apply", bob, "--base", "2").out.endswith("version 3 is active now\n")


def test_the_second_is_told_also_when_the_file_comes_by_standard_input(
    limen: Run, applied: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = limen("rules", "export").out.replace("5/minute", "6/minute")
    edit(tmp_path, "5/minute", "7/minute")
    limen("rules", "apply", applied)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    ran = limen("rules", "apply", "-")
    assert (ran.exit_code, ran.out) == (1, "")
    assert "this edit was made from version 1" in ran.err


def test_who_goes_on_with_the_same_file_is_in_nobodys_way(limen: Run, applied: str) -> None:
    """A file that was applied is what the new version says, and its first line says so."""
    file = Path(exported(limen, "ann.yaml", limit="6/minute"))
    for version, limit in enumerate(("6/minute", "7/minute", "8/minute"), 2):
        file.write_text(file.read_text().replace("6/minute", limit).replace("7/minute", limit))
        assert limen("rules", "apply", str(file), "--draft").exit_code == 0
        assert file.read_text().startswith(f"# limen: version {version} of {DATABASE}\nrules:\n")
    assert limen("rules", "apply", str(file)).out.endswith("version 4 is active now\n")


def test_a_dry_run_leaves_the_first_line_as_it_is(limen: Run, applied: str) -> None:
    file = exported(limen, "ann.yaml", limit="6/minute")
    before = Path(file).read_bytes()
    assert limen("rules", "apply", file, "--dry-run").exit_code == 0
    assert Path(file).read_bytes() == before


def test_a_file_that_holds_already_names_the_version_from_then_on(limen: Run, applied: str) -> None:
    ann, bob = (exported(limen, name, limit="6/minute") for name in ("ann.yaml", "bob.yaml"))
    limen("rules", "apply", ann)
    assert limen("rules", "apply", bob).out == (
        "bob.yaml: no change, version 2 is active already\n"
    )
    assert Path(bob).read_text() == Path(ann).read_text()


def test_a_first_line_that_cannot_be_written_is_told(
    limen: Run, applied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, data: bytes) -> int:
        raise PermissionError(13, "Permission denied")

    file = exported(limen, "ann.yaml", limit="6/minute")
    monkeypatch.setattr(Path, "write_bytes", fail)
    ran = limen("rules", "apply", file)
    assert ran.exit_code == 0
    assert ran.err == (
        "limen: saved, but ann.yaml still says version 1 (Permission denied); "
        "add --base 2 the next time\n"
    )


def test_a_version_of_another_database_is_no_base(limen: Run, applied: str, tmp_path: Path) -> None:
    file = exported(limen, "ann.yaml", limit="6/minute")
    other = ("--rules", "sqlite:///other.db")
    ran = limen("rules", "apply", file, *other)
    assert ran.exit_code == 0
    assert ran.err == (
        f"note: ann.yaml was exported from {DATABASE}, so its version 1 is nothing to start from "
        "here\n"
    )
    # The same place by another name is the same place.
    edit(tmp_path, "5/minute", "7/minute")
    limen("rules", "apply", applied)
    absolute = f"sqlite:///{tmp_path}/.limen/rules.db"
    assert "was made from version 1" in limen("rules", "apply", file, "--rules", absolute).err


def test_a_file_that_was_applied_elsewhere_keeps_its_first_line(limen: Run, applied: str) -> None:
    file = exported(limen, "ann.yaml", limit="6/minute")
    other = ("--rules", "sqlite:///other.db")
    limen("rules", "apply", applied, *other)
    assert limen("rules", "apply", file, *other).out.endswith("version 2 is active now\n")
    assert Path(file).read_text().startswith(f"# limen: version 1 of {DATABASE}\n")


def test_a_database_has_no_control_characters_in_its_name(limen: Run, file: str) -> None:
    ran = limen("rules", "apply", file, "--rules", "sqlite:///a\nrules: []\n.db")
    assert (ran.exit_code, ran.out) == (2, "")
    assert ran.err == "limen: --rules: expected one line of text\n"
