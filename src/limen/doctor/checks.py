"""The checks of `limen doctor`: each judges a part of the facts about a store. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct, structs

from limen.doctor.facts import Node, SentinelView

Status = Literal["ok", "skip", "warn", "FAIL"]
_GRAVITY: tuple[Status, ...] = ("ok", "skip", "warn", "FAIL")

DEADLINE_MS = 50.0
"""The default deadline of a limiter."""
_LOOK_AS_ADMIN = "run it once as a user who may run INFO and CONFIG GET"
_APART_S = 1.0
_ENOUGH_SENTINELS = 3
_SLOTS = 16_384


class Finding(Struct, frozen=True):
    """The result of one check."""

    check: str
    status: Status
    """`skip` is a check that the user has no right to do. It is no failure."""
    found: str
    advice: str = ""
    """The remedy. Commands are on separate lines after the first line."""


def across(nodes: Sequence[Node], judge_one: Callable[[Node], Finding]) -> Finding:
    """Judge every node, and return the gravest finding with the name of its node."""
    findings = [judge_one(node) for node in nodes]
    worst = max(findings, key=lambda finding: _GRAVITY.index(finding.status))
    if all(finding.found == worst.found for finding in findings):
        return worst
    same = [finding.status for finding in findings].count(worst.status)
    others = f" (and {same - 1} more like it)" if same > 1 and worst.status != "ok" else ""
    where = nodes[findings.index(worst)].where
    return structs.replace(worst, found=f"{where}: {worst.found}{others}")


def counted(number: int, noun: str) -> str:
    """Return `1 replica`, `2 replicas`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def latency(round_trips_ms: Sequence[float]) -> Finding:
    """Check the duration of decisions. With few round trips, the p99 is the longest."""
    if not round_trips_ms:
        return Finding("latency", "skip", "not checked: no decision was made")
    ranked = sorted(round_trips_ms)
    p99_ms = ranked[math.ceil(0.99 * len(ranked)) - 1]
    found = (
        f"median {median(ranked):.2f} ms, p99 {p99_ms:.2f} ms of {len(ranked)}; "
        f"the deadline is {DEADLINE_MS:.0f} ms"
    )
    if p99_ms <= DEADLINE_MS / 2:
        return Finding("latency", "ok", found)
    return Finding(
        "latency",
        "warn",
        found,
        "what takes longer is decided without the store: move nearer to it, "
        f"or give the limiter more time: deadline={max(p99_ms * 2 / 1000, 0.1):.1f}",
    )


def eviction(node: Node) -> Finding:
    """Check whether the server may evict states."""
    policy = node.info.get("maxmemory-policy") or node.info.get("maxmemory_policy")
    if not policy:
        return Finding("eviction", "skip", "not checked: no right to INFO", _LOOK_AS_ADMIN)
    maxmemory = int(node.info.get("maxmemory", "0"))
    if not maxmemory:
        return Finding("eviction", "ok", f"{policy}, no maxmemory: nothing is thrown away")
    size = f"maxmemory {_size(maxmemory)}"
    if policy == "noeviction":
        return Finding("eviction", "ok", f"noeviction, {size}: writes fail when it is full")
    what = "limits may be reset when memory is full"
    if policy == "volatile-ttl":
        what = "when memory is full, limits are reset first of all"
    elif policy.startswith("volatile-"):
        what = "when memory is full, limits are among the first to be reset"
    return Finding(
        "eviction",
        "warn",
        f"{policy}, {size}: {what}",
        "give limits a server of their own, or:\nCONFIG SET maxmemory-policy noeviction",
    )


def persistence(node: Node) -> Finding:
    """Check which states a restart keeps."""
    appends, save = node.info.get("appendonly"), node.info.get("save")
    if appends is None and node.info.get("aof_enabled") in ("0", "1"):
        appends = "yes" if node.info["aof_enabled"] == "1" else "no"
    if appends == "yes":
        return Finding("persistence", "ok", "append-only file: a restart forgets next to nothing")
    if save:
        found = "snapshots: a restart forgets what came after the last one"
        return Finding("persistence", "ok", found)
    if appends is None or save is None:
        return Finding("persistence", "skip", "not checked: no right to CONFIG GET", _LOOK_AS_ADMIN)
    return Finding(
        "persistence",
        "warn",
        "none: a restart forgets, and each key may use up its limit once more",
        "no matter for seconds and minutes; for quotas of a day or a month:\n"
        "CONFIG SET appendonly yes",
    )


def clock(nodes: Sequence[Node]) -> Finding:
    """Report the difference of the clocks. It does no harm: time comes from the server."""
    apart = [node.ahead_s for node in nodes if node.ahead_s is not None]
    if not apart:
        return Finding("clock", "skip", "not checked: no right to TIME")
    widest = max(apart, key=abs)
    if abs(widest) <= _APART_S:
        return Finding("clock", "ok", "agrees with this machine's to the second")
    where = "ahead of" if widest > 0 else "behind"
    found = f"{abs(widest):,.1f} s {where} this machine's: no matter, limits go by the server's"
    return Finding("clock", "ok", found)


