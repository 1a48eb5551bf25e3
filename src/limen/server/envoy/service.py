"""Envoy's rate limit service: bytes in, bytes out, around one decision. Knows no transport."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
from google.protobuf import json_format
from msgspec import Meta, Struct

from limen.backends import Prepared
from limen.engine import AsyncEngine, Verdict
from limen.errors import InvalidInput, InvalidLimit
from limen.http import HeaderStyle
from limen.limiter import AsyncLimiter
from limen.model import Decision
from limen.server.api.cache import Memo
from limen.server.api.response_templates import TemplateCache
from limen.server.envoy import answer, schema
from limen.server.envoy.question import (
    MAX_DESCRIPTORS,
    MAX_ENTRIES,
    Question,
    decoded,
    understood,
)
from limen.server.http import Headers, Request, Response
from limen.server.http.exchange import JSON, NO_STORE, Rejected
from limen.server.insight.watch import Watch

_ROOM = 50_000_000
"""For parsed requests, in bytes."""


class _CountedDescriptor(Struct, frozen=True):
    entries: Annotated[list[msgspec.Raw], Meta(max_length=MAX_ENTRIES)] | None = None


class _CountedRequest(Struct, frozen=True):
    descriptors: Annotated[list[_CountedDescriptor], Meta(max_length=MAX_DESCRIPTORS)] | None = None


# Checks the number of descriptors and entries in JSON before protobuf reads them: its reader is
# written in Python, and takes a second for 300,000 descriptors.
_counted = msgspec.json.Decoder(_CountedRequest)


class RateLimits:
    """Decides the requests that Envoy describes."""

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
        self._templates = TemplateCache()
        self._cache: Memo[tuple[Question, Prepared | None]] = Memo(_ROOM)

    async def should_limit(self, raw: bytes, within: float | None = None) -> bytes:
        """Answer a `RateLimitRequest` by a `RateLimitResponse`, both serialised.

        `within` is how many seconds are left, if they are fewer than usual. Raises `InvalidInput`,
        and has charged nothing then.
        """
        start = time.perf_counter()
        if within is None or within > self._within:
            within = self._within
        response, _ = await self._decide(raw, within, "")
        self._took(time.perf_counter() - start)
        return response

    async def should_limit_json(self, request: Request) -> Response:
        """Answer the same in JSON: by 200 or 429, with the response. Raises `Rejected`.

        Every invalid request gets 400, as envoyproxy/ratelimit answers it.
        """
        try:
            _counted.decode(request.body)
            message = json_format.Parse(
                request.body, schema.RateLimitRequest(), max_recursion_depth=20
            )
            raw = message.SerializeToString()
        except (json_format.ParseError, ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise Rejected(400, f"the body is no RateLimitRequest in JSON: {reason}") from None
        try:
            encoded, verdict = await self._decide(raw, self._within, request.id)
        except (InvalidInput, InvalidLimit) as error:
            raise Rejected(400, str(error)) from None
        response = schema.RateLimitResponse.FromString(encoded)
        response.ClearField("raw_body")
        headers: Headers = [
            (header.key.encode(), header.value.encode())
            for header in response.response_headers_to_add
            if header.key not in ("content-type", "cache-control")
        ]
        body = json_format.MessageToJson(response, indent=None).encode()
        return Response(200 if verdict.allowed else 429, [JSON, NO_STORE, *headers], body)

    async def _decide(self, raw: bytes, within: float, id_: str) -> tuple[bytes, Verdict]:
        """Return the serialised response, and the verdict. Raises `InvalidInput`."""
        question, prepared = self._parsed(raw)
        decision: Decision | None = None
        beside: Sequence[Decision] = ()
        if prepared is not None:
            decided = await self._limiter.run(prepared, within)
            if prepared.charge:
                decision = decided
            else:
                beside = decided.parts
        verdict = question.together.verdict(decision)
        self._watch.see(verdict, "envoy", id_)
        return answer.response(question, verdict, self._styles, time.time(), beside), verdict

    def _parsed(self, raw: bytes) -> tuple[Question, Prepared | None]:
        """Parse a message, or return it from the cache; with its checks, prepared."""
        rules = self._engine.rules
        known = self._cache.get(raw, rules)
        if known is None:
            question = understood(decoded(raw), rules, self._templates)
            checks, prepared = question.together.checks, None
            if checks:
                prepared = self._limiter.prepare(checks)
            elif question.beside:
                prepared = self._limiter.prepare(question.beside, charge=False)
            known = question, prepared
            # Not if rules depend on the time of day.
            if rules.is_timeless:
                self._cache.keep(raw, known, 1_500 + 900 * len(checks) + 3 * len(raw))
        return known
