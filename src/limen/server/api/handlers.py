"""Handlers of `/v1`: check, refund, settle, slots and usage.

Bytes in, a response out. Every error in a request is reported before anything is charged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

import msgspec

from limen import wire
from limen.engine import AsyncEngine, Verdict, verdict_without_rules
from limen.errors import StoreError
from limen.http import HeaderStyle
from limen.limiter import AsyncLimiter
from limen.model import Check, Concurrency, Decision
from limen.server.api.receipts import Held, Receipts
from limen.server.api.requests import CheckRequestParser, ParsedCheck, attributes_of, own_checks
from limen.server.api.response_templates import ResponseTemplate, template_of, template_of_own
from limen.server.api.verdict_response import rate_limit_headers, verdict_message
from limen.server.http import Headers, Request, Response
from limen.server.http.exchange import JSON, NO_STORE, Rejected, decoded
from limen.server.insight.watch import Watch

SLOTS = "/v1/slots/"
"""The path of a slot begins with this."""
_LONGEST_SLOT = 8_000
_LIMITS_AT_ONCE = 1_000
_logger = logging.getLogger("limen.server")


class CheckHandlers:
    """Answers the requests of `/v1`."""

    def __init__(
        self,
        engine: AsyncEngine,
        limiter: AsyncLimiter,
        receipts: Receipts,
        watch: Watch,
        *,
        max_batch: int = wire.MAX_BATCH,
        styles: tuple[HeaderStyle, ...] = ("draft-11",),
    ) -> None:
        self._engine = engine
        self._limiter = limiter
        self._receipts = receipts
        self._watch = watch
        self._took = watch.durations["check"].add
        self._styles = styles
        self.parser: CheckRequestParser = CheckRequestParser(engine, limiter, max_batch=max_batch)
        self._slot = msgspec.json.Decoder(wire.SlotQuestion)
        self._refund = msgspec.json.Decoder(wire.RefundQuestion)
        self._settle = msgspec.json.Decoder(wire.SettleQuestion)
        self._encode = msgspec.json.Encoder().encode

    async def check(self, request: Request) -> Response:
        """Decide one request, or a list of them; each is charged when it is allowed."""
        start = time.perf_counter()
        body, id_ = request.body, request.id
        if body.lstrip()[:1] == b"[":
            response = Response(200, [JSON, NO_STORE], await self._check_many(body, id_))
        else:
            parsed = self.parser.one(body)
            prepared = parsed.prepared
            decision = None if prepared is None else await self._limiter.run(prepared)
            verdict = self._verdict(parsed, decision, id_)
            response = self._response(verdict, parsed.template, id_)
        self._took(time.perf_counter() - start)
        return response

    async def _check_many(self, body: bytes, id_: str) -> bytes:
        encoded: list[bytes] = []
        for part in _slices(self.parser.many(body)):
            # Slice by slice: each has the whole deadline, and other requests run in between.
            ids = [f"{id_}-{len(encoded) + n}" for n in range(len(part))]
            prepared = [parsed.prepared for parsed in part if parsed.prepared is not None]
            decisions = iter(await asyncio.gather(*map(self._limiter.run, prepared)))
            for parsed, own_id in zip(part, ids, strict=True):
                decision = None if parsed.prepared is None else next(decisions)
                verdict = self._verdict(parsed, decision, own_id)
                message = verdict_message(verdict, parsed.template, own_id, self._receipts)
                encoded.append(self._encode(message))
        return b"[%b]" % b",".join(encoded)

    def _verdict(self, parsed: ParsedCheck, decision: Decision | None, id_: str) -> Verdict:
        verdict = parsed.verdict(decision, self._engine.rules.version)
        if parsed.charge:
            self._watch.see(verdict, "check", id_)
        return verdict

    def _response(self, verdict: Verdict, template: ResponseTemplate, id_: str) -> Response:
        encoded = self._encode(verdict_message(verdict, template, id_, self._receipts))
        return Response(200, [JSON, NO_STORE, *self._headers(verdict, template)], encoded)

    def _headers(self, verdict: Verdict, template: ResponseTemplate) -> Headers:
        return rate_limit_headers(verdict, template, self._styles, time.time())

    async def usage(self, request: Request) -> Response:
        """Report the limits of a client, by attributes in the query; nothing is charged."""
        verdict = await self._engine.peek(attributes_of(request.query))
        return self._response(verdict, template_of(verdict.applied), request.id)

    async def refund(self, request: Request) -> Response:
        """Give back what a receipt charged."""
        bill = self._receipts.bill(decoded(self._refund, request.body).receipt)
        return self._done(bill is not None and await self._engine.refund(bill))

    async def settle(self, request: Request) -> Response:
        """Correct what a receipt charged to the real cost."""
        question = decoded(self._settle, request.body)
        bill = self._receipts.bill(question.receipt)
        return self._done(bill is not None and await self._engine.settle(bill, question.actual))

    async def acquire(self, request: Request) -> Response:
        """Take a slot under every rule that has one, and charge the others."""
        start = time.perf_counter()
        response = await self._acquire(decoded(self._slot, request.body), request.id)
        self._watch.durations["slots"].add(time.perf_counter() - start)
        return response

    async def _acquire(self, question: wire.SlotQuestion, id_: str) -> Response:
        if question.key is None and question.limits is None and question.concurrency is None:
            return await self._acquire_by_rules(question, id_)
        if question.attributes is not None:
            raise Rejected(422, "give attributes for the rules, or your own key, not both")
        if question.key is None or question.concurrency is None:
            raise Rejected(422, "your own slot needs both key and concurrency")
        own = question.concurrency
        checks = [Check(Concurrency(own.slots, own.lease), question.key)]
        if question.limits is not None:
            checks += own_checks(question.key, question.limits, question.cost)
        slot = self._limiter.hold(*checks)
        self._refuse_too_long(slot.id, slot.places)
        verdict = verdict_without_rules(await slot.acquire(), self._engine.rules.version)
        held = Held(slot.id, slot.places) if verdict.allowed else None
        return self._granted(verdict, template_of_own(checks), held, id_)

    async def _acquire_by_rules(self, question: wire.SlotQuestion, id_: str) -> Response:
        if question.attributes is None:
            raise Rejected(422, "attributes are missing, or your own key and concurrency")
        slot = self._engine.slot(question.attributes, question.cost)
        self._refuse_too_long(slot.id, slot.places)
        verdict = await slot.acquire()
        held = Held(slot.id or "", slot.places) if verdict.allowed and slot.places else None
        return self._granted(verdict, template_of(verdict.applied), held, id_)

    def _granted(
        self, verdict: Verdict, template: ResponseTemplate, held: Held | None, id_: str
    ) -> Response:
        self._watch.see(verdict, "slots", id_)
        message = verdict_message(verdict, template, id_, self._receipts)
        slot = None if held is None else self._receipts.slot(held)
        granted = wire.SlotVerdict(message, slot, None if held is None else held.lease)
        headers = self._headers(verdict, template)
        return Response(200, [JSON, NO_STORE, *headers], self._encode(granted))

    async def renew(self, request: Request) -> Response:
        """Lengthen the lease of a slot to a full one."""
        held = self._receipts.held(_slot_of(request))
        try:
            changed = await self._limiter.hold(*held.places, id=held.id).renew()
        except StoreError as error:
            # Nothing else can say whether the lease still runs.
            _logger.warning("a slot was not renewed: %s", error)
            sentence = "the store is away: the lease runs on, and may end; try again"
            raise Rejected(503, sentence, [(b"retry-after", b"1")]) from None
        return self._done(changed)

    async def release(self, request: Request) -> Response:
        """Free the places of a slot."""
        held = self._receipts.held(_slot_of(request))
        return self._done(await self._limiter.hold(*held.places, id=held.id).release())

    def _done(self, changed: bool) -> Response:
        return Response(200, [JSON, NO_STORE], self._encode(wire.Done(changed)))

    def _refuse_too_long(self, id_: str | None, places: tuple[Check, ...]) -> None:
        """Refuse a slot that could not be renewed, because its id would not fit into a URL."""
        if len(self._receipts.slot(Held(id_ or "", places))) > _LONGEST_SLOT:
            raise Rejected(422, "the key, or attributes that rules count by, are too long to hold")


def _slot_of(request: Request) -> str:
    return request.path.removeprefix(SLOTS)


def _slices(parsed: list[ParsedCheck]) -> Iterator[list[ParsedCheck]]:
    """Return a list in parts that the store decides well within a deadline."""
    part: list[ParsedCheck] = []
    limits = 0
    for each in parsed:
        if part and limits + len(each.checks) > _LIMITS_AT_ONCE:
            yield part
            part, limits = [], 0
        part.append(each)
        limits += len(each.checks)
    if part:
        yield part
