"""Running processes, reached over Redis: `limen rules instances`, and confirmations of changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import typer
from msgspec import Struct, structs

from limen.cli import options, output
from limen.cli.rules_source import with_store
from limen.connect import parse as parse_address
from limen.connect import target_of
from limen.errors import ConfigurationError, LimenError

if TYPE_CHECKING:
    from limen.rules.stores.sql import StoredRuleSet
    from limen.rules.sync import Instance, RuleCache
    from limen.server.settings import Settings

T = TypeVar("T")
_PATIENCE_S = 3.0
_POLL_S = 0.1
_MAX_NAMED = 5


class Confirmation(Struct, frozen=True):
    """The processes that have confirmed a change, and those that have not."""

    instances: list[Instance]
    missing: list[Instance]

    def __str__(self) -> str:
        total = len(self.instances)
        confirmed = f"{total - len(self.missing)} of {output.pluralize(total, 'process')}"
        text = f"{confirmed} confirmed it"
        if not self.missing:
            return text
        names = [f"{instance.host} pid {instance.pid}" for instance in self.missing[:_MAX_NAMED]]
        if len(self.missing) > _MAX_NAMED:
            names.append(f"{len(self.missing) - _MAX_NAMED} more")
        return f"{text}; not yet: {', '.join(names)}"


@options.with_settings("store", "namespace")
def list_instances(context: typer.Context, as_json: options.AsJson = False) -> None:
    """List the running processes and their versions of the rules.

    limen rules instances --store redis://localhost:6379
    """
    settings = options.settings_of(context)
    instances = with_cache(settings, lambda cache: cache.instances())
    if as_json:
        output.print_json([structs.asdict(instance) for instance in instances])
        return
    if not instances:
        output.print_line(none_visible(settings))
    headings = ("HOST", "PID", "VERSION", "TAKEN FROM", "SINCE (UTC)")
    output.print_table(headings, [_row(instance) for instance in instances])


def _row(instance: Instance) -> list[output.Cell]:
    since = output.format_time(instance.started_at)
    return [instance.host, str(instance.pid), instance.version or "none", instance.source, since]


def announce(stored: StoredRuleSet, settings: Settings) -> None:
    """Announce activated rules, and print the number of processes that have confirmed them.

    A store that does not answer is no failure: the processes find the rules in the database.
    """
    from limen.rules.stores import Snapshot

    if not stored.active or settings.shared_store is None:
        return
    where, version = settings.rules_place.get_secret_value(), str(stored.version)

    async def active_version() -> str:
        return await asyncio.to_thread(with_store, where, lambda database: database.version())

    async def publish(cache: RuleCache) -> Confirmation:
        await cache.publish(Snapshot(version, stored.document or {}), active_version)
        return await wait_for(cache, lambda instance: instance.version == version)

    try:
        confirmation = with_cache(settings, publish)
    except LimenError as error:
        output.print_error(
            f"limen: saved, and not announced ({error}); processes find it in the database"
        )
        return
    if confirmation.instances:
        output.print_line(str(confirmation))
    else:
        output.print_error(
            f"limen: {none_visible(settings)}; processes that use the same database find it there"
        )


async def wait_for(cache: RuleCache, has_confirmed: Callable[[Instance], bool]) -> Confirmation:
    """Wait until every process has confirmed a change, for 3 seconds at most."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        confirmation = await read_confirmation(cache, has_confirmed)
        if not confirmation.missing or time.monotonic() > end:
            return confirmation
        await asyncio.sleep(_POLL_S)


async def read_confirmation(
    cache: RuleCache, has_confirmed: Callable[[Instance], bool]
) -> Confirmation:
    """Return the processes that have confirmed a change by now."""
    instances = await cache.instances()
    missing = [instance for instance in instances if not has_confirmed(instance)]
    return Confirmation(instances, missing)


def none_visible(settings: Settings) -> str:
    """Return the message for a store without processes."""
    where = parse_address(settings.store.url.get_secret_value()).shown
    return f"no process is visible in namespace {settings.namespace} at {where}"


def with_cache(settings: Settings, work: Callable[[RuleCache], Awaitable[T]]) -> T:
    """Connect to the store, run `work`, and close the connection."""
    store = settings.shared_store
    if store is None:
        raise ConfigurationError(
            "processes are reached by way of Redis; use --store redis://host:6379"
        )
    # The client of Redis takes a while to import.
    from limen.rules.sync import RuleCache

    async def run() -> T:
        with closing(RuleCache(target_of(store, asynchronous=True), settings.namespace)) as cache:
            return await work(cache)

    return asyncio.run(run())
