"""From a verdict to what the wire says, and to the headers beside it. Pure.

One pass over the limits makes both their parts and the receipt, since every answer needs both.
"""

from __future__ import annotations

from limen import wire
from limen.engine import Verdict
from limen.http import (
    COUNTED,
    MAX_POLICIES,
    HeaderStyle,
    answer_of_verdict,
    raw_headers,
    retry_after_s,
)
from limen.model import UNCHARGED, Concurrency, Decision, Source
from limen.server.exchange import Headers
from limen.server.faces import Faces
from limen.server.receipts import Charged, Receipts

QUICK_STYLES: tuple[HeaderStyle, ...] = ("draft-11",)
"""The usual ones, of which all but the numbers is known before."""


def of_verdict(
    verdict: Verdict, faces: Faces, id_: str, receipts: Receipts
) -> tuple[wire.Verdict, list[str]]:
    """Return the verdict of the rules as a message, and the items of the `RateLimit` header."""
    decision, binding, allowed = verdict.decision, verdict.binding, verdict.allowed
    decisions = decision.parts if decision is not None else ()
    parts: list[wire.Part] = []
    charged: list[Charged] = []
    standings: list[str] = []
    source: Source = "store"
    first = 0
    for number, of_rule in enumerate(faces.by_rule):
        for part, face in zip(decisions[first:], of_rule, strict=False):
            part_allowed, remaining = part.allowed, part.remaining
            retry_after, reset_after = part.retry_after, part.reset_after
            parts.append(
                wire.Part(
                    face.rule,
                    face.name,
                    face.limit,
                    part.key,
                    face.mode,
                    part_allowed,
                    part.cost,
                    remaining,
                    retry_after,
                    reset_after,
                    face.tier,
                    face.variant,
                )
            )
            if part.stamp_us != UNCHARGED:
                source = part.source
                charged.append(_charged(part, face.limit, face.attribute, face.is_asked))
            if face.policy is not None and part_allowed == allowed and part.source in COUNTED:
                standing = face.policy.standing(part_allowed, remaining, retry_after, reset_after)
                standings.append(standing)
        first += len(of_rule)
        if not of_rule:
            parts.append(_without_limit(verdict, number))
    message = wire.Verdict(
        allowed,
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
    return message, standings


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


def standings_of(verdict: Verdict, faces: Faces) -> list[str]:
    """Return the items of the `RateLimit` header, for who needs no message."""
    if verdict.decision is None:
        return []
    allowed = verdict.allowed
    return [
        policy.standing(allowed, part.remaining, part.retry_after, part.reset_after)
        for part, policy in zip(verdict.decision.parts, faces.policies, strict=True)
        if policy is not None and part.allowed == allowed and part.source in COUNTED
    ]


def headers_of(
    verdict: Verdict,
    faces: Faces,
    standings: list[str],
    styles: tuple[HeaderStyle, ...],
    now: float,
) -> Headers:
    """Return the headers that tell where a client stands; `now` is in seconds since 1970."""
    if styles != QUICK_STYLES or faces.told > MAX_POLICIES:
        return raw_headers(answer_of_verdict(verdict), styles, now)
    headers: Headers = [(b"ratelimit-policy", faces.policy)] if faces.policy else []
    if standings:
        headers.append((b"ratelimit", ", ".join(standings).encode()))
    if not verdict.allowed and verdict.retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after_s(verdict.retry_after)))
    return headers


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


def _without_limit(verdict: Verdict, number: int) -> wire.Part:
    """Return the part of a rule that counts nothing: unlimited, or refusing without counting."""
    rule = verdict.applied[number].rule.name
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
