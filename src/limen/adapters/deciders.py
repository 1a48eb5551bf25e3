"""Deciders: limiters, engines and clients behind one interface, for threads and for asyncio.

Engines are known without importing them: rules need packages that not everybody has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from limen.adapters.limit import Item, RateLimit
from limen.adapters.plan import joined
from limen.adapters.visit import Actual, Passage
from limen.client import AsyncClient, Client, ServiceRefused
from limen.clock import Clock, SystemClock
from limen.errors import ConfigurationError, InvalidInput, RateLimitExceeded, shown
from limen.flow import Flow
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Check, Concurrency, Limit

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


class Driver(Struct, frozen=True):
    """The calls that differ between threads and asyncio, where each returns an awaitable."""

    run: Callable[[Flow[Any]], Any]
    enter: Callable[[Any], Any]
    """Acquire a slot, and renew it until it is left."""
    leave: Callable[[Any], Any]
    """Release a slot."""
    sleep: Callable[[Clock, float], Any]
    """Wait for a number of seconds."""


class LimiterDecider:
    """Decides by a limiter: all limits in one call, all or nothing."""

    def __init__(self, limiter: Any, driver: Driver) -> None:
        self.store: object = limiter
        """The counts: deciders of one store share them."""
        self.refund: Callable[[Any], Any] = limiter.refund
        """Give back what was charged."""
        self._limiter = limiter
        self.driver = driver

    def settle(self, what: Any, actual: Actual) -> Any:
        """Correct what was charged."""
        if isinstance(actual, int):
            return self._limiter.settle(what, actual)
        raise InvalidInput("only rules charge by attributes; limits of your own take one number")

    def sleep(self, seconds: float) -> Any:
        """Wait."""
        return self.driver.sleep(self._limiter.clock, seconds)

    def hold(self, items: list[Item]) -> Flow[Passage]:
        """Decide items of which at least one holds a slot until the response is sent."""
        checks, places = joined(items)
        slot = self._limiter.hold(*checks)
        try:
            yield self.driver.enter(slot)
        except RateLimitExceeded as error:
            return Passage(tuple(items), error.decision, self, places)
        return Passage(tuple(items), slot.decision, self, places, slot)


class _RulesDecider:
    """Decides by rules, up to the first item that is refused."""

    def __init__(self, source: Any, store: object, refused: type[Any], driver: Driver) -> None:
        self.store = store
        self.settle: Callable[[Any, Actual], Any] = source.settle
        self.refund: Callable[[Any], Any] = source.refund
        self._refused = refused
        self.driver = driver

    def ask(self, items: list[Item], passages: list[Passage]) -> Any:
        """Decide items, and append the passages."""
        return self.driver.run(self._ask(items, passages))

    def _ask(self, items: list[Item], passages: list[Passage]) -> Flow[None]:
        raise NotImplementedError

    def _hold(self, item: Item, slot: Any) -> Flow[Passage]:
        try:
            yield self.driver.enter(slot)
        except self._refused as error:
            return Passage((item,), error.verdict, self)
        return Passage((item,), slot.verdict, self, slot=slot)


class EngineDecider(_RulesDecider):
    """Decides by the rules of an engine, and before that limits of one's own by its limiter."""

    def __init__(self, engine: Any, own: Any, driver: Driver) -> None:
        from limen.engine import RequestRefused

        super().__init__(engine, engine.limiter, RequestRefused, driver)
        self.sleep: Callable[[float], Any] = own.sleep
        self._engine = engine
        self._own = own

    def _ask(self, items: list[Item], passages: list[Passage]) -> Flow[None]:
        own: list[Item] = []
        by_rules: Item | None = None
        for item in items:
            if item.attributes is None:
                own.append(item)
            else:
                by_rules = item  # there is one: rules are asked once about a request
        if own:
            yield self._own.ask(own, passages)
        if by_rules is None or not all(passages):
            return
        engine, attributes, cost = self._engine, by_rules.attributes, by_rules.cost
        asked = engine.ask(attributes, cost, slots=True)
        checks = tuple(asked.checks)
        if _has_slot(checks):
            passages.append((yield from self._hold(by_rules, engine.slot(attributes, cost))))
            return
        limiter = engine.limiter
        decision = (yield limiter.run(limiter.prepare(checks))) if checks else None
        passages.append(Passage((by_rules,), asked.verdict(decision), self))


def _has_slot(checks: tuple[Check, ...]) -> bool:
    for check in checks:  # noqa: SIM110  # asked of every request
        if type(check.limit) is Concurrency:
            return True
    return False


class ClientDecider(_RulesDecider):
    """Decides by a service: its rules, or limits of one's own, each in a call of its own."""

    def __init__(self, client: Any, driver: Driver) -> None:
        super().__init__(client, client, ServiceRefused, driver)
        self._client = client

    def sleep(self, seconds: float) -> Any:
        """Wait."""
        return self.driver.sleep(SystemClock(), seconds)

    def _ask(self, items: list[Item], passages: list[Passage]) -> Flow[None]:
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


def decider_of(
    kind: Kind, source: Any, by_limiter: Callable[[Any, Driver], Any], driver: Driver
) -> Any:
    """Return the decider of a source. `by_limiter` makes the decider of a limiter."""
    if kind == "limiter":
        return by_limiter(source, driver)
    if kind == "engine":
        return EngineDecider(source, by_limiter(source.limiter, driver), driver)
    return ClientDecider(source, driver)
