"""`Visit`: a request on its way through all limits that stand in it, and what the client is told.

Several layers may limit one request: a middleware, a router, the endpoint. They share one visit, so
that the headers tell of all of them, and who is refused by the last is charged by none. Pure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import structs

from limen import wire
from limen.adapters.limit import Item
from limen.adapters.manner import Manner
from limen.adapters.request import Request
from limen.client.answer import answer_of_told
from limen.errors import InvalidInput, LimenError
from limen.http import (
    Answer,
    Refusal,
    answer_of,
    answer_of_verdict,
    exposed_headers,
    headers,
)
from limen.http import refusal as refusal_of
from limen.model import UNCHARGED, Check, Decision, Receipt

_logger = logging.getLogger("limen")
Actual = int | Mapping[str, int]


class Passage:
    """What was said to a request by some limits, and what is still to be done about it."""

    __slots__ = (
        "_answer",
        "_given_back",
        "_is_corrected",
        "actual",
        "asker",
        "is_over",
        "items",
        "places",
        "said",
        "slot",
    )

    def __init__(
        self,
        items: tuple[Item, ...],
        said: Any,
        asker: Any,
        places: tuple[tuple[int, ...], ...] | None = None,
        slot: Any = None,
    ) -> None:
        self.items: tuple[Item, ...] = items
        self.said: Any = said
        """The decision of a limiter, or the verdict of rules or of a service."""
        self.asker: Any = asker
        """Who was asked, and can be asked to correct it."""
        self.places: tuple[tuple[int, ...], ...] | None = places
        """Where the checks of each item stand among the parts; None when all are the first's."""
        self.slot: Any = slot
        """What is held until the response is sent; None when nothing is."""
        self.actual: dict[str | None, Actual] = {}
        self.is_over: bool = False
        """Whether it is settled, or given back."""
        self._answer: Answer | None = None
        self._given_back: tuple[bool, ...] = ()
        self._is_corrected = _is_corrected(items)

    @property
    def allowed(self) -> bool:
        """Whether these limits let the request pass. Who is exempt meets none."""
        return self.said is None or bool(self.said)

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def remaining(self) -> int | None:
        """How many units the binding limit has left; None without one."""
        found: int | None = None if self.said is None else self.said.remaining
        return found

    @property
    def degraded(self) -> bool:
        """Whether somebody else than the store decided."""
        return self.said is not None and bool(self.said.degraded)

    def costs(self, actual: Actual, scope: str | None = None) -> None:
        """Say what the request cost in the end. It is settled before the last of its response.

        With a `scope`, only under limits that have it. With rules, a mapping such as
        `{"tokens": 731}` is for those that charge by attributes.
        """
        if self.is_over:
            _logger.warning("what a request cost was said too late: its response is sent")
        self.actual[scope] = actual

    @property
    def is_due(self) -> bool:
        """Whether anything is left to do after the response. Never for who is refused."""
        is_due = self._is_corrected or self.slot is not None or bool(self.actual)
        return is_due and not self.is_over and self.allowed

    def answer(self) -> Answer:
        """Return what a client may be told."""
        if self._answer is None:
            self._answer = _answer(self)
        return self._answer

    def responded(self, response: Any) -> None:
        """Look at a response before its headers are sent: some may not count."""
        if not self._is_corrected or not self.allowed:
            return
        self._given_back = tuple(
            [
                item.limit.deduct_when is not None
                and not _asked(item.limit.deduct_when, response, True)
                for item in self.items
            ]
        )
        # From what was said to begin with: a server may begin anew with another response.
        self._answer = _answer(self)
        self._answer = _without(self._answer, self._returned())

    def due(self, response: Any) -> list[tuple[Any, Actual]]:
        """Return what to settle, and to what cost, now that the response is sent."""
        if not self._given_back:
            # Nobody sent headers, since the application failed.
            self.responded(response)
        found: list[tuple[Any, Actual]] = []
        for number, item in enumerate(self.items):
            actual = self.actual.get(item.limit.scope, self.actual.get(None))
            if self._given_back and self._given_back[number]:
                actual = 0
            elif actual is None and item.limit.settle is not None:
                actual = _asked(item.limit.settle, response, None)
            what = self._charged(number) if actual is not None else None
            if actual is not None and what is not None:
                found.append((what, actual))
        return found

    def _charged(self, number: int) -> Any:
        """Return what one item was charged, as whoever charged it wants to see it again."""
        if not isinstance(self.said, Decision):
            return self.said
        if self.places is None:
            return self.said.receipt
        charges: list[tuple[Check, int]] = []
        parts = self.said.parts
        for at in self.places[number]:
            part = parts[at]
            if part.stamp_us != UNCHARGED:
                check = Check(part.limit, part.key, part.cost, part.subject)
                charges.append((check, part.stamp_us))
        if not charges:
            return None
        return Receipt(f"{self.said.id:016x}", tuple(charges), self.said.source)

    def _returned(self) -> frozenset[int]:
        """Return where the quotas stand whose charge is given back."""
        if self.places is None:
            count = len(self.answer().quotas)
            return frozenset(range(count)) if self._given_back[0] else frozenset()
        return frozenset(
            at for number, own in enumerate(self.places) if self._given_back[number] for at in own
        )


