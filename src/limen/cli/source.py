"""A file of rules, or stdin, as a command reads it: the rules, what they were made from, advice.

A file that `limen rules export` wrote says in its first line which version it is. An edit of it is
an edit of that version: by it, `apply` notices what somebody else changed meanwhile.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from msgspec import Struct

from limen.cli.misplaced import refuse_address
from limen.errors import ConfigurationError, InvalidRules, Problem
from limen.masking import masked
from limen.rules import RuleSet, parse, text
from limen.rules.advice import advice
from limen.rules.document import digest

STDIN = "-"
_ORIGIN = re.compile(r"^# limen: version ([0-9]{1,9}) of (\S.*?)\r?$", re.MULTILINE)
_FIRST_LINES = 5
_SHORT = 12


class Origin(Struct, frozen=True):
    """The version that a file was exported from."""

    version: int
    where: str
    """The database, without a password."""

    def __str__(self) -> str:
        return f"# limen: version {self.version} of {self.where}"


class Source(Struct, frozen=True):
    """What a file says."""

    rules: RuleSet
    origin: Origin | None
    """What it was made from, if it says so."""
    advice: list[Problem]
    """What is valid and hardly meant."""


def read(path: str) -> Source:
    """Return what a file, or stdin, says. Raises `InvalidRules`, `ConfigurationError`."""
    written = _text(path)
    found = text.read(written, is_json=path.endswith(".json"))
    version = digest(found.data)[:_SHORT]
    rules = parse(found.data, version=version, lines=found.line)
    return Source(rules, _origin(written), advice(rules, found.line))


def name_of(path: str) -> str:
    """Return what messages call a file."""
    return "stdin" if path == STDIN else masked(path)


def problem_line(name: str, problem: Problem, kind: str = "") -> str:
    """Write a problem as compilers do: `rules.yaml:12: rules[2].limits: ...`."""
    at = f"{name}:" if problem.line is None else f"{name}:{problem.line}:"
    where = f"{at} {problem.path}:" if problem.path else at
    return f"{where} {kind}{problem.message}"


def write(path: str, written: str, *, overwrite: bool) -> None:
    """Write a file. Raises `ConfigurationError` when it is there already, or cannot be written.

    What is no file, such as /dev/stdout, loses nothing when it is written to.
    """
    refuse_address(path)
    try:
        target = Path(path)
        overwrite = overwrite or (target.exists() and not target.is_file())
        with target.open("w" if overwrite else "x", encoding="utf-8", newline="\n") as file:
            file.write(written)
    except FileExistsError:
        raise ConfigurationError(f"{path} is there already; add --force to replace it") from None
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None


def move_on(path: str, origin: Origin | None, version: int) -> None:
    """Let the first line of a file name the version that it was saved as.

    So the next edit of it is an edit of that one. A file without such a line is left alone.
    """
    if origin is None or origin.version == version or path == STDIN:
        return
    file = Path(path)
    try:
        before = file.read_bytes()
        after = before.replace(str(origin).encode(), str(Origin(version, origin.where)).encode(), 1)
        file.write_bytes(after)
    except OSError as error:
        raise ConfigurationError(
            f"saved, but {path} still says version {origin.version} ({error.strerror}); "
            f"add --base {version} the next time"
        ) from None


def read_bytes(path: str) -> bytes:
    """Return what is in a file, or on stdin. Raises `ConfigurationError`."""
    if path == STDIN:
        if sys.stdin is None:
            raise ConfigurationError("standard input is closed; name a file")
        return sys.stdin.buffer.read()
    refuse_address(path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read the rules in {path}: {error.strerror}") from None


def _text(path: str) -> str:
    raw = read_bytes(path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidRules([Problem("", "this is not text in UTF-8", line)]) from None


def _origin(written: str) -> Origin | None:
    head = "\n".join(written.split("\n", _FIRST_LINES)[:_FIRST_LINES])
    found = _ORIGIN.search(head)
    return None if found is None else Origin(int(found[1]), found[2])
