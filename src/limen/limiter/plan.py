"""The steps of a decision that both limiters share. Pure: no I/O, no clock.

Arguments become checks; the answer of the store becomes one decision.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import structs

from limen.backends import Correct, Fault, Prepared
from limen.errors import InvalidInput, shown
from limen.guarded import Guard
from limen.limiter.settings import Observer
from limen.model import (
    MAX_COST,
    Check,
    Concurrency,
    Decision,
    Limit,
    Reading,
    Receipt,
    Source,
    binding,
    decision_of,
    valid_cost,
    valid_key,
)

_MAX_KNOWN = 1_024
_MAX_CHECKS = 100
PAY_S = 0.2
"""How often it is tried to have charged in the store what was admitted without it."""
NOBODY = "nobody"
"""The holder of a peek at slots: it holds none."""
MOST_UNPAID = 16
"""After how many that could not be paid the others wait too."""
_FOR_SLOTS = "{0!r} is for limiter.slot, which gives the slot back at the end"
_logger = logging.getLogger("limen")


class Limits:
    """Turns the arguments of a call into checks.

    Remembers which limits a text stands for, since reading it takes longer than a decision.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Limit | str, ...], tuple[Limit, ...]] = {}
        self.alone: dict[str, Limit] = {}
        """Texts that stand for a single limit, and were seen before."""

    def checks(
        self, limits: tuple[Limit | str, ...], key: str | bytes, cost: int
    ) -> tuple[Check, ...]:
        """Put each limit on the same key, at the same cost."""
        if len(limits) == 1 and type(limits[0]) is Limit:
            found: tuple[Limit, ...] = (limits[0],)
        else:
            try:
                found = self._known[limits]
            except (KeyError, TypeError):
                found = self._read(limits)
        text = key if type(key) is str and key else valid_key(key)
        if type(cost) is not int or not 0 <= cost <= MAX_COST:
            valid_cost(cost)
        if len(found) == 1:
            return (Check(found[0], text, cost),)
        return tuple([Check(limit, text, cost) for limit in found])

    def _read(self, limits: tuple[Limit | str, ...]) -> tuple[Limit, ...]:
        """Return the limits that the arguments of a call name: at least one, and none twice."""
        if not limits:
            raise InvalidInput("expected at least one limit, such as '100/minute'")
        found: list[Limit] = []
        for limit in limits:
            if isinstance(limit, Limit):
                found.append(limit)
            elif isinstance(limit, str):
                found.extend(Limit.parse_all(limit))
            elif isinstance(limit, Concurrency):
                raise InvalidInput(_FOR_SLOTS.format(limit))
            else:
                raise InvalidInput(f"a limit must be a Limit or text, got {shown(limit)}")
        distinct([Check(limit, "any") for limit in found])
        if all(type(limit) is str or type(limit) is Limit for limit in limits):
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
                self.alone.clear()
            self._known[limits] = tuple(found)
            if len(found) == 1 and type(limits[0]) is str:
                self.alone[limits[0]] = found[0]
        return tuple(found)


def validated(checks: Sequence[Check], *, slots: bool = False) -> tuple[Check, ...]:
    """Return checks that can be decided: some, none of a slot unless asked, and no place twice."""
    if not checks:
        raise InvalidInput("expected at least one Check")
    for check in checks:
        if not isinstance(check, Check):
            raise InvalidInput(f"expected a Check, got {shown(check)}")
        if not slots and isinstance(check.limit, Concurrency):
            raise InvalidInput(_FOR_SLOTS.format(check.limit))
    found = tuple([check.validated() for check in checks])
    distinct(found)
    return found


def refuse_too_many(count: int) -> None:
    """Raise `InvalidInput` if `count` is more limits than fit on one request."""
    if count > _MAX_CHECKS:
        raise InvalidInput(f"at most {_MAX_CHECKS} limits fit on one request, got {count}")


def distinct(checks: Sequence[Check]) -> None:
    """Refuse checks that are too many, or that would count in the same place twice."""
    refuse_too_many(len(checks))
    places: dict[tuple[str, str], Check] = {}
    for check in checks:
        other = places.setdefault((check.limit.identity, check.key), check)
        if other is not check:
            raise InvalidInput(
                f"{other.limit} and {check.limit} on the same key would share one state; "
                "give one of them a name, or drop it"
            )


def slot_check(concurrency: Concurrency, key: str | bytes) -> Check:
    """Put a slot on a key."""
    if not isinstance(concurrency, Concurrency):
        raise InvalidInput(
            f"expected a Concurrency such as Concurrency(10, lease=30), got {shown(concurrency)}"
        )
    return Check(concurrency, valid_key(key))


def correct(decision: Decision | Receipt, actual_cost: int) -> Correct | None:
    """Return what corrects a decision; None when it charged nothing."""
    valid_cost(actual_cost, "actual_cost")
    if not isinstance(decision, Decision | Receipt):
        raise InvalidInput(f"expected a Decision or its receipt, got {shown(decision)}")
    receipt = decision.receipt if isinstance(decision, Decision) else decision
    return None if receipt is None else Correct(receipt, actual_cost)


def fall_back(guard: Guard, prepared: Prepared, fault: Fault, id_: int) -> Decision:
    """Return the decision of the fallback after a fault of the store."""
    checks = prepared.checks
    readings, sources = guard.decide(fault, checks, prepared.charge, prepared.holder)
    return combine(checks, readings, id_, sources, fault.kind)


def combine(
    checks: Sequence[Check],
    readings: Sequence[Reading],
    id_: int,
    sources: Sequence[Source] | None = None,
    fault: str = "",
) -> Decision:
    """Build one decision from the readings. Of several, the fields are those of the binding one.

    `sources` names the origin of each reading; None is the store for all. `fault` is the kind of
    the fault when the store did not answer.
    """
    if len(checks) == 1 and checks[0].enforce:
        source = sources[0] if sources else "store"
        return decision_of(checks[0], readings[0], source, id_, fault)
    origins: Sequence[Source] = sources or ["store"] * len(checks)
    parts = tuple(
        [
            decision_of(check, reading, source, id_, fault)
            for check, reading, source in zip(checks, readings, origins, strict=True)
        ]
    )
    # Shadows do not bind, unless there is nothing else. They never refuse and never delay.
    candidates = [part for part in parts if part.enforce] or parts
    bound = candidates[binding(candidates)]
    allowed = bound.allowed or not bound.enforce
    return structs.replace(
        bound,
        allowed=allowed,
        retry_after=0.0 if allowed else bound.retry_after,
        delay=max([part.delay for part in candidates]) if allowed and bound.enforce else 0.0,
        several=parts,
    )


def notify(observers: tuple[Observer, ...], decision: Decision) -> None:
    """Call the observers with a decision. An exception of an observer is logged."""
    for observer in observers:
        try:
            observer(decision)
        except Exception:
            _logger.exception("observer %r failed", observer)
