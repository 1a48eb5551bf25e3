"""A rule as a request meets it: everything that can be known beforehand is worked out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from limen.errors import InvalidInput, shown
from limen.model import MAX_COST, Concurrency, Limit, OnError
from limen.rules import slices
from limen.rules.index import Conditions, Facts
from limen.rules.match import ADDRESS, canonical

Refusal = Literal["blocked", "missing"]
_MAX_DIGITS = len(str(MAX_COST))


class Span(Struct, frozen=True):
    """When something holds, in seconds since 1970: from `starts` on, and before `ends`."""

    starts: float | None = None
    ends: float | None = None

    def holds(self, now: float) -> bool:
        """Return whether it holds now."""
        return (self.starts is None or now >= self.starts) and (
            self.ends is None or now < self.ends
        )


class Allowance(Struct, frozen=True):
    """What one kind of request is allowed under a rule."""

    limits: tuple[Limit, ...]
    """None is unlimited."""
    tier: str | None = None
    """The tier it belongs to; None without tiers, or for a request that has none."""
    variant: str | None = None
    """The variant it belongs to."""
    is_override: bool = False
    """Whether it is the key's own."""


class Allowances(Struct, frozen=True):
    """What each tier is allowed."""

    own: Allowance
    """For requests without the attribute, or when there are no tiers."""
    by: str | None = None
    """The attribute that names the tier."""
    tiers: Mapping[str, Allowance] = {}
    default: Allowance | None = None
    """For a tier that is not listed."""

    def of(self, facts: Facts) -> Allowance:
        """Return what a request is allowed."""
        if self.by is None:
            return self.own
        tier = facts.get(self.by)
        if tier is None:
            return self.own
        return self.tiers.get(tier) or self.default or self.own


class Override(Struct, frozen=True):
    """What a single key is allowed instead, and when."""

    allowance: Allowance
    span: Span


Overrides = tuple[tuple[tuple[str, ...], Mapping[tuple[str, ...], tuple[Override, ...]]], ...]
"""By the attributes that name whom they are for, most attributes first; then by their values."""


class Rule(Struct, frozen=True, kw_only=True):
    """Which requests, counted by what, against which limits."""

    name: str
    description: str
    conditions: Conditions
    key: tuple[str, ...]
    missing: Literal["skip", "deny"]
    mode: Literal["enforce", "shadow", "off", "block"]
    on_error: OnError | None
    cost: int | str | None
    """A number, the attribute that holds it, or None: as the request says."""
    concurrency: Concurrency | None
    allowances: Allowances
    variants: tuple[tuple[int, Allowances], ...]
    """Where on the circle of keys each ends, and what it allows."""
    overrides: Overrides
    enforced: int | None
    """Where on the circle of keys the enforced share ends; None is everybody."""
    span: Span
    circles: tuple[bytes, bytes]
    """What places keys for `enforced`, and for `variants`."""

    @property
    def alone(self) -> str:
        """What a rule without a key counts everybody under. No attribute's name begins so."""
        return f"@{self.name}"

    @property
    def enforced_percent(self) -> float:
        """The share of keys for which the rule is enforced, in percent."""
        if self.enforced is None:
            return 100.0
        return round(self.enforced * 100 / slices.share(100), 6)

    def allowance(self, facts: Facts, key: str, now: float) -> Allowance:
        """Return what a request is allowed: by its own override, its variant, or its tier."""
        if self.overrides:
            found = self._override(facts, now)
            if found is not None:
                return found
        if self.variants:
            place = slices.place(self.circles[1], key)
            for end, allowances in self.variants:
                if place < end:
                    return allowances.of(facts)
        return self.allowances.of(facts)

    def is_enforced(self, key: str) -> bool:
        """Return whether the rule may refuse this key, or only reports."""
        if self.mode == "shadow":
            return False
        return self.enforced is None or slices.place(self.circles[0], key) < self.enforced

    def cost_of(self, facts: Facts, asked: int) -> int:
        """Return what a request counts. Raises `InvalidInput` for an attribute that is no cost."""
        cost = self.cost
        if type(cost) is int:
            return cost
        if cost is None:
            return asked
        text = facts.get(str(cost))
        if text is None:
            return asked
        if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
            number = int(text)
            if number <= MAX_COST:
                return number
        raise InvalidInput(
            f"the attribute {cost!r} is the cost in rule {self.name!r}, and must be a whole number "
            f"from 0 to {MAX_COST:,}, got {shown(text)}"
        )

    def _override(self, facts: Facts, now: float) -> Allowance | None:
        for names, table in self.overrides:
            for override in table.get(values_of(names, facts), ()):
                if override.span.holds(now):
                    return override.allowance
        return None


class Applied(Struct, frozen=True, gc=False):
    """A rule that applies to a request, and how."""

    rule: Rule
    allowance: Allowance
    """Of the rule: none is made for a request, since it may be known by its id."""
    enforce: bool
    """Whether it may refuse the request; else it is a shadow."""
    checks: int
    """How many checks it makes; none when it is unlimited, or refuses without asking."""
    refusal: Refusal | None = None
    """Why it refuses without asking the store."""
    cost_by: str | int | None = None
    """What gave the cost: an attribute, the rule's own number, or None: the request."""


class Exemption(Struct, frozen=True, kw_only=True):
    """Requests that rules do not apply to."""

    name: str
    description: str
    conditions: Conditions
    rules: frozenset[str] | None
    """None is all."""
    span: Span


def key_of(names: tuple[str, ...], facts: Facts) -> str | None:
    """Return the text that a request is counted under; None when an attribute is absent.

    No two requests that differ in these attributes share a text, whatever their values hold. An
    address is the same however it is spelt.
    """
    parts = []
    for name in names:
        value = facts.get(name)
        if value is None:
            return None
        if name == ADDRESS:
            value = canonical(value)
        escaped = value.replace("%", "%25").replace("|", "%7C")
        parts.append(f"{name}={escaped}")
    return "|".join(parts)


def values_of(names: tuple[str, ...], facts: Facts) -> tuple[str, ...]:
    """Return the values of some attributes, as overrides are found by."""
    return tuple(
        [
            canonical(facts.get(name, "")) if name == ADDRESS else facts.get(name, "")
            for name in names
        ]
    )
