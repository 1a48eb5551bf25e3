"""`Engine`: rules and a limiter, for threads. The asyncio twin is `limen.engine.aio`."""

from __future__ import annotations

from collections.abc import Mapping
from operator import methodcaller
from typing import Self

from limen.clock import Clock
from limen.engine.flows import EngineFlows, RuleSlotFlows, limiter_of
from limen.engine.verdict import Bill, Verdict
from limen.flow import run
from limen.limiter import Limiter, Slot
from limen.rules.ruleset import RuleSet


class Engine(EngineFlows[Limiter]):
    """Decides requests by their attributes. Safe to share between threads.

    ```python
    engine = Engine(load("rules.yaml"), Limiter("redis://localhost:6379"))
    verdict = engine.decide({"user": "42", "path": "/search", "method": "GET"})
    ```

    All rules that match a request apply, in one call of the store, all or nothing.
    """

    def __init__(self, rules: RuleSet, limiter: Limiter, *, clock: Clock | None = None) -> None:
        super().__init__(rules, limiter_of(Limiter, limiter), clock)

    def decide(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Decide one request, and charge it when it is allowed. Never waits.

        `cost` is for rules that do not say what a request costs. Raises `InvalidInput` for
        attributes or a cost that make no sense, and charges nothing then.
        """
        return self._decide(attributes, cost, charge=True)

    def peek(self, attributes: Mapping[str, str], cost: int = 1) -> Verdict:
        """Say what `slot` would say, which is `decide` with slots, and charge nothing."""
        return self._decide(attributes, cost, charge=False)

    def _decide(self, attributes: Mapping[str, str], cost: int, *, charge: bool) -> Verdict:
        asked = self.ask(attributes, cost, slots=not charge)
        checks = asked.checks
        if not checks:
            return asked.verdict(None)
        prepared = self._limiter.prepare(tuple(checks), charge=charge)
        return asked.verdict(self._limiter.run(prepared))

    def slot(self, attributes: Mapping[str, str], cost: int = 1) -> RuleSlot:
        """Return what a request holds while it runs; by `with` it is given back at the end.

        Rules with `concurrency` apply here, and all others too. Raises `RequestRefused` on entering
        when one of them refuses.
        """
        asked = self.ask(attributes, cost, slots=True)
        checks = asked.checks
        slot = self._limiter.hold(*checks) if checks else None
        return RuleSlot(asked, self._clock, slot)

    def reset(self, attributes: Mapping[str, str], rule: str | None = None) -> tuple[str, ...]:
        """Forget all that is counted for a request, under every rule it meets or only one.

        Returns the names of these rules. Raises `StoreError` when the store does not answer.
        """
        return run(self._reset(attributes, rule))

    def refund(self, charged: Verdict | Bill) -> bool:
        """Give back what a verdict charged and is still counted; return whether there was any."""
        receipt = charged.receipt
        return receipt is not None and self._limiter.refund(receipt)

    def settle(self, charged: Verdict | Bill, actual: int | Mapping[str, int]) -> bool:
        """Correct the cost of an allowed request, once; return whether anything changed.

        A number corrects what was charged at the cost given to `decide`; a mapping, such as
        `{"tokens": 731}`, what rules charged by those attributes.
        """
        return run(self._settle(charged, actual))


class RuleSlot(RuleSlotFlows[Slot]):
    """What a request holds while it runs, under all rules that match it."""

    def acquire(self) -> Verdict:
        """Take a place under every rule with `concurrency`, and charge the others."""
        return self._judge(self._slot.acquire() if self._slot else None)

    def renew(self) -> bool:
        """Lengthen the leases to full ones; False when one had ended."""
        return self._slot is None or self._slot.renew()

    def release(self) -> bool:
        """Free the places; False when a lease had ended."""
        return self._slot is None or self._slot.release()

    def __enter__(self) -> Self:
        run(self._enter(methodcaller("__enter__")))
        return self

    def __exit__(self, *error: object) -> None:
        if self._slot is not None:
            self._slot.__exit__(*error)