class Visit:
    """A request, and what was said to it so far."""

    __slots__ = ("_lacks", "_request", "manner", "passages")

    def __init__(self, request: Request, manner: Manner) -> None:
        self._request: Request | None = request
        self.manner: Manner = manner
        """How the client is told."""
        self.passages: list[Passage] = []
        self._lacks: tuple[str, ...] = ()

    @property
    def request(self) -> Request:
        """The request, until its response is sent."""
        if self._request is None:
            raise InvalidInput("the visit is over: its request is not there any more")
        return self._request

    @property
    def is_over(self) -> bool:
        """Whether the response is sent. Who comes again then, comes with another visit."""
        return self._request is None

    def end(self) -> None:
        """Let go of the request. It has the visit, and would else wait for the collector."""
        self._request = None

    @property
    def allowed(self) -> bool:
        """Whether all limits so far let the request pass."""
        return not self._lacks and all(passage.allowed for passage in self.passages)

    @property
    def is_due(self) -> bool:
        """Whether anything is left to do after the response."""
        for passage in self.passages:  # noqa: SIM110  # asked of every request, several times
            if passage.is_due:
                return True
        return False

    def lacks(self, names: tuple[str, ...]) -> None:
        """Refuse the request for what it does not say."""
        self._lacks = names

    def costs(self, actual: Actual, scope: str | None = None) -> None:
        """Say what the request cost in the end, under all limits that let it in.

        With a `scope`, only under those that have it.
        """
        for passage in self.passages:
            passage.costs(actual, scope)

    def answer(self) -> Answer:
        """Return what a client may be told, of all limits together."""
        if self._lacks:
            return Answer(False, (), None, ("key",), self._lacks)
        answers = [passage.answer() for passage in _told(self.passages)]
        if len(answers) == 1:
            return answers[0]
        return _together(answers)

    def headers(self, already: str | None = None) -> list[tuple[str, str]]:
        """Return the headers for a response. `already` is what it exposes to other origins."""
        manner = self.manner
        told = bool(self.passages or self._lacks)
        found = headers(self.answer(), manner.styles, self._now()) if told else []
        if manner.expose and found:
            exposed = exposed_headers(manner.styles, already or "")
            found.append(("Access-Control-Expose-Headers", exposed))
        return found

    def refusal(self) -> Refusal:
        """Return the response to a request that is refused, in the form its client asks for."""
        manner = self.manner
        accept = ", ".join(self.request.header("accept"))
        found = refusal_of(
            self.answer(), manner.styles, now=self._now(), status=manner.status, accept=accept
        )
        if manner.expose:
            exposed = exposed_headers(manner.styles)
            found.headers.append(("Access-Control-Expose-Headers", exposed))
        return found

    def responded(self, response: Any) -> None:
        """Look at a response before its headers are sent: some may not count."""
        for passage in self.passages:
            passage.responded(response)

    def _now(self) -> float | None:
        return time.time() if "x-ratelimit" in self.manner.styles else None


def log_not_settled(error: LimenError) -> None:
    """Tell of a correction that makes no sense: the request is over, nobody else can be told."""
    _logger.warning("what a request cost in the end was not settled: %s", error)


def _told(passages: list[Passage]) -> list[Passage]:
    """Return what to tell of: where the same was asked again, what was said last."""
    if len(passages) < 2:
        return passages
    last = {id(item): passage for passage in passages for item in passage.items}
    return [each for each in passages if any(last[id(item)] is each for item in each.items)]


def _is_corrected(items: tuple[Item, ...]) -> bool:
    for item in items:  # noqa: SIM110  # asked of every request
        if item.limit.is_corrected:
            return True
    return False


def _answer(passage: Passage) -> Answer:
    said = passage.said
    if isinstance(said, Decision):
        return answer_of(said, _per(passage.items, passage.places))
    if isinstance(said, wire.Verdict):
        return answer_of_told(said, passage.items[0].limit.key.per)
    return answer_of_verdict(said)


def _per(
    items: tuple[Item, ...], places: tuple[tuple[int, ...], ...] | None
) -> tuple[tuple[str, ...], ...]:
    """Return for each part what it counts apart, for a person to read."""
    if places is None:
        limit = items[0].limit
        return _repeated(limit.key.per, len(limit.limits))
    return tuple([item.limit.key.per for item, own in zip(items, places, strict=True) for _ in own])


@lru_cache(maxsize=256)
def _repeated(per: tuple[str, ...], count: int) -> tuple[tuple[str, ...], ...]:
    return (per,) * count


def _together(answers: Iterable[Answer]) -> Answer:
    found = list(answers)
    refusing = [answer for answer in found if not answer.allowed]
    retry_after: float | None = 0.0
    if refusing:
        waits = [answer.retry_after for answer in refusing]
        known = [wait for wait in waits if wait is not None]
        retry_after = max(known) if len(known) == len(waits) else None
    return Answer(
        not refusing,
        tuple([quota for answer in found for quota in answer.quotas]),
        retry_after,
        tuple([name for answer in refusing for name in answer.blocked_by]),
        next((answer.lacks for answer in refusing if answer.lacks), ()),
    )


def _without(answer: Answer, returned: frozenset[int]) -> Answer:
    """Return an answer in which some charges are given back."""
    if not returned:
        return answer
    quotas = [
        structs.replace(quota, remaining=min(quota.remaining + quota.cost, quota.limit.capacity))
        if number in returned
        else quota
        for number, quota in enumerate(answer.quotas)
    ]
    return structs.replace(answer, quotas=tuple(quotas))


def _asked(function: Any, response: Any, otherwise: Any) -> Any:
    """Ask a function of the user's about a response. One that fails is logged: nobody is told twice
    what became of a request.
    """
    try:
        found = function(response)
        if hasattr(found, "__await__"):
            found.close()
            raise TypeError("it is async, and nobody awaits it here")
        return found
    except Exception:
        _logger.exception("%r failed; what the request was charged stays", function)
        return otherwise
