"""Envoy's rate limit service: bytes in, bytes out, around one decision. Knows no transport."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
from google.protobuf import json_format
from msgspec import Meta, Struct

from limen.engine import AsyncEngine, Verdict
from limen.errors import InvalidInput, InvalidLimit
from limen.http import HeaderStyle
from limen.limiter import AsyncLimiter, Prepared
from limen.model import Decision
from limen.server.answers import QUICK_STYLES
from limen.server.envoy import answer, schema
from limen.server.envoy.question import (
    MAX_DESCRIPTORS,
    MAX_ENTRIES,
    Question,
    decoded,
    understood,
)
from limen.server.exchange import Headers, Rejected, Reply
from limen.server.faces import Gallery
from limen.server.insight.watch import Watch
from limen.server.memo import Memo

_ROOM = 50_000_000
"""For what was asked before, in bytes."""


class _CountedDescriptor(Struct, frozen=True):
    entries: Annotated[list[msgspec.Raw], Meta(max_length=MAX_ENTRIES)] | None = None


class _CountedRequest(Struct, frozen=True):
    descriptors: Annotated[list[_CountedDescriptor], Meta(max_length=MAX_DESCRIPTORS)] | None = None


# Checks the number of descriptors and entries in JSON before protobuf reads them: its reader is
# written in Python, and takes a second for 300,000 descriptors.
_counted = msgspec.json.Decoder(_CountedRequest)


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
        self._memo: Memo[tuple[Question, Prepared | None]] = Memo(_ROOM)

    async def should_limit(self, raw: bytes, within: float | None = None) -> bytes:
        """Answer a `RateLimitRequest` by a `RateLimitResponse`, both serialised.

        `within` is how many seconds are left, if they are fewer than usual. Raises `InvalidInput`,
        and has charged nobody then.
        """
        start = time.perf_counter()
        question, prepared = self._recalled(raw)
        if within is None or within > self._within:
            within = self._within
        told = await self._answer(question, prepared, within)
        self._took(time.perf_counter() - start)
        return told

    async def _answer(self, question: Question, prepared: Prepared | None, within: float) -> bytes:
        if prepared is None:
            verdict, beside = await self._decide(question, within)
            return answer.response(question, verdict, self._styles, time.time(), beside)
        together = question.together
        said = await self._limiter.admit(prepared, within)
        if not isinstance(said, Decision):
            version = together.whole.rules.version
            self._watch.see_passed(together.checks, said, question.rules, version, "envoy", "")
            return answer.passed(question, said)
        verdict = together.verdict(said)
        self._watch.see(verdict, "envoy", "")
        return answer.response(question, verdict, self._styles, time.time())

    async def should_limit_json(self, body: bytes, id_: str) -> Reply:
        """Answer the same in JSON: by 200 or 429, with the response. Raises `Rejected`.

        Every invalid request gets 400, as envoyproxy/ratelimit answers it.
        """
        try:
            _counted.decode(body)
            request = schema.RateLimitRequest()
            raw = json_format.Parse(body, request, max_recursion_depth=20).SerializeToString()
        except (json_format.ParseError, ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise Rejected(400, f"the body is no RateLimitRequest in JSON: {reason}") from None
        try:
            question, _ = self._recalled(raw)
        except (InvalidInput, InvalidLimit) as error:
            raise Rejected(400, str(error)) from None
        verdict, beside = await self._decide(question, self._within, id_)
        answered = answer.response(question, verdict, self._styles, time.time(), beside)
        message = schema.RateLimitResponse.FromString(answered)
        message.ClearField("raw_body")
        told = json_format.MessageToJson(message, indent=None).encode()
        headers: Headers = [
            (header.key.encode(), header.value.encode())
            for header in message.response_headers_to_add
            if header.key not in ("content-type", "cache-control")
        ]
        return Reply(told, headers, 200 if verdict.allowed else 429)

    def _recalled(self, raw: bytes) -> tuple[Question, Prepared | None]:
        """Return what a message asks, from memory if it was asked before under the same rules.

        And its checks, prepared, if it can be answered by what the store says alone.
        """
        rules = self._engine.rules
        known = self._memo.get(raw, rules)
        if known is None:
            question = understood(decoded(raw), rules, self._gallery)
            checks, prepared = question.together.checks, None
            if question.is_plain and self._is_usual:
                prepared = self._limiter.prepare(checks)
            known = question, prepared
            # Not where the time of day has a say.
            if rules.is_timeless:
                self._memo.keep(raw, known, 1_500 + 700 * len(checks) + 3 * len(raw))
        return known

    async def _decide(
        self, question: Question, within: float, id_: str = ""
    ) -> tuple[Verdict, Sequence[Decision]]:
        """Return the verdict, and the decisions for `question.beside`."""
        together = question.together
        decision: Decision | None = None
        beside: Sequence[Decision] = ()
        if together.checks:
            decision = await self._limiter.ask(together.checks, within=within)
        elif question.beside:
            beside = (await self._limiter.ask(question.beside, charge=False, within=within)).parts
        verdict = together.verdict(decision)
        self._watch.see(verdict, "envoy", id_)
        return verdict, beside
