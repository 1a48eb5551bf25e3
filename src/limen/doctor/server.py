"""Judges what a server does to states: evicts them, forgets them, tells them the time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from limen.doctor.facts import Node
from limen.doctor.finding import LOOK_AS_ADMIN, Finding

_APART_S = 1.0


def eviction(told: Mapping[str, str]) -> Finding:
    """Say whether the server may throw states away to make room."""
    policy = told.get("maxmemory-policy") or told.get("maxmemory_policy")
    if not policy:
        return Finding("eviction", "skip", "not checked: no right to INFO", LOOK_AS_ADMIN)
    maxmemory = int(told.get("maxmemory", "0"))
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


def persistence(told: Mapping[str, str]) -> Finding:
    """Say what a restart forgets."""
    appends = told.get("appendonly") or {"1": "yes", "0": "no"}.get(told.get("aof_enabled", ""))
    save = told.get("save")
    if appends == "yes":
        return Finding("persistence", "ok", "append-only file: a restart forgets next to nothing")
    if save:
        found = "snapshots: a restart forgets what came after the last one"
        return Finding("persistence", "ok", found)
    if appends is None or save is None:
        return Finding("persistence", "skip", "not checked: no right to CONFIG GET", LOOK_AS_ADMIN)
    return Finding(
        "persistence",
        "warn",
        "none: a restart forgets, and each key may use up its limit once more",
        "no matter for seconds and minutes; for quotas of a day or a month:\n"
        "CONFIG SET appendonly yes",
    )


def clock(nodes: Sequence[Node]) -> Finding:
    """Say how far the clocks are apart. That is never wrong: time comes from the server."""
    apart = [node.ahead_s for node in nodes if node.ahead_s is not None]
    if not apart:
        return Finding("clock", "skip", "not checked: no right to TIME")
    widest = max(apart, key=abs)
    if abs(widest) <= _APART_S:
        return Finding("clock", "ok", "agrees with this machine's to the second")
    where = "ahead of" if widest > 0 else "behind"
    found = f"{abs(widest):,.1f} s {where} this machine's: no matter, limits go by the server's"
    return Finding("clock", "ok", found)


def connections(told: Mapping[str, str], most: int) -> Finding:
    """Say whether the server accepts as many connections as the limiters of threads may open."""
    if not told.get("maxclients"):
        return Finding("connections", "skip", "not checked: the server does not tell maxclients")
    accepted = int(told["maxclients"])
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


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count = count // 1024 if count % 1024 == 0 else count / 1024  # type: ignore[assignment]
    return f"{count:.3g} TB"
