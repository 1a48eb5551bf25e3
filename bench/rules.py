"""From a request's attributes to its checks: how long it takes under few rules and under many.

The sets are mixed as real ones are: exact paths, prefixes, suffixes, tenants, regions by plan,
lists and negations. Ten of the rules match the busy request, whatever the size of the set, and none
the idle one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from bench.harness import Contestant, Target, measure
from bench.report import table
from limen.rules import RuleSet, parse

SIZES = (10, 100, 1_000, 10_000)
MATCHING = 10
PROMISED = 1_000
TARGET = Target(20, less_is_better=True)

_CALLS = 500
_ROUNDS = 15
_QUICK_ROUNDS = 3
# One by one, ten thousand rules take milliseconds.
_SLOW_CALLS = 2

BUSY = {
    "path": "/v1/search",
    "method": "GET",
    "user": "42",
    "region": "eu",
    "org": "acme",
    "plan": "free",
    "ip": "10.1.2.3",
}
IDLE = {"path": "/v9/nothing", "method": "PATCH", "region": "mars"}

_MATCHING: tuple[dict[str, Any], ...] = (
    {"path": "/v1/search"},
    {"path": "/v1/*"},
    {"path": "*/search", "method": "GET"},
    {"path": ["/v1/s*", "/v2/s*"]},
    {"user": {"present": True}},
    {"region": ["eu", "us"], "plan": "free"},
    {"org": "acme"},
    {"org": "acme", "path": {"is": "/v1/*", "not": "/v1/health"}},
    {"plan": "free", "method": ["GET", "PUT"]},
    {"ip": "10.0.0.0/8"},
)


def document(size: int) -> dict[str, Any]:
    """Return a rule set of some size; the ten rules that match are spread over it."""
    matches = [_other(number) for number in range(size)]
    step = size // MATCHING
    for number, match in enumerate(_MATCHING):
        matches[number * step] = match
    return {
        "rules": [
            {"name": f"rule-{number}", "match": match, "key": ["user"], "limits": "100/minute"}
            for number, match in enumerate(matches)
        ]
    }


def _other(number: int) -> dict[str, Any]:
    """Return what one of many rules asks for; never what the two requests have."""
    forms: tuple[dict[str, Any], ...] = (
        {"path": f"/api/service-{number}"},
        {"path": f"/api/service-{number}/*", "method": ["GET", "POST"]},
        {"org": f"tenant-{number}", "path": {"is": "/v1/*", "not": "/v1/health"}},
        {"region": f"region-{number % 10}", "plan": f"plan-{number // 10}"},
        {"path": f"*/report-{number}.json"},
        {"path": f"/orders/*/items-{number}"},
        {"path": [f"/shop-{number}/{part}/*" for part in range(10)], "method": ["GET", "PUT"]},
        {"ip": f"172.{number // 250 % 250}.{number % 250}.0/24"},
    )
    return forms[number % len(forms)]


def one_by_one(rules: RuleSet, facts: Mapping[str, str]) -> int:
    """Ask every rule, as one would without an index; return how many match."""
    return sum(
        all(condition.holds(facts.get(name)) for name, condition in rule.conditions.items())
        for rule in rules.rules
    )


def run(quick: bool, say: Callable[[str], None]) -> str:
    """Measure each size; return the table."""
    rounds = _QUICK_ROUNDS if quick else _ROUNDS
    say(f"rules: sets of {', '.join(f'{size:,}' for size in SIZES)}")
    sets = {size: parse(document(size)) for size in SIZES}
    busy = measure([_resolving(sets, size, BUSY, MATCHING) for size in SIZES], _CALLS, rounds)
    idle = measure([_resolving(sets, size, IDLE, 0) for size in SIZES], _CALLS, rounds)
    asked = measure([_asking(sets, size) for size in SIZES], _SLOW_CALLS, rounds)
    return rules_table(
        *({size: median(of[str(size)]) for size in SIZES} for of in (busy, idle, asked))
    )


def rules_table(busy: dict[int, float], idle: dict[int, float], asked: dict[int, float]) -> str:
    """Return what resolving takes, by the number of rules, in microseconds."""
    rows = [
        [f"{size:,}", *(f"{of[size] / 1_000:,.1f}" for of in (busy, idle, asked))] for size in SIZES
    ]
    promised = busy[PROMISED] / 1_000
    return (
        "### Rules\n\n"
        "From attributes to checks, without the store: exact values, prefixes, suffixes, lists, "
        f"negations and networks mixed, of which {MATCHING} or none match. One by one: the same "
        f"conditions without an index, matching alone. {_ROUNDS} rounds of alternating blocks.\n\n"
        f"{table(['rules', 'µs, ten match', 'µs, none matches', 'µs, one by one'], rows)}\n\n"
        f"At {PROMISED:,} rules: **{promised:.1f} µs**, at most {TARGET.minimum:g} are promised: "
        f"{TARGET.verdict(promised)}."
    )


def _resolving(
    sets: Mapping[int, RuleSet], size: int, facts: dict[str, str], matching: int
) -> Contestant:
    resolve = sets[size].resolve

    def block() -> int:
        found = 0
        for _ in range(_CALLS):
            found += len(resolve(facts, 1, 0.0).checks)
        return found

    return Contestant(str(size), block, matching * _CALLS)


def _asking(sets: Mapping[int, RuleSet], size: int) -> Contestant:
    def block() -> int:
        return sum(one_by_one(sets[size], BUSY) for _ in range(_SLOW_CALLS))

    return Contestant(str(size), block, MATCHING * _SLOW_CALLS)
