"""The mutants still fit the code, and the runner tells the dead from the living."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from limen.backends.redis import script
from tests import servers
from tests.mutants.__main__ import ROOT, main
from tests.mutants.list import MUTANTS
from tests.mutants.mutant import Mutant

HARMLESS = Mutant(
    "plan.py:another-word",
    "src/limen/limiter/plan.py",
    "Call the observers with a decision.",
    "Call each observer with a decision.",
    "tests/limiter/test_limiter.py -k binding",
)
BROKEN = HARMLESS._replace(name="plan.py:no-python", new='"""')

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
each_in_lua = pytest.mark.parametrize(
    "mutant", [each for each in MUTANTS if each.path.endswith(".lua")], ids=lambda each: each.name
)


def test_there_are_enough_and_each_has_a_name() -> None:
    assert len(MUTANTS) >= 30
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@each_mutant
def test_still_applies_and_its_tests_exist(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text("utf-8")
    changed = mutant.applied(text)
    assert changed != text
    if mutant.path.endswith(".py"):
        compile(changed, mutant.path, "exec")
    files = [each for each in mutant.killers.split() if each.startswith("tests/")]
    assert files
    assert all((ROOT / file).is_file() for file in files)


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    with servers.server(servers.binaries()["valkey"]) as port, redis.Redis(port=port) as client:
        yield client


@each_in_lua
def test_in_lua_is_still_a_script(
    mutant: Mutant, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every test would fail, and say nothing."""
    intact, read = script.text(), script._lua

    def read_mutated(package: str, name: str) -> str:
        text = read(package, name)
        is_mutated = Path(mutant.path).stem == name
        return mutant.applied(text) if is_mutated else text

    monkeypatch.setattr(script, "_lua", read_mutated)
    built: Any = script.text
    assert client.script_load(built.__wrapped__()) != client.script_load(intact)


def test_some_are_killed(capsys: pytest.CaptureFixture[str]) -> None:
    some = ["rare.lua:asking-after", "guarded.py:closed-shadow"]
    assert main(some) == 0
    said = capsys.readouterr().out
    assert "2 of 2 pass" in said
    assert said.count("killed   ") == 2
    assert "2 of 2 killed" in said


@pytest.mark.slow
def test_who_lives_or_is_no_program_is_not_killed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], (HARMLESS, BROKEN)) == 1
    said = capsys.readouterr().out
    assert f"SURVIVED {HARMLESS.name}" in said
    assert f"INVALID  {BROKEN.name}" in said
    assert "0 of 2 killed" in said


@pytest.mark.slow
def test_tests_that_fail_anyway_kill_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    unheard = HARMLESS._replace(killers="tests/limiter/test_limiter.py -k no_such_test")
    assert main(["--jobs=1"], (unheard,)) == 2
    said = capsys.readouterr().out
    assert "fails already without a mutant" in said
    assert "killed" not in said


def test_the_list_shows_what_is_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "plan.py:"], (HARMLESS,)) == 0
    said = capsys.readouterr().out
    assert all(each in said for each in HARMLESS if each != HARMLESS.path)
    assert main(["no such mutant"]) == 2
