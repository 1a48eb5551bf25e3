"""`Asked`: a request as the rules see it, before the limiter is asked. Pure.

Whoever has many requests finds out here that one of them makes no sense before any is charged.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from limen.engine.verdict import Verdict, verdict_of
from limen.model import Check, Decision, valid_cost
from limen.rules.rule import Applied
from limen.rules.ruleset import Resolution, RuleSet


class Asked(Struct, frozen=True, gc=False):
    """What the rules ask of the limiter for one request."""

    rules: RuleSet
    """The rules that decide it, whatever comes into force meanwhile."""
    found: Resolution
    now: float
    """In seconds since 1970."""

    @property
    def checks(self) -> list[Check]:
        """What to ask the limiter; nothing when the rules alone decide."""
        return [] if self.found.refused else self.found.checks

    @property
    def applied(self) -> list[Applied]:
        """The rules that take part in the verdict: if any refuses by itself, only those."""
        applied = self.found.applied
        return [of for of in applied if of.refusal] if self.found.refused else applied

    def verdict(self, decision: Decision | None, now: float | None = None) -> Verdict:
        """Return what all rules say, with what the limiter said; `now` if that was later."""
        now, found = self.now if now is None else now, self.found
        applied = self.applied if found.refused else found.applied
        return verdict_of(self.rules, found, applied, decision, now)


def ask(
    rules: RuleSet, attributes: Mapping[str, str], cost: int, now_ns: int, *, slots: bool
) -> Asked:
    """Return what the rules ask of the limiter. Raises `InvalidInput` for what makes no sense."""
    now = now_ns / 1e9
    return Asked(rules, rules.resolve(attributes, valid_cost(cost), now, slots=slots), now)
