"""Envoy's rate limit service: bytes in, bytes out, around one decision. Knows no transport."""

from __future__ import annotations

import time

from google.protobuf import json_format

from limen.engine import AsyncEngine, Verdict
from limen.http import HeaderStyle
from limen.limiter import AsyncLimiter
from limen.model import Decision
from limen.server.answers import QUICK_STYLES
from limen.server.envoy import answer, schema
from limen.server.envoy.question import Question, decoded, understood
from limen.server.exchange import Headers, Rejected, Reply
from limen.server.faces import Gallery
from limen.server.insight.watch import Watch
from limen.server.memo import Memo

_ROOM = 50_000_000
"""For what was asked before, in bytes."""


class RateLimits:
    """Answers whether requests that Envoy describes may pass."""

    def __init__(
        self,
        engine: AsyncEngine,
        limiter: AsyncLimiter,
        watch: Watch,
        *,
        within: float,
        styles: tuple[HeaderStyle, ...],
    ) -> None:
        self._engine = engine
        self._limiter = limiter
        self._watch = watch
        self._took = watch.durations["envoy"].add
        self._within = within
        self._styles = styles
        self._is_usual = styles == QUICK_STYLES
        self._gallery = Gallery()
        self._memo: Memo[Question] = Memo(_ROOM)

    async def should_limit(self, raw: bytes, within: float | None = None) -> bytes:
        """Answer a `RateLimitRequest` by a `RateLimitResponse`, both serialised.

        `within` is how many seconds are left, if they are fewer than usual. Raises `InvalidInput`,
        and has charged nobody then.
        """
        start = time.perf_counter()
        question = self._recalled(raw)
        if within is None or within > self._within:
            within = self._within
        told = await self._answer(question, within)
        self._took(time.perf_counter() - start)
        return told

    async def _answer(self, question: Question, within: float) -> bytes:
        if not question.is_plain or not self._is_usual:
            verdict = await self._decide(question, within)
            return answer.response(question, verdict, self._styles, time.time())
        together = question.together
        said = await self._limiter.admit(together.checks, within)
        if not isinstance(said, Decision):
            self._watch.see_passed(together.checks, said, question.rules, "envoy", "")
            return answer.passed(question, said)
        verdict = together.verdict(said)
        self._watch.see(verdict, "envoy", "")
        return answer.response(question, verdict, self._styles, time.time())

    async def should_limit_json(self, body: bytes, id_: str) -> Reply:
        """Answer the same in JSON: by 200 or 429, with the response. Raises `Rejected`."""
        try:
            request = schema.RateLimitRequest()
            raw = json_format.Parse(body, request, max_recursion_depth=20).SerializeToString()
        except (json_format.ParseError, ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise Rejected(400, f"the body is no RateLimitRequest in JSON: {reason}") from None
        question = self._recalled(raw)
        verdict = await self._decide(question, self._within, id_)
        answered = answer.response(question, verdict, self._styles, time.time())
        message = schema.RateLimitResponse.FromString(answered)
        message.ClearField("raw_body")
        told = json_format.MessageToJson(message, indent=None).encode()
        headers: Headers = [
            (header.key.encode(), header.value.encode())
            for header in message.response_headers_to_add
            if header.key not in ("content-type", "cache-control")
        ]
        return Reply(told, headers, 200 if verdict.allowed else 429)

    def _recalled(self, raw: bytes) -> Question:
        """Return what a message asks, from memory if it was asked before under the same rules."""
        rules = self._engine.rules
        question = self._memo.get(raw, rules)
        if question is None:
            question = understood(decoded(raw), rules, self._gallery)
            # Not where the time of day has a say.
            if rules.is_timeless:
                checks = len(question.together.checks)
                self._memo.keep(raw, question, 1_500 + 500 * checks + 3 * len(raw))
        return question

    async def _decide(self, question: Question, within: float, id_: str = "") -> Verdict:
        together = question.together
        decision = None
        if together.checks:
            decision = await self._limiter.ask(together.checks, within=within)
        verdict = together.verdict(decision)
        self._watch.see(verdict, "envoy", id_)
        return verdict
