"""Where rules live: a database or a file, opened for one command. Shows no password.

Databases are asked through asyncio, and this is the one place where a loop runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from msgspec import Struct

from limen.cli import draw, source
from limen.errors import ConfigurationError, InvalidRules, StoreError
from limen.rules import RuleSet, parse
from limen.rules.stores import address

if TYPE_CHECKING:
    from limen.rules.stores.sql import SqlStore, StoredRuleSet

T = TypeVar("T")

NO_RULES = "there are no rules yet; run `limen rules apply FILE`"


class Held(Struct, frozen=True):
    """One rule set, and where it was found."""

    label: str
    """What messages call it: `version 3`, `rules.yaml`."""
    document: dict[str, Any]
    where: str
    """The place without a password."""
    version: int | None = None
    """None for a file."""
    active: bool = False
    rules: RuleSet | None = None
    """The rules themselves, where reading has made them already."""


def is_file(where: str) -> bool:
    """Return whether a place is a file of rules, and not the address of a database."""
    return "://" not in where


def use(where: str, work: Callable[[SqlStore], Awaitable[T]], patience_s: float | None = None) -> T:
    """Let `work` use the database at a place, and close it.

    Raises `StoreError` if it takes longer than `patience_s`; None is the patience of the driver.
    """
    if is_file(where):
        raise ConfigurationError(
            "a file keeps no versions; use --rules 'sqlite:///rules.db' or "
            "'postgresql://user:password@host/database'"
        )
    from limen.rules.stores.faults import NotPrepared
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

    try:
        return asyncio.run(run())
    except NotPrepared as error:
        # Who calls `prepare()` writes programs; here it is `apply` that does.
        missing = str(error).partition("; ")[0]
        raise StoreError(
            f"{missing}; run `limen rules apply FILE`, or name another place by --rules"
        ) from None


def held(where: str, version: int | None = None) -> Held:
    """Return the active rules of a place, or another version of them. Raises `LimenError`."""
    if not is_file(where):
        return of_stored(use(where, lambda store: _find(store, version)), where)
    if version is not None:
        raise ConfigurationError(f"{where} is a file, and has no version {version}")
    return of_file(where)


def of_file(path: str) -> Held:
    """Return what a file, or stdin, says. Complains and ends the command if it is not valid."""
    rules = read_file(path).rules
    return Held(source.name_of(path), dict(rules.document), path, rules=rules)


def of_stored(stored: StoredRuleSet, where: str) -> Held:
    """Return what a database keeps as what a command shows."""
    label = f"version {stored.version}"
    shown = address.parse(where).shown
    return Held(label, stored.document or {}, shown, stored.version, stored.active)


def rules_of(found: Held) -> RuleSet:
    """Return the rules themselves. Complains and ends the command when they are not valid."""
    if found.rules is not None:
        return found.rules
    try:
        return parse(found.document, version=str(found.version or ""))
    except InvalidRules as error:
        raise refused(found.label, error) from None


def read_file(path: str) -> source.Source:
    """Return the rules in a file, or on stdin. Complains and ends the command if not valid."""
    try:
        return source.read(path)
    except InvalidRules as error:
        raise refused(source.name_of(path), error) from None


def refused(name: str, error: InvalidRules) -> typer.Exit:
    """Complain of all that is wrong with rules; return how the command ends."""
    for problem in error.problems:
        draw.complain(source.problem_line(name, problem))
    draw.complain(f"limen: {name} has {draw.counted(len(error.problems), 'error')}")
    return typer.Exit(1)


async def _find(store: SqlStore, version: int | None) -> StoredRuleSet:
    if version is not None:
        return await store.get(version)
    found = await store.active()
    if found is None:
        latest = await store.latest()
        if latest is None:
            raise StoreError(NO_RULES)
        # Once a version is active one always is: this was never.
        raise StoreError(
            f"no version is active; version {latest.version} is a draft: "
            f"run `limen rules activate {latest.version}`, or add --version {latest.version}"
        )
    return found
