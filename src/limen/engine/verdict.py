"""`Verdict`: what all rules together say to one request, and every rule's part in it. Pure.

`Bill`: what the request was charged, and what gave each cost. It is worth keeping until the request
is done, and enough to refund or settle it from another process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from limen.errors import LimenError
from limen.model import (
    UNCHARGED,
    Check,
    Concurrency,
    Decision,
    Limit,
    Receipt,
    Source,
    valid_cost,
)
from limen.rules.rule import Applied
from limen.rules.ruleset import Resolution, RuleSet


class Charge(Struct, frozen=True):
    """One limit that was charged."""

    check: Check
    stamp_us: int
    """Where the charge lies on the state's own timeline."""
    attribute: str | None = None
    """The attribute by which the rule charges: `"tokens"`. None when it goes by none."""
    is_asked: bool = True
    """Whether it was charged at the cost that the request itself gave."""


class Bill(Struct, frozen=True):
    """What one request was charged. Good for one correction."""

    id: str
    charges: tuple[Charge, ...]
    source: Source = "store"
    """Who charged it: the store, or this process in its place."""

    @property
    def receipt(self) -> Receipt:
        """The same as a limiter takes it."""
        return self.receipt_of(self.charges)

    def receipt_of(self, charges: Iterable[Charge]) -> Receipt:
        """Return a receipt for some of the charges."""
        pairs = tuple([(charge.check, charge.stamp_us) for charge in charges])
        return Receipt(self.id, pairs, self.source)


class Part(Struct, frozen=True):
    """What one limit of one rule says to a request."""

    rule: str
    """The rule: `"search-per-user"`."""
    name: str
    """The limit within the rule, for a header or a log: `"search-per-user#2"`."""
    mode: Literal["enforce", "shadow", "block"]
    """Whether it could refuse. A rule that is enforced for some keys is a shadow for the rest."""
    allowed: bool
    """Whether this limit lets the request pass."""
    limit: Limit | Concurrency | None = None
    """None when the tier is unlimited, and when the rule refuses without counting."""
    key: str | None = None
    """What was counted apart: `"user=42"`."""
    cost: int = 0
    """What the request counts here."""
    remaining: int | None = None
    """How many units are left. None without a limit."""
    retry_after: float | None = 0.0
    """Seconds until this limit would let the request pass; None is never."""
    reset_after: float = 0.0
    """Seconds until nothing is counted any more."""
    tier: str | None = None
    """The tier that applied."""
    variant: str | None = None
    """The variant that applied; None is the rule itself."""
    is_override: bool = False
    """Whether the limit is the key's own."""
    reason: Literal["blocked", "missing"] | None = None
    """Why the rule refuses without counting: it blocks, or an attribute of its key is absent."""

    def __repr__(self) -> str:
        # Without the key: it may be somebody's API key.
        verdict = "allowed" if self.allowed else "refused"
        return f"<Part {self.name} ({self.mode}): {verdict}, {self.limit or self.reason}>"


