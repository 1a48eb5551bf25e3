"""From a verdict to the message and the headers of `/v1`. Pure.

There is one message and one list of headers for every verdict: allowed or refused, by rules or by
the caller's own limits, by the store or by the fallback.
"""

from __future__ import annotations

import msgspec

from limen import wire
from limen.engine import Verdict, part_without_limit
from limen.http import HeaderStyle, Outcome, raw_headers
from limen.model import UNCHARGED, Source
from limen.server.api.receipts import Charged, Receipts
from limen.server.api.response_templates import LimitTemplate, ResponseTemplate
from limen.server.http import Headers


def verdict_message(
    verdict: Verdict, template: ResponseTemplate, id_: str, receipts: Receipts
) -> wire.Verdict:
    """Return a verdict as a message, with a receipt if anything was charged."""
    decision, binding, source = verdict.decision, verdict.binding, verdict.source
    results = iter(decision.parts if decision is not None else ())
    parts: list[wire.Part] = []
    charged: list[Charged] = []
    charged_by: Source = "store"
    for limit in template.limits:
        if limit.uncounted is not None:
            parts.append(_uncounted(limit, verdict))
            continue
        part = next(results)
        parts.append(
            wire.Part(
                limit.rule,
                limit.name,
                limit.text,
                part.key,
                limit.mode,
                part.allowed,
                part.cost,
                part.remaining,
                part.retry_after,
                part.reset_after,
                limit.tier,
                limit.variant,
            )
        )
        if part.stamp_us != UNCHARGED:
            charged_by = part.source
            charged.append(
                (
                    limit.text,
                    limit.counted_as,
                    part.key,
                    part.cost,
                    part.subject,
                    part.stamp_us,
                    limit.attribute,
                    limit.is_asked,
                )
            )
    return wire.Verdict(
        verdict.allowed,
        verdict.rule,
        None if binding is None else str(binding.limit),
        None if binding is None else binding.remaining,
        verdict.retry_after,
        0.0 if binding is None else binding.reset_after,
        0.0 if decision is None else decision.delay,
        source,
        source != "store",
        verdict.version,
        id_,
        receipts.receipt(decision.id, charged_by, charged) if decision and charged else None,
        tuple(parts),
        verdict.exempt,
        verdict.not_applicable,
    )


def rate_limit_headers(
    verdict: Verdict, template: ResponseTemplate, styles: tuple[HeaderStyle, ...], now: float
) -> Headers:
    """Return the rate limit headers of a verdict; `now` is in seconds since 1970."""
    results = verdict.decision.parts if verdict.decision is not None else ()
    if template.has_shadow:
        results = tuple([part for part in results if part.enforce])
    outcome = Outcome(verdict.allowed, verdict.retry_after, results, template.policies)
    return raw_headers(outcome, styles, now)


def _uncounted(limit: LimitTemplate, verdict: Verdict) -> wire.Part:
    """Return the part of a rule that counts nothing: unlimited, or refusing by itself."""
    assert limit.uncounted is not None
    part = part_without_limit(limit.uncounted, verdict.now)
    return msgspec.convert(part, wire.Part, from_attributes=True)
