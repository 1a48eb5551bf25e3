"""`Answer`: what a client may be told of a decision. Shadows and keys never get this far.

A decision of the library and a verdict of the rules both become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from limen.model import Concurrency, Decision, Limit, Source, binding

if TYPE_CHECKING:
    from limen.engine import Verdict

COUNTED = frozenset({"store", "local"})
"""The sources that count; the others let everybody pass, or nobody."""


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
        return self.source in COUNTED


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
        if not counted:
            return None
        quota = counted[binding(counted)]
        # A request can be refused by a rule that does not count.
        return quota if quota.allowed == self.allowed else None


def answer_of(decision: Decision, per: Sequence[tuple[str, ...]] = ()) -> Answer:
    """Return what a client may be told of a decision. A limit without a name goes by its text.

    `per` says for each part what is counted apart, for a person to read.
    """
    parts = decision.parts
    of_parts = per or [()] * len(parts)
    return Answer(
        decision.allowed,
        tuple(
            [
                _quota(part, title_of(part.limit), of_part)
                for part, of_part in zip(parts, of_parts, strict=True)
                if part.enforce
            ]
        ),
        decision.retry_after,
    )


def answer_of_verdict(verdict: Verdict) -> Answer:
    """Return what a client may be told of a verdict of the rules."""
    quotas: list[Quota] = []
    blocked: list[str] = []
    lacks: tuple[str, ...] = ()
    for applied, said in verdict.by_rule():
        if not applied.enforce:
            continue
        rule = applied.rule
        for number, decision in enumerate(said, 1):
            quotas.append(_quota(decision, f"{rule.name}#{number}", rule.key))
        if applied.refusal is not None:
            blocked.append(rule.name)
            if applied.refusal == "missing":
                lacks = lacks or rule.key
    return Answer(verdict.allowed, tuple(quotas), verdict.retry_after, tuple(blocked), lacks)


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


def title_of(limit: Limit | Concurrency) -> str:
    """Return what headers and problems call a limit that no rule has named."""
    if limit.name is not None:
        return limit.name
    return f"{limit.slots} at once" if isinstance(limit, Concurrency) else str(limit)
