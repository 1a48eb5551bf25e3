"""The commands that reach running processes: news of rules, who runs which, the kill switch."""

from __future__ import annotations

import asyncio
import getpass
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, structs

from limen.cli import draw
from limen.connect import is_shared, target_of
from limen.errors import ConfigurationError, LimenError
from limen.rules.stores import Snapshot
from limen.rules.sync import Instance, RuleCache, Switch, SwitchFile
from limen.rules.sync.switch import decode, turned_off, turned_on

if TYPE_CHECKING:
    from limen.rules.stores.sql import StoredRuleSet
    from limen.server.settings import Settings

T = TypeVar("T")
_PATIENCE_S = 3.0
_LOOK_S = 0.1
_MAX_NAMED = 5
_CLOCK_S = 0.0005
"""The time of a file is a little coarser than that of a switch."""


class _Confirmed(Struct, frozen=True):
    """Which processes have confirmed a change by themselves."""

    instances: list[Instance]
    missing: list[Instance]

    def __str__(self) -> str:
        total = len(self.instances)
        processes = "process" if total == 1 else "processes"
        text = f"{total - len(self.missing)} of {total} {processes} confirmed it"
        if not self.missing:
            return text
        names = [f"{one.host} pid {one.pid}" for one in self.missing[:_MAX_NAMED]]
        if len(self.missing) > _MAX_NAMED:
            names.append(f"{len(self.missing) - _MAX_NAMED} more")
        return f"{text}; not yet: {', '.join(names)}"


def tell(stored: StoredRuleSet, store: str, namespace: str) -> None:
    """Announce rules that were saved, and print how many processes have confirmed them.

    Not to reach them is no failure: they find the rules in the database by themselves.
    """
    if not stored.active:
        return
    version = str(stored.version)

    async def work(cache: RuleCache) -> _Confirmed:
        snapshot = Snapshot(version, stored.document or {})
        if not await cache.write(snapshot):
            # An old version that holds again: it takes the place of a newer one on purpose.
            await cache.write(snapshot, seen=(await cache.look()).version)
        return await _wait_for(cache, lambda one: one.version == version)

    try:
        confirmed = _use(store, namespace, work)
    except LimenError as error:
        draw.complain(
            f"limen: saved, and not announced ({error}); processes find it in the database"
        )
        return
    if confirmed.instances:
        draw.line(str(confirmed))
    else:
        draw.complain(
            f"limen: {_none_visible(store, namespace)}; processes that use the same database "
            "find it there"
        )


def instances(settings: Settings, as_json: bool) -> None:
    """List the processes that enforce rules."""
    store, namespace = settings.store.url.reveal(), settings.namespace
    found = _use(store, namespace, lambda cache: cache.instances())
    if as_json:
        draw.json([structs.asdict(one) for one in found])
        return
    if not found:
        draw.line(_none_visible(store, namespace))
        return
    headings = ("HOST", "PID", "VERSION", "TAKEN FROM", "SINCE (UTC)")
    draw.table(headings, [_row(one) for one in found])


def shared_document(store: str, namespace: str) -> dict[str, Any]:
    """Return the rules that the processes share by way of the store. Raises `LimenError`."""

    async def work(cache: RuleCache) -> dict[str, Any]:
        entry, _ = await cache.read()
        return entry.document

    return _use(store, namespace, work)


def show_switch(settings: Settings) -> int:
    """Print the kill switch, and which processes follow it; return the exit code."""
    switch = SwitchFile(settings.data_dir).read()
    store, namespace = settings.shared_store, settings.namespace
    if store is None:
        draw.line(f"the kill switch is {_told(switch)}")
        return 0

    async def work(cache: RuleCache) -> tuple[Switch, _Confirmed]:
        shared = decode((await cache.look()).switch)
        newest = shared if shared is not None and shared.at > switch.at else switch
        return newest, _split(await cache.instances(), lambda one: _follows(one, newest))

    try:
        newest, confirmed = _use(store, namespace, work)
    except LimenError as error:
        draw.line(f"the kill switch is {_told(switch)}")
        draw.complain(f"limen: other hosts were not reached: {error}")
        return 1
    draw.line(f"the kill switch is {_told(newest)}")
    draw.line(str(confirmed) if confirmed.instances else _none_visible(store, namespace))
    return 0


