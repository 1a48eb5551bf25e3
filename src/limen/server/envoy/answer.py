"""From what was decided to what Envoy is told: the bytes of a `RateLimitResponse`. Pure.

The fields are written one by one, since there are ten statuses to many a request, and to make a
message object of each takes longer than to decide it. tests/server/envoy holds the bytes against
protobuf's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from limen.engine import Verdict
from limen.http import COUNTED, HeaderStyle, answer_of_verdict, refusal
from limen.model import Decision, binding
from limen.server.api.verdict_response import rate_limit_headers
from limen.server.envoy.fields import sized, varint
from limen.server.envoy.question import Described, Question
from limen.server.http import Headers

UNLIMITED = 2**32 - 1
"""What is left where nothing is counted."""
_REFUSED = 429
"""What Envoy answers a client, whyever it is refused."""
# Fields as they begin on the wire: the number of the field, and what kind it is.
_OK, _OVER_LIMIT = b"\x08\x01", b"\x08\x02"  # the same in a status and in a response
_STATUS, _HEADER, _BODY = b"\x12", b"\x1a", b"\x2a"
_REMAINING = b"\x18"
# A message of nothing but seconds, by how many bytes those take.
_UNTIL_RESET = [b"\x22%c\x08" % (1 + size) for size in range(11)]
_KEY, _VALUE = b"\x0a", b"\x12"


def response(
    question: Question,
    verdict: Verdict,
    styles: tuple[HeaderStyle, ...],
    now: float,
    beside: Sequence[Decision] = (),
) -> bytes:
    """Return the `RateLimitResponse` to a question, serialised.

    `beside` are the decisions for `question.beside`.
    """
    decision, limits = verdict.decision, question.limits
    parts = decision.parts if decision is not None else beside
    found = [_OK if verdict.allowed else _OVER_LIMIT]
    for descriptor in question.descriptors:
        status = _status(descriptor, parts, limits)
        found += (_STATUS, varint(len(status)), status)
    if verdict.allowed:
        _add(found, rate_limit_headers(verdict, question.template, styles, now))
    else:
        refused = refusal(answer_of_verdict(verdict), styles, now=now, status=_REFUSED)
        _add(found, [(name.lower().encode(), value.encode()) for name, value in refused.headers])
        found += (_BODY, sized(refused.body))
    return b"".join(found)


def is_allowed(response: bytes) -> bool:
    """Return whether a response that was made here lets the request pass."""
    return response.startswith(_OK)


def _status(descriptor: Described, parts: Sequence[Decision], limits: Sequence[bytes]) -> bytes:
    places, refused, is_unlimited = descriptor
    if refused:
        return _OVER_LIMIT
    at = _binding(places, parts)
    if at is None:
        return _OK + _REMAINING + varint(UNLIMITED) if is_unlimited else _OK
    part = parts[at]
    code, wait = _OK, part.reset_after
    if not part.allowed:
        code, wait = _OVER_LIMIT, wait if part.retry_after is None else part.retry_after
    if part.source not in COUNTED:
        return code
    seconds = varint(math.ceil(wait))
    left = varint(part.remaining)
    return b"".join((code, limits[at], _REMAINING, left, _UNTIL_RESET[len(seconds)], seconds))


def _binding(places: range, parts: Sequence[Decision]) -> int | None:
    """Return the position of the binding limit of a descriptor.

    None when no limit could have refused, or the store was not asked.
    """
    if not parts:
        return None
    if len(places) == 1:
        return places[0] if parts[places[0]].enforce else None
    enforced = [at for at in places if parts[at].enforce]
    return enforced[binding([parts[at] for at in enforced])] if enforced else None


def _add(found: list[bytes], headers: Headers) -> None:
    for name, value in headers:
        content = _key_field(name) + varint(len(value)) + value
        found += (_HEADER, varint(len(content)), content)


@lru_cache(maxsize=64)
def _key_field(name: bytes) -> bytes:
    """Return the start of a header: its name, and the mark of its value."""
    return _KEY + sized(name) + _VALUE
