"""`Denial`: how a call ends that is refused, in the words that gRPC has for it. Pure.

The status tells more than a code: `RetryInfo` of `google.rpc` has the wait, and `QuotaFailure` the
policies. They are written here by hand, a few fields of a few messages, so that nobody needs
protobuf for them. No key is in them: it may be somebody's API key, and statuses get logged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import grpc
from msgspec import Struct, structs

from limen.adapters.grpc.call import Metadata, TooLate, metadata_of
from limen.adapters.manner import Manner, Options
from limen.adapters.visit import Visit
from limen.errors import ConfigurationError
from limen.http import Answer, Quota, Refusal, headers, refusal
from limen.http.headers import listed, unique

_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_MAX_PUSHBACK_MS = 2**31 - 1
_MAX_DURATION_S = 315_576_000_000
_MAX_VIOLATIONS = 8
"""Clients drop statuses that pass 8 KB with all their metadata."""


class Denial(Struct, frozen=True):
    """How a call ends that is refused."""

    code: grpc.StatusCode
    detail: str
    metadata: Metadata
    """What goes along at the end."""


def refuse_options(options: Options, manner: Manner) -> None:
    """Raise `ConfigurationError` for what makes no sense here, though it does over HTTP."""
    if "routes" in options:
        raise ConfigurationError("gRPC needs no routes: the full name of a method is one")
    if "expose" in options:
        raise ConfigurationError("expose is for web pages, and what they call is no gRPC")
    if manner.status is not None and manner.status not in _CODES:
        known = ", ".join(map(str, _CODES))
        raise ConfigurationError(
            f"no code of gRPC stands for the status {manner.status}; there are: {known}"
        )


def denial_of(visit: Visit) -> Denial:
    """Return how a call ends that limits refused."""
    answer = visit.answer()
    found = visit.refusal()
    code = _CODES[found.status]
    if visit.manner.status is None and answer.lacks:
        # gRPC keeps PERMISSION_DENIED for callers that are known.
        code = grpc.StatusCode.UNAUTHENTICATED
    return _denial(code, found.detail, answer, visit.headers())


def denial_of_late(visit: Visit, late: TooLate) -> Denial:
    """Return how a call ends that would begin after its deadline. It is charged nothing."""
    wait = late.delay - late.remaining
    answer = structs.replace(
        visit.answer(),
        allowed=False,
        retry_after=wait,
        quotas=tuple([_delaying(quota, wait) for quota in visit.answer().quotas]),
    )
    status = visit.manner.status or 429
    detail = (
        f"This call would have to wait {_seconds(late.delay)}, and its deadline is in "
        f"{_seconds(late.remaining)}; come back later, or with more time."
    )
    told = headers(answer, visit.manner.styles, time.time())
    return _denial(_CODES[status], detail, answer, told)


def _delaying(quota: Quota, wait: float) -> Quota:
    """Return a quota as one that refuses, if it is one that delays."""
    if getattr(quota.limit, "algorithm", None) != "leaky_bucket":
        return quota
    return structs.replace(quota, allowed=False, retry_after=wait)


def _denial(
    code: grpc.StatusCode, detail: str, answer: Answer, told: Iterable[tuple[str, str]]
) -> Denial:
    wait = answer.retry_after
    details: list[bytes] = []
    if wait is not None:
        details.append(_any("RetryInfo", _bytes(1, _duration(wait))))
    violations = _violations(answer)
    if violations:
        details.append(_any("QuotaFailure", b"".join(violations)))
    number: int = code.value[0]
    status = _number(1, number) + _bytes(2, detail.encode())
    status += b"".join([_bytes(3, each) for each in details])
    return Denial(
        code,
        detail,
        (
            ("grpc-status-details-bin", status),
            ("grpc-retry-pushback-ms", _pushback_ms(wait)),
            *metadata_of(told),
        ),
    )


def _pushback_ms(wait: float | None) -> str:
    """Return when a client may try again by itself; a negative number is not at all."""
    milliseconds = math.inf if wait is None else math.ceil(wait * 1_000)
    return str(milliseconds) if milliseconds <= _MAX_PUSHBACK_MS else "-1"


def _violations(answer: Answer) -> list[bytes]:
    """Return a `QuotaFailure.Violation` for each policy that refuses: its name, and a sentence."""
    names = unique(quota.name for quota in answer.quotas)
    found = [
        _bytes(1, _bytes(1, name.encode()) + _bytes(2, _sentence(quota).encode()))
        for quota, name in [(answer.quotas[at], names[at]) for at in listed(answer.quotas)]
        if not quota.allowed and quota.is_counted
    ]
    return found[:_MAX_VIOLATIONS]


def _sentence(quota: Quota) -> str:
    alone: Refusal = refusal(Answer(False, (quota,), quota.retry_after), ())
    return alone.detail


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"


def _duration(seconds: float) -> bytes:
    """Return a `google.protobuf.Duration`, in whole microseconds, rounded up."""
    micros = math.ceil(min(seconds, _MAX_DURATION_S) * 1_000_000)
    whole, rest = divmod(micros, 1_000_000)
    return _number(1, whole) + _number(2, rest * 1_000)


def _any(name: str, value: bytes) -> bytes:
    """Return a `google.protobuf.Any` of one of the messages of `google.rpc`."""
    return _bytes(1, f"type.googleapis.com/google.rpc.{name}".encode()) + _bytes(2, value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    """Return a field of a number; a zero is not written."""
    return _varint(field << 3) + _varint(value) if value else b""


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
