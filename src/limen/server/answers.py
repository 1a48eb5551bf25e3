"""From a verdict to what the wire says, and to headers. Pure."""

from __future__ import annotations

from limen import wire
from limen.engine import Verdict, bill_of
from limen.model import Decision
from limen.server.receipts import Receipts


def of_verdict(verdict: Verdict, id_: str, receipts: Receipts) -> wire.Verdict:
    """Return the verdict of the rules as a message."""
    bill = verdict.bill
    parts = tuple(
        [
            wire.Part(
                part.rule,
                part.name,
                None if part.limit is None else str(part.limit),
                part.key,
                part.mode,
                part.allowed,
                part.cost,
                part.remaining,
                part.retry_after,
                part.reset_after,
                part.tier,
                part.variant,
                part.reason,
            )
            for part in verdict.parts
        ]
    )
    binding = verdict.binding
    return wire.Verdict(
        verdict.allowed,
        verdict.rule,
        None if binding is None else str(binding.limit),
        None if binding is None else binding.remaining,
        verdict.retry_after,
        0.0 if binding is None else binding.reset_after,
        verdict.delay,
        verdict.source,
        verdict.degraded,
        verdict.version,
        id_,
        None if bill is None else receipts.receipt(bill),
        parts,
        verdict.exempt,
        verdict.not_applicable,
    )


def of_decision(decision: Decision, version: str, id_: str, receipts: Receipts) -> wire.Verdict:
    """Return the decision by limits that the caller brought along as a message."""
    bill = bill_of(decision)
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
        None if bill is None else receipts.receipt(bill),
        tuple([_part(part) for part in decision.parts]),
    )


def _part(part: Decision) -> wire.Part:
    limit = str(part.limit)
    return wire.Part(
        None,
        limit,
        limit,
        part.key,
        "enforce",
        part.allowed,
        part.cost,
        part.remaining,
        part.retry_after,
        part.reset_after,
    )
