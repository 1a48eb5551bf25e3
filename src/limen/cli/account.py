"""The account that `limen explain` gives: asks the rules and the store, and consumes nothing.

A store that does not answer is an error here: numbers of this process would look like the truth.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from msgspec import Struct

from limen.cli import place
from limen.cli.misplaced import refuse_address
from limen.clock import SystemClock
from limen.connect import is_shared
from limen.connect import parse as parse_address
from limen.engine import Engine, Verdict
from limen.errors import InvalidInput, StoreError, did_you_mean, shown
from limen.limiter import Limiter
from limen.rules import RuleSet
from limen.rules.explain import Explanation, attributes, explain
from limen.rules.match import ADDRESS, read_address

# A person waits longer than a request does.
_DEADLINE_S = 3.0


class Question(Struct, frozen=True):
    """What was asked."""

    attributes: list[str]
    """Each as it was typed: `user=42`."""
    cost: int
    at: str | None
    store: str
    namespace: str


class Answer(Struct, frozen=True):
    """All that there is to say."""

    rules: str
    """Where the rules are, and which."""
    store: str
    """Where the counters are, without a password."""
    is_stored: bool
    """Whether there are counters at all."""
    at: float
    is_now: bool
    facts: dict[str, str]
    notes: list[str]
    """What the asker may have got wrong."""
    explanation: Explanation
    verdict: Verdict


def answer(asked: Question, where: str, version: int | None) -> Answer:
    """Return what the rules say to a request, and the store of it. Raises `LimenError`."""
    typed = _attributes(asked.attributes)
    facts = {name: value for name, value in typed.items() if value}
    clock = _Clock(asked.at)
    found = place.held(where, version)
    rules = place.rules_of(found)
    limiter = Limiter(asked.store, namespace=asked.namespace, deadline=_DEADLINE_S)
    is_stored = is_shared(asked.store)
    shown_store = parse_address(asked.store).shown if is_stored else "memory://"
    with limiter, _warnings() as warnings:
        limiter.ping()
        verdict = Engine(rules, limiter, clock=clock).peek(facts, asked.cost)
    if verdict.decision is not None and any(of.degraded for of in verdict.decision.parts):
        reason = warnings[0] if warnings else "the store did not answer"
        raise StoreError(f"{reason}; see `limen doctor {shown_store}`")
    return Answer(
        rules=found.where if found.version is None else f"{found.where}, {found.label}",
        store=shown_store,
        is_stored=is_stored,
        at=clock.seconds,
        is_now=asked.at is None,
        facts=facts,
        notes=_notes(typed, rules),
        explanation=explain(rules, facts, clock.seconds),
        verdict=verdict,
    )


class _Clock(SystemClock):
    """One moment, so that the rules and their explanation speak of the same."""

    def __init__(self, text: str | None) -> None:
        now = datetime.now(UTC) if text is None else _moment(text)
        self.seconds = now.timestamp()

    def time_ns(self) -> int:
        return round(self.seconds * 1e9)


def _moment(text: str) -> datetime:
    refuse_address(text, "a time")
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"--at takes a date such as 2026-12-24 or a time such as 2026-12-24T18:00Z, "
            f"got {shown(text)}"
        ) from None


def _attributes(texts: Iterable[str]) -> dict[str, str]:
    """Return what was typed, by name. A value may be empty."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        refuse_address(name, "an attribute")
        if not equals:
            raise InvalidInput(f"{shown(text)} is no attribute; write it as name=value")
        if not name:
            raise InvalidInput(f"{shown(text)} has no name; write it as name=value")
        if any("\ud800" <= each <= "\udfff" for each in text):
            raise InvalidInput(f"{shown(text)} is not text in UTF-8")
        if name in found:
            raise InvalidInput(f"the attribute {shown(name)} stands twice")
        found[name] = value
    return found


def _notes(typed: Mapping[str, str], rules: RuleSet) -> list[str]:
    """Return what is legal, and perhaps a slip: a request may have more than rules look at."""
    known = sorted(attributes(rules))
    others = [name for name in known if name not in typed]
    notes = []
    for name, value in typed.items():
        if name not in known:
            hint = did_you_mean(name, others).replace("'", "")
            if not hint and known:
                hint = f"; they use: {', '.join(known)}"
            notes.append(f"no rule uses {name}{hint}")
        elif not value:
            notes.append(f"{name} is empty, which is the same as absent")
        elif name == ADDRESS and read_address(value) is None:
            notes.append(f"{value} is no address, so it is in no network")
    return notes


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what limen would log: here it is part of the answer."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    logger, handler = logging.getLogger("limen"), Collector()
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
