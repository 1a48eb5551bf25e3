"""`Desk`: all that both clients do before and after a call of the service. No I/O of its own.

Each verb is a flow: it yields requests, is sent the response to each, or thrown `Away` when there
is none, and returns what the caller gets. A driver only carries requests to the service and back.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from limen.backends import Fault
from limen.backends.circuit_breaker import CircuitBreaker
from limen.backends.sampled import SampledLog
from limen.client import questions
from limen.client.address import Address
from limen.client.http1 import Head, Request, Response
from limen.client.questions import Actual, Asked
from limen.client.stand_in import LOCAL, StandIn
from limen.client.tickets import Answer, Away, Ticket, take
from limen.errors import ConfigurationError, InvalidInput, StoreError
from limen.limiter import Slot
from limen.limiter.plan import Limits
from limen.model import Concurrency, Limit, OnError
from limen.wire import Done, SlotVerdict, Verdict

T = TypeVar("T")
Flow = Generator[Request, Response, T]
_ITEM = re.compile(r"\[(\d{1,6})\](?:\.|: )?")
_PROBLEM = "application/problem+json"
# Of the 4xx, those that tell of the way to the service and not of what was asked.
_ON_THE_WAY = (404, 405, 407, 408, 421, 425, 426, 429)
_MAX_SHOWN = 500
PROBE_AFTER_S = 1.0
"""How long after a failure the next request is sent to a service that does not answer."""

_one = msgspec.json.Decoder(Verdict)
_many = msgspec.json.Decoder(list[Verdict])
_slot = msgspec.json.Decoder(SlotVerdict)
_done = msgspec.json.Decoder(Done)
_encode = msgspec.json.Encoder().encode


class _Rejected(Exception):
    """The service does not understand a question. It charged nothing."""


class _Problem(Struct):
    detail: str = ""


class _Item:
    """A ticket that only keeps its answer."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.answer: Answer | None = None

    @property
    def is_done(self) -> bool:
        return self.answer is not None

    def tell(self, answer: Answer) -> None:
        if self.answer is None:
            self.answer = answer


class Held(Struct, frozen=True):
    """What came of asking for a slot."""

    verdict: Verdict
    slot: str | None = None
    """How the service calls it; None when it is not the service's."""
    local: Slot | None = None
    """When it was granted here."""
    lease: float | None = None
    """Within how many seconds it has to be renewed; None when there is nothing to hold."""


