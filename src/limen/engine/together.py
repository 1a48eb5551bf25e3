"""`Together`: several sets of attributes that stand for one request, decided all or nothing. Pure.

Envoy describes a request in several ways, and asks about all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from limen.engine.asked import Asked
from limen.engine.verdict import Verdict
from limen.errors import InvalidInput
from limen.model import MAX_COST, Check, Decision
from limen.rules.ruleset import MAX_CHECKS, Resolution


class Together(Struct, frozen=True, gc=False):
    """What the rules ask of the limiter for one request that was described several times."""

    whole: Asked
    """All of it, as if it had been one."""
    checks: tuple[Check, ...]
    """What to ask the limiter; nothing when the rules alone decide."""
    order: tuple[int, ...] | None
    """For each check of the whole, where it stands in `checks`; None when they are the same."""

    def verdict(self, decision: Decision | None) -> Verdict:
        """Return what all rules say, with what the limiter said."""
        if decision is not None and self.order is not None:
            parts = decision.parts
            decision = structs.replace(decision, several=tuple([parts[n] for n in self.order]))
        return self.whole.verdict(decision)


def together(several: Sequence[Asked]) -> Together:
    """Put together what belongs to one request: at least one. The rules of the first one name all.

    What two of them count in the same place is charged there in one sum. Raises `InvalidInput` when
    it is too much for one call.
    """
    first = several[0]
    found = first.found
    if len(several) > 1:
        found = Resolution.joined([each.found for each in several])
    whole = Asked(first.rules, found, first.now)
    places: dict[tuple[str, str], int] = {}
    checks: list[Check] = []
    order: list[int] = []
    for check in whole.checks:
        place = places.setdefault((check.limit.identity, check.key), len(checks))
        if place == len(checks):
            checks.append(check)
        else:
            cost = min(checks[place].cost + check.cost, MAX_COST)
            checks[place] = structs.replace(checks[place], cost=cost)
        order.append(place)
    if len(checks) > MAX_CHECKS:
        raise InvalidInput(f"at most {MAX_CHECKS} limits fit on one request, got {len(checks)}")
    return Together(whole, tuple(checks), None if len(order) == len(checks) else tuple(order))
