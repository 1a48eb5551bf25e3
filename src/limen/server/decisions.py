"""The decision API: `/v1/check`, `/v1/refund`, `/v1/settle`, `/v1/slots`, `/v1/usage`.

Bytes in, bytes out. Everything that can be wrong with a request is found before anybody is charged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from limen import wire
from limen.backends import Fault
from limen.engine import Asked, AsyncEngine, Verdict
from limen.errors import InvalidInput, InvalidLimit, StoreError
from limen.http import HeaderStyle, answer_of, raw_headers
from limen.limiter import AsyncLimiter
from limen.limiter.plan import distinct
from limen.model import Check, Concurrency, Decision, Limit, Reading, receipt_ids
from limen.server import answers
from limen.server.exchange import HEAD, JSON, Headers, Rejected, Reply, Tell, decoded, mistake
from limen.server.faces import Faces, Gallery, faces_of
from limen.server.insight.watch import Watch
from limen.server.memo import Memo
from limen.server.passed import Passed, passed_of
from limen.server.receipts import Held, Receipts

_JSON = JSON[1]
_LONGEST_SLOT = 8_000
_MOST_LETTERS = 4_000_000
_MOST_LIMITS, _LIMITS_AT_ONCE = 20_000, 1_000
# An exact window keeps every request. Whoever writes a rule may want a million; a caller may not
# fill the store with a few words.
_MOST_EXACT = {"packed_window": 10_000, "rolling_window": 1_000}
_ROOM = 50_000_000
"""For what was asked before, in bytes: some 20,000 questions that come under one limit."""
_logger = logging.getLogger("limen.server")


class Asking(NamedTuple):
    """One question, understood: what to ask the limiter, and what the rules have to do with it."""

    checks: tuple[Check, ...]
    charge: bool
    asked: Asked | None
    """None when the caller brought limits along."""
    faces: Faces | None
    """What is said of the limits whatever is decided; None when it is not known before."""
    passed: Passed | None
    """What is answered if it passes; None when that is not known before."""

    def said(self, decision: Decision | None) -> Verdict | Decision:
        """Return what it is answered, by what the limiter said; None when that was not asked."""
        if self.asked is not None:
            return self.asked.verdict(decision)
        assert decision is not None  # whoever brings limits has checks
        return decision


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
        questions = Annotated[list[wire.Question], Meta(max_length=max_batch)]
        self._one = msgspec.json.Decoder(wire.Question)
        self._many = msgspec.json.Decoder(questions)
        self._slot = msgspec.json.Decoder(wire.SlotQuestion)
        self._refund = msgspec.json.Decoder(wire.RefundQuestion)
        self._settle = msgspec.json.Decoder(wire.SettleQuestion)
        self._encode = msgspec.json.Encoder().encode
        self._memo: Memo[Asking] = Memo(_ROOM)
        self._gallery = Gallery()
        self._ids = receipt_ids()

    async def check(self, body: bytes, id_: str) -> Reply:
        """Decide one request, or a list of them; each is charged when it is allowed."""
        if body.lstrip()[:1] != b"[":
            return await self.answer(self.recall(body), id_)
        start = time.perf_counter()
        reply = await self._check_many(body, id_)
        self._took(time.perf_counter() - start)
        return reply

    async def answer(self, asking: Asking, id_: str) -> Reply:
        """Decide one request that was understood, and charge it when it is allowed."""
        start = time.perf_counter()
        passed = asking.passed
        if passed is None:
            reply = self._reply(asking, await self._ask(asking), id_)
        else:
            said = await self._limiter.admit(passed.prepared.checks)
            if isinstance(said, Decision):
                reply = self._reply(asking, said, id_)
            else:
                standing, body = self._passed(passed, said, id_)
                policy = b"ratelimit-policy", passed.faces.policy
                reply = Reply(body, [policy, (b"ratelimit", standing)])
        self._took(time.perf_counter() - start)
        return reply

    def answer_soon(self, asking: Asking, id_: str, tell: Tell) -> bool:
        """Do the same, and `tell` the answer: no task waits for it. It must not raise.

        False, and nothing is done, when only `answer` can do it.
        """
        start, passed = time.perf_counter(), asking.passed
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
        self._watch.see_passed(passed.prepared.checks, readings, passed.rules, "check", id_)
        receipt = passed.receipt(readings, next(self._ids), self._receipts)
        return passed.standing(readings), passed.body(readings, id_, receipt)

    def _reply(self, asking: Asking, decision: Decision | None, id_: str) -> Reply:
        said = asking.said(decision)
        if asking.charge:
            self._watch.see(said, "check", id_)
        message, headers = self._told(said, asking.faces, id_)
        return Reply(self._encode(message), headers)

    async def _check_many(self, body: bytes, id_: str) -> Reply:
        asking: list[Asking] = []
        questions: list[wire.Question] = decoded(self._many, body)
        for number, question in enumerate(questions):
            try:
                asking.append(self._understood(question))
            except (InvalidInput, InvalidLimit, Rejected) as error:
                raise Rejected(422, f"[{number}]: {error}") from None
        _refuse_flood(asking)
        messages: list[wire.Verdict] = []
        for part in _slices(asking):
            # Slice by slice: each has the whole deadline, and others have their turn in between.
            decisions = await asyncio.gather(*[self._ask(each) for each in part])
            for decision, each in zip(decisions, part, strict=True):
                own_id, said = f"{id_}-{len(messages)}", each.said(decision)
                if each.charge:
                    self._watch.see(said, "check", own_id)
                messages.append(self._told(said, each.faces, own_id)[0])
        return Reply(self._encode(messages), [])

    async def usage(self, query: bytes, id_: str) -> Reply:
        """Say where somebody stands, by attributes in the query; nothing is charged."""
        attributes = _attributes(query)
        said = await self._engine.peek(attributes)
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
            checks += _own_checks(question.key, question.limits, question.cost)
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

    def recall(self, body: bytes) -> Asking:
        """Return what a body asks, from memory if it was asked before under the same rules."""
        rules = self._engine.rules
        asking = self._memo.get(body, rules)
        if asking is None:
            asking = self._understood(decoded(self._one, body))
            # Not if other rules came in between, nor where the time of day has a say.
            is_lasting = asking.asked is None or (asking.asked.rules is rules and rules.is_timeless)
            if is_lasting:
                self._memo.keep(body, asking, _size(len(body), len(asking.checks)))
        return asking

    def _understood(self, question: wire.Question) -> Asking:
        if question.limits is None and question.key is None:
            if question.attributes is None:
                raise Rejected(422, "attributes are missing, or your own key and limits")
            asked = self._engine.ask(question.attributes, question.cost)
            faces = None if asked.found.refused else self._gallery.faces(asked)
            passed = None
            if faces is not None and not question.peek and self._styles == answers.QUICK_STYLES:
                passed = passed_of(asked, faces, self._limiter.prepare)
            checks = tuple(asked.checks) if passed is None else passed.prepared.checks
            return Asking(checks, not question.peek, asked, faces, passed)
        if question.attributes is not None:
            raise Rejected(422, "give attributes for the rules, or your own key and limits")
        if question.limits is None or question.key is None:
            raise Rejected(422, "your own limits need both key and limits")
        own = _own_checks(question.key, question.limits, question.cost)
        return Asking(tuple(own), not question.peek, None, None, None)

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


def _size(letters: int, checks: int) -> int:
    """Return how many bytes it takes to remember a question. Each check says its key again."""
    return 1_600 + 500 * checks + letters * (3 + 4 * checks)


def _refuse_flood(asking: list[Asking]) -> None:
    """Refuse a list whose answer would be many times as long: every limit names its key."""
    limits = sum([len(each.checks) for each in asking])
    if limits > _MOST_LIMITS:
        raise Rejected(
            422,
            f"this list comes under {limits:,} limits in all, and {_MOST_LIMITS:,} are decided at "
            "most; ask in shorter lists",
        )
    letters = sum([len(check.key) for each in asking for check in each.checks])
    if letters > _MOST_LETTERS:
        raise Rejected(
            422,
            f"the keys of all limits in this list have {letters:,} letters together, and "
            f"{_MOST_LETTERS:,} are answered at most; ask in shorter lists",
        )


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


def _own_checks(key: str, limits: str | list[str], cost: int) -> list[Check]:
    texts = (limits,) if isinstance(limits, str) else tuple(limits)
    try:
        return [Check(limit, key, cost) for limit in _limits(texts)]
    except InvalidLimit as error:
        raise InvalidInput(f"limits: {error}") from None


@lru_cache(maxsize=1_024)
def _limits(texts: tuple[str, ...]) -> tuple[Limit, ...]:
    """Return the limits that a caller brought along: none of them twice."""
    found = [limit for text in texts for limit in Limit.parse_all(text)]
    distinct([Check(limit, "any") for limit in found])
    for limit in found:
        most = _MOST_EXACT.get(limit.algorithm, limit.quota)
        if limit.quota > most:
            raise InvalidInput(
                f"limits: {limit} keeps every request, and your own may keep {most:,} at most; "
                "use token_bucket or sliding_counter, or a rule"
            )
    return tuple(found)


def _attributes(query: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(query),
            errors="strict",
            max_num_fields=wire.MAX_ATTRIBUTES,
        )
    except ValueError:
        raise Rejected(
            422,
            f"the query must be at most {wire.MAX_ATTRIBUTES} attributes, such as ?user=42&path=/x",
        ) from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Rejected(422, "an attribute stands twice in the query")
    for name, value in pairs:
        if not 0 < len(name) <= wire.MAX_NAME:
            raise Rejected(422, f"the name of an attribute has 1 to {wire.MAX_NAME} letters")
        if len(value) > wire.MAX_VALUE:
            raise Rejected(422, f"the attribute {name!r} is longer than {wire.MAX_VALUE} letters")
    return found
