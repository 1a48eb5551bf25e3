"""The command line: `python -m tests.mutants`, from the root of the repository.

Owns the copies that mutants are made in, and what counts as killed. The tree itself is only read.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

from tests.mutants.list import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
_COPIED = ("src", "tests", "pyproject.toml")
_PYTEST = (
    *("-m", "pytest", "-x", "-q", "--timeout=60", "-p", "no:cacheprovider"),
    *("-p", "tests.mutants.unshrunk", "--hypothesis-profile=unshrunk"),
)
_LONGEST_S = 300.0
_TESTS_FAILED = 1

Item = TypeVar("Item")
Result = TypeVar("Result")


class Run(NamedTuple):
    """How a run of pytest ended."""

    status: int
    """pytest's own; -1 when it had to be ended."""
    said: str
    seconds: float

    @property
    def failed(self) -> str:
        """The first test that failed; "" when it was something else, such as a collection."""
        found = re.search(r"^FAILED (.*?)(?: - .*)?$", self.said, re.MULTILINE)
        return found[1] if found and self.status == _TESTS_FAILED else ""

    @property
    def reason(self) -> str:
        """The last line that was said."""
        return (self.said.strip().splitlines() or ["nothing was said"])[-1]


class Tree:
    """A copy of what the tests need, in which one mutant lives at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / name)
        # Installed is the tree itself: the copy has to come first. Bytecode is told from its source
        # by the second and the size, which two mutants may share.
        outer = {name: value for name, value in os.environ.items() if not _is_about_tests(name)}
        paths = f"{folder / 'src'}{os.pathsep}{folder}"
        self._environ = {**outer, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        imported = self._python("-c", "import limen, tests; print(limen.__file__, tests.__file__)")
        expected = f"{folder / 'src/limen/__init__.py'} {folder / 'tests/__init__.py'}"
        assert imported.said.strip() == expected, f"not the copy: {imported.said}"

    def run(self, selection: str) -> Run:
        """Run the tests that are selected, up to the first that fails."""
        return self._python(*_PYTEST, *shlex.split(selection))

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Make the mutant, and mend it at the end."""
        path = self._folder / mutant.path
        original = path.read_text("utf-8")
        path.write_text(mutant.applied(original), "utf-8")
        try:
            yield
        finally:
            path.write_text(original, "utf-8")

    def _python(self, *arguments: str) -> Run:
        began = time.monotonic()
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=_LONGEST_S)
            except BaseException as error:
                # With the servers that its tests have started.
                os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                said, _ = process.communicate()
                return Run(-1, f"{said}\nstill running after {_LONGEST_S:.0f} s", _LONGEST_S)
        return Run(process.returncode, said, time.monotonic() - began)


class Trees:
    """As many copies as there are jobs."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._jobs = len(folders)
        self._free: SimpleQueue[Tree] = SimpleQueue()
        for folder in folders:
            self._free.put(Tree(folder))

    def over(self, function: Callable[[Tree, Item], Result], items: Iterable[Item]) -> list[Result]:
        """Call the function for each item, in a copy that nobody else uses at the time."""

        def call(item: Item) -> Result:
            tree = self._free.get()
            try:
                return function(tree, item)
            finally:
                self._free.put(tree)

        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                return list(pool.map(call, items))
            finally:
                pool.shutdown(cancel_futures=True)


def main(arguments: Sequence[str] | None = None, mutants: Sequence[Mutant] = MUTANTS) -> int:
    """Make the code that decides wrong, one place at a time, and see that a test notices."""
    options = _options(arguments)
    chosen = [each for each in mutants if _is_named(each, options.names)]
    if not chosen:
        _say("no mutant has such a name; --list shows all of them")
        return 2
    if options.list:
        for mutant in chosen:
            _say(f"{mutant.name}\n  - {mutant.old!r}\n  + {mutant.new!r}\n  by {mutant.killers}")
        return 0
    began = time.monotonic()
    with ExitStack() as stack:
        folders = [TemporaryDirectory(prefix="limen-mutants-") for _ in range(options.jobs)]
        trees = Trees([Path(stack.enter_context(folder)).resolve() for folder in folders])
        if not _are_green(trees, {each.killers for each in chosen}):
            return 2
        lived = [each for each in trees.over(_hunt, chosen) if each is not None]
    for mutant in lived:
        _say(f"not killed: {mutant.name}")
    killed, seconds = len(chosen) - len(lived), time.monotonic() - began
    _say(f"{killed} of {len(chosen)} killed", seconds)
    return 1 if lived else 0


def _are_green(trees: Trees, selections: Iterable[str]) -> bool:
    """Return whether all pass on the code as it is: else, that one fails says nothing."""

    def passes(tree: Tree, selection: str) -> bool:
        ran = tree.run(selection)
        if ran.status:
            _say(f"fails already without a mutant: {selection}\n{ran.said}", ran.seconds)
        return not ran.status

    began = time.monotonic()
    asked = sorted(selections)
    _say(f"first without a mutant: {len(asked)} selections of tests")
    passed = sum(trees.over(passes, asked))
    _say(f"{passed} of {len(asked)} pass", time.monotonic() - began)
    return passed == len(asked)


def _hunt(tree: Tree, mutant: Mutant) -> Mutant | None:
    """Run the tests on a mutant; return it unless one of them fails."""
    with tree.mutated(mutant):
        ran = tree.run(mutant.killers)
    if ran.failed:
        _say(f"killed   {mutant.name} by {ran.failed}", ran.seconds)
        return None
    if not ran.status:
        _say(f"SURVIVED {mutant.name}: {mutant.killers}", ran.seconds)
    else:
        # It was not a test that failed: it cannot even be imported, or it hangs.
        _say(f"INVALID  {mutant.name}: {ran.reason}\n{ran.said}", ran.seconds)
    return mutant


def _is_about_tests(name: str) -> bool:
    """Return whether a variable of the environment would change how tests run."""
    return name.startswith(("PYTEST_", "LIMEN_", "COV_", "PYTHONPATH"))


def _is_named(mutant: Mutant, names: Sequence[str]) -> bool:
    return not names or any(name in mutant.name for name in names)


def _say(text: str, seconds: float | None = None) -> None:
    took = "" if seconds is None else f" ({seconds:.1f} s)"
    sys.stdout.write(f"{text}{took}\n")
    sys.stdout.flush()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=main.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            "A mutant is killed when one of its tests fails: not when it cannot be imported, nor\n"
            "when it hangs. First the same tests are run on the code as it is, and must pass.\n"
            "The status is 0 when all are killed, 1 when one is not, 2 when nobody can tell.\n\n"
            "examples:\n"
            "  python -m tests.mutants                      all of them\n"
            "  python -m tests.mutants --list               what they are, and who must notice\n"
            "  python -m tests.mutants token_bucket.lua     those of one file\n"
            "  python -m tests.mutants rare.lua:marker      those whose name has this in it"
        ),
    )
    parser.add_argument("names", nargs="*", help="a part of a name; all mutants if there is none")
    parser.add_argument("--list", action="store_true", help="show the mutants, and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="how many at the same time (2)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
