"""Judges servers that stand in for each other: a cluster, or a primary under sentinels. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from limen.doctor.facts import Node, Watch
from limen.doctor.finding import LOOK_AS_ADMIN, Finding, counted

SLOTS = 16_384
_ENOUGH_SENTINELS = 3


def slots(nodes: Sequence[Node]) -> Finding:
    """Say whether every slot has an owner, and the cluster serves."""
    covered = sum(node.slots for node in nodes)
    states = {node.told["cluster_state"] for node in nodes if "cluster_state" in node.told}
    state = f"cluster_state {' and '.join(sorted(states))}" if states else "cluster_state not told"
    found = f"{covered:,} of {SLOTS:,} are served, {state}"
    if covered == SLOTS and states <= {"ok"}:
        return Finding("slots", "ok", found)
    return Finding(
        "slots",
        "FAIL",
        found,
        "keys of the others are decided without the store; look, and mend:\n"
        f"redis-cli --cluster check {nodes[0].where}\nredis-cli --cluster fix {nodes[0].where}",
    )


def coverage(nodes: Sequence[Node]) -> Finding:
    """Say what the cluster does when a part of it is lost."""
    values = [node.told.get("cluster-require-full-coverage") for node in nodes]
    if "yes" in values:
        return Finding(
            "coverage",
            "warn",
            "when one slot has no owner, the whole cluster stops serving",
            "on every node:\nCONFIG SET cluster-require-full-coverage no",
        )
    if None in values:
        return Finding("coverage", "skip", "not checked: no right to CONFIG GET", LOOK_AS_ADMIN)
    return Finding("coverage", "ok", "when slots have no owner, the others are served")


def replicas(nodes: Sequence[Node]) -> Finding:
    """Say who takes over for a master that is lost."""
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


def sentinels(watch: Watch) -> Finding:
    """Say who watches."""
    listed = len(watch.named) + len(watch.silent)
    known = "" if watch.known is None else f", {watch.known} know of each other"
    found = f"{len(watch.named)} of {listed} in the URL answer{known}"
    if len(set(watch.named.values())) > 1:
        named = ", ".join(f"{who} says {primary}" for who, primary in watch.named.items())
        advice = "a failover may be going on: try again; else compare what each watches"
        return Finding("sentinels", "warn", f"they name different primaries: {named}", advice)
    if watch.silent:
        advice = f"start {', '.join(watch.silent)}; or leave out of the URL what is gone"
        return Finding("sentinels", "warn", found, advice)
    if watch.known is not None and watch.known < _ENOUGH_SENTINELS:
        advice = f"run {_ENOUGH_SENTINELS} or more, on different machines"
        return Finding("sentinels", "warn", found, advice)
    if watch.known is not None and listed < min(watch.known, _ENOUGH_SENTINELS):
        advice = "name more in the URL, with commas: without the named, nobody finds the primary"
        return Finding("sentinels", "warn", found, advice)
    return Finding("sentinels", "ok", found)


def quorum(reply: str) -> Finding:
    """Say whether the sentinels could make a replica the primary."""
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


def lag(told: Mapping[str, str]) -> Finding:
    """Say whether a primary that was cut off goes on taking charges."""
    wanted = told.get("min-replicas-to-write")
    if wanted is None:
        return Finding("min-replicas", "skip", "not checked: no right to CONFIG GET", LOOK_AS_ADMIN)
    if wanted != "0":
        found = f"a primary with fewer than {counted(int(wanted), 'replica')} stops"
        return Finding("min-replicas", "ok", found)
    return Finding(
        "min-replicas",
        "warn",
        "a primary that is cut off goes on deciding beside the new one, and what it counts is lost",
        "on the primary and its replicas:\nCONFIG SET min-replicas-to-write 1",
    )
