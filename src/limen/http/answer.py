"""`Answer`: what a client may be told of a decision. Shadows and keys never get this far.

A decision of the library and a verdict of the rules both become one. The engine lies above this
room, so a verdict is known here by its shape alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from limen.model import Concurrency, Decision, Limit, Source


class Quota(Struct, frozen=True, gc=False):
    """Where a client stands under one limit that may refuse it."""

    name: str
    """What headers and problems call it: `"search-per-user#1"`, or `"100/minute"`."""
    limit: Limit | Concurrency
    """What is allowed."""
    allowed: bool
    """Whether this limit lets the request pass."""
    remaining: int
    """How many units are left."""
    retry_after: float | None
    """Seconds until the same request would pass; None is never."""
    reset_after: float
    """Seconds until nothing is counted any more."""
    cost: int = 1
    """What the request counts here."""
    source: Source = "store"
    """Who counted. `open` and `closed` did not count at all."""
    per: tuple[str, ...] = ()
    """What is counted apart, for a person to read: `("user",)`. Names only, never a value."""

    @property
    def is_counted(self) -> bool:
        """Whether `remaining` and `reset_after` are known, and not only assumed."""
        return self.source in ("store", "local")


class Answer(Struct, frozen=True):
    """What a client may be told: whether it may pass, and where it stands."""

    allowed: bool
    """Whether the request may pass."""
    quotas: tuple[Quota, ...] = ()
    """Every limit that could have refused, in the order of the rules."""
    retry_after: float | None = 0.0
    """Seconds until the same request would pass; None is never."""
    blocked_by: tuple[str, ...] = ()
    """Rules that refuse without counting: `("no-robots",)`."""
    lacks: tuple[str, ...] = ()
    """When a rule refuses because it cannot tell who asks: what it counts by, `("api_key",)`."""

    @property
    def binding(self) -> Quota | None:
        """The quota that speaks for all: the longest to wait for, else the one nearest its limit.

        None when nobody counted.
        """
        counted = [quota for quota in self.quotas if quota.is_counted]
        if not self.allowed:
            return max([quota for quota in counted if not quota.allowed], key=_wait, default=None)
        return min(counted, key=_share, default=None)


class PartLike(Protocol):
    """What is needed of a part of a verdict: `limen.engine.Part` has it."""

    @property
    def rule(self) -> str:
        """The rule."""

    @property
    def name(self) -> str:
        """The limit within the rule."""

    @property
    def mode(self) -> Literal["enforce", "shadow", "block"]:
        """Whether it could refuse."""

    @property
    def allowed(self) -> bool:
        """Whether it lets the request pass."""

    @property
    def limit(self) -> Limit | Concurrency | None:
        """None when nothing is counted."""

    @property
    def reason(self) -> Literal["blocked", "missing"] | None:
        """Why the rule refuses without counting."""


class RuleLike(Protocol):
    """What is needed of a rule: `limen.rules.Rule` has it."""

    @property
    def name(self) -> str:
        """The rule's name."""

    @property
    def key(self) -> tuple[str, ...]:
        """The attributes that are counted apart."""


class AppliedLike(Protocol):
    """What is needed of a rule that applies."""

    @property
    def rule(self) -> RuleLike:
        """The rule."""


class VerdictLike(Protocol):
    """What is needed of a verdict: `limen.engine.Verdict` has it."""

    @property
    def allowed(self) -> bool:
        """Whether the request may pass."""

    @property
    def retry_after(self) -> float | None:
        """Seconds until it would pass; None is never."""

    @property
    def decision(self) -> Decision | None:
        """What the limiter said."""

    @property
    def parts(self) -> Sequence[PartLike]:
        """What every limit of every rule says."""

    @property
    def applied(self) -> Sequence[AppliedLike]:
        """The rules that apply."""


def answer_of(decision: Decision) -> Answer:
    """Return what a client may be told of a decision. A limit without a name goes by its text."""
    return Answer(
        decision.allowed,
        tuple([_quota(part, _name_of(part.limit)) for part in decision.parts if part.enforce]),
        decision.retry_after,
    )


def answer_of_verdict(verdict: VerdictLike) -> Answer:
    """Return what a client may be told of a verdict of the rules."""
    # The parts that have a limit are the decision's own, in its order.
    decisions = iter(verdict.decision.parts if verdict.decision is not None else ())
    per = {of.rule.name: of.rule.key for of in verdict.applied}
    quotas: list[Quota] = []
    blocked: list[str] = []
    lacks: tuple[str, ...] = ()
    for part in verdict.parts:
        if part.limit is not None:
            decision = next(decisions)
            if part.mode == "enforce":
                quotas.append(_quota(decision, part.name, per.get(part.rule, ())))
        elif part.mode != "shadow" and not part.allowed:
            blocked.append(part.name)
            if part.reason == "missing":
                lacks = lacks or per.get(part.rule, ())
    return Answer(verdict.allowed, tuple(quotas), verdict.retry_after, tuple(blocked), lacks)


def whole(limit: Limit | Concurrency) -> int:
    """Return the most that can be left: a full bucket has its burst, not its quota."""
    return limit.slots if isinstance(limit, Concurrency) else limit.capacity


def _quota(part: Decision, name: str, per: tuple[str, ...] = ()) -> Quota:
    return Quota(
        name,
        part.limit,
        part.allowed,
        part.remaining,
        part.retry_after,
        part.reset_after,
        part.cost,
        part.source,
        per,
    )


def _name_of(limit: Limit | Concurrency) -> str:
    if limit.name is not None:
        return limit.name
    return f"{limit.slots} at once" if isinstance(limit, Concurrency) else str(limit)


def _wait(quota: Quota) -> float:
    return float("inf") if quota.retry_after is None else quota.retry_after


def _share(quota: Quota) -> float:
    return quota.remaining / whole(quota.limit)
