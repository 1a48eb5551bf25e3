"""From facts to findings: what is well, what is not, and what to do about it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct, structs

from limen.doctor.facts import Facts, Node, Trouble, Watch
from limen.doctor.rights import acl_line, grant_line, is_about_keys

Status = Literal["ok", "skip", "warn", "FAIL"]
_GRAVITY: tuple[Status, ...] = ("ok", "skip", "warn", "FAIL")

DEADLINE_MS = 50.0
"""The deadline a limiter has unless it is told another."""
SLOTS = 16_384
_APART_S = 1.0
_ENOUGH_SENTINELS = 3
_LOOK_AS_ADMIN = "run it once as a user who may run INFO and CONFIG GET"
_SCRIPT_LINES = ("SCRIPT EXISTS", "SCRIPT LOAD")

_ADVICE = {
    "connection": "start the server; or check the host, the port and the firewall",
    "timeout": "check host, port and firewall; if they are right, the server hangs or is overloaded",
    "protocol": "this is no Redis: check host and port; for a server with TLS write rediss://",
    "tls": "for a server without TLS write redis://; else check its certificate and host name, "
    "or name who signed it: ?ssl_ca_certs=/path/ca.pem",
    "rights": "check user and password in the URL: redis://user:password@host",
    "loading": "the server is reading its data: try again when it is done",
    "readonly": "the server takes no writes: look at its role, its replicas and its disk",
    "memory": "the server is out of memory: raise maxmemory, or give limits a server of their own",
    "busy": "another script holds the server up: SCRIPT KILL ends it",
    "cluster": "look at CLUSTER INFO and CLUSTER NODES",
    "service": "check the name behind the / in the URL; SENTINEL MASTERS lists what there is",
}
_CLUSTER_ADDRESS = (
    "can this machine reach the address the node announces? if not, set cluster-announce-ip"
)
_PRIMARY_ADDRESS = (
    "can this machine reach the address the sentinels name? if not, set replica-announce-ip"
)


class Finding(Struct, frozen=True):
    """What one check came to."""

    check: str
    status: Status
    """`skip` is a check that was not permitted to look; it is no failure."""
    found: str
    advice: str = ""
    """What to do. Commands to type stand on lines of their own, after the first."""


def judge(facts: Facts) -> list[Finding]:
    """Return a finding for each check, in the order a reader wants to know."""
    wrong = [_unusable(facts, trouble) for trouble in facts.troubles]
    if not facts.nodes:
        reached = [Finding("reachable", "ok", f"{facts.where} answers")]
        return [*(reached if wrong[0].check == "login" else []), wrong[0]]
    reached = [reachable(facts)]
    if reached[0].status == "FAIL":
        return reached
    login = "with a password" if facts.has_password else "without a password"
    findings = [
        *(wrong or reached),
        Finding("login", "ok", f"user {facts.user}, {login}"),
        rights(facts),
    ]
    if findings[-1].status == "FAIL":
        unknown = "not checked: rights are missing"
        findings += [Finding("script", "skip", unknown), Finding("latency", "skip", unknown)]
    else:
        findings += [
            across(facts.nodes, script),
            latency([ms for node in facts.nodes for ms in node.round_trips_ms]),
        ]
    findings += [
        across(facts.nodes, lambda node: eviction(node.told)),
        across(facts.nodes, lambda node: persistence(node.told)),
        clock(facts.nodes),
    ]
    if facts.kind == "cluster":
        findings += [slots(facts.nodes), coverage(facts.nodes), replicas(facts.nodes)]
    if facts.watch:
        findings += [sentinels(facts.watch), quorum(facts.watch.quorum)]
        findings.append(across(facts.nodes, lambda node: lag(node.told)))
    return findings


def across(nodes: Sequence[Node], judge_one: Callable[[Node], Finding]) -> Finding:
    """Judge every node. The gravest finding speaks for all, and says of whom it is."""
    findings = [judge_one(node) for node in nodes]
    worst = max(findings, key=lambda finding: _GRAVITY.index(finding.status))
    if all(finding.found == worst.found for finding in findings):
        return worst
    same = [finding.status for finding in findings].count(worst.status)
    others = f" (so are {same - 1} more)" if same > 1 and worst.status != "ok" else ""
    where = nodes[findings.index(worst)].where
    return structs.replace(worst, found=f"{where}: {worst.found}{others}")


def reachable(facts: Facts) -> Finding:
    """Say what answers there, and whether it is what the URL says."""
    servers = sorted({server_name(node.told) for node in facts.nodes})
    first = facts.nodes[0]
    what = {
        "single": "a single server",
        "sentinel": f"the primary {first.where}, which the sentinels name",
        "cluster": f"a cluster with {_count(len(facts.nodes), 'master')}",
    }[facts.kind]
    mode = first.told.get("server_mode") or first.told.get("redis_mode", "")
    if facts.kind == "single" and mode in ("cluster", "sentinel"):
        behind = "" if mode == "cluster" else "/service"
        return Finding(
            "reachable",
            "FAIL",
            f"{first.where} is a {'node of a cluster' if mode == 'cluster' else 'sentinel'}, "
            "and the URL says a single server",
            f"write redis+{mode}://{first.where}{behind}",
        )
    for node in facts.nodes:
        if node.told.get("role") == "slave":
            primary = f"{node.told.get('master_host')}:{node.told.get('master_port')}"
            return Finding(
                "reachable",
                "FAIL",
                f"{node.where} is a replica, and takes no writes",
                f"write the address of its primary, which is {primary}",
            )
    return Finding("reachable", "ok", f"{what}: {', '.join(servers)}")


def server_name(told: Mapping[str, str]) -> str:
    """Return what a server calls itself: `"valkey 9.1.2"`. For people; nothing depends on it."""
    name = told.get("server_name", "redis")
    version = told.get(f"{name}_version") or told.get("redis_version")
    return f"{name} {version}" if version else "it does not say which (no right to INFO)"


def rights(facts: Facts) -> Finding:
    """Say whether the user may do what a limiter does."""
    whole = acl_line(facts.namespace, facts.commands)
    everywhere = " on every node" if facts.kind != "single" else ""
    of_all: dict[str, str] = {}
    for node in facts.nodes:
        of_all |= node.refused
    keys = f"keys {facts.namespace}:*"
    if not of_all:
        found = f"user {facts.user} may run the {len(facts.commands)} commands on {keys}"
        return Finding("rights", "ok", found, f"no more is needed than this{everywhere}:\n{whole}")
    missing = [command for command in facts.commands if command in of_all]
    closed = [command for command in missing if is_about_keys(of_all[command])]
    absent = [command for command in missing if "unknown" in of_all[command]]
    names = ", ".join(command for command in missing if command not in closed)
    parts = [f"touch {keys}"] if closed else []
    parts += [f"run {names}"] if names else []
    where = [node.where for node in facts.nodes if node.refused]
    at = f" on {', '.join(where)}" if len(facts.nodes) > 1 else ""
    found = f"user {facts.user} may not {', nor '.join(parts)}{at}"
    status: Status = "FAIL"
    if set(missing) <= set(_SCRIPT_LINES):
        status, found = "warn", f"{found}: the script is sent whole, and again after each restart"
    elif missing == ["EVAL"]:
        status, found = "warn", f"{found}: decisions fail after SCRIPT FLUSH"
    if absent:
        return Finding(
            "rights",
            status,
            f"the server has no {', '.join(absent)}",
            "limits need scripts: allow these commands (rename-command?), or use another server",
        )
    if facts.user == "default":
        advice = f"log in as a user made by this{everywhere}:\n{whole}"
    else:
        granted = grant_line(
            facts.user, facts.namespace, [name for name in missing if name not in closed]
        )
        advice = f"grant it{everywhere}, or make a user of its own:\n{granted}\n{whole}"
    return Finding("rights", status, found, advice)


def script(node: Node) -> Finding:
    """Say whether a real decision was made."""
    if node.decision is None:
        found = "every algorithm decided on a throw-away key, which was removed"
        return Finding("script", "ok", found)
    trouble = node.decision
    advice = _ADVICE.get(trouble.kind, "the server's log may say more")
    return Finding("script", "FAIL", f"no decision: {trouble.text}", advice)


def latency(round_trips_ms: Sequence[float]) -> Finding:
    """Say how long decisions take. With few round trips, the 99th percentile is the longest."""
    if not round_trips_ms:
        return Finding("latency", "skip", "not checked: no decision was made")
    ranked = sorted(round_trips_ms)
    p99_ms = ranked[math.ceil(0.99 * len(ranked)) - 1]
    found = (
        f"median {median(ranked):.2f} ms, p99 {p99_ms:.2f} ms in {len(ranked)} round trips; "
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


def eviction(told: Mapping[str, str]) -> Finding:
    """Say whether the server may throw states away to make room."""
    policy = told.get("maxmemory-policy") or told.get("maxmemory_policy")
    if not policy:
        return Finding("eviction", "skip", "not checked: no right to INFO", _LOOK_AS_ADMIN)
    maxmemory = int(told.get("maxmemory", "0"))
    if not maxmemory:
        return Finding("eviction", "ok", f"{policy}, no maxmemory: nothing is thrown away")
    size = f"maxmemory {_size(maxmemory)}"
    if policy == "noeviction":
        return Finding("eviction", "ok", f"noeviction, {size}: nothing is thrown away")
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
        found = "snapshots: a restart forgets what was counted after the last one"
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
        return Finding("coverage", "skip", "not checked: no right to CONFIG GET", _LOOK_AS_ADMIN)
    return Finding("coverage", "ok", "when slots have no owner, the others are served")


def replicas(nodes: Sequence[Node]) -> Finding:
    """Say who takes over for a master that is lost."""
    alone = [node.where for node in nodes if not node.replicas]
    if not alone:
        fewest = min(node.replicas for node in nodes)
        return Finding("replicas", "ok", f"every master has {_count(fewest, 'replica')} or more")
    shown = alone[0] if len(alone) == 1 else f"{len(alone)} of {_count(len(nodes), 'master')}"
    return Finding(
        "replicas",
        "warn",
        f"none for {shown}: its keys are lost with it",
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
        advice = f"start {', '.join(watch.silent)}, or leave it out of the URL"
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
        f"no failover is possible: {reply}",
        "start the sentinels that are down, or check the way between them",
    )


def lag(told: Mapping[str, str]) -> Finding:
    """Say whether a primary that was cut off goes on taking charges."""
    wanted = told.get("min-replicas-to-write")
    if wanted is None:
        return Finding("cut off", "skip", "not checked: no right to CONFIG GET", _LOOK_AS_ADMIN)
    if wanted != "0":
        found = f"a primary with fewer than {_count(int(wanted), 'replica')} stops"
        return Finding("cut off", "ok", found)
    return Finding(
        "cut off",
        "warn",
        "a primary that is cut off goes on deciding beside the new one, and what it counts is lost",
        "on the primary and its replicas:\nCONFIG SET min-replicas-to-write 1",
    )


def _unusable(facts: Facts, trouble: Trouble) -> Finding:
    found = f"{trouble.where}: {trouble.text}"
    if trouble.kind == "rights":
        return Finding("login", "FAIL", found, _login_advice(trouble))
    advice = _ADVICE.get(trouble.kind, "the server's log may say more")
    if "cluster support disabled" in trouble.text:
        advice = f"this is a single server: write redis://{trouble.where}"
    elif "DB index" in trouble.text:
        advice = "the URL names a database that the server does not have: see CONFIG GET databases"
    elif trouble.kind in ("connection", "timeout") and not trouble.sentinel:
        if facts.kind == "sentinel":
            advice = _PRIMARY_ADDRESS
        elif facts.kind == "cluster" and trouble.where not in facts.where:
            advice = _CLUSTER_ADDRESS
    return Finding("reachable", "FAIL", found, advice)


def _login_advice(trouble: Trouble) -> str:
    if "without any password" in trouble.text:
        return "the server has no password: leave it out of the URL"
    if trouble.sentinel:
        return (
            "the sentinels have a login of their own: ?sentinel_username=...&sentinel_password=..."
        )
    if trouble.text.startswith("NOAUTH"):
        return "put the password into the URL: redis://:password@host, redis://user:password@host"
    return _ADVICE["rights"]


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count = count // 1024 if count % 1024 == 0 else count / 1024  # type: ignore[assignment]
    return f"{count:.3g} TB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
