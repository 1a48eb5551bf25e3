"""`RuleSet`: all rules at one moment, never changed; and what they mean for one request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from limen.errors import InvalidInput, shown
from limen.model import Check
from limen.rules.index import Facts, Index
from limen.rules.rule import Allowance, Exemption, Rule, key_of

_MAX_CHECKS = 100
_NOTHING = Allowance(())

Refusal = Literal["blocked", "missing"]


class Applied(Struct, frozen=True, gc=False):
    """A rule that applies to a request, and how."""

    rule: Rule
    allowance: Allowance
    enforce: bool
    """Whether it may refuse the request; else it is a shadow."""
    first: int
    """The place of its first check among those of the request."""
    checks: int
    """How many checks it makes; none when it is unlimited, or refuses without asking."""
    refusal: Refusal | None = None
    """Why it refuses without asking the store."""


class Resolution:
    """What a rule set says to one request: what to check, and for which rules."""

    __slots__ = ("applied", "checks", "exempt", "not_applicable", "refused")

    def __init__(self) -> None:
        self.checks: list[Check] = []
        self.applied: list[Applied] = []
        self.refused = False
        """Whether a rule refuses without asking the store; then there is nothing to ask."""
        self.exempt: list[str] = []
        """The exemptions that the request comes under."""
        self.not_applicable: list[str] = []
        """Rules that match and are not applied: without a slot to hold, or beyond 100 limits."""


class RuleSet:
    """An immutable set of rules. A request is decided by one from start to end."""

    def __init__(
        self,
        rules: Iterable[Rule],
        exemptions: Iterable[Exemption] = (),
        *,
        version: str = "",
        document: Mapping[str, Any] | None = None,
    ) -> None:
        self.rules = tuple(rules)
        self.exemptions = tuple(exemptions)
        self.version = version
        """What names this set: the number it has in its store, or the digest of its file."""
        self.document = document or {"rules": []}
        """What it was read from."""
        self._live = tuple(rule for rule in self.rules if rule.mode != "off")
        self._index = Index(rule.conditions for rule in self._live)
        self._exempt = Index(exemption.conditions for exemption in self.exemptions)

    def resolve(self, facts: Facts, cost: int, now: float, *, slots: bool = False) -> Resolution:
        """Return what to check for a request with these attributes.

        `now` is in seconds since 1970; `slots` says that the caller can hold a slot and will give
        it back. Raises `InvalidInput` for attributes that are not text.
        """
        facts = _facts(facts)
        found = Resolution()
        spared = self._spared(facts, now, found) if self.exemptions else frozenset()
        if spared is None:
            return found
        for number in self._index.find(facts):
            rule = self._live[number]
            if rule.name in spared or not rule.span.holds(now):
                continue
            _apply(rule, facts, cost, now, slots, found)
        return found

    def _spared(self, facts: Facts, now: float, found: Resolution) -> frozenset[str] | None:
        """Return the rules that a request is exempt from; None is all."""
        spared: frozenset[str] = frozenset()
        for number in self._exempt.find(facts):
            exemption = self.exemptions[number]
            if exemption.span.holds(now):
                found.exempt.append(exemption.name)
                if exemption.rules is None:
                    return None
                spared |= exemption.rules
        return spared

    def __repr__(self) -> str:
        return f"<RuleSet {self.version or 'without version'}: {len(self.rules)} rules>"


def _apply(rule: Rule, facts: Facts, cost: int, now: float, slots: bool, found: Resolution) -> None:
    names = rule.key
    subject: str | None
    if names:
        key = key_of(names, facts)
        if key is None:
            if rule.missing == "deny":
                # Who has no key is in no slice of keys.
                everybody = rule.mode != "shadow" and rule.enforced is None
                _refuse(rule, "missing", everybody, found)
            return
        # What one user does lives on one node, whatever else it is counted by.
        subject = key if len(names) == 1 else key_of(names[:1], facts)
    else:
        subject = key = f"@{rule.name}"
    enforce = rule.is_enforced(key)
    if rule.mode == "block":
        _refuse(rule, "blocked", enforce, found)
        return
    if rule.concurrency is not None and not slots:
        found.not_applicable.append(rule.name)
        return
    allowance = rule.allowance(facts, key, now)
    first = len(found.checks)
    if first + len(allowance.limits) >= _MAX_CHECKS:
        found.not_applicable.append(rule.name)
        return
    if rule.concurrency is not None:
        found.checks.append(Check(rule.concurrency, key, 1, subject, enforce, rule.on_error))
    if allowance.limits:
        amount = rule.cost_of(facts, cost)
        for limit in allowance.limits:
            found.checks.append(Check(limit, key, amount, subject, enforce, rule.on_error))
    found.applied.append(Applied(rule, allowance, enforce, first, len(found.checks) - first))


def _refuse(rule: Rule, why: Refusal, enforce: bool, found: Resolution) -> None:
    found.applied.append(Applied(rule, _NOTHING, enforce, len(found.checks), 0, why))
    found.refused = found.refused or enforce


def _facts(attributes: Mapping[str, str]) -> Mapping[str, str]:
    """Return attributes that are there: an empty one is the same as none."""
    if type(attributes) is not dict and not isinstance(attributes, Mapping):
        raise InvalidInput(f"attributes must be a mapping of text to text, got {shown(attributes)}")
    values = attributes.values()
    for value in values:
        if type(value) is not str and not isinstance(value, str):
            raise InvalidInput(_not_text(attributes))
    if "" in values:
        return {name: value for name, value in attributes.items() if value}
    return attributes


def _not_text(attributes: Mapping[str, object]) -> str:
    wrong: Sequence[str] = [
        str(name) for name, value in attributes.items() if not isinstance(value, str)
    ]
    # Not the value: it may be somebody's API key.
    kind = type(attributes[wrong[0]]).__name__ if wrong[0] in attributes else "something else"
    return f"the attribute {shown(wrong[0])} must be text, got {kind}"
