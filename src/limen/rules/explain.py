"""Why each rule applies to a request, or what stands against it. Pure; asks no store.

`RuleSet.resolve` finds the rules that apply without looking at the others. Here every rule is
looked at, condition by condition: for a person who asks why, and not for a request that waits.
"""

from __future__ import annotations

from datetime import UTC, datetime, time

from msgspec import Struct

from limen.rules.index import Conditions, Facts
from limen.rules.rule import Allowances, Exemption, Rule, Span
from limen.rules.ruleset import RuleSet

_WIDTH = 80
LONGEST = 200
"""How much is shown of a condition, which may list thousands of texts."""


class Tested(Struct, frozen=True):
    """One condition, and what the request has for it."""

    attribute: str
    """The attribute: `path`."""
    asked: str
    """What the rule asks for: `is /search/*`."""
    got: str | None
    """What the request has; null when it is absent."""
    holds: bool

    def __str__(self) -> str:
        got = "absent" if self.got is None else f"got {_shown(self.got)}"
        return f"{self.attribute} {shortened(self.asked, LONGEST)} : {got}"


class Account(Struct, frozen=True):
    """What one rule has to do with a request."""

    rule: Rule
    tests: tuple[Tested, ...]
    """All its conditions, in the order of the rule."""
    obstacle: str | None
    """The first thing that stands against the rule; None when it applies."""

    @property
    def applies(self) -> bool:
        """Whether the rule applies."""
        return self.obstacle is None


class Explanation(Struct, frozen=True):
    """What every rule has to do with a request."""

    exempt: tuple[Exemption, ...]
    """The exemptions that it comes under."""
    accounts: tuple[Account, ...]
    """One for each rule, in their order."""

    @property
    def applying(self) -> tuple[Account, ...]:
        """The rules that apply."""
        return tuple(account for account in self.accounts if account.applies)

    @property
    def others(self) -> tuple[Account, ...]:
        """The rules that do not apply."""
        return tuple(account for account in self.accounts if not account.applies)


def explain(rules: RuleSet, facts: Facts, now: float) -> Explanation:
    """Say of every rule whether it applies to a request, and why. An empty attribute is absent.

    `now` is in seconds since 1970. A rule that would refuse applies too.
    """
    facts = {name: value for name, value in facts.items() if value}
    exempt = tuple(
        exemption
        for exemption in rules.exemptions
        if exemption.span.holds(now) and all(test.holds for test in _tests(exemption, facts))
    )
    return Explanation(exempt, tuple(_account(rule, facts, now, exempt) for rule in rules.rules))


def attributes(rules: RuleSet) -> frozenset[str]:
    """Return every attribute that any rule or exemption looks at."""
    found: set[str] = set()
    for exemption in rules.exemptions:
        found.update(exemption.conditions)
    for rule in rules.rules:
        found.update(rule.conditions, rule.key)
        found.update(_tier_attributes(rule))
        if isinstance(rule.cost, str):
            found.add(rule.cost)
    return frozenset(found)


def conditions(of: Conditions) -> list[str]:
    """Write each condition: `path is /search/*`, `method is GET or POST`."""
    return [f"{name} {condition}" for name, condition in of.items()]


def shortened(text: str, longest: int) -> str:
    """Return a text, or its beginning and `...` when it is longer than that."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def moment_text(seconds: float) -> str:
    """Write a time as a rule would: `2026-12-24T18:00Z`, or `2026-12-24` for its first moment."""
    at = datetime.fromtimestamp(seconds, UTC)
    if at.time() == time():
        return at.date().isoformat()
    exact = "minutes" if not at.second and not at.microsecond else "auto"
    return at.isoformat(timespec=exact).replace("+00:00", "Z")


def _account(rule: Rule, facts: Facts, now: float, exempt: tuple[Exemption, ...]) -> Account:
    tests = _tests(rule, facts)
    return Account(rule, tests, _obstacle(rule, tests, facts, now, exempt))


def _obstacle(
    rule: Rule, tests: tuple[Tested, ...], facts: Facts, now: float, exempt: tuple[Exemption, ...]
) -> str | None:
    """Return what stands against a rule: in the order in which a person would look for it."""
    if rule.mode == "off":
        return "mode is off"
    for test in tests:
        if not test.holds:
            return str(test)
    if not rule.span.holds(now):
        return _outside(rule.span, now)
    for exemption in exempt:
        if exemption.rules is None or rule.name in exemption.rules:
            return f"exempt by {exemption.name}"
    absent = [name for name in rule.key if name not in facts]
    if absent and rule.missing == "skip" and rule.mode != "block":
        return f"counted by {absent[0]} : absent"
    return None


def _outside(span: Span, now: float) -> str:
    if span.starts is not None and now < span.starts:
        return f"starts at {moment_text(span.starts)}"
    return f"ended at {moment_text(span.ends or 0.0)}"


def _tests(of: Rule | Exemption, facts: Facts) -> tuple[Tested, ...]:
    return tuple(
        Tested(name, str(condition), facts.get(name), condition.holds(facts.get(name)))
        for name, condition in of.conditions.items()
    )


def _tier_attributes(rule: Rule) -> set[str]:
    several: list[Allowances] = [rule.allowances, *(allowances for _, allowances in rule.variants)]
    return {allowances.by for allowances in several if allowances.by is not None}


def _shown(value: str) -> str:
    """Return a value as it is, unless that would hide what is in it or break the line."""
    text = value if value.isprintable() and value.strip() == value else repr(value)
    return shortened(text, _WIDTH)
