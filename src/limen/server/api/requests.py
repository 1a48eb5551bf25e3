"""Parse requests for decisions: from bytes to prepared checks.

Every error in a request is reported here, before anything is charged. Clients send the same body
again and again, so parsed requests are cached while the same rules are active.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from limen import wire
from limen.backends import Prepared
from limen.engine import Asked, AsyncEngine, Verdict, verdict_without_rules
from limen.errors import InvalidInput, InvalidLimit
from limen.limiter import AsyncLimiter
from limen.limiter.plan import distinct, refuse_too_many
from limen.model import Check, Decision, Limit
from limen.server.api.cache import Memo
from limen.server.api.response_templates import ResponseTemplate, TemplateCache, template_of_own
from limen.server.http.exchange import Rejected, decoded

_MOST_LETTERS, _MOST_LIMITS = 4_000_000, 20_000
# An exact window keeps every request. Whoever writes a rule may want a million; a caller may not
# fill the store with a few words.
_MOST_EXACT = {"packed_window": 10_000, "rolling_window": 1_000}
_ROOM = 50_000_000
"""For what was asked before, in bytes: some 20,000 questions that come under one limit."""


class ParsedCheck(NamedTuple):
    """A request for one decision: the checks for the limiter, and the parts of the response."""

    prepared: Prepared | None
    """None when the rules alone decide."""
    asked: Asked | None
    """None when the caller brought limits along."""
    template: ResponseTemplate

    charge: bool
    """False is a peek."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks for the limiter."""
        return self.prepared.checks if self.prepared is not None else ()

    def verdict(self, decision: Decision | None, version: str) -> Verdict:
        """Return the verdict for a decision; `version` is that of the active rules."""
        if self.asked is not None:
            return self.asked.verdict(decision)
        assert decision is not None  # a caller's own limits always make checks
        return verdict_without_rules(decision, version)


class CheckRequestParser:
    """Parses requests for decisions, under the rules of an engine."""

    def __init__(self, engine: AsyncEngine, limiter: AsyncLimiter, *, max_batch: int) -> None:
        self._engine = engine
        self._limiter = limiter
        self._one = msgspec.json.Decoder(wire.Question)
        self._many = msgspec.json.Decoder(
            Annotated[list[wire.Question], Meta(max_length=max_batch)]
        )
        self._pieces = msgspec.json.Decoder(
            Annotated[list[msgspec.Raw], Meta(max_length=max_batch)]
        )
        self._cache: Memo[ParsedCheck] = Memo(_ROOM)
        self._templates = TemplateCache()

    def one(self, body: bytes) -> ParsedCheck:
        """Parse the body of one request, or return it from the cache."""
        rules = self._engine.rules
        parsed = self._cache.get(body, rules)
        if parsed is None:
            made = self._templates.made
            parsed = self._parse(decoded(self._one, body))
            # Not if the rules changed meanwhile, nor if rules depend on the time of day.
            asked = parsed.asked
            if asked is None or (asked.rules is rules and rules.is_timeless):
                self._cache.keep(body, parsed, _size(body, parsed) + self._templates.made - made)
        return parsed

    def _parse(self, question: wire.Question) -> ParsedCheck:
        charge = not question.peek
        if question.limits is None and question.key is None:
            if question.attributes is None:
                raise Rejected(422, "attributes are missing, or your own key and limits")
            asked = self._engine.ask(question.attributes, question.cost)
            template = self._templates.get(asked)
            prepared = self._prepare(asked.checks, charge)
            return ParsedCheck(prepared, asked, template, charge)
        if question.attributes is not None:
            raise Rejected(422, "give attributes for the rules, or your own key and limits")
        if question.limits is None or question.key is None:
            raise Rejected(422, "your own limits need both key and limits")
        own = own_checks(question.key, question.limits, question.cost)
        return ParsedCheck(self._prepare(own, charge), None, template_of_own(own), charge)

    def _prepare(self, checks: list[Check], charge: bool) -> Prepared | None:
        return self._limiter.prepare(tuple(checks), charge=charge) if checks else None

    def many(self, body: bytes) -> list[ParsedCheck]:
        """Parse a list of requests."""
        try:
            return _bounded(self.one(bytes(each)) for each in self._pieces.decode(body))
        except ListTooLarge:
            raise
        except (ValueError, RecursionError, InvalidInput, InvalidLimit, Rejected):
            # Something is wrong with it. Parsed as a whole, the error says where.
            return _bounded(self._one_by_one(decoded(self._many, body)))

    def _one_by_one(self, questions: list[wire.Question]) -> Iterator[ParsedCheck]:
        for number, question in enumerate(questions):
            try:
                yield self._parse(question)
            except (InvalidInput, InvalidLimit, Rejected) as error:
                raise Rejected(422, f"[{number}]: {error}") from None


class ListTooLarge(Rejected):
    """A list whose response would be much longer than the list: each limit repeats its key."""


def _bounded(parsed: Iterable[ParsedCheck]) -> list[ParsedCheck]:
    """Return the checks of a list. Stop at the first one above the limits for a list.

    The checks behind it are not parsed.
    """
    checks: list[ParsedCheck] = []
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


def _size(body: bytes, parsed: ParsedCheck) -> int:
    """Return the estimated size of a parsed request in the cache, in bytes."""
    checks = parsed.checks
    size = 1_300 + 300 * len(checks) + 3 * len(body)
    return size + sum([len(key) for key in {check.key for check in checks}])


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
