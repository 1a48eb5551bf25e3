"""From facts to findings: what is well, what is not, and what to do about it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from limen.backends.redis.protocol import tls_advice
from limen.connect import UnreadableFile
from limen.doctor.facts import Facts, Node, Trouble
from limen.doctor.finding import Finding, Status, across, counted
from limen.doctor.rights import (
    SENTINEL_LINE,
    acl_line,
    consequence,
    grant_line,
    is_about_keys,
)
from limen.doctor.server import clock, connections, eviction, persistence
from limen.doctor.topology import coverage, lag, quorum, replicas, sentinels, slots

DEADLINE_MS = 50.0
"""The deadline a limiter has unless it is told another."""

_ADVICE = {
    "connection": "start the server, or check the address and the firewall",
    "timeout": "check the address and the firewall; if they are right, the server hangs",
    "internal": "check the address",
    "protocol": "this is no Redis: check host and port",
    "tls": "check the certificate of the server and the host name, or name its authority: "
    "?ssl_ca_certs=/path/ca.pem",
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


def judge(facts: Facts) -> list[Finding]:
    """Return a finding for each check, in the order a reader wants to know."""
    wrong = [_unusable(facts, trouble) for trouble in facts.troubles]
    if not facts.nodes:
        answers = Finding("reachable", "ok", f"{facts.troubles[0].where} answers")
        return wrong[:1] if wrong[0].check == "reachable" else [answers, wrong[0]]
    reached = [reachable(facts)]
    if reached[0].status == "FAIL":
        return reached
    findings = wrong or reached
    if not any(finding.check == "login" for finding in findings):
        login = "with a password" if facts.has_password else "without a password"
        findings.append(Finding("login", "ok", f"user {facts.user}, {login}"))
    findings.append(rights(facts))
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
    if facts.max_connections:
        findings.append(
            across(facts.nodes, lambda node: connections(node.told, facts.max_connections))
        )
    if facts.kind == "cluster":
        findings += [slots(facts.nodes), coverage(facts.nodes), replicas(facts.nodes)]
    if facts.watch:
        findings += [sentinels(facts.watch), quorum(facts.watch.quorum)]
        findings.append(across(facts.nodes, lambda node: lag(node.told)))
    return findings


def reachable(facts: Facts) -> Finding:
    """Say what answers there, and whether it is what the URL says."""
    servers = sorted({server_name(node.told) for node in facts.nodes})
    first = facts.nodes[0]
    what = {
        "single": "a single server",
        "sentinel": f"the primary {first.where}, which the sentinels name",
        "cluster": f"a cluster with {counted(len(facts.nodes), 'master')}",
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
    on_every = " on every node" if facts.kind != "single" else ""
    keys = f"keys {facts.namespace}:*"
    refused = {name: said for node in facts.nodes for name, said in node.refused.items()}
    if not refused:
        found = f"user {facts.user} may run the {len(facts.commands)} commands on {keys}"
        user = "the library" if "SUBSCRIBE" not in facts.commands else "limen serve"
        advice = f"a user for {user} needs no more than this{on_every}:\n{whole}"
        if user == "the library":
            advice += "\nlimen serve needs more: add --for service"
        return Finding("rights", "ok", found, advice)
    what_then = consequence(refused)
    status: Status = "FAIL" if what_then is None else "warn"
    absent = [name for name in facts.commands if "unknown" in refused.get(name, "")]
    if absent:
        advice = "allow it (rename-command?), or use another server: limits need scripts"
        return Finding("rights", status, f"the server has no {', '.join(absent)}", advice)
    closed = any(is_about_keys(said) for said in refused.values())
    denied = [
        name for name in facts.commands if name in refused and not is_about_keys(refused[name])
    ]
    not_allowed = [f"touch {keys}"] if closed else []
    not_allowed += [f"run {', '.join(denied)}"] if denied else []
    where = [node.where for node in facts.nodes if node.refused]
    at = f" on {', '.join(where)}" if len(facts.nodes) > 1 else ""
    found = f"user {facts.user} may not {', nor '.join(not_allowed)}{at}"
    found += f": {what_then}" if what_then else ""
    if facts.user == "default":
        return Finding("rights", status, found, f"log in as this user, made{on_every}:\n{whole}")
    granted = grant_line(facts.user, facts.namespace, denied)
    advice = f"grant it{on_every}, or make a user of its own:\n{granted}\n{whole}"
    return Finding("rights", status, found, advice)


def script(node: Node) -> Finding:
    """Say whether a real decision was made."""
    trouble = node.undecided
    if trouble is None and node.decided:
        found = "every algorithm decided, on a key that was removed"
        return Finding("script", "ok", found)
    if trouble is None:
        return Finding("script", "skip", "not checked: no decision was tried")
    advice = _ADVICE.get(trouble.kind, "the server's log may say more")
    return Finding("script", "FAIL", f"no decision: {trouble.text}", advice)


def latency(round_trips_ms: Sequence[float]) -> Finding:
    """Say how long decisions take. With few round trips, the 99th percentile is the longest."""
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


def _unusable(facts: Facts, trouble: Trouble) -> Finding:
    found = f"{trouble.where}: {trouble.text}"
    if "no permissions" in trouble.text:
        line = acl_line(facts.namespace, facts.commands)
        at, line = ("sentinel", SENTINEL_LINE) if trouble.sentinel else ("server", line)
        return Finding("rights", "FAIL", found, f"make a user, on every {at}:\n{line}")
    if trouble.kind == "rights":
        return Finding("login", "FAIL", found, _login_advice(trouble))
    advice = _ADVICE.get(trouble.kind, "the server's log may say more")
    if "cluster support disabled" in trouble.text:
        advice = f"this is a single server: write redis://{trouble.where}"
    elif trouble.sentinel and "unknown command" in trouble.text:
        advice = f"this is no sentinel: for a single server write redis://{trouble.where}"
    elif "cannot read" in trouble.text:
        advice = UnreadableFile.advice
    elif scheme := tls_advice(trouble.kind, trouble.text, facts.where):
        advice = f"{scheme}; else {advice}"
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
