"""From a verdict to what the wire says. Pure.

One pass over the limits makes both their parts and the receipt, since every answer needs both.
"""

from __future__ import annotations

from limen import wire
from limen.engine import Verdict
from limen.model import UNCHARGED, Concurrency, Decision, Source
from limen.server.receipts import Charged, Receipts


def of_verdict(verdict: Verdict, id_: str, receipts: Receipts) -> wire.Verdict:
    """Return the verdict of the rules as a message."""
    parts: list[wire.Part] = []
    charged: list[Charged] = []
    source: Source = "store"
    for applied, said in verdict.by_rule():
        rule, allowance = applied.rule, applied.allowance
        mode: wire.Mode = "enforce" if applied.enforce else "shadow"
        for number, part in enumerate(said, 1):
            limit = str(part.limit)
            parts.append(
                wire.Part(
                    rule.name,
                    f"{rule.name}#{number}",
                    limit,
                    part.key,
                    mode,
                    part.allowed,
                    part.cost,
                    part.remaining,
                    part.retry_after,
                    part.reset_after,
                    allowance.tier,
                    allowance.variant,
                )
            )
            if part.stamp_us != UNCHARGED:
                source = part.source
                by = rule.cost if type(rule.cost) is str else None
                charged.append(_charged(part, limit, by, applied.cost_by is None))
        if not said:
            parts.append(_without_limit(verdict, rule.name))
    decision, binding = verdict.decision, verdict.binding
    return wire.Verdict(
        verdict.allowed,
        verdict.rule,
        None if binding is None else str(binding.limit),
        None if binding is None else binding.remaining,
        verdict.retry_after,
        0.0 if binding is None else binding.reset_after,
        0.0 if decision is None else decision.delay,
        verdict.source,
        verdict.degraded,
        verdict.version,
        id_,
        receipts.receipt(decision.id, source, charged) if decision and charged else None,
        tuple(parts),
        verdict.exempt,
        verdict.not_applicable,
    )


def of_decision(decision: Decision, version: str, id_: str, receipts: Receipts) -> wire.Verdict:
    """Return the decision by limits that the caller brought along as a message."""
    parts: list[wire.Part] = []
    charged: list[Charged] = []
    source: Source = "store"
    for part in decision.parts:
        limit = name = str(part.limit)
        if isinstance(part.limit, Concurrency):
            name = f"{part.limit.slots} at once"
        parts.append(
            wire.Part(
                None,
                name,
                limit,
                part.key,
                "enforce",
                part.allowed,
                part.cost,
                part.remaining,
                part.retry_after,
                part.reset_after,
            )
        )
        if part.stamp_us != UNCHARGED:
            source = part.source
            charged.append(_charged(part, limit, None, True))
    return wire.Verdict(
        decision.allowed,
        None,
        str(decision.limit),
        decision.remaining,
        decision.retry_after,
        decision.reset_after,
        decision.delay,
        decision.source,
        decision.degraded,
        version,
        id_,
        receipts.receipt(decision.id, source, charged) if charged else None,
        tuple(parts),
    )


def _charged(part: Decision, limit: str, attribute: str | None, is_asked: bool) -> Charged:
    return (
        limit,
        part.limit.name,
        part.key,
        part.cost,
        part.subject,
        part.stamp_us,
        attribute,
        is_asked,
    )


def _without_limit(verdict: Verdict, rule: str) -> wire.Part:
    """Return the part of a rule that counts nothing: unlimited, or refusing without counting."""
    part = next(part for part in verdict.parts if part.rule == rule)
    return wire.Part(
        part.rule,
        part.name,
        None,
        None,
        part.mode,
        part.allowed,
        part.cost,
        None,
        part.retry_after,
        part.reset_after,
        part.tier,
        part.variant,
        part.reason,
    )
