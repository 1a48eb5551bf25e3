"""`Bill`: what a request was charged, and what gave each cost. Pure.

A verdict is of the moment; its bill is what is worth keeping until the request is done, and enough
to refund or settle it from another process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from limen.model import Check, Receipt, Source, valid_cost


class Charge(Struct, frozen=True):
    """One limit that was charged."""

    check: Check
    stamp_us: int
    """Where the charge lies on the state's own timeline."""
    attribute: str | None = None
    """The attribute by which the rule charges: `"tokens"`. None when it goes by none."""
    is_asked: bool = True
    """Whether it was charged at the cost that the request itself gave."""


class Bill(Struct, frozen=True):
    """What one request was charged. Good for one correction."""

    id: str
    charges: tuple[Charge, ...]
    source: Source = "store"
    """Who charged it: the store, or this process in its place."""

    @property
    def receipt(self) -> Receipt:
        """The same as a limiter takes it."""
        return self.receipt_of(self.charges)

    def receipt_of(self, charges: Iterable[Charge]) -> Receipt:
        """Return a receipt for some of the charges."""
        pairs = tuple([(charge.check, charge.stamp_us) for charge in charges])
        return Receipt(self.id, pairs, self.source)


def corrections(bill: Bill | None, actual: int | Mapping[str, int]) -> list[tuple[Receipt, int]]:
    """Return what to settle, and to what cost. Raises `InvalidInput` for what is no cost.

    A number corrects what was charged at the cost that the request itself gave; a mapping, what was
    charged by those attributes. What a rule fixes stays as it is.
    """
    if isinstance(actual, Mapping):
        costs = {name: valid_cost(cost, f"the cost {name!r}") for name, cost in actual.items()}
        asked = None
    else:
        costs, asked = {}, valid_cost(actual, "actual_cost")
    if bill is None:
        return []
    charged: dict[int, list[Charge]] = {}
    for charge in bill.charges:
        cost = asked if charge.is_asked else None
        if charge.attribute in costs:
            cost = costs[charge.attribute]
        if cost is not None:
            charged.setdefault(cost, []).append(charge)
    return [(bill.receipt_of(charges), cost) for cost, charges in charged.items()]
