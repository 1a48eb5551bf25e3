"""The bytes that are written by hand are those that protobuf would write."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet
from google.protobuf.wrappers_pb2 import UInt64Value
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from limen.engine import Verdict
from limen.http import answer_of_verdict, headers, refusal
from limen.model import UNCHARGED, Decision, Limit
from limen.rules import parse_text
from limen.server.api.response_templates import TemplateCache
from limen.server.envoy import answer
from limen.server.envoy.fields import sized, varint
from limen.server.envoy.question import Question, decoded, understood
from limen.server.envoy.schema import DescriptorStatus, RateLimitResponse
from tests.server.envoy.conftest import RULES
from tests.server.envoy.describing import described, request

PARSED, TEMPLATES = parse_text(RULES), TemplateCache()
NOW = 1_800_000_000.25
DESCRIPTORS = [
    described({"user": "1"}),
    described({"path": "/"}),
    described({"path": "/"}, 0),
    described({"both": "x"}, 3),
    described({"seen": "x"}),
    described({"odd": "x"}),
    described({"week": "x"}),
    described({"plan": "gold"}),
    described({"plan": "other"}),
    described({"user": "friend"}),
    described({"unheard": "of"}),
    described({"agent": "robot"}),
    described({"own": "x"}, 2, (1_000_000_000, 6)),
    described({"own": "y"}, None, (0, 2)),
]


# Fields


@given(st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, 2**14 - 1, 2**14, 2**28, 2**32]))
def test_a_number_is_as_protobuf_writes_it(number: int) -> None:
    written = UInt64Value(value=number).SerializeToString()
    assert varint(number) == (written[1:] or b"\0")


def test_every_number_of_few_bytes_is_its_own() -> None:
    for number in [*range(40_000), *range(2**21 - 300, 2**21 + 300), *range(2**28 - 9, 2**28 + 9)]:
        found, shift = 0, 0
        for byte in varint(number):
            found, shift = found | (byte & 0x7F) << shift, shift + 7
        assert found == number


@given(st.binary(max_size=300))
def test_a_text_has_its_length_before_it(content: bytes) -> None:
    assert sized(content) == varint(len(content)) + content


# Answers

parts = st.fixed_dictionaries(
    {
        "allowed": st.booleans(),
        "remaining": st.integers(0, 10**9) | st.sampled_from([0, 1, 127, 128, 16_383, 16_384]),
        "retry_after": st.none() | st.floats(0.000_001, 4e8),
        "reset_after": st.floats(0, 4e8) | st.sampled_from([0.0, 1.0, 0.000_001, 59.999_999]),
        "source": st.sampled_from(["store", "store", "store", "local", "open", "closed"]),
    }
)


def decided(question: Question, drawn: list[dict[str, Any]]) -> Verdict:
    """Return what a limiter might have said."""
    checks = question.together.checks
    found = [
        Decision(
            limit=check.limit,
            key=check.key,
            cost=check.cost,
            delay=0.0,
            stamp_us=UNCHARGED,
            id=1,
            enforce=check.enforce,
            **(said | {"retry_after": 0.0 if said["allowed"] else said["retry_after"]}),
        )
        for check, said in zip(checks, drawn, strict=False)
    ]
    if not found:
        return question.together.verdict(None)
    refusing = [part for part in found if part.enforce and not part.allowed]
    enforced = [part for part in found if part.enforce]
    binding = (refusing or enforced or found)[0]
    allowed = not refusing
    whole = structs.replace(binding, allowed=allowed, several=tuple(found))
    return question.together.verdict(whole)


def expected(question: Question, verdict: Verdict, styles: Any) -> Any:
    """Return the same as a message of protobuf, made field by field of its own objects."""
    message = RateLimitResponse(overall_code=1 if verdict.allowed else 2)
    said = verdict.decision.parts if verdict.decision is not None else ()
    for descriptor in question.descriptors:
        status = message.statuses.add(code=2 if descriptor.refused else 1)
        own = [said[at] for at in descriptor.parts if said and said[at].enforce]
        if descriptor.refused:
            continue
        if not own:
            status.limit_remaining = 2**32 - 1 if descriptor.is_unlimited else 0
            continue
        part = max(own, key=_urgency)
        status.code = 1 if part.allowed else 2
        if part.source not in ("store", "local"):
            continue
        assert isinstance(part.limit, Limit)
        unit = {1: 1, 60: 2, 3_600: 3, 86_400: 4, 30 * 86_400: 5, 365 * 86_400: 6, 7 * 86_400: 7}
        status.current_limit.requests_per_unit = part.limit.quota
        status.current_limit.unit = unit.get(part.limit.period_us // 10**6, 0)
        status.limit_remaining = part.remaining
        wait = part.reset_after
        if not part.allowed and part.retry_after is not None:
            wait = part.retry_after
        status.duration_until_reset.seconds = math.ceil(wait)
    told = answer_of_verdict(verdict)
    if verdict.allowed:
        found = [(key.lower(), value) for key, value in headers(told, styles, NOW)]
    else:
        refused = refusal(told, styles, now=NOW, status=429)
        found = [(key.lower(), value) for key, value in refused.headers]
        message.raw_body = refused.body
    for key, value in found:
        message.response_headers_to_add.add(key=key, value=value)
    return message


def _urgency(part: Decision) -> tuple[bool, float]:
    if not part.allowed:
        return True, math.inf if part.retry_after is None else part.retry_after
    assert isinstance(part.limit, Limit)
    return False, -part.remaining / part.limit.capacity


@given(
    chosen=st.lists(st.sampled_from(DESCRIPTORS), min_size=1, max_size=8),
    drawn=st.lists(parts, min_size=20, max_size=20),
    styles=st.sampled_from([("draft-11",), ("draft-03",), ("draft-07", "x-ratelimit"), ()]),
)
def test_an_answer_is_the_message_that_protobuf_would_make(
    chosen: list[Any], drawn: list[dict[str, Any]], styles: Any
) -> None:
    raw = request(*chosen).SerializeToString()
    question = understood(decoded(raw), PARSED, TEMPLATES)
    verdict = decided(question, drawn)
    written = answer.response(question, verdict, styles, NOW)
    message = expected(question, verdict, styles)
    found = RateLimitResponse.FromString(written)
    assert found == message
    assert len(found.statuses) == len(chosen)
    assert not UnknownFieldSet(found)


def test_a_limit_has_the_name_that_its_description_gives_it() -> None:
    rules = """
    rules:
      - {name: a, description: a.name/of:it-1, key: [user], limits: 3/month}
      - {name: b, description: A sentence is none., key: [user], limits: 3/calendar day}
      - {name: c, key: [user], limits: 3/90s}
    """
    raw = request({"user": "1"}).SerializeToString()
    limits = [
        DescriptorStatus.FromString(field).current_limit
        for field in understood(decoded(raw), parse_text(rules), TemplateCache()).limits
    ]
    assert [(each.name, each.unit) for each in limits] == [("a.name/of:it-1", 5), ("", 4), ("", 0)]
    assert [each.requests_per_unit for each in limits] == [3, 3, 3]
