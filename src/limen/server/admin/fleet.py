"""`/instances`, `/kill-switch`, `/stats`, `/audit`: what runs, and who did what."""

from __future__ import annotations

import logging
import os
import socket
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request
from msgspec import structs

from limen.backends import Shard
from limen.errors import InvalidInput, LimenError, StoreError
from limen.rules.stores.records import MAX_SUBJECT
from limen.rules.sync import Switch
from limen.rules.sync.switch import find_wrong_name, turned_off, turned_on
from limen.server.admin.answers import (
    Audit,
    AuditEntry,
    InstanceOf,
    Instances,
    KillSwitch,
    Reached,
    ShardOf,
    Stats,
    Turned,
    Verified,
)
from limen.server.admin.desk import Desk
from limen.server.admin.guard import Door, caller_of
from limen.server.admin.kinds import PageSize, VersionOrNone
from limen.server.admin.questions import ToTurn
from limen.server.audit import pending_row

_AUDIT_S = 1.0
"""How long the kill switch waits for the audit; the row is written later if it can be."""
_logger = logging.getLogger("limen.server")


class Fleet:
    """Answers what is asked of running processes."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._service = desk.service

    async def list_instances(self) -> Instances:
        """List the processes that enforce rules, and which rules. Without Redis, this one alone."""
        service = self._service
        if service.redis is not None:
            found = await self._desk.tell(lambda cache: cache.instances())
            told = [InstanceOf(**structs.asdict(each)) for each in found]
            return Instances(shared=True, instances=told)
        status = service.follower.status
        this = InstanceOf(
            id=service.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=status.version,
            source=status.source,
            started_at=service.watch.since,
            switch_at=status.switch.at,
        )
        return Instances(shared=False, instances=[this])

    async def get_kill_switch(self, request: Request) -> KillSwitch:
        """Say how the kill switch of this host stands."""
        pool, read = self._service.pools.switch, self._service.switch.read
        return KillSwitch(**_switch(await pool.run(caller_of(request).token, read)))

    async def turn_kill_switch(self, request: Request, asked: ToTurn) -> Turned:
        """Let all rules, or some, refuse nobody; or let them do so again. They go on counting and
        reporting. Every process of this host follows within a second, and with Redis those of every
        host."""
        self._check_names(asked)
        caller = caller_of(request)
        switch = turned_on(asked.rules, caller.name) if asked.on else turned_off(caller.name)
        # Before the switch is turned: a comment that cannot be kept is refused.
        row = pending_row(str(switch)[:MAX_SUBJECT], caller.name, asked.comment)
        unsaved = None
        try:
            await self._service.pools.switch.run(caller.token, self._service.switch.write, switch)
        except StoreError as error:
            unsaved = error  # logged by the follower, which tries again
        reached = await self._reach(switch)
        audited = await self._service.audit.write(row, _AUDIT_S)
        warning = None if unsaved is None else self._warning(unsaved, reached)
        return Turned(**_switch(switch), other_hosts=reached, audited=audited, warning=warning)

    async def get_stats(self) -> Stats:
        """Say what this process has decided since it started, and how it is. With several
        processes, each counts by itself, and another may answer the next time."""
        service = self._service
        counts = service.watch
        return Stats(
            instance=service.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            since=counts.since,
            allowed=counts.allowed,
            refused=counts.refused,
            degraded=counts.degraded,
            refused_by=dict(counts.refused_by),
            shards=[_shard(shard) for shard in service.limiter.shards],
            health=msgspec.to_builtins(service.health),
        )

    async def list_audit(
        self,
        request: Request,
        limit: Annotated[PageSize, Query(description="How many.")] = 50,
        before: Annotated[
            VersionOrNone | None, Query(description="Only those before this row, to go on.")
        ] = None,
    ) -> Audit:
        """List who did what, the newest first."""
        rows = await self._desk.ask(caller_of(request), lambda books: books.audit(limit, before))
        return Audit(rows=[AuditEntry(**_row(structs.asdict(row))) for row in rows])

    async def verify_audit(self, request: Request) -> Verified:
        """Say whether rules, tokens and audit are as limen wrote them. All of it is read."""
        caller = caller_of(request)
        try:
            await self._desk.ask(caller, lambda books: books.verify_audit())
        except StoreError as error:
            # A database that is away says nothing about what is in it.
            await self._desk.ask(caller, lambda books: books.version())
            return Verified(holds=False, problem=str(error))
        return Verified(holds=True, problem=None)

    def _check_names(self, asked: ToTurn) -> None:
        if asked.rules and not asked.on:
            raise InvalidInput("rules: the switch is turned off for all rules; leave the names out")
        known = {rule.name: None for rule in self._service.engine.rules.rules}
        wrong = find_wrong_name(asked.rules, known)
        if wrong is not None:
            raise InvalidInput(f"rules[{wrong[0]}]: {wrong[1]}")

    def _warning(self, unsaved: StoreError, reached: Reached) -> str:
        if reached == "reached":
            extent = "on every host that Redis reaches"
        elif self._service.settings.workers == 1:
            extent = "in this process until it restarts"
        else:
            extent = "only in the worker that answered, until it restarts"
        return f"The switch is not saved on this host: {unsaved}. It is in force {extent}."

    async def _reach(self, switch: Switch) -> Reached:
        if self._service.redis is None:
            return "none"
        try:
            await self._desk.tell(lambda cache: cache.turn_switch(switch))
        except LimenError as error:
            _logger.warning("the kill switch is turned here, and not for other hosts: %s", error)
            return "not reached"
        return "reached"


def install(door: Door, desk: Desk) -> None:
    """Add the routes."""
    fleet = Fleet(desk)
    door.add("viewer", "GET", "/instances", fleet.list_instances, also=(503,))
    door.add("viewer", "GET", "/kill-switch", fleet.get_kill_switch, also=(503,), urgent=True)
    door.add("editor", "PUT", "/kill-switch", fleet.turn_kill_switch, also=(503,), urgent=True)
    door.add("viewer", "GET", "/stats", fleet.get_stats)
    door.add("viewer", "GET", "/audit", fleet.list_audit, also=(503,))
    door.add("viewer", "POST", "/audit/verify", fleet.verify_audit, also=(503,))


def _switch(switch: Switch) -> dict[str, Any]:
    return {
        "on": switch.is_on,
        "all": switch.all,
        "rules": list(switch.rules),
        "at": switch.at,
        "by": switch.by,
    }


def _shard(shard: Shard) -> ShardOf:
    return ShardOf(
        where=shard.where,
        state=shard.state,
        opened=shard.opened,
        fault=shard.fault,
        faults=shard.faults,
    )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    del row["digest"]
    return row
