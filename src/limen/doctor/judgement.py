"""From facts to findings, with advice for each problem. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from limen.backends.redis.protocol import tls_advice
from limen.connect import UnreadableFile
from limen.doctor.checks import (
    Finding,
    Status,
    across,
    clock,
    connections,
    counted,
    coverage,
    eviction,
    lag,
    latency,
    persistence,
    quorum,
    replicas,
    sentinels,
    slots,
)
from limen.doctor.facts import Facts, Node, ServerProblem
from limen.doctor.rights import (
    SENTINEL_LINE,
    acl_line,
    consequence,
    grant_line,
    is_about_keys,
)

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
    """Return a finding for each check, in their order in the report."""
    wrong = [_unusable(facts, problem) for problem in facts.problems]
    if not facts.nodes:
        answers = Finding("reachable", "ok", f"{facts.problems[0].where} answers")
        return wrong[:1] if wrong[0].check == "reachable" else [answers, wrong[0]]
    reached = [reachable(facts)]
    if reached[0].status == "FAIL":
        return reached
    findings = wrong or reached
    if not any(finding.check == "login" for finding in findings):
        login = "with a password" if "password" in facts.target.options else "without a password"
        findings.append(Finding("login", "ok", f"user {facts.user}, {login}"))
    findings.append(rights(facts))
    if findings[-1].status == "FAIL":
        unknown = "not checked: rights are missing"
        findings += [Finding("script", "skip", unknown), Finding("latency", "skip", unknown)]
    else:
        round_trips_ms = [ms for node in facts.nodes for ms in node.round_trips_ms]
        findings += [across(facts.nodes, script), latency(round_trips_ms)]
    nodes = facts.nodes
    findings += [across(nodes, eviction), across(nodes, persistence), clock(nodes)]
    if facts.max_connections:
        findings.append(across(nodes, lambda node: connections(node, facts.max_connections)))
    if facts.target.kind == "cluster":
        findings += [slots(nodes), coverage(nodes), replicas(nodes)]
    if facts.sentinels:
        findings += [sentinels(facts.sentinels), quorum(facts.sentinels.quorum), across(nodes, lag)]
    return findings


def reachable(facts: Facts) -> Finding:
    """Check that the servers are of the kind that the URL names."""
    servers = sorted({server_name(node.info) for node in facts.nodes})
    first = facts.nodes[0]
    what = {
        "single": "a single server",
        "sentinel": f"the primary {first.where}, which the sentinels name",
        "cluster": f"a cluster with {counted(len(facts.nodes), 'master')}",
    }[facts.target.kind]
    mode = first.info.get("server_mode") or first.info.get("redis_mode", "")
    if facts.target.kind == "single" and mode in ("cluster", "sentinel"):
        behind = "" if mode == "cluster" else "/service"
        return Finding(
            "reachable",
            "FAIL",
            f"{first.where} is a {'node of a cluster' if mode == 'cluster' else 'sentinel'}, "
            "and the URL says a single server",
            f"write redis+{mode}://{first.where}{behind}",
        )
    for node in facts.nodes:
        if node.info.get("role") == "slave":
            primary = f"{node.info.get('master_host')}:{node.info.get('master_port')}"
            return Finding(
                "reachable",
                "FAIL",
                f"{node.where} is a replica, and takes no writes",
                f"write the address of its primary, which is {primary}",
            )
    return Finding("reachable", "ok", f"{what}: {', '.join(servers)}")


def server_name(info: Mapping[str, str]) -> str:
    """Return the name of a server: `"valkey 9.1.2"`. Nothing depends on it."""
    name = info.get("server_name", "redis")
    version = info.get(f"{name}_version") or info.get("redis_version")
    return f"{name} {version}" if version else "it does not say which (no right to INFO)"


def rights(facts: Facts) -> Finding:
    """Check that the user has the rights that a limiter needs."""
    whole = acl_line(facts.namespace, facts.commands)
    on_every = " on every node" if facts.target.kind != "single" else ""
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
    """Check that a node made a decision."""
    problem = node.undecided
    if problem is None and node.decided:
        found = "every algorithm decided, on a key that was removed"
        return Finding("script", "ok", found)
    if problem is None:
        return Finding("script", "skip", "not checked: no decision was tried")
    advice = _ADVICE.get(problem.kind, "the server's log may say more")
    return Finding("script", "FAIL", f"no decision: {problem.text}", advice)


def _unusable(facts: Facts, problem: ServerProblem) -> Finding:
    found = f"{problem.where}: {problem.text}"
    if "no permissions" in problem.text:
        line = acl_line(facts.namespace, facts.commands)
        at, line = ("sentinel", SENTINEL_LINE) if problem.sentinel else ("server", line)
        return Finding("rights", "FAIL", found, f"make a user, on every {at}:\n{line}")
    if problem.kind == "rights":
        return Finding("login", "FAIL", found, _login_advice(problem))
    advice = _ADVICE.get(problem.kind, "the server's log may say more")
    if "cluster support disabled" in problem.text:
        advice = f"this is a single server: write redis://{problem.where}"
    elif problem.sentinel and "unknown command" in problem.text:
        advice = f"this is no sentinel: for a single server write redis://{problem.where}"
    elif "cannot read" in problem.text:
        advice = UnreadableFile.advice
    elif scheme := tls_advice(problem.kind, problem.text, facts.target.shown):
        advice = f"{scheme}; else {advice}"
    elif "DB index" in problem.text:
        advice = "the URL names a database that the server does not have: see CONFIG GET databases"
    elif problem.kind in ("connection", "timeout") and not problem.sentinel:
        if facts.target.kind == "sentinel":
            advice = _PRIMARY_ADDRESS
        elif facts.target.kind == "cluster" and problem.where not in facts.target.shown:
            advice = _CLUSTER_ADDRESS
    return Finding("reachable", "FAIL", found, advice)


def _login_advice(problem: ServerProblem) -> str:
    if "without any password" in problem.text:
        return "the server has no password: leave it out of the URL"
    if problem.sentinel:
        return (
            "the sentinels have a login of their own: ?sentinel_username=...&sentinel_password=..."
        )
    if problem.text.startswith("NOAUTH"):
        return "put the password into the URL: redis://:password@host, redis://user:password@host"
    return _ADVICE["rights"]
