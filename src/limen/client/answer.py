"""What a client may be told of a verdict that a service gave. Pure."""

from __future__ import annotations

from limen.client.fallback import limit_of
from limen.http import Answer, Quota
from limen.wire import Verdict


def answer_of_told(verdict: Verdict, per: tuple[str, ...] = ()) -> Answer:
    """Return what a client may be told of a verdict.

    `per` says what is counted apart, where the caller brought the limits along. A limit that this
    side does not understand, since the service is newer, is left out.
    """
    quotas: list[Quota] = []
    blocked: list[str] = []
    for part in verdict.parts:
        if part.mode == "shadow":
            continue
        limit = None if part.limit is None else limit_of(part.limit)
        if limit is not None and part.remaining is not None:
            quota = Quota(
                part.name,
                limit,
                part.allowed,
                part.remaining,
                part.retry_after,
                part.reset_after,
                part.cost,
                verdict.source,
                () if part.rule is not None else per,
            )
            quotas.append(quota)
        elif not part.allowed:
            blocked.append(part.rule or part.name)
    return Answer(verdict.allowed, tuple(quotas), verdict.retry_after, tuple(blocked))
