"""What travels between a limen that decides and whoever asks it: the messages of `/v1`. Pure.

The service and the client read and write these, so that both mean the same. Times are seconds;
null is "never" where it stands for a time, and "none" elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from limen.model import MAX_COST, Source

MAX_BATCH = 1_000
MAX_ATTRIBUTES, MAX_NAME, MAX_VALUE = 100, 100, 4_096
Cost = Annotated[int, Meta(ge=0, le=MAX_COST)]
Costs = Annotated[dict[str, Cost], Meta(min_length=1, max_length=MAX_ATTRIBUTES)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Attributes = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=MAX_NAME)],
        Annotated[str, Meta(max_length=MAX_VALUE)],
    ],
    Meta(max_length=MAX_ATTRIBUTES),
]
Key = Annotated[str, Meta(min_length=1, max_length=4_096)]
Text = Annotated[str, Meta(min_length=1, max_length=1_000)]
Token = Annotated[str, Meta(min_length=1, max_length=2**20)]


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """One request to decide: by the rules, or by limits that the caller brings along."""

    attributes: Attributes | None = None
    """What is known of the request, for the rules: `{"user": "42", "path": "/search"}`."""
    cost: Cost = 1
    """What it costs, for rules that do not say so themselves."""
    peek: bool = False
    """Whether to look only, and charge nothing."""
    key: Key | None = None
    """Whom to count, together with `limits`: `"user:42"`."""
    limits: Text | Annotated[list[Text], Meta(min_length=1, max_length=100)] | None = None
    """The caller's own limits, instead of the rules: `"100/minute; 1000/day"`."""


class Places(Struct, frozen=True, forbid_unknown_fields=True):
    """How many may be at it at once, for a caller who brings his own."""

    slots: Annotated[int, Meta(ge=1, le=10**6)]
    lease: Annotated[float, Meta(gt=0, le=86_400)]
    """After how many seconds without renewal a place is free again."""


class SlotQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """A place to hold while something runs: under the rules, or under what the caller brings."""

    attributes: Attributes | None = None
    cost: Cost = 1
    key: Key | None = None
    concurrency: Places | None = None
    limits: Text | Annotated[list[Text], Meta(min_length=1, max_length=100)] | None = None


class RefundQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Give back what a verdict charged."""

    receipt: Token


class SettleQuestion(Struct, frozen=True, forbid_unknown_fields=True):
    """Correct what a verdict charged, now that the real cost is known."""

    receipt: Token
    actual: Cost | Costs
    """The real cost; or one for each attribute that rules charge by: `{"tokens": 731}`."""


Mode = Literal["enforce", "shadow", "block"]


class Part(Struct, frozen=True, gc=False):
    """What one limit says."""

    rule: str | None
    """The rule; null when the caller brought the limit along."""
    name: str
    """The limit within the rule, as headers call it: `"search-per-user#2"`."""
    limit: str | None
    """As text: `"100/minute"`; null when nothing is counted."""
    key: str | None
    """What is counted apart: `"user=42"`."""
    mode: Mode
    allowed: bool
    cost: int
    remaining: int | None
    retry_after: float | None
    reset_after: float
    tier: str | None = None
    variant: str | None = None
    reason: Literal["blocked", "missing"] | None = None
    """Why a rule refuses without counting."""

    def __repr__(self) -> str:
        # Without the key: it may be somebody's API key.
        said = "allowed" if self.allowed else "refused"
        return f"<Part {self.name} ({self.mode}): {said}, {self.limit or self.reason}>"


class Verdict(Struct, frozen=True):
    """The answer to one request. True in a condition when allowed."""

    allowed: bool
    rule: str | None
    """The rule that binds: that refuses, or is nearest its limit."""
    limit: str | None
    remaining: int | None
    retry_after: float | None
    """Seconds until the same request would pass, if nobody else comes; null is never."""
    reset_after: float
    delay: float
    """Seconds to wait before going on, from a leaky bucket."""
    source: Source
    """Who decided: the store, or who stood in for it."""
    degraded: bool
    """Whether somebody else than the store decided."""
    version: str
    """The rules that decided."""
    id: str
    """The id of the request, as in `x-request-id`; in a list, with its number."""
    receipt: str | None
    """For `/v1/refund` and `/v1/settle`; null when nothing was charged."""
    parts: tuple[Part, ...]
    exempt: tuple[str, ...] = ()
    """The exemptions that the request came under."""
    not_applicable: tuple[str, ...] = ()
    """Rules that match and were not applied: they need a slot, or come after 100 limits."""

    def __bool__(self) -> bool:
        return self.allowed

    def __repr__(self) -> str:
        # Without keys and receipt, as above.
        said = "allowed" if self.allowed else "refused"
        by = f" by {self.rule}" if self.rule else ""
        return f"<Verdict {said}{by}: {self.limit}, remaining={self.remaining}, {self.source}>"


class SlotVerdict(Struct, frozen=True):
    """The answer to who wants a place."""

    verdict: Verdict
    slot: str | None
    """For `/v1/slots/{slot}`; null when refused, or when no rule asks for a place."""
    lease: float | None
    """Within how many seconds it has to be renewed; null without a slot."""


class Done(Struct, frozen=True):
    """Whether a change changed anything."""

    changed: bool
