"""`RuleSet`: all rules at one moment, never changed; and what they mean for one request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct, structs

from limen.errors import InvalidInput, shown
from limen.model import Check
from limen.rules.index import Facts, Index
from limen.rules.rule import Allowance, Applied, Exemption, Refusal, Rule, Span, key_of

MAX_CHECKS = 100
"""As many limits as one call of the store takes."""
_NOTHING = Allowance(())
_NOBODY: frozenset[str] = frozenset()


class Resolution(Struct, eq=False):
    """What a rule set says to one request: what to check, and for which rules."""

    _facts: Facts
    _cost: int
    _now: float
    _slots: bool
    checks: list[Check] = []
    applied: list[Applied] = []
    refused: bool = False
    """Whether a rule refuses without asking the store; then there is nothing to ask."""
    exempt: list[str] = []
    """The exemptions that the request comes under."""
    not_applicable: list[str] = []
    """Rules that match and are not applied: without a slot to hold, or beyond 100 limits."""
    _keys: dict[tuple[str, ...], str | None] = {}
    _trouble: InvalidInput | None = None

    def __repr__(self) -> str:
        # Without the fields: attributes of a request may be secret.
        return f"<Resolution: {len(self.checks)} checks>"

    @classmethod
    def joined(cls, several: Sequence[Resolution]) -> Resolution:
        """Return what several ask together, in their order."""
        found = cls({}, 1, 0.0, False)
        for each in several:
            found.checks += each.checks
            found.applied += each.applied
            found.exempt += each.exempt
            found.not_applicable += each.not_applicable
            found.refused = found.refused or each.refused
        return found

    def apply(self, rule: Rule) -> None:
        """Add what a rule that matches asks for."""
        if not rule.span.holds(self._now):
            return
        key = self._key(rule.key) if rule.key else rule.alone
        if key is None:
            if rule.mode == "block":
                self._refuse(rule, "blocked", rule.enforced is None)
            elif rule.missing == "deny":
                # Who has no key is in no slice of keys.
                self._refuse(rule, "missing", rule.mode != "shadow" and rule.enforced is None)
            return
        enforce = rule.is_enforced(key)
        if rule.missing == "deny" and isinstance(rule.cost, str) and rule.cost not in self._facts:
            self._refuse(rule, "missing", enforce)
            return
        if rule.mode == "block":
            self._refuse(rule, "blocked", enforce)
            return
        if rule.concurrency is not None and not self._slots:
            self.not_applicable.append(rule.name)
            return
        allowance = rule.allowance(self._facts, key, self._now)
        checks = len(allowance.limits) + (rule.concurrency is not None)
        try:
            cost = rule.cost_of(self._facts, self._cost) if allowance.limits else 0
        except InvalidInput as error:
            # A shadow has no say, not even this one; and a block comes before any other.
            self._trouble = self._trouble or (error if enforce else None)
            self.not_applicable.append(rule.name)
            return
        cost_by = rule.cost
        if isinstance(cost_by, str) and cost_by not in self._facts:
            cost_by = None
        # What one user does lives on one node, whatever else it is counted by.
        subject = key if len(rule.key) <= 1 else self._key(rule.key[:1])
        if rule.concurrency is not None:
            self.checks.append(Check(rule.concurrency, key, 1, subject, enforce, rule.on_error))
        for limit in allowance.limits:
            self.checks.append(Check(limit, key, cost, subject, enforce, rule.on_error))
        self.applied.append(Applied(rule, allowance, enforce, checks, cost_by=cost_by))

    def finish(self) -> None:
        """Keep to what one call of the store takes; raise what has to be raised."""
        if self._trouble is not None and not self.refused:
            raise self._trouble
        if len(self.checks) <= MAX_CHECKS:
            return
        # Shadows give way first, then rules for which there is no room behind the others.
        kept, room = set(), MAX_CHECKS
        for number, each in sorted(enumerate(self.applied), key=lambda item: not item[1].enforce):
            if each.checks <= room:
                room -= each.checks
                kept.add(number)
        checks, applied = self.checks, self.applied
        self.checks, self.applied, first = [], [], 0
        for number, each in enumerate(applied):
            if number in kept:
                self.checks += checks[first : first + each.checks]
                self.applied.append(each)
            else:
                self.not_applicable.append(each.rule.name)
            first += each.checks

    def _refuse(self, rule: Rule, why: Refusal, enforce: bool) -> None:
        self.applied.append(Applied(rule, _NOTHING, enforce, 0, why))
        self.refused = self.refused or enforce

    def _key(self, names: tuple[str, ...]) -> str | None:
        try:
            return self._keys[names]
        except KeyError:
            key = self._keys[names] = key_of(names, self._facts)
            return key


class RuleSet:
    """An immutable set of rules. A request is decided by one from start to end."""

    rules: tuple[Rule, ...]
    """All of them, in the order of their document."""
    exemptions: tuple[Exemption, ...]
    version: str
    """What names this set: the number it has in its store, or the digest of its file."""
    document: Mapping[str, Any]
    """What it was read from."""
    is_timeless: bool
    """Whether it says the same to a request at any time: nothing in it starts or ends."""
    _live: tuple[Rule, ...]
    _index: Index
    _exempt: Index

    def __init__(
        self,
        rules: Iterable[Rule],
        exemptions: Iterable[Exemption] = (),
        *,
        version: str = "",
        document: Mapping[str, Any] | None = None,
    ) -> None:
        set_ = object.__setattr__
        set_(self, "rules", tuple(rules))
        set_(self, "exemptions", tuple(exemptions))
        set_(self, "version", version)
        set_(self, "document", document or {"rules": []})
        spans = [rule.span for rule in self.rules]
        spans += [exemption.span for exemption in self.exemptions]
        for rule in self.rules:
            for _, table in rule.overrides:
                spans += [override.span for found in table.values() for override in found]
        set_(self, "is_timeless", all(span == Span() for span in spans))
        live = tuple(rule for rule in self.rules if rule.mode != "off")
        set_(self, "_live", live)
        set_(self, "_index", Index(rule.conditions for rule in live))
        set_(self, "_exempt", Index(exemption.conditions for exemption in self.exemptions))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a RuleSet never changes; make another to change its {name}")

    def resolve(self, facts: Facts, cost: int, now: float, *, slots: bool = False) -> Resolution:
        """Return what to check for a request with these attributes.

        `now` is in seconds since 1970; `slots` says that the caller can hold a slot and will give
        it back. Raises `InvalidInput` for attributes that are not text.
        """
        facts = _facts(facts)
        found = Resolution(facts, cost, now, slots)
        spared = self._spared(facts, now, found) if self.exemptions else _NOBODY
        if spared is None:
            return found
        for number in self._index.find(facts):
            rule = self._live[number]
            if rule.name not in spared:
                found.apply(rule)
        found.finish()
        return found

    def is_about(self, attribute: str, value: str) -> bool:
        """Return whether a rule, also one that is off, or an exemption accepts this value."""
        sources: Iterable[Rule | Exemption] = chain(self.rules, self.exemptions)
        conditions = (source.conditions.get(attribute) for source in sources)
        return any(condition is None or condition.holds(value) for condition in conditions)

    def in_shadow(self, names: frozenset[str] | None) -> RuleSet:
        """Return the same rules with some of them, or all (None), refusing nobody."""
        if names is not None and not names:
            return self
        rules = [
            structs.replace(rule, enforced=0) if names is None or rule.name in names else rule
            for rule in self.rules
        ]
        return RuleSet(rules, self.exemptions, version=self.version, document=self.document)

    def _spared(self, facts: Facts, now: float, found: Resolution) -> frozenset[str] | None:
        """Return the rules that a request is exempt from; None is all."""
        spared: frozenset[str] | None = _NOBODY
        for number in self._exempt.find(facts):
            exemption = self.exemptions[number]
            if exemption.span.holds(now):
                found.exempt.append(exemption.name)
                if exemption.rules is None or spared is None:
                    spared = None
                else:
                    spared |= exemption.rules
        return spared

    def __repr__(self) -> str:
        return f"<RuleSet {self.version or 'without version'}: {len(self.rules)} rules>"


def _facts(attributes: Mapping[str, str]) -> Mapping[str, str]:
    """Return attributes that are there: an empty one is the same as none."""
    if type(attributes) is not dict and not isinstance(attributes, Mapping):
        raise InvalidInput(f"attributes must be a mapping of text to text, got {shown(attributes)}")
    values = attributes.values()
    for value in values:
        if type(value) is not str:
            return _texts(attributes)
    if "" in values:
        return {name: value for name, value in attributes.items() if value}
    return attributes


def _texts(attributes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the texts themselves: a subclass may print as something else, as an Enum does."""
    texts = {}
    for name, value in attributes.items():
        if not isinstance(value, str):
            # Not the value: it may be somebody's API key.
            kind = type(value).__name__
            raise InvalidInput(f"the attribute {shown(str(name))} must be text, got {kind}")
        if value:
            texts[name] = str.__str__(value)
    return texts
