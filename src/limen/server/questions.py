"""What `/v1` is asked for decisions, understood: bytes in, checks out.

Everything that can be wrong with a question is found here, before anybody is charged. Callers ask
the same again and again, so what was understood is remembered, as long as the same rules hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from limen import wire
from limen.engine import Asked, AsyncEngine, Verdict
from limen.errors import InvalidInput, InvalidLimit
from limen.http import HeaderStyle
from limen.limiter import AsyncLimiter
from limen.limiter.plan import distinct, refuse_too_many
from limen.model import Check, Decision, Limit
from limen.server import answers
from limen.server.exchange import Rejected, decoded
from limen.server.faces import Faces, Gallery
from limen.server.memo import Memo
from limen.server.passed import Passed, passed_of

_MOST_LETTERS, _MOST_LIMITS = 4_000_000, 20_000
# An exact window keeps every request. Whoever writes a rule may want a million; a caller may not
# fill the store with a few words.
_MOST_EXACT = {"packed_window": 10_000, "rolling_window": 1_000}
_ROOM = 50_000_000
"""For what was asked before, in bytes: some 20,000 questions that come under one limit."""


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


class Questions:
    """Understands questions, under the rules of an engine."""

    def __init__(
        self,
        engine: AsyncEngine,
        limiter: AsyncLimiter,
        *,
        max_batch: int,
        styles: tuple[HeaderStyle, ...],
    ) -> None:
        self._engine = engine
        self._limiter = limiter
        self._is_usual = styles == answers.QUICK_STYLES
        self._one = msgspec.json.Decoder(wire.Question)
        self._many = msgspec.json.Decoder(
            Annotated[list[wire.Question], Meta(max_length=max_batch)]
        )
        self._pieces = msgspec.json.Decoder(
            Annotated[list[msgspec.Raw], Meta(max_length=max_batch)]
        )
        self._memo: Memo[Asking] = Memo(_ROOM)
        self._gallery = Gallery()

    def one(self, body: bytes) -> Asking:
        """Return what a body asks, from memory if it was asked before under the same rules."""
        rules = self._engine.rules
        asking = self._memo.get(body, rules)
        if asking is None:
            made = self._gallery.made
            asking = self._understood(decoded(self._one, body))
            # Not if other rules came in between, nor where the time of day has a say.
            is_lasting = asking.asked is None or (asking.asked.rules is rules and rules.is_timeless)
            if is_lasting:
                self._memo.keep(body, asking, _size(body, asking) + self._gallery.made - made)
        return asking

    def _understood(self, question: wire.Question) -> Asking:
        if question.limits is None and question.key is None:
            if question.attributes is None:
                raise Rejected(422, "attributes are missing, or your own key and limits")
            asked = self._engine.ask(question.attributes, question.cost)
            faces = None if asked.found.refused else self._gallery.faces(asked)
            passed = None
            if faces is not None and not question.peek and self._is_usual:
                passed = passed_of(asked, faces, self._limiter.prepare)
            checks = tuple(asked.checks) if passed is None else passed.prepared.checks
            return Asking(checks, not question.peek, asked, faces, passed)
        if question.attributes is not None:
            raise Rejected(422, "give attributes for the rules, or your own key and limits")
        if question.limits is None or question.key is None:
            raise Rejected(422, "your own limits need both key and limits")
        own = own_checks(question.key, question.limits, question.cost)
        return Asking(tuple(own), not question.peek, None, None, None)

    def many(self, body: bytes) -> list[Asking]:
        """Return what a list asks."""
        try:
            return _bounded(self.one(bytes(each)) for each in self._pieces.decode(body))
        except ListTooLarge:
            raise
        except (ValueError, RecursionError, InvalidInput, InvalidLimit, Rejected):
            # Something is wrong with it. To be told where, it is read as a whole.
            return _bounded(self._one_by_one(decoded(self._many, body)))

    def _one_by_one(self, questions: list[wire.Question]) -> Iterator[Asking]:
        for number, question in enumerate(questions):
            try:
                yield self._understood(question)
            except (InvalidInput, InvalidLimit, Rejected) as error:
                raise Rejected(422, f"[{number}]: {error}") from None


class ListTooLarge(Rejected):
    """A list whose response would be much longer than the list: each limit repeats its key."""


def _bounded(parsed: Iterable[Asking]) -> list[Asking]:
    """Return the checks of a list. Stop at the first one above the limits for a list.

    The checks behind it are not parsed.
    """
    checks: list[Asking] = []
    limits = letters = 0
    for each in parsed:
        checks.append(each)
        limits += len(each.checks)
        letters += sum([len(check.key) for check in each.checks])
        if limits > _MOST_LIMITS:
            raise ListTooLarge(
                422,
                f"this list comes under more than {_MOST_LIMITS:,} limits in all; "
                "ask in shorter lists",
            )
        if letters > _MOST_LETTERS:
            raise ListTooLarge(
                422,
                f"the keys of all limits in this list have more than {_MOST_LETTERS:,} letters "
                "together; ask in shorter lists",
            )
    return checks


def _size(body: bytes, asking: Asking) -> int:
    """Return roughly how many bytes it takes to remember a question."""
    checks, passed = asking.checks, asking.passed
    size = 1_900 + 230 * len(checks) + 3 * len(body)
    size += sum([len(key) for key in {check.key for check in checks}])
    if passed is not None:
        size += sum([len(text) for text in {*passed.said, *passed.charged}])
    return size


def own_checks(key: str, limits: str | list[str], cost: int) -> list[Check]:
    """Return what is asked by limits that a caller brought along."""
    texts = (limits,) if isinstance(limits, str) else tuple(limits)
    try:
        return [Check(limit, key, cost) for limit in _limits(texts)]
    except InvalidLimit as error:
        raise InvalidInput(f"limits: {error}") from None


@lru_cache(maxsize=1_024)
def _limits(texts: tuple[str, ...]) -> tuple[Limit, ...]:
    """Return the limits that a caller brought along: none of them twice."""
    # Counted before parsing: a caller can send 18,000 limits, and parsing them takes 0.25 s.
    refuse_too_many(sum([text.count(";") + 1 for text in texts]))
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


def attributes_of(query: bytes) -> dict[str, str]:
    """Return the attributes that a query tells."""
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
