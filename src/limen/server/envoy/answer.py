"""From what was decided to what Envoy is told: the bytes of a `RateLimitResponse`. Pure.

The fields are written one by one, since there are ten statuses to many a request, and to make a
message object of each takes longer than to decide it. tests/server/envoy holds the bytes against
protobuf's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from limen.engine import Verdict
from limen.http import COUNTED, HeaderStyle, answer_of_verdict, refusal
from limen.limiter.plan import whole
from limen.model import Decision, Reading
from limen.server import answers
from limen.server.envoy.fields import sized, varint
from limen.server.envoy.question import Described, Question
from limen.server.exchange import Headers

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
        faces = question.faces
        if faces is not None and faces.policy:
            standings = answers.standings_of(verdict, faces)
            _add(found, answers.headers_of(verdict, faces, standings, styles, now))
    else:
        refused = refusal(answer_of_verdict(verdict), styles, now=now, status=_REFUSED)
        _add(found, [(name.lower().encode(), value.encode()) for name, value in refused.headers])
        found += (_BODY, sized(refused.body))
    return b"".join(found)


def is_allowed(response: bytes) -> bool:
    """Return whether a response that was made here lets the request pass."""
    return response.startswith(_OK)


def passed(question: Question, readings: Sequence[Reading]) -> bytes:
    """Return the response to a plain question whose request passes, in the usual style.

    The same as `response`, from what the store said: most requests are like this.
    """
    faces = question.faces
    assert faces is not None  # who passes is not refused
    found, is_usual = [_OK], True
    standings: list[int] = []
    for reading, limit, most in zip(readings, question.limits, faces.most, strict=True):
        _, remaining, _, reset_us, _, _ = reading
        if reset_us <= 0 or remaining > most:
            is_usual = False
        reset_s = -(-reset_us // 1_000_000)
        standings += remaining, reset_s
        seconds = varint(reset_s)
        tail = _UNTIL_RESET[len(seconds)] + seconds
        status = b"".join((_OK, limit, _REMAINING, varint(remaining), tail))
        found += (_STATUS, varint(len(status)), status)
    standing = faces.standing % tuple(standings) if is_usual else faces.spelt(readings)
    _add(found, [(b"ratelimit-policy", faces.policy), (b"ratelimit", standing)])
    return b"".join(found)


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
    """Return which limit speaks for all: the longest to wait for, else the one nearest its limit.

    None when none could have refused, or nobody was asked.
    """
    if not parts:
        return None
    if len(places) == 1:
        at = places[0]
        return at if parts[at].enforce else None
    enforced = [at for at in places if parts[at].enforce]
    return max(enforced, key=lambda at: _urgency(parts[at]), default=None)


def _urgency(part: Decision) -> tuple[bool, float]:
    if not part.allowed:
        return True, math.inf if part.retry_after is None else part.retry_after
    return False, -part.remaining / whole(part.limit)


def _add(found: list[bytes], headers: Headers) -> None:
    for name, value in headers:
        found += (_HEADER, sized(_KEY + sized(name) + _VALUE + sized(value)))
