"""The decision API: `/v1/check`, `/v1/refund`, `/v1/settle`, `/v1/slots`, `/v1/usage`.

Bytes in, bytes out. Everything that can be wrong with a request is found before anybody is charged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from limen import wire
from limen.backends import Fault
from limen.engine import AsyncEngine, Verdict
from limen.errors import StoreError
from limen.http import HeaderStyle, answer_of, raw_headers
from limen.limiter import AsyncLimiter
from limen.model import Check, Concurrency, Decision, Reading, receipt_ids
from limen.server import answers
from limen.server.exchange import HEAD, JSON, Headers, Rejected, Reply, Tell, decoded, mistake
from limen.server.faces import Faces, faces_of
from limen.server.insight.watch import Watch
from limen.server.passed import Passed
from limen.server.questions import Asking, Questions, attributes_of, own_checks
from limen.server.receipts import Held, Receipts

_JSON = JSON[1]
_LONGEST_SLOT = 8_000
_LIMITS_AT_ONCE = 1_000
_logger = logging.getLogger("limen.server")


class Decisions:
    """Answers the questions of `/v1`."""

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
        self.questions: Questions = Questions(engine, limiter, max_batch=max_batch, styles=styles)
        self._slot = msgspec.json.Decoder(wire.SlotQuestion)
        self._refund = msgspec.json.Decoder(wire.RefundQuestion)
        self._settle = msgspec.json.Decoder(wire.SettleQuestion)
        self._encode = msgspec.json.Encoder().encode
        self._ids = receipt_ids()

    async def check(self, body: bytes, id_: str) -> Reply:
        """Decide one request, or a list of them; each is charged when it is allowed."""
        start = time.perf_counter()
        if body.lstrip()[:1] != b"[":
            return await self.answer(self.questions.one(body), id_, start)
        reply = await self._check_many(body, id_)
        self._took(time.perf_counter() - start)
        return reply

    async def answer(self, asking: Asking, id_: str, start: float) -> Reply:
        """Decide one request that was understood, and charge it when it is allowed.

        `start` is when it came, by `time.perf_counter`.
        """
        passed = asking.passed
        if passed is None:
            reply = self._reply(asking, await self._ask(asking), id_)
        else:
            said = await self._limiter.admit(passed.prepared)
            if isinstance(said, Decision):
                reply = self._reply(asking, said, id_)
            else:
                standing, body = self._passed(passed, said, id_)
                policy = b"ratelimit-policy", passed.faces.policy
                reply = Reply(body, [policy, (b"ratelimit", standing)])
        self._took(time.perf_counter() - start)
        return reply

    def answer_soon(self, asking: Asking, id_: str, start: float, tell: Tell) -> bool:
        """Do the same, and `tell` the answer: no task waits for it. It must not raise.

        False, and nothing is done, when only `answer` can do it.
        """
        passed = asking.passed
        if passed is None:
            return False

        def told(answer: tuple[Reading, ...] | Fault) -> None:
            try:
                said = self._limiter.admitted(passed.prepared.checks, answer)
                if isinstance(said, Decision):
                    sent = self._reply(asking, said, id_).sent(id_)
                else:
                    standing, body = self._passed(passed, said, id_)
                    head = HEAD % (id_.encode(), _JSON, passed.faces.lines % standing, len(body))
                    sent = 200, head, body
            except Exception:
                sent = mistake(id_).sent(id_)
            self._took(time.perf_counter() - start)
            tell(*sent)

        return self._limiter.admit_soon(passed.prepared, told)

    def _passed(
        self, passed: Passed, readings: tuple[Reading, ...], id_: str
    ) -> tuple[bytes, bytes]:
        """Return the value of `RateLimit`, and the message, for who was let pass."""
        self._watch.see_passed(
            passed.prepared.checks, readings, passed.faces.rules, passed.version, "check", id_
        )
        receipt = passed.receipt(readings, next(self._ids), self._receipts)
        return passed.told(readings, id_, receipt)

    def _reply(self, asking: Asking, decision: Decision | None, id_: str) -> Reply:
        said = asking.said(decision)
        if asking.charge:
            self._watch.see(said, "check", id_)
        message, headers = self._told(said, asking.faces, id_)
        return Reply(self._encode(message), headers)

    async def _check_many(self, body: bytes, id_: str) -> Reply:
        told: list[bytes] = []
        for part in _slices(self.questions.many(body)):
            # Slice by slice: each has the whole deadline, and others have their turn in between.
            for each, answer in zip(part, await self._ask_all(part), strict=True):
                told.append(self._message(each, answer, f"{id_}-{len(told)}"))
        return Reply(b"[%b]" % b",".join(told), [])

    def _message(
        self, asking: Asking, answer: tuple[Reading, ...] | Fault | Decision | None, id_: str
    ) -> bytes:
        passed = asking.passed
        if passed is not None and isinstance(answer, tuple | Fault):
            said = self._limiter.admitted(passed.prepared.checks, answer)
            if isinstance(said, tuple):
                return self._passed(passed, said, id_)[1]
            answer = said
        assert not isinstance(answer, tuple | Fault)  # what is not prepared is decided
        return self._reply(asking, answer, id_).body

    async def _ask_all(
        self, part: Sequence[Asking]
    ) -> list[tuple[Reading, ...] | Fault | Decision | None]:
        """Ask some questions at the same time, in their order.

        If all are prepared, return what the store said; else what the limiter decided.
        """
        if any(each.passed is None for each in part):
            return list(await asyncio.gather(*[self._ask(each) for each in part]))
        found: list[tuple[Reading, ...] | Fault | Decision | None] = [None] * len(part)
        missing: set[int] = set()
        none_missing = asyncio.Event()

        def told(number: int, answer: tuple[Reading, ...] | Fault) -> None:
            found[number] = answer
            missing.discard(number)
            if not missing:
                none_missing.set()

        rest: list[int] = []
        for number, each in enumerate(part):
            missing.add(number)
            tell = partial(told, number)
            if each.passed is None or not self._limiter.admit_soon(each.passed.prepared, tell):
                missing.discard(number)
                rest.append(number)
        decisions = await asyncio.gather(*[self._ask(part[number]) for number in rest])
        for number, decision in zip(rest, decisions, strict=True):
            found[number] = decision
        while missing:
            none_missing.clear()
            await none_missing.wait()
        return found

    async def usage(self, query: bytes, id_: str) -> Reply:
        """Say where somebody stands, by attributes in the query; nothing is charged."""
        said = await self._engine.peek(attributes_of(query))
        message, headers = self._told(said, None, id_)
        return Reply(self._encode(message), headers)

    async def refund(self, body: bytes) -> Reply:
        """Give back what a receipt is for."""
        bill = self._receipts.bill(decoded(self._refund, body).receipt)
        changed = bill is not None and await self._engine.refund(bill)
        return Reply(self._encode(wire.Done(changed)), [])

    async def settle(self, body: bytes) -> Reply:
        """Correct what a receipt is for to the real cost."""
        question = decoded(self._settle, body)
        bill = self._receipts.bill(question.receipt)
        changed = bill is not None and await self._engine.settle(bill, question.actual)
        return Reply(self._encode(wire.Done(changed)), [])

    async def acquire(self, body: bytes, id_: str) -> Reply:
        """Take a place under every rule that asks for one, and charge the others."""
        start = time.perf_counter()
        reply = await self._acquire(decoded(self._slot, body), id_)
        self._watch.durations["slots"].add(time.perf_counter() - start)
        return reply

    async def _acquire(self, question: wire.SlotQuestion, id_: str) -> Reply:
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
        decision = await slot.acquire()
        self._watch.see(decision, "slots", id_)
        verdict, headers = self._told(decision, None, id_)
        held = Held(slot.id, slot.places) if decision.allowed else None
        return self._granted(verdict, held, headers)

    async def _acquire_by_rules(self, question: wire.SlotQuestion, id_: str) -> Reply:
        if question.attributes is None:
            raise Rejected(422, "attributes are missing, or your own key and concurrency")
        slot = self._engine.slot(question.attributes, question.cost)
        self._refuse_too_long(slot.id, slot.places)
        said = await slot.acquire()
        self._watch.see(said, "slots", id_)
        verdict, headers = self._told(said, None, id_)
        held = Held(slot.id or "", slot.places) if said.allowed and slot.places else None
        return self._granted(verdict, held, headers)

    async def renew(self, slot: str) -> Reply:
        """Lengthen the lease of a slot to a full one."""
        held = self._receipts.held(slot)
        try:
            changed = await self._limiter.hold(*held.places, id=held.id).renew()
        except StoreError as error:
            # Nobody else can say whether the lease still runs.
            _logger.warning("a slot was not renewed: %s", error)
            sentence = "the store is away: the lease runs on, and may end; try again"
            raise Rejected(503, sentence, [(b"retry-after", b"1")]) from None
        return Reply(self._encode(wire.Done(changed)), [])

    async def release(self, slot: str) -> Reply:
        """Free the places of a slot."""
        held = self._receipts.held(slot)
        changed = await self._limiter.hold(*held.places, id=held.id).release()
        return Reply(self._encode(wire.Done(changed)), [])

    async def _ask(self, asking: Asking) -> Decision | None:
        if asking.asked is None:
            return await self._limiter.decide(*asking.checks, charge=asking.charge)
        if asking.checks:
            return await self._limiter.ask(asking.checks, charge=asking.charge)
        return None

    def _told(
        self, said: Verdict | Decision, faces: Faces | None, id_: str
    ) -> tuple[wire.Verdict, Headers]:
        """Return what is answered: the message, and the headers that tell where a client stands."""
        if isinstance(said, Decision):
            version = self._engine.rules.version
            message = answers.of_decision(said, version, id_, self._receipts)
            return message, raw_headers(answer_of(said), self._styles, time.time())
        faces = faces or faces_of(said.applied)
        message, standings = answers.of_verdict(said, faces, id_, self._receipts)
        return message, answers.headers_of(said, faces, standings, self._styles, time.time())

    def _refuse_too_long(self, id_: str | None, places: tuple[Check, ...]) -> None:
        """Refuse a slot that nobody could renew, because it would not fit into an address."""
        if len(self._receipts.slot(Held(id_ or "", places))) > _LONGEST_SLOT:
            raise Rejected(422, "the key, or attributes that rules count by, are too long to hold")

    def _granted(self, verdict: wire.Verdict, held: Held | None, headers: Headers) -> Reply:
        slot = None if held is None else self._receipts.slot(held)
        message = wire.SlotVerdict(verdict, slot, None if held is None else held.lease)
        return Reply(self._encode(message), headers)


def _slices(asking: list[Asking]) -> Iterator[list[Asking]]:
    """Return a list in parts that the store decides well within a deadline."""
    part: list[Asking] = []
    limits = 0
    for each in asking:
        if part and limits + len(each.checks) > _LIMITS_AT_ONCE:
            yield part
            part, limits = [], 0
        part.append(each)
        limits += len(each.checks)
    if part:
        yield part
