"""`Visit`: a request on its way through all limits that stand in it, and what the client is told.

Several layers may limit one request: a middleware, a router, the endpoint. They share one visit, so
that the headers show all of them, and a request that the last one refuses is charged by none. Pure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, structs

from limen import wire
from limen._internal.functions import call_sync
from limen.adapters.limit import Item
from limen.adapters.manner import Manner
from limen.adapters.request import Request
from limen.client.answer import answer_of_told
from limen.errors import InvalidInput
from limen.http import Answer, Refusal, answer_of, answer_of_verdict, exposed_headers, headers
from limen.http import refusal as refusal_of
from limen.model import Decision

_logger = logging.getLogger("limen")
Actual = int | Mapping[str, int]


class Passage(Struct, eq=False):
    """The result of some limits for a request, and the work that is left after its response."""

    items: tuple[Item, ...]
    said: Any
    """The decision of a limiter, or the verdict of rules or of a service."""
    asker: Any
    """The decider, which can correct the charge."""
    slot: Any = None
    """The slot that is held until the response is sent; None without one."""
    actual: dict[str | None, Actual] = {}
    is_over: bool = False
    """Whether it is settled, or given back."""
    _is_corrected: bool = False
    _answer: Answer | None = None
    _given_back: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        self._is_corrected = any(item.limit.is_corrected for item in self.items)

    def __repr__(self) -> str:
        # Without the items: their keys and attributes may be secret.
        return f"<Passage: {self.said!r}>"

    @property
    def allowed(self) -> bool:
        """Whether these limits allow the request. An exempt request meets no limits."""
        return self.said is None or bool(self.said)

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def remaining(self) -> int | None:
        """How many units the binding limit has left; None without one."""
        return getattr(self.said, "remaining", None)

    @property
    def degraded(self) -> bool:
        """Whether the fallback decided instead of the store."""
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
        """Whether anything is left to do after the response. Never for a refused request."""
        is_due = self._is_corrected or self.slot is not None or bool(self.actual)
        return is_due and not self.is_over and self.allowed

    def answer(self) -> Answer:
        """Return what a client may be told."""
        if self._answer is None:
            said = self.said
            if isinstance(said, Decision):
                per = [item.limit.key.per for item in self.items for _ in item.checks]
                self._answer = answer_of(said, per)
            elif isinstance(said, wire.Verdict):
                self._answer = answer_of_told(said, self.items[0].limit.key.per)
            else:
                self._answer = answer_of_verdict(said)
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
        self._answer = None
        answer = self.answer()
        quotas = list(answer.quotas)
        for at, is_given_back in enumerate(self._by_quota(len(quotas))):
            if is_given_back:
                quota = quotas[at]
                remaining = min(quota.remaining + quota.cost, quota.limit.capacity)
                quotas[at] = structs.replace(quota, remaining=remaining)
        self._answer = structs.replace(answer, quotas=tuple(quotas))

    def due(self, response: Any) -> list[tuple[Any, Actual]]:
        """Return what to settle, and to what cost, now that the response is sent."""
        if not self._given_back:
            # Nobody sent headers, since the application failed.
            self.responded(response)
        given_back = self._given_back or (False,) * len(self.items)
        due: list[tuple[Any, Actual]] = []
        for number, item in enumerate(self.items):
            actual = self.actual.get(item.limit.scope, self.actual.get(None))
            if given_back[number]:
                actual = 0
            elif actual is None and item.limit.settle is not None:
                actual = _asked(item.limit.settle, response, None)
            if actual is not None:
                charged = self._charged(number)
                if charged is not None:
                    due.append((charged, actual))
        return due

    def _charged(self, number: int) -> Any:
        """Return what one item was charged, as `settle` takes it."""
        said = self.said
        if not isinstance(said, Decision):
            return said
        first = sum([len(item.checks) for item in self.items[:number]])
        parts = said.parts[first : first + len(self.items[number].checks)]
        return structs.replace(said, several=parts).receipt

    def _by_quota(self, count: int) -> list[bool]:
        """Return for each quota of the answer whether its charge is given back."""
        if not isinstance(self.said, Decision):
            return [self._given_back[0]] * count
        pairs = zip(self.items, self._given_back, strict=True)
        return [is_given_back for item, is_given_back in pairs for _ in item.checks]


class Visit:
    """A request, and what was said to it so far."""

    __slots__ = ("_lacks", "_request", "manner", "passages")

    def __init__(self, request: Request) -> None:
        self._request: Request | None = request
        self.manner: Manner = request.manner
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
        return any(passage.is_due for passage in self.passages)

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

    def headers(self, exposed: Iterable[str] = ()) -> list[tuple[str, str]]:
        """Return the headers for a response.

        `exposed` are the values of its own `Access-Control-Expose-Headers`.
        """
        if not self.passages and not self._lacks:
            return []
        return self._exposing(headers(self.answer(), self.manner.styles, self._now()), exposed)

    def refusal(self) -> Refusal:
        """Return the response to a request that is refused, in the form its client asks for."""
        manner = self.manner
        accept = ", ".join(self.request.header("accept"))
        refusal = refusal_of(
            self.answer(), manner.styles, now=self._now(), status=manner.status, accept=accept
        )
        return structs.replace(refusal, headers=self._exposing(refusal.headers, ()))

    def responded(self, response: Any) -> None:
        """Look at a response before its headers are sent: some may not count."""
        for passage in self.passages:
            passage.responded(response)

    def _exposing(
        self, rendered: list[tuple[str, str]], exposed: Iterable[str]
    ) -> list[tuple[str, str]]:
        """Add the header that lets pages of other origins read these headers, if that is wanted."""
        if not self.manner.expose or not rendered:
            return rendered
        names = exposed_headers(self.manner.styles, ", ".join(exposed))
        return [*rendered, ("Access-Control-Expose-Headers", names)]

    def _now(self) -> float | None:
        return time.time() if "x-ratelimit" in self.manner.styles else None


def _told(passages: list[Passage]) -> list[Passage]:
    """Return what to tell of: where the same was asked again, what was said last."""
    if len(passages) < 2:
        return passages
    last = {place: passage for passage in passages for place in _places(passage)}
    return [each for each in passages if any(last[place] is each for place in _places(each))]


def _places(passage: Passage) -> list[object]:
    """Return what identifies each count: the store and the checks. Rules are asked once."""
    store = id(passage.asker.store)
    return [(store, item.checks or id(item)) for item in passage.items]


def _together(answers: list[Answer]) -> Answer:
    refusing = [answer for answer in answers if not answer.allowed]
    waits = [answer.retry_after for answer in refusing if answer.retry_after is not None]
    return Answer(
        not refusing,
        tuple([quota for answer in answers for quota in answer.quotas]),
        max(waits, default=0.0) if len(waits) == len(refusing) else None,
        tuple([name for answer in refusing for name in answer.blocked_by]),
        next((answer.lacks for answer in refusing if answer.lacks), ()),
    )


def _asked(function: Any, response: Any, otherwise: Any) -> Any:
    """Ask a function of the user's about a response. One that fails is logged: nobody is told twice
    what became of a request.
    """
    try:
        return call_sync(function, response)
    except Exception:
        _logger.exception("%r failed; what the request was charged stays", function)
        return otherwise
