from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from limen.cli import main
from tests.cli.acts import FORCING_COLOUR, RULES, SECRET, Ran, Run, write
from tests.postgres import ESCAPED_PASSWORD, PASSWORD


@pytest.fixture
def limen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    """Run the command in this process, in a folder of its own; no password may be printed."""
    settings = [name for name in os.environ if name.startswith("LIMEN_")]
    for name in (*FORCING_COLOUR, *settings):
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


@pytest.fixture
def explain(limen: Run, file: str) -> Run:
    """Ask about the rules in the file."""
    return lambda *arguments: limen("explain", "--rules", file, *arguments)
