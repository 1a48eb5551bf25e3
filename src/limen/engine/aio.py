"""`AsyncEngine`: rules and a limiter, for asyncio. The twin for threads is `limen.engine.sync`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from limen.clock import Clock, SystemClock
from limen.engine.asked import Asked, ask
from limen.engine.bill import Bill, corrections
from limen.engine.made_of import counted, limiter_of, rule_set
from limen.engine.verdict import RequestRefused, Verdict
from limen.errors import RateLimitExceeded
from limen.limiter import AsyncLimiter, AsyncSlot
from limen.model import Check, Decision
from limen.rules.ruleset import RuleSet


class AsyncEngine:
    """Decides requests by their attributes. Safe to share between tasks.

    ```python
    engine = AsyncEngine(load("rules.yaml"), AsyncLimiter("redis://localhost:6379"))
    verdict = await engine.decide({"user": "42", "path": "/search", "method": "GET"})
    ```

    The verbs are those of `Engine`, and mean the same.
    """

    def __init__(
        self, rules: RuleSet, limiter: AsyncLimiter, *, clock: Clock | None = None
    ) -> None:
        self._rules = rule_set(rules)
        self._limiter = limiter_of(AsyncLimiter, limiter)
        self._clock = clock or SystemClock()

    @property
    def rules(self) -> RuleSet:
        """The rules in force."""
        return self._rules

    @property
    def limiter(self) -> AsyncLimiter:
        """What decides the limits of the rules."""
        return self._limiter

    def use(self, rules: RuleSet) -> None:
        """Put other rules in force, at once and as a whole. A request under way keeps its own."""
        self._rules = rule_set(rules)

    async def decide(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Decide one request, and charge it when it is allowed. Never waits its turn.

        `cost` is for rules that do not say what a request costs. Raises `InvalidInput` for
        attributes or a cost that make no sense, and charges nothing then.
        """
        return await self._decide(attributes, cost, charge=True)

    async def peek(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Say what `slot` would say, which is `decide` with slots, and charge nothing."""
        return await self._decide(attributes, cost, charge=False)

    def ask(self, attributes: Mapping[str, str], cost: int = 1, *, slots: bool = False) -> Asked:
        """Return what the rules would ask the limiter, and ask nobody.

        For those who decide many at once: nothing is charged until all of them make sense.
        """
        return ask(self._rules, attributes, cost, self._clock.time_ns(), slots=slots)

    async def _decide(self, attributes: Mapping[str, str], cost: int, *, charge: bool) -> Verdict:
        asked = self.ask(attributes, cost, slots=not charge)
        checks = asked.checks
        if not checks:
            return asked.verdict(None)
        return asked.verdict(await self._limiter.ask(tuple(checks), charge=charge))

    def slot(self, attributes: Mapping[str, str], cost: int = 1) -> AsyncRuleSlot:
        """Return what a request holds while it runs; by `async with` it is given back at the end.

        Rules with `concurrency` apply here, and all others too. Raises `RequestRefused` on entering
        when one of them refuses.
        """
        asked = self.ask(attributes, cost, slots=True)
        checks = asked.checks
        slot = self._limiter.hold(*checks) if checks else None
        return AsyncRuleSlot(asked, self._clock, slot)

    async def reset(
        self, attributes: Mapping[str, str], rule: str | None = None
    ) -> tuple[str, ...]:
        """Forget all that is counted for a request, under every rule it meets or only one.

        Returns the names of these rules. Raises `StoreError` when the store does not answer.
        """
        names, checks = counted(self.ask(attributes, slots=True).found, rule)
        if checks:
            await self._limiter.forget(*checks)
        return names

    async def refund(self, charged: Verdict | Bill) -> bool:
        """Give back what a verdict charged and is still counted; return whether there was any."""
        receipt = charged.receipt
        return receipt is not None and await self._limiter.refund(receipt)

    async def settle(self, charged: Verdict | Bill, actual: int | Mapping[str, int]) -> bool:
        """Correct the cost of an allowed request, once; return whether anything changed.

        A number corrects what was charged at the cost given to `decide`; a mapping, such as
        `{"tokens": 731}`, what rules charged by those attributes.
        """
        bill = charged if isinstance(charged, Bill) else charged.bill
        found = corrections(bill, actual)
        return any([await self._limiter.settle(receipt, cost) for receipt, cost in found])


class AsyncRuleSlot:
    """What a request holds while it runs, under all rules that match it."""

    def __init__(self, asked: Asked, clock: Clock, slot: AsyncSlot | None) -> None:
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

    async def acquire(self) -> Verdict:
        """Take a place under every rule with `concurrency`, and charge the others."""
        return self._judge(await self._slot.acquire() if self._slot else None)

    async def renew(self) -> bool:
        """Lengthen the leases to full ones; False when one had ended."""
        return self._slot is None or await self._slot.renew()

    async def release(self) -> bool:
        """Free the places; False when a lease had ended."""
        return self._slot is None or await self._slot.release()

    async def __aenter__(self) -> Self:
        if self._slot is None:
            self._admit(self._judge(None))
            return self
        try:
            await self._slot.__aenter__()
        except RateLimitExceeded as error:
            raise RequestRefused(self._judge(error.decision)) from None
        self._judge(self._slot.decision)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._slot is not None:
            await self._slot.__aexit__(kind, error, traceback)

    def _judge(self, decision: Decision | None) -> Verdict:
        self.verdict = self._asked.verdict(decision, self._clock.time_ns() / 1e9)
        return self.verdict

    def _admit(self, verdict: Verdict) -> None:
        if not verdict.allowed:
            raise RequestRefused(verdict)