class Desk:
    """What is decided about calls, and what is known of them. Shared by threads and loops."""

    def __init__(
        self,
        address: Address,
        token: str | None,
        timeout: float,
        on_error: OnError,
        instances: int,
    ) -> None:
        self._address = address
        self._token = token
        lines = f"Host: {address.authority}\r\nUser-Agent: limen\r\nAccept: application/json\r\n"
        if token is not None:
            lines += f"Authorization: Bearer {token}\r\n"
        self.head: Head = Head(address.path, lines.encode("ascii"))
        """What every request says."""
        self._limits = Limits()
        self._on_error = on_error
        self._stand_in = StandIn(on_error, instances)
        self._breaker = CircuitBreaker(str(address), timeout, probe_after_s=PROBE_AFTER_S)
        self._log = SampledLog()

    def begin(self) -> None:
        """Make anew what two processes must not share, in the child of a fork."""
        self._stand_in.begin()
        self._breaker.begin()

    def close(self) -> None:
        """Stop counting here."""
        self._stand_in.close()

    def own(self, key: str | bytes, limits: tuple[Limit | str, ...], cost: int) -> Asked:
        """Ask for limits of the caller's own."""
        return questions.by_limits(self._limits, key, limits, cost)

    def own_place(
        self,
        key: str | bytes,
        concurrency: Concurrency,
        limits: tuple[Limit | str, ...],
        cost: int,
    ) -> Asked:
        """Ask for a place of the caller's own."""
        return questions.by_places(self._limits, key, concurrency, limits, cost)

    def is_asking(self) -> bool:
        """Return whether this caller is to ask the service. If so, a call has to follow."""
        return not self._breaker.is_open or self._breaker.may_try(time.monotonic())

    def told(self, asked: Asked, answer: Answer | None) -> Verdict:
        """Return the verdict that the answer to a ticket comes to; None is no answer."""
        if isinstance(answer, Verdict):
            self._stand_in.remember(asked, answer, slots=False)
            return answer
        if isinstance(answer, Exception) and not isinstance(answer, Away):
            raise answer
        return self.without(asked, answer)

    def without(self, asked: Asked, away: Away | None = None) -> Verdict:
        """Decide without the service."""
        self._warn(away)
        return self._stand_in.decide(asked)

    def decide(self, asked: Asked) -> Flow[Verdict]:
        """Decide one request."""
        try:
            verdict = yield from self._asked(Request("POST", "/v1/check", asked.body), _one)
        except Away as away:
            return self.without(asked, away)
        self._stand_in.remember(asked, verdict, slots=False)
        return verdict

    def batch(self, tickets: Sequence[Ticket], *, whole: bool = False) -> Flow[None]:
        """Ask for all of them in one call, and tell each.

        One that makes no sense is told so, and the others are asked again: such a call charges
        nobody. With `whole` nobody is asked again then: it is raised, with the number of the item.
        """
        first = 0
        groups = [list(tickets)]
        try:
            while groups:
                group = groups.pop()
                waiting = [ticket for ticket in group if not ticket.is_done]
                if not waiting:
                    continue
                try:
                    verdicts = yield from self._check([ticket.asked.body for ticket in waiting])
                except _Rejected as error:
                    bad, reason = _item(str(error), len(waiting))
                    if bad is None:
                        # Too many of them, or too long together. The first half goes first.
                        half = len(waiting) // 2
                        groups += [waiting[half:], waiting[:half]]
                        continue
                    if whole:
                        raise InvalidInput(f"[{first + bad}]: {reason}") from None
                    waiting.pop(bad).tell(InvalidInput(reason))
                    groups.append(waiting)
                    continue
                if len(verdicts) != len(waiting):
                    raise self._failed(Away("garbage", "it answered to another number"))
                first += len(waiting)
                for ticket, verdict in zip(waiting, verdicts, strict=True):
                    ticket.tell(verdict)
        except (Away, ConfigurationError) as error:
            for ticket in tickets:
                # Each its own: several threads must not raise the same.
                again = error if isinstance(error, Away) else ConfigurationError(str(error))
                ticket.tell(again)

    def decide_many(self, asked: Sequence[Asked]) -> Flow[list[Verdict]]:
        """Decide a list of questions, in as few calls as they fit into."""
        items = [_Item(each) for each in asked]
        first = 0
        for chunk in _chunks(items):
            if self.is_asking():
                try:
                    yield from self.batch(chunk, whole=True)
                except InvalidInput as error:
                    number, reason = _item(str(error), len(chunk))
                    raise InvalidInput(f"[{first + (number or 0)}]: {reason}") from None
            first += len(chunk)
        return [self.told(item.asked, item.answer) for item in items]

    def usage(self, asked: Asked) -> Flow[Verdict]:
        """Say where somebody stands."""
        query = urlencode(asked.whom or (), quote_via=quote, safe="/:")
        request = Request("GET", f"/v1/usage?{query}" if query else "/v1/usage")
        try:
            verdict = yield from self._asked(request, _one)
        except Away as away:
            return self.without(asked, away)
        self._stand_in.remember(asked, verdict, slots=True)
        return verdict

    def refund(self, charged: Verdict | str) -> Flow[bool]:
        """Give back what a verdict charged."""
        receipt = questions.receipt_of(charged)
        if receipt is None:
            return False
        if receipt.startswith(LOCAL):
            return self._stand_in.refund(receipt)
        return (yield from self._change("/v1/refund", {"receipt": receipt}))

    def settle(self, charged: Verdict | str, actual: Actual) -> Flow[bool]:
        """Correct what a verdict charged."""
        actual = questions.valid_actual(actual)
        receipt = questions.receipt_of(charged)
        if receipt is None:
            return False
        if receipt.startswith(LOCAL):
            return self._stand_in.correct(receipt, actual)
        return (yield from self._change("/v1/settle", {"receipt": receipt, "actual": actual}))

    def acquire(self, asked: Asked) -> Flow[Held]:
        """Take a slot."""
        try:
            told = yield from self._asked(Request("POST", "/v1/slots", asked.body), _slot)
        except Away as away:
            self._warn(away)
            verdict, local = self._stand_in.hold(asked)
            return Held(verdict, None, local, None if local is None else _lease(local))
        self._stand_in.remember(asked, told.verdict, slots=True)
        return Held(told.verdict, told.slot, None, told.lease)

    def renew(self, held: Held) -> Flow[bool]:
        """Lengthen the lease of a slot. Raises `StoreError` when nobody says whether it runs."""
        if held.local is not None:
            return held.local.renew()
        if held.slot is None:
            return True
        try:
            done = yield from self._asked(_to_slot("POST", held.slot), _done)
        except Away as away:
            raise StoreError(f"the service at {self._address}: {away}") from None
        return done.changed

    def release(self, held: Held) -> Flow[bool]:
        """Free a slot; False when its lease had ended, or will because the service is away."""
        if held.local is not None:
            return held.local.release()
        if held.slot is None:
            return True
        try:
            done = yield from self._asked(_to_slot("DELETE", held.slot), _done)
        except Away as away:
            self._warn(away)
            return False
        return done.changed

    def _check(self, bodies: Sequence[bytes]) -> Flow[list[Verdict]]:
        if len(bodies) == 1:
            # Not as a list: the response to one check also has headers.
            return [(yield from self._ask(Request("POST", "/v1/check", bodies[0]), _one))]
        body = b"[%b]" % b",".join(bodies)
        return (yield from self._ask(Request("POST", "/v1/check", body), _many))

    def _change(self, path: str, question: Mapping[str, Any]) -> Flow[bool]:
        try:
            done = yield from self._asked(Request("POST", path, _encode(question)), _done)
        except Away as away:
            # What was charged stays charged until the period is over. Not worth an error in a
            # program whose real work is done.
            self._warn(away)
            return False
        return done.changed

    def _asked(self, request: Request, decoder: msgspec.json.Decoder[T]) -> Flow[T]:
        """Ask the service, unless it rests."""
        if not self.is_asking():
            raise Away("rest", "it did not answer a moment ago")
        try:
            return (yield from self._ask(request, decoder))
        except _Rejected as error:
            raise InvalidInput(_item(str(error), 1)[1]) from None

    def _ask(self, request: Request, decoder: msgspec.json.Decoder[T]) -> Flow[T]:
        try:
            read = self._read((yield request), decoder)
        except Away as away:
            raise self._failed(away) from None
        except (_Rejected, ConfigurationError):
            self._answered()
            raise
        self._answered()
        return read

    def _answered(self) -> None:
        if self._breaker.is_open:
            self._breaker.close()
        elif self._breaker.is_alert:
            self._breaker.answered(time.monotonic(), is_slow=False)

    def _failed(self, away: Away) -> Away:
        if away.proves:
            self._breaker.failed(time.monotonic(), Fault("connection", str(away)))
        return away

    def _read(self, response: Response, decoder: msgspec.json.Decoder[T]) -> T:
        """Return what a response says. Raises `Away`, `_Rejected` or `ConfigurationError`."""
        status = response.status
        if status == 200:
            try:
                return decoder.decode(response.body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise Away("garbage", "its answer is not that of a limen service") from None
        detail = self._detail(response)
        if status in (401, 403):
            raise ConfigurationError(
                f"the service at {self._address} refuses the token: {detail or status}"
            )
        if 400 <= status < 500 and status not in _ON_THE_WAY and detail:
            raise _Rejected(detail)
        raise Away("status", f"it answered {status}{detail and f': {detail}'}")

    def _detail(self, response: Response) -> str:
        """Return the sentence of a problem document; empty when there is none."""
        if response.kind != _PROBLEM:
            return ""
        try:
            detail = msgspec.json.decode(response.body, type=_Problem).detail
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ""
        if self._token:
            # Whoever answers was sent it, and need not be who it should be.
            detail = detail.replace(self._token, "***")
        return " ".join(detail.split())[:_MAX_SHOWN]

    def _warn(self, away: Away | None) -> None:
        if away is None or away.kind == "rest":
            return
        self._log.warn(
            away.kind,
            f"the service at {self._address} did not answer ({away.kind}): {away}; "
            f"decided here: {self._on_error}",
        )


def _chunks(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    line = deque(items)
    while line:
        yield take(line)


def _item(detail: str, count: int) -> tuple[int | None, str]:
    """Return which of some items a sentence is about, and the sentence without that."""
    found = _ITEM.match(detail)
    if found is not None and int(found[1]) < count:
        return int(found[1]), detail[found.end() :]
    return (0, detail) if count == 1 else (None, detail)


def _to_slot(method: str, slot: str) -> Request:
    return Request(method, f"/v1/slots/{quote(slot, safe='')}")


def _lease(slot: Slot) -> float:
    return min([at.limit.lease for at in slot.places if isinstance(at.limit, Concurrency)])
