"""How Lua looks here: rules that a reader of the scripts can rely on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "limen"
SCRIPTS = sorted(SOURCE.rglob("*.lua"))
SHARED = {"prelude", "string_state", "driver", "rare"}
"""What has no twin in Python: what stands around the algorithms."""


def code(script: Path) -> str:
    """Return a script without its comments and strings."""
    text = re.sub(r"--[^\n]*", "", script.read_text())
    return re.sub(r'"(?:\\.|[^"\\])*"', '""', text)


every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def test_there_are_scripts() -> None:
    assert {"token_bucket", "packed_window", "driver"} <= {script.stem for script in SCRIPTS}


@every_script
def test_has_a_twin_in_python(script: Path) -> None:
    assert script.stem in SHARED or script.with_suffix(".py").exists()


@every_script
def test_says_first_what_it_is(script: Path) -> None:
    assert script.read_text().startswith("-- ")


@every_script
def test_commands_are_in_upper_case(script: Path) -> None:
    calls = re.findall(r"redis\.p?call\(([^,)]*)", script.read_text())
    assert all(re.fullmatch(r'"[A-Z]+"', command) for command in calls)


@every_script
def test_turns_no_number_into_text(script: Path) -> None:
    """`tostring` and `..` keep 14 digits; a time has 16."""
    assert "tostring" not in code(script)
    assert not re.search(r"_us\s*\.\.(?!\.)|(?<!\.)\.\.\s*[\w.]+_us", code(script))


@every_script
def test_functions_and_tables_are_local(script: Path) -> None:
    for line in code(script).splitlines():
        named = re.match(r"(?:function (\w+)\()|(?:(\w+) = )", line)
        assert named is None, f"{line!r} makes a global"
