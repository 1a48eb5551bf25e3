"""`/instances`, `/kill-switch`, `/stats`, `/audit`: the running processes, and the audit."""

from __future__ import annotations

import logging

from msgspec import structs

from limen.backends import ShardState
from limen.errors import InvalidInput, LimenError, StoreError
from limen.rules.stores.records import MAX_SUBJECT, AuditEntry
from limen.rules.sync import Switch
from limen.rules.sync.switch import find_wrong_name, turned_off, turned_on
from limen.server.admin.authorization import AdminRoute
from limen.server.admin.requests import Before, KillSwitchRequest, PageSize
from limen.server.admin.responses import (
    Audit,
    DataPlaneInfo,
    Instances,
    KillSwitch,
    KillSwitchResult,
    Reached,
    Stats,
    Verified,
)
from limen.server.admin.rule_service import ForCaller, RuleService, view
from limen.server.worker.audit import pending_row
from limen.server.worker.container import Service

_AUDIT_S = 1.0
"""How long the kill switch waits for the audit; the row is written later if it can be."""
_logger = logging.getLogger("limen.server")


async def list_instances(rules: ForCaller) -> Instances:
    """List the processes that enforce rules, and which rules. Without Redis, this one alone."""
    service = rules.service
    if service.redis is not None:
        return Instances(True, await rules.tell(lambda cache: cache.instances()))
    return Instances(False, [structs.replace(service.follower.instance, id=service.id)])


async def get_kill_switch(rules: ForCaller) -> KillSwitch:
    """Return the state of the kill switch of this host."""
    service = rules.service
    switch = await service.pools.switch.run(rules.caller.token, service.switch.read)
    return KillSwitch(**structs.asdict(switch), on=switch.is_on)


async def turn_kill_switch(rules: ForCaller, asked: KillSwitchRequest) -> KillSwitchResult:
    """Let all rules, or some, refuse nobody; or let them do so again. They go on counting and
    reporting. Every process of this host follows within a second, and with Redis those of every
    host."""
    service, caller = rules.service, rules.caller
    _check_names(service, asked)
    switch = turned_on(asked.rules, caller.name) if asked.on else turned_off(caller.name)
    # Before the switch is turned: a comment that cannot be kept is refused.
    row = pending_row(str(switch)[:MAX_SUBJECT], caller.name, asked.comment)
    unsaved = None
    try:
        await service.pools.switch.run(caller.token, service.switch.write, switch)
    except StoreError as error:
        unsaved = error  # logged by the follower, which tries again
    reached = await _tell_other_hosts(rules, switch)
    return KillSwitchResult(
        **structs.asdict(switch),
        on=switch.is_on,
        other_hosts=reached,
        audited=await service.audit.write(row, _AUDIT_S),
        warning=None if unsaved is None else _warning(service, unsaved, reached),
    )


async def get_stats(rules: ForCaller) -> Stats:
    """Return the decisions of this process since its start, and its health. With several
    processes, each counts by itself, and another may answer the next time."""
    service = rules.service
    counts = service.watch
    this = service.follower.instance
    return Stats(
        instance=service.id,
        host=this.host,
        pid=this.pid,
        since=counts.since,
        allowed=counts.allowed,
        refused=counts.refused,
        degraded=counts.degraded,
        refused_by=dict(counts.refused_by),
        shards=view(service.limiter.shards, list[ShardState]),
        data_plane=DataPlaneInfo(
            service.settings.data_plane_url, not service.settings.checks_are_open
        ),
        health=service.health,
    )


async def list_audit(rules: ForCaller, limit: PageSize = 50, before: Before = None) -> Audit:
    """List the actions and their authors, the newest first."""
    rows = await rules.ask(lambda books: books.audit(limit, before))
    return Audit(view(rows, list[AuditEntry]))


async def verify_audit(rules: ForCaller) -> Verified:
    """Say whether rules, tokens and audit are as limen wrote them. All of it is read."""
    try:
        await rules.ask(lambda books: books.verify_audit())
    except StoreError as error:
        # A database that is away says nothing about what is in it.
        await rules.ask(lambda books: books.version())
        return Verified(False, str(error))
    return Verified(True)


def _check_names(service: Service, asked: KillSwitchRequest) -> None:
    if asked.rules and not asked.on:
        raise InvalidInput("rules: the switch is turned off for all rules; leave the names out")
    known = {rule.name: None for rule in service.engine.rules.rules}
    wrong = find_wrong_name(asked.rules, known)
    if wrong is not None:
        raise InvalidInput(f"rules[{wrong[0]}]: {wrong[1]}")


def _warning(service: Service, unsaved: StoreError, reached: Reached) -> str:
    if reached == "reached":
        extent = "on every host that Redis reaches"
    elif service.settings.workers == 1:
        extent = "in this process until it restarts"
    else:
        extent = "only in the worker that answered, until it restarts"
    return f"The switch is not saved on this host: {unsaved}. It is in force {extent}."


async def _tell_other_hosts(rules: RuleService, switch: Switch) -> Reached:
    if rules.service.redis is None:
        return "none"
    try:
        await rules.tell(lambda cache: cache.turn_switch(switch))
    except LimenError as error:
        _logger.warning("the kill switch is turned here, and not for other hosts: %s", error)
        return "not reached"
    return "reached"


ROUTES = (
    AdminRoute("viewer", "GET", "/instances", list_instances, also=(503,)),
    AdminRoute("viewer", "GET", "/kill-switch", get_kill_switch, also=(503,), urgent=True),
    AdminRoute("editor", "PUT", "/kill-switch", turn_kill_switch, also=(503,), urgent=True),
    AdminRoute("viewer", "GET", "/stats", get_stats),
    AdminRoute("viewer", "GET", "/audit", list_audit, also=(503,)),
    AdminRoute("viewer", "POST", "/audit/verify", verify_audit, also=(503,)),
)
