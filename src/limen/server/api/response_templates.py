"""The parts of a response that do not depend on the decision: names, texts, policies. Pure.

A template belongs to the rules that apply to a request. It is made when the request is parsed and
kept with it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from msgspec import Struct

from limen import wire
from limen.engine import Asked
from limen.http import Policies, policies, title_of
from limen.model import Check, Concurrency, Limit
from limen.rules.rule import Applied
from limen.server.api.cache import Memo

_ROOM = 16_000_000
"""For templates, in bytes."""


class LimitTemplate(Struct, frozen=True, gc=False):
    """One limit of one rule, or a rule that counts nothing."""

    rule: str | None
    """None for a limit of the caller's own."""
    name: str
    """The limit within the rule: `"search-per-user#2"`."""
    text: str
    """The limit as text: `"100/minute"`. Empty for a rule that counts nothing."""
    counted_as: str | None
    """The name of the limit, under which it counts."""
    mode: wire.Mode
    tier: str | None = None
    variant: str | None = None
    attribute: str | None = None
    """The attribute by which the rule charges."""
    is_asked: bool = True
    """Whether it is charged at the cost that the request itself gives."""
    uncounted: Applied | None = None
    """The rule that counts nothing: unlimited, or refusing by itself."""


class ResponseTemplate(Struct, frozen=True, gc=False):
    """All limits of one request."""

    limits: tuple[LimitTemplate, ...]
    """Rule by rule."""
    policies: Policies
    """The header items of the limits that are enforced, in the same order."""
    has_shadow: bool
    """Whether some limits are not enforced: headers do not mention them."""


class TemplateCache:
    """Keeps the templates of the current rules: the same rules apply to many requests."""

    def __init__(self) -> None:
        self._known: Memo[ResponseTemplate] = Memo(_ROOM, least=200)
        self.made: int = 0
        """The estimated size of all templates that were ever made, in bytes."""

    def get(self, asked: Asked) -> ResponseTemplate:
        """Return the template of the rules that apply to a request."""
        applied = asked.applied
        if asked.found.refused:
            return template_of(applied)
        key = tuple([_identity(of) for of in applied])
        template = self._known.get(key, asked.rules)
        if template is None:
            template = template_of(applied)
            size = 400 + 500 * len(template.limits)
            self.made += size
            self._known.keep(key, template, size)
        return template


def _identity(applied: Applied) -> Hashable:
    """Return a key for the way in which a rule applies, unique within its rule set.

    Rules and allowances live as long as their rule set, so their ids are unique meanwhile.
    """
    enforce, cost_by = applied.enforce, applied.cost_by
    return id(applied.rule), id(applied.allowance), enforce, applied.checks, cost_by


def template_of(applied: Sequence[Applied]) -> ResponseTemplate:
    """Return the template of the rules that apply to a request."""
    limits = [template for of in applied for template in _of_rule(of)]
    enforced = [of for of in applied if of.enforce]
    names = [f"{of.rule.name}#{n}" for of in enforced for n in range(1, of.checks + 1)]
    named = policies(tuple(names), tuple([limit for of in enforced for limit in limits_of(of)]))
    has_shadow = any(of.checks and not of.enforce for of in applied)
    return ResponseTemplate(tuple(limits), named, has_shadow)


def template_of_own(checks: Sequence[Check]) -> ResponseTemplate:
    """Return the template of limits that the caller of `/v1` brings along."""
    own = [check.limit for check in checks]
    limits = [
        LimitTemplate(None, title_of(limit), str(limit), limit.name, "enforce") for limit in own
    ]
    named = policies(tuple([limit.name for limit in limits]), tuple(own))
    return ResponseTemplate(tuple(limits), named, False)


def limits_of(applied: Applied) -> Sequence[Limit | Concurrency]:
    """Return the limits of a rule, in the order of its checks."""
    rule, limits = applied.rule, applied.allowance.limits
    if len(limits) < applied.checks and rule.concurrency is not None:
        return (rule.concurrency, *limits)
    return limits[: applied.checks]


def _of_rule(applied: Applied) -> Iterator[LimitTemplate]:
    rule, allowance = applied.rule, applied.allowance
    if not applied.checks:
        yield LimitTemplate(rule.name, rule.name, "", None, "enforce", uncounted=applied)
        return
    for number, limit in enumerate(limits_of(applied), 1):
        yield LimitTemplate(
            rule.name,
            f"{rule.name}#{number}",
            str(limit),
            limit.name,
            "enforce" if applied.enforce else "shadow",
            allowance.tier,
            allowance.variant,
            rule.cost if isinstance(rule.cost, str) else None,
            applied.cost_by is None,
        )
