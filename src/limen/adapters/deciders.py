"""Deciders: limiters, engines and clients behind one interface, for threads and for asyncio.

Engines are known without importing them: rules need packages that not everybody has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from limen.adapters.limit import Item, RateLimit
from limen.adapters.plan import has_slots, joined
from limen.adapters.visit import Actual, Passage
from limen.client import AsyncClient, Client, ServiceRefused
from limen.clock import Clock, SystemClock
from limen.errors import ConfigurationError, InvalidInput, RateLimitExceeded, shown
from limen.flow import Flow
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Concurrency, Limit

if TYPE_CHECKING:
    from limen.engine import AsyncEngine, Engine

    Source = Limiter | Engine | Client
    AsyncSource = AsyncLimiter | AsyncEngine | AsyncClient

Kind = Literal["limiter", "engine", "client"]


def kind_of(source: object, *, is_async: bool) -> Kind:
    """Return what can be asked, or raise a `ConfigurationError` that names what could be."""
    right: tuple[tuple[Kind, Any], ...] = (("limiter", Limiter), ("client", Client))
    wrong: tuple[tuple[Kind, Any], ...] = (("limiter", AsyncLimiter), ("client", AsyncClient))
    engine = sys.modules.get("limen.engine")
    if engine is not None:
        right += (("engine", engine.Engine),)
        wrong += (("engine", engine.AsyncEngine),)
    if is_async:
        right, wrong = wrong, right
    for kind, type_ in right:
        if isinstance(source, type_):
            return kind
    names = {kind: type_.__name__ for kind, type_ in right}
    for kind, type_ in wrong:
        if isinstance(source, type_):
            # The other kind would stop the whole loop for each answer, or could not be awaited.
            how = "asyncio" if is_async else "threads"
            raise ConfigurationError(
                f"this adapter is for {how}; give it {_article(names[kind])}, "
                f"got {_article(type_.__name__)}"
            )
    expected = ", ".join([_article(name) for name in names.values()])
    # Not the value itself: it may be an address with a password.
    raise ConfigurationError(f"expected {expected}, got {_article(type(source).__name__)}")


def valid_for(kind: Kind, limit: object) -> RateLimit:
    """Return a limit that this kind of source can decide, or raise `ConfigurationError`."""
    if not isinstance(limit, RateLimit):
        raise ConfigurationError(f"expected a RateLimit, got {shown(limit)}")
    if kind == "limiter" and not limit.limits:
        raise ConfigurationError(
            "a limiter knows no rules: give limits such as '100/minute', or an engine or a client"
        )
    if kind == "client":
        _valid_elsewhere(limit)
    return limit


def _valid_elsewhere(limit: RateLimit) -> None:
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


class LimiterDecider:
    """Decides by a limiter: all limits in one call, all or nothing."""

    def __init__(self, limiter: Any, *, is_async: bool) -> None:
        self.store: object = limiter
        """The counts: deciders of one store share them."""
        self.refund: Callable[[Any], Any] = limiter.refund
        """Give back what was charged."""
        self._limiter = limiter
        self._is_async = is_async

    def settle(self, what: Any, actual: Actual) -> Any:
        """Correct what was charged."""
        if isinstance(actual, int):
            return self._limiter.settle(what, actual)
        raise InvalidInput("only rules charge by attributes; limits of your own take one number")

    def sleep(self, seconds: float) -> Any:
        """Wait."""
        return _sleep(self._limiter.clock, seconds, self._is_async)

    def ask(self, items: list[Item], passages: list[Passage]) -> Flow[None]:
        """Decide items, and append the passage."""
        checks, places = joined(items)
        slot: Any = None
        if has_slots(items):
            slot = self._limiter.hold(*checks)
            try:
                yield _acquire(slot, self._is_async)
                decision = slot.decision
            except RateLimitExceeded as error:
                slot, decision = None, error.decision
        else:
            decision = yield self._limiter.run(self._limiter.prepare(checks))
        passages.append(Passage(tuple(items), decision, self, places, slot))


class _RulesDecider:
    """Decides by rules, up to the first item that is refused."""

    def __init__(self, source: Any, store: object, refused: type[Any], *, is_async: bool) -> None:
        self.store = store
        self.settle: Callable[[Any, Actual], Any] = source.settle
        self.refund: Callable[[Any], Any] = source.refund
        self._refused = refused
        self._is_async = is_async

    def _hold(self, item: Item, slot: Any) -> Flow[Passage]:
        try:
            yield _acquire(slot, self._is_async)
        except self._refused as error:
            return Passage((item,), error.verdict, self)
        return Passage((item,), slot.verdict, self, slot=slot)


class EngineDecider(_RulesDecider):
    """Decides by the rules of an engine, and before that limits of one's own by its limiter."""

    def __init__(self, engine: Any, *, is_async: bool) -> None:
        from limen.engine import RequestRefused

        super().__init__(engine, engine.limiter, RequestRefused, is_async=is_async)
        self._engine = engine
        self._own = LimiterDecider(engine.limiter, is_async=is_async)
        self.sleep: Callable[[float], Any] = self._own.sleep

    def ask(self, items: list[Item], passages: list[Passage]) -> Flow[None]:
        """Decide items, and append the passages."""
        own: list[Item] = []
        by_rules: Item | None = None
        for item in items:
            if item.attributes is None:
                own.append(item)
            else:
                by_rules = item  # there is one: rules are asked once about a request
        if own:
            yield from self._own.ask(own, passages)
        if by_rules is None or not all(passages):
            return
        engine, attributes, cost = self._engine, by_rules.attributes, by_rules.cost
        asked = engine.ask(attributes, cost, slots=True)
        checks = tuple(asked.checks)
        if any(type(check.limit) is Concurrency for check in checks):
            passages.append((yield from self._hold(by_rules, engine.slot(attributes, cost))))
            return
        limiter = engine.limiter
        decision = (yield limiter.run(limiter.prepare(checks))) if checks else None
        passages.append(Passage((by_rules,), asked.verdict(decision), self))


class ClientDecider(_RulesDecider):
    """Decides by a service: its rules, or limits of one's own, each in a call of its own."""

    def __init__(self, client: Any, *, is_async: bool) -> None:
        super().__init__(client, client, ServiceRefused, is_async=is_async)
        self._client = client

    def sleep(self, seconds: float) -> Any:
        """Wait."""
        return _sleep(SystemClock(), seconds, self._is_async)

    def ask(self, items: list[Item], passages: list[Passage]) -> Flow[None]:
        """Decide items, and append the passages."""
        for item in items:
            if all(passages):
                passages.append((yield from self._ask_one(item)))

    def _ask_one(self, item: Item) -> Flow[Passage]:
        client = self._client
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


Decider = LimiterDecider | EngineDecider | ClientDecider
_DECIDERS: dict[Kind, type[Decider]] = {
    "limiter": LimiterDecider,
    "engine": EngineDecider,
    "client": ClientDecider,
}


def decider_of(kind: Kind, source: Any, *, is_async: bool) -> Decider:
    """Return the decider of a source."""
    return _DECIDERS[kind](source, is_async=is_async)


def release(slot: Any, is_async: bool) -> Any:
    """Release a slot. Returns an awaitable on asyncio."""
    return slot.__aexit__(None, None, None) if is_async else slot.__exit__(None, None, None)


def _acquire(slot: Any, is_async: bool) -> Any:
    """Acquire a slot, and renew it until it is released."""
    return slot.__aenter__() if is_async else slot.__enter__()


def _sleep(clock: Clock, seconds: float, is_async: bool) -> Any:
    return clock.sleep_async(seconds) if is_async else clock.sleep(seconds)
