"""`Asked`: a request as the rules see it, before the limiter is asked. Pure.

`Together`: several of them that stand for one request, decided all or nothing. Envoy describes a
request in several ways, and asks about all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from limen.engine.verdict import Verdict, verdict_of
from limen.errors import InvalidInput
from limen.model import MAX_COST, Check, Decision, valid_cost
from limen.rules.rule import Applied
from limen.rules.ruleset import MAX_CHECKS, Resolution, RuleSet


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
        now = self.now if now is None else now
        return verdict_of(self.rules, self.found, self.applied, decision, now)


def ask(
    rules: RuleSet, attributes: Mapping[str, str], cost: int, now_ns: int, *, slots: bool
) -> Asked:
    """Return what the rules ask of the limiter. Raises `InvalidInput` for what makes no sense."""
    now = now_ns / 1e9
    return Asked(rules, rules.resolve(attributes, valid_cost(cost), now, slots=slots), now)


class Together(Struct, frozen=True, gc=False):
    """What the rules ask of the limiter for one request that was described several times."""

    whole: Asked
    """All of it, as if it had been one."""
    checks: tuple[Check, ...]
    """What to ask the limiter; nothing when the rules alone decide."""
    order: tuple[int, ...] | None
    """For each check of the whole, where it stands in `checks`; None when they are the same."""

    def verdict(self, decision: Decision | None) -> Verdict:
        """Return what all rules say, with what the limiter said."""
        if decision is not None and self.order is not None:
            parts = decision.parts
            decision = structs.replace(decision, several=tuple([parts[n] for n in self.order]))
        return self.whole.verdict(decision)


def together(several: Sequence[Asked]) -> Together:
    """Put together what belongs to one request: at least one. The rules of the first one name all.

    What two of them count in the same place is charged there in one sum. Raises `InvalidInput` when
    it is too much for one call.
    """
    first = several[0]
    found = first.found
    if len(several) > 1:
        found = Resolution.joined([each.found for each in several])
    whole = Asked(first.rules, found, first.now)
    places: dict[tuple[str, str], int] = {}
    checks: list[Check] = []
    order: list[int] = []
    for check in whole.checks:
        place = places.setdefault((check.limit.identity, check.key), len(checks))
        if place == len(checks):
            checks.append(check)
        else:
            cost = min(checks[place].cost + check.cost, MAX_COST)
            checks[place] = structs.replace(checks[place], cost=cost)
        order.append(place)
    if len(checks) > MAX_CHECKS:
        raise InvalidInput(f"at most {MAX_CHECKS} limits fit on one request, got {len(checks)}")
    return Together(whole, tuple(checks), None if len(order) == len(checks) else tuple(order))
