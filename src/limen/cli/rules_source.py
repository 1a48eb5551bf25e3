"""The sources of rules: a file, stdin, or a database that is opened for one command.

The first line of a file that `limen rules export` wrote names the version. An edit of the file is
an edit of that version, so `apply` can detect changes that somebody else made since.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from msgspec import Struct

from limen.cli import options, output
from limen.errors import ConfigurationError, InvalidRules, Problem, StoreError
from limen.masking import masked

if TYPE_CHECKING:
    from limen.rules import RuleSet
    from limen.rules.stores.sql import SqlStore, StoredRuleSet

T = TypeVar("T")

STDIN = "-"
NO_RULES = "there are no rules yet; run `limen rules apply FILE`"
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


class LoadedRules(Struct, frozen=True):
    """Rules, and the place they were loaded from."""

    label: str
    """The name in messages: `version 3`, `rules.yaml`."""
    document: dict[str, Any]
    where: str
    """The location without a password."""
    version: int | None = None
    """None for a file."""
    active: bool = False
    parsed: RuleSet | None = None
    """The rule set of a file."""
    warnings: list[Problem] = []
    """Valid rules in a file that are probably mistakes."""
    origin: ExportedFrom | None = None
    """None if the file names no version."""

    @property
    def title(self) -> str:
        """The label, and whether the version is active."""
        return f"{self.label} (active)" if self.active else self.label

    def rule_set(self) -> RuleSet:
        """Return the rule set. Print the errors and end the command if the rules are invalid."""
        from limen.rules import parse

        if self.parsed is not None:
            return self.parsed
        try:
            return parse(self.document, version=str(self.version or ""))
        except InvalidRules as error:
            raise _invalid(self.label, error) from None


def is_file(where: str) -> bool:
    """Return whether a location is a file of rules, and not the address of a database."""
    return "://" not in where


def with_store(
    where: str, work: Callable[[SqlStore], Awaitable[T]], patience_s: float | None = None
) -> T:
    """Open the database at a location, run `work`, and close the database.

    Raises `StoreError` if it takes longer than `patience_s`; None is the timeout of the driver.
    """
    if is_file(where):
        raise ConfigurationError(
            "a file keeps no versions; use --rules 'sqlite:///rules.db' or "
            "'postgresql://user:password@host/database'"
        )
    from limen.rules.stores import address
    from limen.rules.stores.sql import SqlStore

    async def run() -> T:
        store = SqlStore(where) if patience_s is None else SqlStore(where, busy_timeout=patience_s)
        try:
            async with asyncio.timeout(patience_s):
                return await work(store)
        except TimeoutError:
            shown = address.parse(where).shown
            raise StoreError(f"rules at {shown}: no answer within {patience_s:g} s") from None
        finally:
            await store.close()

    return asyncio.run(run())


def load_rules(where: str, version: int | None = None) -> LoadedRules:
    """Return the active rules of a location, or another version of them. Raises `LimenError`."""
    if not is_file(where):
        return of_stored(with_store(where, lambda store: _get(store, version)), where)
    if version is not None:
        raise ConfigurationError(f"{where} is a file, and has no version {version}")
    return load_file(where)


def of_stored(stored: StoredRuleSet, where: str) -> LoadedRules:
    """Return the rules of a version."""
    from limen.rules.stores import address

    label = f"version {stored.version}"
    shown = address.parse(where).shown
    return LoadedRules(label, stored.document or {}, shown, stored.version, stored.active)


async def _get(store: SqlStore, version: int | None) -> StoredRuleSet:
    if version is not None:
        return await store.get(version)
    active = await store.active()
    if active is not None:
        return active
    latest = await store.latest()
    if latest is None:
        raise StoreError(NO_RULES)
    # There is always an active version after the first activation.
    raise StoreError(
        f"no version is active; version {latest.version} is a draft: "
        f"run `limen rules activate {latest.version}`, or add --version {latest.version}"
    )


def load_file(path: str) -> LoadedRules:
    """Return the rules in a file, or on stdin. Print errors, and end the command if invalid."""
    try:
        return read_file(path)
    except InvalidRules as error:
        raise _invalid(name_of(path), error) from None


def read_file(path: str) -> LoadedRules:
    """Return the rules in a file, or on stdin. Raises `InvalidRules`, `ConfigurationError`."""
    from limen.rules import document, parse, text
    from limen.rules.advice import advice

    written = document.decode(read_bytes(path))
    source = text.read(written, is_json=path.endswith(".json"))
    version = document.digest(source.data)[:_SHORT]
    rules = parse(source.data, version=version, lines=source.line)
    first_lines = "\n".join(written.split("\n", _FIRST_LINES)[:_FIRST_LINES])
    match = _ORIGIN.search(first_lines)
    return LoadedRules(
        name_of(path),
        dict(rules.document),
        path,
        parsed=rules,
        warnings=advice(rules, source.line),
        origin=None if match is None else ExportedFrom(int(match[1]), match[2]),
    )


def read_bytes(path: str) -> bytes:
    """Return the contents of a file, or of stdin. Raises `ConfigurationError`."""
    from limen.rules import document

    if path == STDIN:
        if sys.stdin is None:
            raise ConfigurationError("standard input is closed; name a file")
        return sys.stdin.buffer.read()
    options.refuse_address(path)
    return document.read_file(Path(path))


def _invalid(name: str, error: InvalidRules) -> typer.Exit:
    """Print all errors of rules, and return the end of the command."""
    for problem in error.problems:
        output.print_error(problem_line(name, problem))
    output.print_error(f"limen: {name} has {output.pluralize(len(error.problems), 'error')}")
    return typer.Exit(1)


def name_of(path: str) -> str:
    """Return the name of a file in messages."""
    return "stdin" if path == STDIN else masked(path)


def problem_line(name: str, problem: Problem, kind: str = "") -> str:
    """Return a problem as compilers write it: `rules.yaml:12: rules[2].limits: ...`."""
    at = f"{name}:" if problem.line is None else f"{name}:{problem.line}:"
    where = f"{at} {problem.path}:" if problem.path else at
    return f"{where} {kind}{problem.message}"


def print_warnings(name: str, warnings: Iterable[Problem]) -> None:
    """Print warnings about valid rules that are probably mistakes."""
    for warning in warnings:
        output.print_error(problem_line(name, warning, "warning: "))


def write_file(path: str, written: str, *, overwrite: bool) -> None:
    """Write a file. Raises `ConfigurationError` if it exists or cannot be written.

    Devices such as /dev/stdout are always written to.
    """
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
        output.print_error(
            f"limen: saved, but {path} still says version {origin.version} ({error.strerror}); "
            f"add --base {version} the next time"
        )