class Verdict(Struct, frozen=True):
    """The answer of all rules to one request. True in a condition when allowed."""

    allowed: bool
    """Whether the request may pass."""
    rule: str | None
    """The rule that binds: that refuses, or is nearest its limit. None when none applies."""
    version: str
    """The rule set that decided."""
    decision: Decision | None
    """What the limiter said; None when it was not asked."""
    retry_after: float | None
    """Seconds until the same request would pass, if nobody else comes; None is never."""
    exempt: tuple[str, ...]
    """The exemptions that the request came under."""
    not_applicable: tuple[str, ...]
    """Rules that match and were not applied: they need a slot, or come after 100 limits."""
    applied: tuple[Applied, ...]
    """The rules that apply, as they stand in the rule set. `parts` tells what each said."""
    now: float = 0.0
    """When it was decided, in seconds since 1970."""

    @property
    def binding(self) -> Decision | None:
        """What the binding limit says; None when no limit is enforced here."""
        return self.decision if self.decision is not None and self.decision.enforce else None

    @property
    def limit(self) -> Limit | Concurrency | None:
        """The limit that binds; None when none does."""
        return self.binding.limit if self.binding is not None else None

    @property
    def remaining(self) -> int | None:
        """How many units the binding limit has left; None when there is none."""
        return self.binding.remaining if self.binding is not None else None

    @property
    def reset_after(self) -> float:
        """Seconds until the binding limit counts nothing any more."""
        return self.binding.reset_after if self.binding is not None else 0.0

    @property
    def delay(self) -> float:
        """Seconds to wait before going on, from a leaky bucket; else 0.0."""
        return self.decision.delay if self.decision is not None else 0.0

    @property
    def source(self) -> Source:
        """Who decided: the store, or who stood in for it. Rules alone count as the store."""
        return self.decision.source if self.decision is not None else "store"

    @property
    def degraded(self) -> bool:
        """Whether somebody else than the store decided."""
        return self.source != "store"

    @property
    def receipt(self) -> Receipt | None:
        """What can be refunded; None when nothing was charged."""
        return self.decision.receipt if self.decision is not None else None

    def by_rule(self) -> list[tuple[Applied, Sequence[Decision]]]:
        """Return each rule that applies with what its limits said; nothing where none was asked."""
        decisions = self.decision.parts if self.decision is not None else ()
        found: list[tuple[Applied, Sequence[Decision]]] = []
        first = 0
        for applied in self.applied:
            end = first + applied.checks
            # Its checks stand in its order.
            found.append((applied, decisions[first:end]))
            first = end
        return found

    @property
    def bill(self) -> Bill | None:
        """What was charged, to keep until the request is done; None when nothing was."""
        charges: list[Charge] = []
        source: Source = "store"
        for applied, of_rule in self.by_rule():
            by = applied.rule.cost
            attribute = by if isinstance(by, str) else None
            for part in of_rule:
                if part.stamp_us != UNCHARGED:
                    check = Check(part.limit, part.key, part.cost, part.subject)
                    is_asked = applied.cost_by is None
                    charges.append(Charge(check, part.stamp_us, attribute, is_asked))
                    source = part.source
        if self.decision is None or not charges:
            return None
        return Bill(f"{self.decision.id:016x}", tuple(charges), source)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What every limit of every rule says, in the order of the rules. Shadows too."""
        found: list[Part] = []
        for applied, of_rule in self.by_rule():
            if of_rule:
                found.extend(_part(applied, part, n + 1) for n, part in enumerate(of_rule))
            else:
                found.append(part_without_limit(applied, self.now))
        return tuple(found)

    def __bool__(self) -> bool:
        return self.allowed

    def __repr__(self) -> str:
        verdict = "allowed" if self.allowed else "refused"
        by = f" by {self.rule}" if self.rule else ""
        return f"<Verdict {verdict}{by}: {self.limit}, rules {self.version or 'without version'}>"


class RequestRefused(LimenError):
    """Stop a request that the rules refuse. `verdict` tells which, and when to come back."""

    def __init__(self, verdict: Verdict) -> None:
        when = "" if verdict.retry_after is None else f": retry in {verdict.retry_after:.6g} s"
        super().__init__(f"refused by rule {verdict.rule}{when}")
        self.verdict = verdict

    def __reduce__(self) -> tuple[type[RequestRefused], tuple[Verdict]]:
        return (RequestRefused, (self.verdict,))


def verdict_of(
    rules: RuleSet,
    found: Resolution,
    applied: Sequence[Applied],
    decision: Decision | None,
    now: float,
) -> Verdict:
    """Combine the rules that apply with the decision of the limiter.

    `applied` are the rules that take part in the verdict.
    """
    rule: str | None = None
    retry_after: float | None = 0.0
    if found.refused:
        binding = max([of for of in applied if of.enforce], key=_ends)
        rule = binding.rule.name
        retry_after = None if _ends(binding) == math.inf else _ends(binding) - now
    elif decision is not None and decision.enforce:
        # A limit counts under the name of its rule, and a number where two would share a state.
        rule = (decision.limit.name or "").partition("#")[0]
        retry_after = decision.retry_after
    return Verdict(
        not found.refused and (decision is None or decision.allowed),
        rule,
        rules.version,
        decision,
        retry_after,
        tuple(found.exempt),
        tuple(found.not_applicable),
        tuple(applied),
        now,
    )


def verdict_without_rules(decision: Decision, version: str) -> Verdict:
    """Return the verdict on limits that no rule names; `version` is that of the active rules."""
    return Verdict(decision.allowed, None, version, decision, decision.retry_after, (), (), ())


def _ends(applied: Applied) -> float:
    """Return when a rule stops refusing by itself."""
    ends = applied.rule.span.ends
    return math.inf if ends is None or applied.refusal == "missing" else ends


def _part(applied: Applied, part: Decision, number: int) -> Part:
    rule, allowance = applied.rule, applied.allowance
    return Part(
        rule=rule.name,
        name=f"{rule.name}#{number}",
        mode="enforce" if applied.enforce else "shadow",
        allowed=part.allowed,
        limit=part.limit,
        key=part.key,
        cost=part.cost,
        remaining=part.remaining,
        retry_after=part.retry_after,
        reset_after=part.reset_after,
        tier=allowance.tier,
        variant=allowance.variant,
        is_override=allowance.is_override,
    )


def part_without_limit(applied: Applied, now: float) -> Part:
    """Return the part of a rule that counts nothing: unlimited, or refusing by itself."""
    rule, allowance = applied.rule, applied.allowance
    retry_after: float | None = 0.0
    if applied.refusal is not None:
        retry_after = None if _ends(applied) == math.inf else _ends(applied) - now
    blocks = applied.refusal == "blocked" and applied.enforce
    return Part(
        rule=rule.name,
        name=rule.name,
        mode="block" if blocks else "enforce" if applied.enforce else "shadow",
        allowed=applied.refusal is None,
        retry_after=retry_after,
        tier=allowance.tier,
        variant=allowance.variant,
        is_override=allowance.is_override,
        reason=applied.refusal,
    )


def corrections(bill: Bill | None, actual: int | Mapping[str, int]) -> list[tuple[Receipt, int]]:
    """Return what to settle, and to what cost. Raises `InvalidInput` for what is no cost.

    A number corrects what was charged at the cost that the request itself gave; a mapping, what was
    charged by those attributes. What a rule fixes stays as it is.
    """
    if isinstance(actual, Mapping):
        costs = {name: valid_cost(cost, f"the cost {name!r}") for name, cost in actual.items()}
        asked = None
    else:
        costs, asked = {}, valid_cost(actual, "actual_cost")
    if bill is None:
        return []
    charged: dict[int, list[Charge]] = {}
    for charge in bill.charges:
        cost = asked if charge.is_asked else None
        if charge.attribute in costs:
            cost = costs[charge.attribute]
        if cost is not None:
            charged.setdefault(cost, []).append(charge)
    return [(bill.receipt_of(charges), cost) for cost, charges in charged.items()]
