"""A service as it looks when people use it: rules with a history, tokens, traffic of all kinds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.dashboard.browsing import Served
from tests.dashboard.traffic import traffic
from tests.waiting import wait_until

BUSY = "api-per-user"
ATTACKER = "203.0.113.7"
LATER = "2099-12-31"
# Every page, in the state in which it has most to show.
PAGES = {
    "overview": "/",
    "rules": "/rules",
    "rule": f"/rules/{BUSY}",
    "edit": f"/rules/{BUSY}/edit",
    "new": "/rules/new",
    "history": "/rules/history",
    "keys": f"/keys?path=/login&ip={ATTACKER}",
    "live": "/live",
    "audit": "/audit?row=2",
    "tokens": "/tokens?ended=shown",
}
_RULES: list[dict[str, Any]] = [
    {
        "name": "search-per-user",
        "description": "Searches cost more than other requests.",
        "match": {"path": "/api/search/*"},
        "key": ["user"],
        "limits": "30/minute",
        "mode": "shadow",
    },
    {
        "name": "checkout",
        "description": "What a shop can take at once, all customers together.",
        "match": {"path": "/api/checkout", "method": ["POST", "PUT"]},
        "key": [],
        "limits": "600/minute",
    },
    {
        "name": "partners",
        "description": "By contract.",
        "match": {"path": "/partners/*", "partner": {"present": True}},
        "key": ["partner"],
        "limits": ["50/s", "10000/day"],
        "enforce_percent": 25,
    },
    {
        "name": "old-clients",
        "match": {"agent": "legacy/*"},
        "key": ["ip"],
        "limits": "10/minute",
        "mode": "off",
    },
]


def furnish(service: Served) -> None:
    """Do what people did before: save rules, make tokens, block somebody."""
    held = service.admin("GET", "/rules")
    document = held["document"]
    document = {**document, "rules": [*document["rules"], *_RULES]}
    save(service, document, "searches, checkout and partners")
    changed = [
        {**rule, "limits": ["120/minute", "5000/day"]} if rule["name"] == BUSY else rule
        for rule in document["rules"]
    ]
    save(service, {**document, "rules": changed}, "users asked for a little more")
    service.admin("POST", "/tokens", {"role": "editor", "name": "ann"})
    service.admin("POST", "/tokens", {"role": "viewer", "name": "the wall", "expires_at": LATER})
    gone = service.admin("POST", "/tokens", {"role": "check", "name": "old checkout"})
    service.admin("DELETE", f"/tokens/{gone['token']['id'] if 'token' in gone else gone['id']}")
    block = {"attributes": {"ip": "192.0.2.66"}, "ends": LATER, "comment": "scrapes the shop"}
    service.admin("POST", "/blocks", block)
    override = {"key": {"user": "17"}, "limits": "500/minute", "comment": "a large customer"}
    service.admin("POST", f"/rules/{BUSY}/overrides", {**override, "ends": LATER})
    exemption = {"name": "probes", "match": {"agent": "probe/*"}, "description": "health checks"}
    service.admin("POST", "/exemptions", exemption)
    now = service.admin("GET", "/rules")
    draft = {**now["document"], "rules": now["document"]["rules"][:-1]}
    save(service, draft, "without old clients", activate=False)


def save(service: Served, document: dict[str, Any], comment: str, *, activate: bool = True) -> int:
    """Save rules as a new version, and wait until it holds; return which."""
    base = service.admin("GET", "/rules")["latest"]
    sent = {"document": document, "base": base, "comment": comment, "activate": activate}
    version: int = service.admin("PUT", "/rules", sent)["version"]
    if activate:
        wait_until(lambda: service.check()["version"] == str(version))
    return version


@contextmanager
def busy(service: Served, a_second: float = 40) -> Iterator[None]:
    """Have many kinds of requests come, until the end."""
    users = [
        {"path": "/api/items", "user": str(n % 23), "ip": f"198.51.100.{n % 50}"}
        for n in range(211)
    ]
    heavy = {"path": "/api/search/cats", "user": "42", "ip": "198.51.100.9"}
    guesses = {"path": "/login", "ip": ATTACKER}
    logins = [{"path": "/login", "ip": f"198.51.100.{n}"} for n in range(97)]
    nobody = {"path": "/api/items", "ip": "192.0.2.10"}
    buys = {"path": "/api/checkout", "method": "POST", "user": "7"}
    partner = {"path": "/partners/feed", "partner": "acme"}
    mixed = itertools.chain.from_iterable(
        (user, heavy, login, partner, buys) for user, login in zip(users, itertools.cycle(logins))
    )
    with ExitStack() as stack:
        stack.enter_context(traffic(service, *mixed, a_second=a_second))
        stack.enter_context(traffic(service, guesses, guesses, nobody, a_second=a_second / 8))
        yield
