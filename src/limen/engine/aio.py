"""`AsyncEngine`: rules and a limiter, for asyncio. The twin for threads is `limen.engine.sync`."""

from __future__ import annotations

from collections.abc import Mapping
from operator import methodcaller
from typing import Self

from limen.clock import Clock
from limen.engine.flows import EngineFlows, RuleSlotFlows, limiter_of
from limen.engine.verdict import Bill, Verdict
from limen.flow import run_async
from limen.limiter import AsyncLimiter, AsyncSlot
from limen.rules.ruleset import RuleSet


class AsyncEngine(EngineFlows[AsyncLimiter]):
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
        super().__init__(rules, limiter_of(AsyncLimiter, limiter), clock)

    async def decide(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Decide one request, and charge it when it is allowed. Never waits its turn.

        `cost` is for rules that do not say what a request costs. Raises `InvalidInput` for
        attributes or a cost that make no sense, and charges nothing then.
        """
        return await self._decide(attributes, cost, charge=True)

    async def peek(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Say what `slot` would say, which is `decide` with slots, and charge nothing."""
        return await self._decide(attributes, cost, charge=False)

    async def _decide(self, attributes: Mapping[str, str], cost: int, *, charge: bool) -> Verdict:
        asked = self.ask(attributes, cost, slots=not charge)
        checks = asked.checks
        if not checks:
            return asked.verdict(None)
        prepared = self._limiter.prepare(tuple(checks), charge=charge)
        return asked.verdict(await self._limiter.run(prepared))

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
        return await run_async(self._reset(attributes, rule))

    async def refund(self, charged: Verdict | Bill) -> bool:
        """Give back what a verdict charged and is still counted; return whether there was any."""
        receipt = charged.receipt
        return receipt is not None and await self._limiter.refund(receipt)

    async def settle(self, charged: Verdict | Bill, actual: int | Mapping[str, int]) -> bool:
        """Correct the cost of an allowed request, once; return whether anything changed.

        A number corrects what was charged at the cost given to `decide`; a mapping, such as
        `{"tokens": 731}`, what rules charged by those attributes.
        """
        return await run_async(self._settle(charged, actual))


class AsyncRuleSlot(RuleSlotFlows[AsyncSlot]):
    """What a request holds while it runs, under all rules that match it."""

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
        await run_async(self._enter(methodcaller("__aenter__")))
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._slot is not None:
            await self._slot.__aexit__(*error)
