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

from msgspec import structs

from limen.cli import draw
from limen.connect import is_shared, target_of
from limen.errors import ConfigurationError, LimenError, StoreError
from limen.rules.stores import Snapshot
from limen.rules.sync import Instance, RuleCache, Switch, SwitchFile
from limen.rules.sync.switch import turned_off, turned_on

if TYPE_CHECKING:
    from limen.rules.stores.sql import StoredRuleSet

T = TypeVar("T")
_PATIENCE_S = 3.0
_LOOK_S = 0.1


def tell(stored: StoredRuleSet, store: str, namespace: str) -> None:
    """Let every process know of rules that were saved, and say how many have followed.

    Not to reach them is no failure: they find the rules in the database by themselves.
    """
    if not stored.active:
        return

    async def work(cache: RuleCache) -> list[Instance]:
        version = str(stored.version)
        snapshot = Snapshot(version, stored.document or {})
        if not await cache.write(snapshot):
            # An old version that holds again: it takes the place of a newer one on purpose.
            await cache.write(snapshot, seen=(await cache.look()).version)
        end = time.monotonic() + _PATIENCE_S
        while True:
            found = await cache.instances()
            if all(one.version == version for one in found) or time.monotonic() > end:
                return found
            await asyncio.sleep(_LOOK_S)

    try:
        found = _use(store, namespace, work)
    except LimenError as error:
        draw.complain(
            f"limen: saved, and not announced ({error}); processes find it in the database"
        )
        return
    if not found:
        draw.line("no process runs there yet")
        return
    following = sum(one.version == str(stored.version) for one in found)
    verb = "follows" if len(found) == 1 else "follow"
    draw.line(f"{following} of {draw.counted(len(found), 'running process')} {verb}")


def instances(store: str, namespace: str, as_json: bool) -> None:
    """List the processes that enforce rules."""
    found = _use(store, namespace, lambda cache: cache.instances())
    if as_json:
        draw.json([structs.asdict(one) for one in found])
        return
    if not found:
        draw.line("no process enforces rules there")
        return
    headings = ("HOST", "PID", "VERSION", "TAKEN FROM", "SINCE (UTC)")
    draw.table(headings, [_row(one) for one in found])


def show_switch(folder: Path) -> None:
    """Say how the kill switch of this host stands."""
    switch = SwitchFile(folder).read()
    draw.line(f"the kill switch is {_told(switch)}")


def turn(folder: Path, store: str | None, namespace: str, switch: Switch) -> int:
    """Turn the kill switch of this host, and of every host that Redis reaches."""
    code = 0
    try:
        SwitchFile(folder).write(switch)
        draw.line(f"on this host ({folder}), the kill switch is {switch}", "green")
    except StoreError as error:
        if store is None:
            raise
        draw.complain(f"limen: the kill switch is not saved on this host: {error}")
        code = 1
    if store is None:
        draw.line("on this host only; add --store to reach every host")
        return code
    try:
        _use(store, namespace, lambda cache: cache.turn_switch(switch))
    except LimenError as error:
        draw.complain(f"limen: other hosts were not reached: {error}")
        return 1
    draw.line("every host that Redis reaches follows")
    return code


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
