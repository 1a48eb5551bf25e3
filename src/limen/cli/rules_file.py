"""Files of rules, and stdin: reading, writing, and the version that a file was exported from.

The first line of a file that `limen rules export` wrote names the version. An edit of the file is
an edit of that version, so `apply` can detect changes that somebody else made since.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from msgspec import Struct

from limen.cli.arguments import refuse_address
from limen.cli.output import print_error
from limen.errors import ConfigurationError, Problem
from limen.masking import masked
from limen.rules import RuleSet, document, parse, text
from limen.rules.advice import advice

STDIN = "-"
_ORIGIN = re.compile(r"^# limen: version ([0-9]{1,9}) of (\S.*?)\r?$", re.MULTILINE)
_FIRST_LINES = 5
_SHORT = 12


class ExportedFrom(Struct, frozen=True):
    """The version that a file was exported from."""

    version: int
    where: str
    """The database, without a password."""

    def __str__(self) -> str:
        return f"# limen: version {self.version} of {self.where}"


class RulesFile(Struct, frozen=True):
    """The contents of a file."""

    rules: RuleSet
    origin: ExportedFrom | None
    """None if the file names no version."""
    advice: list[Problem]
    """Valid rules that are probably mistakes."""


def read(path: str) -> RulesFile:
    """Return the contents of a file, or of stdin. Raises `InvalidRules`, `ConfigurationError`."""
    written = document.decode(read_bytes(path))
    source = text.read(written, is_json=path.endswith(".json"))
    version = document.digest(source.data)[:_SHORT]
    rules = parse(source.data, version=version, lines=source.line)
    return RulesFile(rules, _origin(written), advice(rules, source.line))


def name_of(path: str) -> str:
    """Return the name of a file in messages."""
    return "stdin" if path == STDIN else masked(path)


def problem_line(name: str, problem: Problem, kind: str = "") -> str:
    """Return a problem as compilers write it: `rules.yaml:12: rules[2].limits: ...`."""
    at = f"{name}:" if problem.line is None else f"{name}:{problem.line}:"
    where = f"{at} {problem.path}:" if problem.path else at
    return f"{where} {kind}{problem.message}"


def write(path: str, written: str, *, overwrite: bool) -> None:
    """Write a file. Raises `ConfigurationError` if it exists or cannot be written.

    Devices such as /dev/stdout are always written to.
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


def update_origin(path: str, origin: ExportedFrom | None, version: int) -> None:
    """Write the saved version into the first line of a file, for the next edit.

    A file without such a line is not changed. Print a line on stderr if it cannot be written.
    """
    if origin is None or origin.version == version or path == STDIN:
        return
    file = Path(path)
    updated = ExportedFrom(version, origin.where)
    try:
        before = file.read_bytes()
        file.write_bytes(before.replace(str(origin).encode(), str(updated).encode(), 1))
    except OSError as error:
        print_error(
            f"limen: saved, but {path} still says version {origin.version} ({error.strerror}); "
            f"add --base {version} the next time"
        )


def read_bytes(path: str) -> bytes:
    """Return the contents of a file, or of stdin. Raises `ConfigurationError`."""
    if path == STDIN:
        if sys.stdin is None:
            raise ConfigurationError("standard input is closed; name a file")
        return sys.stdin.buffer.read()
    refuse_address(path)
    return document.read_file(Path(path))


def _origin(written: str) -> ExportedFrom | None:
    head = "\n".join(written.split("\n", _FIRST_LINES)[:_FIRST_LINES])
    match = _ORIGIN.search(head)
    return None if match is None else ExportedFrom(int(match[1]), match[2])
