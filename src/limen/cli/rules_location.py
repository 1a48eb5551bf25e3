"""The location of rules: a file, or a database that is opened for one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from msgspec import Struct

from limen.cli import output, rules_file
from limen.errors import ConfigurationError, InvalidRules, StoreError
from limen.rules import RuleSet, parse
from limen.rules.stores import address

if TYPE_CHECKING:
    from limen.rules.stores.sql import SqlStore, StoredRuleSet

T = TypeVar("T")

NO_RULES = "there are no rules yet; run `limen rules apply FILE`"


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
    """The rule set, if loading included parsing."""

    @property
    def title(self) -> str:
        """The label, and whether the version is active."""
        return f"{self.label} (active)" if self.active else self.label

    def rule_set(self) -> RuleSet:
        """Return the rule set. Print the errors and end the command if the rules are invalid."""
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
    return of_file(where)


def of_file(path: str) -> LoadedRules:
    """Return the rules in a file, or on stdin. Print the errors and end the command if invalid."""
    rules = read_file(path).rules
    return LoadedRules(rules_file.name_of(path), dict(rules.document), path, parsed=rules)


def of_stored(stored: StoredRuleSet, where: str) -> LoadedRules:
    """Return the rules of a version."""
    label = f"version {stored.version}"
    shown = address.parse(where).shown
    return LoadedRules(label, stored.document or {}, shown, stored.version, stored.active)


def read_file(path: str) -> rules_file.RulesFile:
    """Return the contents of a file, or of stdin. Print errors, and end the command if invalid."""
    try:
        return rules_file.read(path)
    except InvalidRules as error:
        raise _invalid(rules_file.name_of(path), error) from None


def _invalid(name: str, error: InvalidRules) -> typer.Exit:
    """Print all errors of rules, and return the end of the command."""
    for problem in error.problems:
        output.print_error(rules_file.problem_line(name, problem))
    output.print_error(f"limen: {name} has {output.pluralize(len(error.problems), 'error')}")
    return typer.Exit(1)


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