def turn(settings: Settings, switch: Switch) -> int:
    """Turn the kill switch of this host, and of every host that shares the store.

    Returns the exit code: 0 if every process that shares the store has confirmed it. Without a
    shared store nobody can confirm it, and 0 means that the file was written.
    """
    exit_code = _write_file(settings.data_dir, switch)
    store, namespace = settings.shared_store, settings.namespace
    if store is None:
        draw.line(
            "on this host only, and unconfirmed: processes with this data directory follow within "
            "a second; add --store to reach every host"
        )
        return exit_code

    async def work(cache: RuleCache) -> _Confirmed:
        turned = await cache.turn_switch(switch)
        return await _wait_for(cache, lambda one: _follows(one, turned))

    try:
        confirmed = _use(store, namespace, work)
    except LimenError as error:
        draw.complain(f"limen: other hosts were not reached: {error}")
        return 1
    if not confirmed.instances:
        draw.complain(
            f"limen: nobody confirmed it: {_none_visible(store, namespace)}. If processes run, "
            "they have another store or namespace; `limen config show` prints what this command "
            "uses"
        )
        return 1
    draw.line(str(confirmed), "green" if not confirmed.missing else "")
    return 1 if confirmed.missing else exit_code


def _write_file(folder: Path, switch: Switch) -> int:
    file = SwitchFile(folder)
    try:
        file.write(switch)
    except LimenError as error:
        draw.complain(f"limen: {error}")
        return 1
    draw.line(f"the kill switch is {switch}, in {file.path}", "green")
    return 0


def _follows(one: Instance, switch: Switch) -> bool:
    return one.switch_at >= switch.at - _CLOCK_S


async def _wait_for(cache: RuleCache, is_confirmed: Callable[[Instance], bool]) -> _Confirmed:
    """Wait until every process has confirmed, for 3 seconds at most."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        confirmed = _split(await cache.instances(), is_confirmed)
        if not confirmed.missing or time.monotonic() > end:
            return confirmed
        await asyncio.sleep(_LOOK_S)


def _split(found: list[Instance], is_confirmed: Callable[[Instance], bool]) -> _Confirmed:
    return _Confirmed(found, [one for one in found if not is_confirmed(one)])


def _none_visible(store: str, namespace: str) -> str:
    where = target_of(store, asynchronous=True).shown
    return f"no process is visible in namespace {namespace} at {where}"


def on(rules: Sequence[str]) -> Switch:
    """Return the switch turned on, for some rules or all."""
    return turned_on(rules, _who())


def off() -> Switch:
    """Return the switch turned off."""
    return turned_off(_who())


def _who() -> str:
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):
        user = "somebody"
    return f"{user} at {socket.gethostname()}"


def _told(switch: Switch) -> str:
    if not switch.at:
        return str(switch)
    when = draw.time(datetime.fromtimestamp(switch.at, UTC))
    return f"{switch}, since {when} UTC{f' by {switch.by}' if switch.by else ''}"


def _row(one: Instance) -> list[draw.Cell]:
    since = draw.time(datetime.fromtimestamp(one.started_at, UTC))
    return [one.host, str(one.pid), one.version or "none", one.source, since]


def _use(store: str, namespace: str, work: Callable[[RuleCache], Awaitable[T]]) -> T:
    if not is_shared(store):
        raise ConfigurationError(
            "processes are reached by way of Redis; use --store redis://host:6379"
        )

    async def run() -> Any:
        cache = RuleCache(target_of(store, asynchronous=True), namespace)
        try:
            return await work(cache)
        finally:
            cache.close()

    result: T = asyncio.run(run())
    return result