def connections(node: Node, most: int) -> Finding:
    """Check that the server accepts all connections that limiters for threads may open."""
    if not node.info.get("maxclients"):
        return Finding("connections", "skip", "not checked: the server does not tell maxclients")
    accepted = int(node.info["maxclients"])
    found = f"limiters may open {most:,} connections, and the server accepts {accepted:,} clients"
    if most <= accepted:
        return Finding("connections", "ok", found)
    return Finding(
        "connections",
        "warn",
        found,
        "lower ?max_connections= in the address of the store, or:\n"
        f"CONFIG SET maxclients {2 * most}",
    )


def slots(nodes: Sequence[Node]) -> Finding:
    """Check that every slot has an owner, and that the cluster serves."""
    covered = sum(node.slots for node in nodes)
    states = {node.info["cluster_state"] for node in nodes if "cluster_state" in node.info}
    state = f"cluster_state {' and '.join(sorted(states))}" if states else "cluster_state not told"
    found = f"{covered:,} of {_SLOTS:,} are served, {state}"
    if covered == _SLOTS and states <= {"ok"}:
        return Finding("slots", "ok", found)
    return Finding(
        "slots",
        "FAIL",
        found,
        "keys of the others are decided without the store; look, and mend:\n"
        f"redis-cli --cluster check {nodes[0].where}\nredis-cli --cluster fix {nodes[0].where}",
    )


def coverage(nodes: Sequence[Node]) -> Finding:
    """Check that the rest of the cluster serves when a part of it is lost."""
    values = [node.info.get("cluster-require-full-coverage") for node in nodes]
    if "yes" in values:
        return Finding(
            "coverage",
            "warn",
            "when one slot has no owner, the whole cluster stops serving",
            "on every node:\nCONFIG SET cluster-require-full-coverage no",
        )
    if None in values:
        return Finding("coverage", "skip", "not checked: no right to CONFIG GET", _LOOK_AS_ADMIN)
    return Finding("coverage", "ok", "when slots have no owner, the others are served")


def replicas(nodes: Sequence[Node]) -> Finding:
    """Check that every master has a replica."""
    alone = [node.where for node in nodes if not node.replicas]
    if not alone:
        fewest = min(node.replicas for node in nodes)
        return Finding("replicas", "ok", f"every master has {counted(fewest, 'replica')} or more")
    shown = f"{alone[0]}: its keys are lost with it"
    if len(alone) > 1:
        shown = f"{len(alone)} of {len(nodes)} masters: their keys are lost with them"
    return Finding(
        "replicas",
        "warn",
        f"none for {shown}",
        "give every master one:\nredis-cli --cluster add-node NEW:PORT "
        f"{nodes[0].where} --cluster-slave",
    )


def sentinels(view: SentinelView) -> Finding:
    """Check the number of sentinels, and that they name one primary."""
    listed = len(view.primaries) + len(view.silent)
    known = "" if view.known is None else f", {view.known} know of each other"
    found = f"{len(view.primaries)} of {listed} in the URL answer{known}"
    if len(set(view.primaries.values())) > 1:
        named = ", ".join(f"{who} says {primary}" for who, primary in view.primaries.items())
        advice = "a failover may be going on: try again; else compare what each watches"
        return Finding("sentinels", "warn", f"they name different primaries: {named}", advice)
    if view.silent:
        advice = f"start {', '.join(view.silent)}; or leave out of the URL what is gone"
        return Finding("sentinels", "warn", found, advice)
    if view.known is not None and view.known < _ENOUGH_SENTINELS:
        advice = f"run {_ENOUGH_SENTINELS} or more, on different machines"
        return Finding("sentinels", "warn", found, advice)
    if view.known is not None and listed < min(view.known, _ENOUGH_SENTINELS):
        advice = "name more in the URL, with commas: without the named, nobody finds the primary"
        return Finding("sentinels", "warn", found, advice)
    return Finding("sentinels", "ok", found)


def quorum(reply: str) -> Finding:
    """Check that the sentinels can make a replica the primary."""
    if not reply:
        return Finding("quorum", "skip", "not checked: no right to SENTINEL CKQUORUM")
    if reply.startswith("OK"):
        return Finding("quorum", "ok", "enough sentinels reach each other for a failover")
    return Finding(
        "quorum",
        "FAIL",
        f"no failover is possible: {reply.partition('. ')[0]}",
        "start the sentinels that are down, or check the way between them",
    )


def lag(node: Node) -> Finding:
    """Check that a primary without replicas stops deciding."""
    wanted = node.info.get("min-replicas-to-write")
    if wanted is None:
        return Finding(
            "min-replicas", "skip", "not checked: no right to CONFIG GET", _LOOK_AS_ADMIN
        )
    if wanted != "0":
        found = f"a primary with fewer than {counted(int(wanted), 'replica')} stops"
        return Finding("min-replicas", "ok", found)
    return Finding(
        "min-replicas",
        "warn",
        "a primary that is cut off goes on deciding beside the new one, and what it counts is lost",
        "on the primary and its replicas:\nCONFIG SET min-replicas-to-write 1",
    )


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count = count // 1024 if count % 1024 == 0 else count / 1024  # type: ignore[assignment]
    return f"{count:.3g} TB"
