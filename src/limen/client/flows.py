"""`ClientFlows`: the verbs that both clients share. No I/O of its own; see `limen.flow`."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from limen import fork
from limen._internal.connection_pool import AllInUse, NotConnected, PoolClosed
from limen._internal.http1 import Encoder, Garbled, Request, Response
from limen.backends import Change, Fault, Release, Renew
from limen.backends.circuit_breaker import CircuitBreaker
from limen.client import questions
from limen.client.fallback import LOCAL, Fallback, Held
from limen.client.questions import Actual, Asked
from limen.client.settings import Settings
from limen.errors import ConfigurationError, InvalidInput, LimenError, StoreError
from limen.flow import Flow
from limen.limiter.plan import Limits
from limen.wire import MAX_BATCH, Done, SlotVerdict, Verdict

T = TypeVar("T")
Send = Callable[[Request], Any]
"""Sends a request; returns a response or a fault, on asyncio an awaitable of it."""
Reply: TypeAlias = T | Fault | LimenError
"""The result of one call. An error is what the service rejects."""
Answer: TypeAlias = Reply[Verdict]
"""The answer to one request for a decision. An error is raised to its caller."""
MAX_CALLS = 16
"""How many calls are in flight at the same time."""
PROBE_AFTER_S = 1.0
"""How long after a failure the next request is sent to a service that does not answer."""
_MAX_BYTES = 2**19
"""How long a list of requests may get; a service takes twice that by default."""
_ITEM = re.compile(r"\[(\d{1,6})\](?:\.|: )?")
_PROBLEM = "application/problem+json"
_ON_THE_WAY = (404, 405, 407, 408, 421, 425, 426, 429)
"""Those of the 4xx that are about the way to the service, and not about the request."""
_MAX_SHOWN = 500

_decode_one = msgspec.json.Decoder(Verdict).decode
_decode_many = msgspec.json.Decoder(list[Verdict]).decode


class _Problem(Struct):
    detail: str = ""


class ClientFlows:
    """A service, its circuit breaker, its fallback, and the verbs as flows."""

    def __init__(
        self,
        settings: Settings,
        token: str | None,
        ask: Callable[[Asked], Any],
        sender: Callable[[], Send],
    ) -> None:
        address = settings.address
        encoder = Encoder(address.authority, address.path, token)
        self.encode: Callable[[Request], bytes] = encoder.encode
        self.held: dict[str, Held] = {}
        """The slots that are renewed in the background, by the ids of their holders."""
        self.limits: Limits = Limits()
        self._ask = ask
        """Return the answer of the service to a request for a decision."""
        self._sender = sender
        """Return a function that sends requests within one timeout, which starts now."""
        self._timeout = settings.timeout
        self._token = token
        self._service = f"the service at {address}"
        self._fallback = Fallback(self._service, settings.on_error, settings.instances)
        self._breaker = CircuitBreaker(str(address), settings.timeout, probe_after_s=PROBE_AFTER_S)
        fork.watch(self)

    def after_fork(self) -> None:
        """Make anew what two processes must not share."""
        self._fallback.after_fork()
        self._breaker.begin()

    def decide(self, asked: Asked) -> Flow[Verdict]:
        """Decide one request."""
        answer = (yield self._ask(asked)) if self._is_asking() else self._breaker.refusal
        return self._verdict(asked, answer)

    def decide_many(self, asked: Sequence[Asked]) -> Flow[list[Verdict]]:
        """Decide a list of requests."""
        answers: list[Answer] = [self._breaker.refusal] * len(asked)
        if asked and self._is_asking():
            answers = yield from self.check(asked, self._sender(), is_list=True)
        return [self._verdict(each, answer) for each, answer in zip(asked, answers, strict=True)]

    def usage(self, asked: Asked) -> Flow[Verdict]:
        """Report the state of the limits of a request."""
        query = urlencode(asked.whom or (), quote_via=quote, safe="/:")
        request = Request("GET", f"/v1/usage?{query}" if query else "/v1/usage")
        answer = yield from self._request(request, Verdict)
        return self._verdict(asked, answer, has_slots=True)

    def correct(self, charged: Verdict | str, actual: Actual | None) -> Flow[bool]:
        """Settle a charge at its actual cost; None refunds it."""
        receipt = questions.receipt_of(charged)
        if receipt is None:
            return False
        if receipt.startswith(LOCAL):
            return self._fallback.correct(receipt, actual)
        path = "/v1/refund" if actual is None else "/v1/settle"
        body = {"receipt": receipt} if actual is None else {"receipt": receipt, "actual": actual}
        request = Request("POST", path, msgspec.json.encode(body))
        answer = yield from self._request(request, Done)
        if isinstance(answer, Fault):
            # The charge stays until the period is over. Not worth an error in a program whose work
            # is done.
            self._fallback.guard.warn(answer)
            return False
        return answer.changed

    def acquire(self, asked: Asked) -> Flow[Held]:
        """Acquire a slot."""
        answer = yield from self._request(Request("POST", "/v1/slots", asked.body), SlotVerdict)
        if isinstance(answer, Fault):
            return self._fallback.decide(asked, answer, slots=True)
        self._fallback.remember(asked, answer.verdict, has_slots=True)
        return Held(answer.verdict, answer.slot, answer.lease)

    def change(self, held: Held, change: type[Renew | Release]) -> Flow[bool]:
        """Renew or release a slot; return whether its lease had not ended.

        If the service does not answer, renewing it raises `StoreError`, and releasing it does not:
        the slot ends with its lease.
        """
        if held.local:
            return self._fallback.change(held, change)
        if held.slot is None:
            return True
        method = "POST" if change is Renew else "DELETE"
        request = Request(method, f"/v1/slots/{quote(held.slot, safe='')}")
        answer = yield from self._request(request, Done)
        if not isinstance(answer, Fault):
            return answer.changed
        if change is Renew:
            raise StoreError(f"{self._service}: {answer}")
        self._fallback.guard.warn(answer)
        return False

    def change_held(self, change: Change) -> Flow[bool]:
        """Renew a slot for a `Keeper`, unless it was released meanwhile."""
        held = self.held.get(change.holder) if isinstance(change, Renew) else None
        return held is None or (yield from self.change(held, Renew))

    def _is_asking(self) -> bool:
        """Return whether this caller asks the service. If so, a call has to follow."""
        return not self._breaker.is_open or self._breaker.may_try(time.monotonic())

    def _verdict(self, asked: Asked, answer: Answer, *, has_slots: bool = False) -> Verdict:
        """Return the verdict for an answer, or raise it."""
        if isinstance(answer, LimenError):
            raise answer
        if isinstance(answer, Fault):
            return self._fallback.decide(asked, answer).verdict
        self._fallback.remember(asked, answer, has_slots=has_slots)
        return answer

    def check(
        self, asked: Sequence[Asked], send: Send, *, is_list: bool = False
    ) -> Flow[list[Answer]]:
        """Decide requests, in as few calls as they fit into; return the answer to each.

        If the service rejects one of them, it has charged nothing, and the others are sent again.
        With `is_list` the rejection is raised instead, with the number of the request.
        """
        answers: dict[int, Answer] = {}
        groups = _groups(asked)
        while groups:
            numbers = groups.pop()
            bodies = [asked[number].body for number in numbers]
            # One is not sent as a list: the id of its verdict would have a number.
            body = bodies[0] if len(bodies) == 1 else b"[%b]" % b",".join(bodies)
            decode = partial(_decode_verdicts, count=len(bodies))
            answer = yield from self._call(Request("POST", "/v1/check", body), decode, send)
            if isinstance(answer, list):
                answers.update(zip(numbers, answer, strict=True))
            elif isinstance(answer, InvalidInput):
                item, reason = _item(str(answer), len(numbers))
                if item is None:  # too many of them, or too long together
                    half = len(numbers) // 2
                    groups += [numbers[half:], numbers[:half]]
                elif is_list:
                    raise InvalidInput(f"[{numbers[item]}]: {reason}")
                else:
                    answers[numbers.pop(item)] = InvalidInput(reason)
                    groups += [numbers] if numbers else []
            elif isinstance(answer, Fault):
                return [answers.get(number, answer) for number in range(len(asked))]
            else:
                # Each caller raises an exception of its own.
                return [ConfigurationError(str(answer)) for _ in asked]
        return [answers[number] for number in range(len(asked))]

    def _request(self, request: Request, kind: type[T]) -> Flow[T | Fault]:
        """Ask the service, unless it is left alone. Raises what it rejects."""
        if not self._is_asking():
            return self._breaker.refusal
        decode = msgspec.json.Decoder(kind).decode
        answer = yield from self._call(request, decode, self._sender())
        if isinstance(answer, LimenError):
            raise type(answer)(_item(str(answer), 1)[1])
        return answer

    def _call(self, request: Request, decode: Callable[[bytes], T], send: Send) -> Flow[Reply[T]]:
        """Send a request, and report the outcome to the circuit breaker."""
        started_s = time.monotonic()
        reply = yield send(request)
        answer = reply if isinstance(reply, Fault) else self._read(reply, decode)
        now = time.monotonic()
        if not isinstance(answer, Fault):
            if self._breaker.is_open:
                self._breaker.close()
            elif self._breaker.is_alert:
                self._breaker.answered(now, is_slow=False)
        elif not answer.unsent and (
            # A call that had little time or no connection, or that ended because the client was
            # closed, proves nothing about the service.
            answer.kind != "timeout" or now - started_s > self._timeout / 2
        ):
            self._breaker.failed(now, answer)
        return answer

    def _read(self, response: Response, decode: Callable[[bytes], T]) -> Reply[T]:
        status = response.status
        if status == 200:
            try:
                return decode(response.body)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                return Fault("protocol", "its answer is not that of a limen service")
        detail = self._detail(response)
        if status in (401, 403):
            return ConfigurationError(f"{self._service} refuses the token: {detail or status}")
        if 400 <= status < 500 and status not in _ON_THE_WAY and detail:
            return InvalidInput(detail)
        return Fault("protocol", f"it answered {status}{detail and f': {detail}'}")

    def _detail(self, response: Response) -> str:
        """Return the sentence of a problem document; empty if there is none."""
        if response.kind != _PROBLEM:
            return ""
        try:
            detail = msgspec.json.decode(response.body, type=_Problem).detail
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return ""
        if self._token:
            # The peer has seen it, and may be an impostor.
            detail = detail.replace(self._token, "***")
        return " ".join(detail.split())[:_MAX_SHOWN]


def late(*, unsent: bool) -> Fault:
    """Return the fault of a request that got no response in time."""
    return Fault("timeout", "no answer in time", unsent=unsent)


def fault_of(error: Exception) -> Fault:
    """Return the fault that an exception of a transport means."""
    if isinstance(error, NotConnected):
        error = error.cause
    if isinstance(error, TimeoutError):
        return late(unsent=isinstance(error, AllInUse))
    if isinstance(error, Garbled):
        return Fault("protocol", str(error))
    if isinstance(error, ssl.SSLCertVerificationError):
        return Fault("tls", f"its certificate is not accepted: {error.verify_message}")
    if isinstance(error, OSError) and error.strerror:
        return Fault("connection", error.strerror.lower())
    reason = str(error) or type(error).__name__
    return Fault("connection", reason, unsent=isinstance(error, PoolClosed))


def _decode_verdicts(body: bytes, count: int) -> list[Verdict]:
    verdicts = [_decode_one(body)] if count == 1 else _decode_many(body)
    if len(verdicts) != count:
        raise ValueError("the service answered to another number of requests")
    return verdicts


def _groups(asked: Sequence[Asked]) -> list[list[int]]:
    """Return the numbers of the requests that fit into one call each, the last group first."""
    groups: list[list[int]] = []
    size = 0
    for number, each in enumerate(asked):
        size += len(each.body) + 1
        if not groups or len(groups[-1]) == MAX_BATCH or size > _MAX_BYTES:
            groups.append([])
            size = len(each.body)
        groups[-1].append(number)
    return groups[::-1]


def _item(detail: str, count: int) -> tuple[int | None, str]:
    """Return which of some requests a rejection is about, and its reason."""
    match = _ITEM.match(detail)
    if match is not None and int(match[1]) < count:
        return int(match[1]), detail[match.end() :]
    return (0, detail) if count == 1 else (None, detail)
