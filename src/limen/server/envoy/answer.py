"""From what was decided to what Envoy is told. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from limen.engine import Verdict
from limen.http import COUNTED, HeaderStyle, answer_of_verdict, headers, refusal
from limen.model import Concurrency, Decision, Limit
from limen.server.envoy import schema
from limen.server.envoy.question import Described, Question

UNLIMITED = 2**32 - 1
"""What is left where nothing is counted."""
_SECOND_US, _DAY_US = 1_000_000, 86_400_000_000
_UNITS = {
    _SECOND_US: schema.SECOND,
    60 * _SECOND_US: schema.MINUTE,
    3_600 * _SECOND_US: schema.HOUR,
    _DAY_US: schema.DAY,
    7 * _DAY_US: schema.WEEK,
    30 * _DAY_US: schema.MONTH,
    365 * _DAY_US: schema.YEAR,
}
_CALENDAR = {"month": schema.MONTH, "calendar day": schema.DAY}
_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,64}")


def response(
    question: Question, verdict: Verdict, styles: Sequence[HeaderStyle], now: float
) -> Any:
    """Return the `RateLimitResponse` to a question."""
    allowed = verdict.allowed
    message = schema.RateLimitResponse(overall_code=schema.OK if allowed else schema.OVER_LIMIT)
    decision = verdict.decision
    parts = decision.parts if decision is not None else ()
    names = _names(question)
    for descriptor in question.descriptors:
        message.statuses.append(_status(descriptor, parts, names))
    answer = answer_of_verdict(verdict)
    add = message.response_headers_to_add.add
    if allowed:
        for name, value in headers(answer, styles, now):
            add(key=name, value=value)
    else:
        refused = refusal(answer, styles, now=now)
        for name, value in refused.headers:
            add(key=name, value=value)
        message.raw_body = refused.body
    return message


def _names(question: Question) -> list[str]:
    """Return what each limit is called: by its rule's description, if that is a name."""
    found: list[str] = []
    for of in question.together.whole.found.applied:
        description = of.rule.description
        found += [description if _NAME.fullmatch(description) else ""] * of.checks
    return found


def _status(descriptor: Described, parts: Sequence[Decision], names: Sequence[str]) -> Any:
    if descriptor.refused:
        return schema.DescriptorStatus(code=schema.OVER_LIMIT)
    binding, name = _binding(parts[descriptor.parts], names[descriptor.parts])
    if binding is None:
        left = UNLIMITED if descriptor.is_unlimited else 0
        return schema.DescriptorStatus(code=schema.OK, limit_remaining=left)
    code = schema.OK if binding.allowed else schema.OVER_LIMIT
    if binding.source not in COUNTED:
        return schema.DescriptorStatus(code=code)
    wait = binding.reset_after
    if not binding.allowed and binding.retry_after is not None:
        wait = binding.retry_after
    return schema.DescriptorStatus(
        code=code,
        current_limit=_limit(binding.limit, name),
        limit_remaining=min(binding.remaining, UNLIMITED),
        duration_until_reset={"seconds": math.ceil(wait)},
    )


def _binding(parts: Sequence[Decision], names: Sequence[str]) -> tuple[Decision | None, str]:
    """Return what speaks for all: the longest to wait for, else the one nearest its limit."""
    found, called = None, ""
    for part, name in zip(parts, names, strict=False):
        if part.enforce and (found is None or _urgency(part) > _urgency(found)):
            found, called = part, name
    return found, called


def _urgency(part: Decision) -> tuple[bool, float]:
    if not part.allowed:
        return True, math.inf if part.retry_after is None else part.retry_after
    whole = part.limit.slots if isinstance(part.limit, Concurrency) else part.limit.capacity
    return False, -part.remaining / whole


@lru_cache(maxsize=4_096)
def _limit(limit: Limit | Concurrency, name: str) -> Any:
    assert isinstance(limit, Limit)  # slots have no end here, and are not asked for
    unit = _CALENDAR.get(str(limit.period), schema.UNKNOWN)
    if limit.period_us:
        # A window that Envoy has no word for is not called by another one.
        unit = _UNITS.get(limit.period_us, schema.UNKNOWN)
    return schema.RateLimit(requests_per_unit=limit.quota, unit=unit, name=name)
