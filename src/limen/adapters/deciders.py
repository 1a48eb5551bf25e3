"""Deciders: limiters, engines and clients behind one interface, for threads and for asyncio.

Engines are known without importing them: rules need packages that not everybody has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from limen.adapters.limit import Item, RateLimit
from limen.adapters.visit import Actual, Passage
from limen.client import AsyncClient, Client, ServiceRefused
from limen.clock import Clock, SystemClock
from limen.errors import ConfigurationError, RateLimitExceeded, shown
from limen.flow import Flow
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Check, Concurrency, Decision, Limit

if TYPE_CHECKING:
    from limen.engine import AsyncEngine, Engine

Source: TypeAlias = "Limiter | Engine | Client"
AsyncSource: TypeAlias = "AsyncLimiter | AsyncEngine | AsyncClient"
Kind = Literal["limiter", "engine", "client"]


def kind_of(source: object, *, is_async: bool) -> Kind:
    """Return what can be asked, or raise a `ConfigurationError` that names what could be."""
    kinds: dict[Kind, tuple[Any, Any]] = {
        "limiter": (Limiter, AsyncLimiter),
        "client": (Client, AsyncClient),
    }
    engine = sys.modules.get("limen.engine")
    if engine is not None:
        kinds["engine"] = (engine.Engine, engine.AsyncEngine)
    expected: list[str] = []
    for kind, types in kinds.items():
        right, wrong = types[is_async], types[not is_async]
        if isinstance(source, right):
            return kind
        if isinstance(source, wrong):
            # The other kind would stop the whole loop for each answer, or could not be awaited.
            how = "asyncio" if is_async else "threads"
            raise ConfigurationError(
                f"this adapter is for {how}; give it {_article(right.__name__)}, "
                f"got {_article(wrong.__name__)}"
            )
        expected.append(_article(right.__name__))
    # Not the value itself: it may be an address with a password.
    got = _article(type(source).__name__)
    raise ConfigurationError(f"expected {', '.join(expected)}, got {got}")


def validate(kind: Kind, limit: object) -> None:
    """Raise `ConfigurationError` for a limit that this kind of source cannot decide."""
    if not isinstance(limit, RateLimit):
        raise ConfigurationError(f"expected a RateLimit, got {shown(limit)}")
    if kind == "limiter" and not limit.limits:
        raise ConfigurationError(
            "a limiter knows no rules: give limits such as '100/minute', or an engine or a client"
        )
    if kind != "client":
        return
    if len([each for each in limit.limits if isinstance(each, Concurrency)]) > 1:
        raise ConfigurationError(f"a service grants one Concurrency at a time, got {limit!r}")
    if any(each.name is not None for each in limit.limits):
        raise ConfigurationError(
            f"a service cannot tell limits apart by name, got {limit!r}; give it a scope instead"
        )
    if limit.on_error is not None:
        raise ConfigurationError(
            "what happens while a service is away is said to its client: on_error belongs there"
        )


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOaeio" else f"a {name}"


class _Decider:
    """A source, and what passages need of it."""

    def __init__(self, source: Any, store: object, clock: Clock, *, is_async: bool) -> None:
        self.store: object = store
        """The counts: deciders of one store share them."""
        self.clock: Clock = clock
        """The clock to wait by."""
        self.settle: Callable[[Any, Actual], Any] = source.settle
        """Correct what was charged."""
        self.refund: Callable[[Any], Any] = source.refund
        """Give back what was charged."""
        self._source = source
        self._is_async = is_async

    def _acquire(self, slot: Any) -> Any:
        """Acquire a slot, and renew it until it is released."""
        return slot.__aenter__() if self._is_async else slot.__enter__()


class LimiterDecider(_Decider):
    """Decides by a limiter: all limits in one call, all or nothing."""

    def __init__(self, limiter: Any, *, is_async: bool) -> None:
        super().__init__(limiter, limiter, limiter.clock, is_async=is_async)

    def ask(self, items: list[Item], passages: list[Passage]) -> Flow[None]:
        """Decide items, and append the passage."""
        checks = tuple([check for item in items for check in item.checks])
        decision, slot = yield from self.decide(checks)
        passages.append(Passage(tuple(items), decision, self, slot))

    def decide(self, checks: tuple[Check, ...]) -> Flow[tuple[Decision, Any]]:
        """Decide checks. Return the decision, and the slot if one was acquired."""
        limiter = self._source
        if not any(type(check.limit) is Concurrency for check in checks):
            decision = yield limiter.run(limiter.prepare(checks))
            return decision, None
        slot = limiter.hold(*checks)
        try:
            yield self._acquire(slot)
        except RateLimitExceeded as error:
            return error.decision, None
        return slot.decision, slot


class EngineDecider(_Decider):
    """Decides by the rules of an engine, and before that limits of one's own by its limiter."""

    def __init__(self, engine: Any, *, is_async: bool) -> None:
        limiter = engine.limiter
        super().__init__(engine, limiter, limiter.clock, is_async=is_async)
        self._limiter = LimiterDecider(limiter, is_async=is_async)

    def ask(self, items: list[Item], passages: list[Passage]) -> Flow[None]:
        """Decide items, and append the passages."""
        own = [item for item in items if item.attributes is None]
        if own:
            yield from self._limiter.ask(own, passages)
        for item in items:  # at most one: rules are asked once about a request
            if item.attributes is not None and all(passages):
                asked = self._source.ask(item.attributes, item.cost, slots=True)
                decision, slot = None, None
                if asked.checks:
                    decision, slot = yield from self._limiter.decide(tuple(asked.checks))
                passages.append(Passage((item,), asked.verdict(decision), self, slot))


class ClientDecider(_Decider):
    """Decides by a service: its rules, or limits of one's own, each in a call of its own."""

    def __init__(self, client: Any, *, is_async: bool) -> None:
        super().__init__(client, client, SystemClock(), is_async=is_async)

    def ask(self, items: list[Item], passages: list[Passage]) -> Flow[None]:
        """Decide items, and append the passages."""
        for item in items:
            if all(passages):
                passages.append((yield from self._ask(item)))

    def _ask(self, item: Item) -> Flow[Passage]:
        client = self._source
        if item.attributes is not None:
            verdict = yield client.decide(item.attributes, item.cost)
            if not verdict.not_applicable:
                return Passage((item,), verdict, self)
            # One of the rules grants slots, which takes another call.
            yield client.refund(verdict)
            return (yield from self._hold(item, client.slot(item.attributes, item.cost)))
        key = item.checks[0].key
        limits = [limit for limit in item.limit.limits if isinstance(limit, Limit)]
        slots = [limit for limit in item.limit.limits if isinstance(limit, Concurrency)]
        if slots:
            return (yield from self._hold(item, client.hold(key, *slots, *limits, cost=item.cost)))
        return Passage((item,), (yield client.check(key, *limits, cost=item.cost)), self)

    def _hold(self, item: Item, slot: Any) -> Flow[Passage]:
        try:
            yield self._acquire(slot)
        except ServiceRefused as error:
            return Passage((item,), error.verdict, self)
        return Passage((item,), slot.verdict, self, slot)


DECIDERS: dict[Kind, type[LimiterDecider | EngineDecider | ClientDecider]] = {
    "limiter": LimiterDecider,
    "engine": EngineDecider,
    "client": ClientDecider,
}


def release(slot: Any, is_async: bool) -> Any:
    """Release a slot. Returns an awaitable on asyncio."""
    return slot.__aexit__(None, None, None) if is_async else slot.__exit__(None, None, None)
