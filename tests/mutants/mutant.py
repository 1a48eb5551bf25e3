"""`Mutant`: one small replacement in one file, and the tests that must notice it."""

from __future__ import annotations

from textwrap import dedent
from typing import NamedTuple


class Mutant(NamedTuple):
    """A mistake that could be made."""

    name: str
    """File and mistake: `fixed_window.lua:debt-uncapped`."""
    path: str
    """The file, from the root of the tree."""
    old: str
    """What stands there exactly once."""
    new: str
    """What stands there instead."""
    killers: str
    """What pytest is told to run: tests that pass, and of which one fails on the mutant."""

    def applied(self, text: str) -> str:
        """Return the file's text with the mistake in it."""
        found = text.count(self.old)
        assert found == 1, f"{self.name}: {self.old!r} is {found} times in {self.path}, not once"
        return text.replace(self.old, self.new)


def mutants_of(file: str, killers: str, mistakes: str) -> list[Mutant]:
    """Read the mutants of one file below `src/limen`.

    Each is a line with its name; then the lines that go and those that come, as in a diff, though
    they need not be whole; then, behind "by", its killers, where they are not those of the file.
    """
    short, path = file.rpartition("/")[2], f"src/limen/{file}"
    found: list[Mutant] = []
    for line in dedent(mistakes).strip().splitlines():
        mark, _, rest = line.partition(" ")
        if mark not in ("-", "+", "by"):
            found.append(Mutant(f"{short}:{line}", path, "", "", killers))
            continue
        mutant = found[-1]
        if mark == "-":
            found[-1] = mutant._replace(old=f"{mutant.old}\n{rest}" if mutant.old else rest)
        elif mark == "+":
            found[-1] = mutant._replace(new=f"{mutant.new}\n{rest}" if mutant.new else rest)
        else:
            found[-1] = mutant._replace(killers=rest)
    return found
