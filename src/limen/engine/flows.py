"""`EngineFlows` and `RuleSlotFlows`: what the engines for threads and for asyncio share.

No I/O of their own; see `limen.flow`. The arguments of an engine are checked at once: a mistake
there would fail every request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from limen.clock import Clock, SystemClock
from limen.engine.asked import Asked, ask
from limen.engine.verdict import Bill, RequestRefused, Verdict, corrections
from limen.errors import ConfigurationError, RateLimitExceeded, shown
from limen.flow import Flow
from limen.limiter import AsyncLimiter, AsyncSlot, Limiter, Slot
from limen.model import Check, Decision
from limen.rules.ruleset import Resolution, RuleSet

T = TypeVar("T")
L = TypeVar("L", bound=Limiter | AsyncLimiter)
S = TypeVar("S", bound=Slot | AsyncSlot)


class EngineFlows(Generic[L]):
    """Rules and a limiter."""

    def __init__(self, rules: RuleSet, limiter: L, clock: Clock | None) -> None:
        self._rules = rule_set(rules)
        self._limiter = limiter
        self._clock = clock or SystemClock()

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._rules

    @property
    def limiter(self) -> L:
        """What decides the limits of the rules."""
        return self._limiter

    def use(self, rules: RuleSet) -> None:
        """Put other rules in force, at once and as a whole. A request under way keeps its own."""
        self._rules = rule_set(rules)

    def ask(self, attributes: Mapping[str, str], cost: int = 1, *, slots: bool = False) -> Asked:
        """Return what the rules would ask the limiter, and ask nobody.

        For those who decide many at once: nothing is charged until all of them make sense.
        """
        return ask(self._rules, attributes, cost, self._clock.time_ns(), slots=slots)

    def _reset(self, attributes: Mapping[str, str], rule: str | None) -> Flow[tuple[str, ...]]:
        names, checks = _counted(self.ask(attributes, slots=True).found, rule)
        if checks:
            yield self._limiter.forget(*checks)
        return names

    def _settle(self, charged: Verdict | Bill, actual: int | Mapping[str, int]) -> Flow[bool]:
        bill = charged if isinstance(charged, Bill) else charged.bill
        has_changed = False
        for receipt, cost in corrections(bill, actual):
            has_changed |= yield self._limiter.settle(receipt, cost)
        return has_changed


class RuleSlotFlows(Generic[S]):
    """The slot of a request under all rules that match it."""

    def __init__(self, asked: Asked, clock: Clock, slot: S | None) -> None:
        self.verdict: Verdict | None = None
        """The answer to the last `acquire`."""
        self._asked = asked
        self._clock = clock
        self._slot = slot

    @property
    def id(self) -> str | None:
        """Who holds it; None when no rule applies."""
        return self._slot.id if self._slot else None

    @property
    def places(self) -> tuple[Check, ...]:
        """What it holds a place of; before `acquire`, what it would."""
        return self._slot.places if self._slot else ()

    def _enter(self, enter: Callable[[S], Any]) -> Flow[None]:
        if self._slot is None:
            verdict = self._judge(None)
            if not verdict.allowed:
                raise RequestRefused(verdict)
            return
        try:
            yield enter(self._slot)
        except RateLimitExceeded as error:
            raise RequestRefused(self._judge(error.decision)) from None
        self._judge(self._slot.decision)

    def _judge(self, decision: Decision | None) -> Verdict:
        self.verdict = self._asked.verdict(decision, self._clock.time_ns() / 1e9)
        return self.verdict


def rule_set(rules: object) -> RuleSet:
    """Return a rule set, or raise `ConfigurationError` that says how to get one."""
    if isinstance(rules, RuleSet):
        return rules
    how = "; read a file by limen.rules.load(path)" if isinstance(rules, str) else ""
    raise ConfigurationError(f"an engine needs a RuleSet, got {shown(rules)}{how}")


def limiter_of(kind: type[T], limiter: object) -> T:
    """Return a limiter of the right kind, or raise `ConfigurationError`."""
    if isinstance(limiter, kind):
        return limiter
    # Only its type: the address of a store may hold a password.
    raise ConfigurationError(f"this engine is for {kind.__name__}, got {type(limiter).__name__}")


def _counted(found: Resolution, rule: str | None) -> tuple[tuple[str, ...], tuple[Check, ...]]:
    """Return the rules that count a request, or only one of them, and what they check."""
    names: dict[str, None] = {}
    checks: list[Check] = []
    first = 0
    for applied in found.applied:
        name = applied.rule.name
        if applied.checks and rule in (None, name):
            names[name] = None
            checks += found.checks[first : first + applied.checks]
        first += applied.checks
    return tuple(names), tuple(checks)
