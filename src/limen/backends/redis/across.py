"""Decisions and changes that touch several slots of a cluster. Pure: no I/O.

No call can decide them all at once. So every slot is reserved, all in parallel, and when one
refuses, the others are given back. A request can therefore be refused because another one, which
was refused too, held a place for a moment: sometimes too strict, never too generous. What cannot be
given back stays charged for its period, and is counted.

The functions are generators: they yield steps, and are sent the replies of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from limen.backends import Change, Correct, Fault, Prepared, Release, Reset
from limen.backends.redis import script
from limen.backends.redis.batch import Packer, Request
from limen.model import NEVER_US, UNCHARGED, Check, Concurrency, Reading, Receipt

T = TypeVar("T")


class Step(Struct, frozen=True):
    """Requests to send at the same time."""

    requests: list[Request]
    reserves: bool = False
    """Whether these charge: a fault is then a charge that may be there, and is not given back."""
    undoes: int = 0
    """How many of them, from the first, give back: a fault is then a refund that was lost."""
    behind: bool = False
    """Whether the caller has no time left to wait for them."""

    def lost(self, replies: Sequence[bytes | Fault]) -> list[Fault]:
        """Return the faults that leave something charged that nobody was admitted for."""
        faults = [reply for reply in replies if isinstance(reply, Fault)]
        if self.reserves:
            return [fault for fault in faults if fault.may_have_run]
        return [reply for reply in replies[: self.undoes] if isinstance(reply, Fault)]


Steps = Generator[Step, Sequence[bytes | Fault], "tuple[Reading, ...] | Fault"]
Group = list[int]


def decide(packer: Packer, prepared: Prepared, receipt_id: str) -> Steps:
    """Decide checks that are in several slots, all or nothing."""
    checks, charge, holder = prepared.checks, prepared.charge, prepared.holder
    readings: dict[int, Reading] = {}
    enforced = _groups(packer, checks, enforce=True)
    shadows = _groups(packer, checks, enforce=False)

    def requests(groups: list[Group], charge: bool) -> list[Request]:
        picked = [[checks[index] for index in group] for group in groups]
        return [packer.checks(group, charge, holder) for group in picked]

    def take(groups: list[Group], replies: Sequence[bytes | Fault]) -> Fault | None:
        faults = None
        for group, reply in zip(groups, replies, strict=True):
            if isinstance(reply, Fault):
                if faults is None or reply.may_have_run:
                    faults = reply
            else:
                readings.update(zip(group, script.readings(reply), strict=True))
        return faults

    fault = take(enforced, (yield Step(requests(enforced, charge), reserves=charge)))
    admitted = fault is None and all(reading[0] for reading in readings.values())
    undo = [] if admitted or not charge else _undo(packer, checks, readings, holder, receipt_id)
    if fault is not None:
        if undo:
            yield Step(undo, undoes=len(undo), behind=True)
            # Whether that will reach its node is not known here.
            fault = structs.replace(fault, unsent=False)
        return fault
    if undo:
        # What is left, and until when, is asked behind the refunds: in a lane order is kept.
        charged = [group for group in enforced if _was_charged(readings, group)]
        replies = yield Step([*undo, *requests(charged, False)], undoes=len(undo))
        take(charged, replies[len(undo) :])
    if shadows:
        # A shadow's fault is nobody's: it reads as if nothing had been counted.
        take(shadows, (yield Step(requests(shadows, charge and admitted))))
    return tuple([readings.get(index) or _unread(check) for index, check in enumerate(checks)])


Changes = Generator[Step, Sequence[bytes | Fault], bool | Fault]


def change(packer: Packer, change: Change) -> Changes:
    """Carry out a change that touches several slots."""
    replies = yield Step([packer.change(part) for part in _parts(packer, change)])
    faults = [reply for reply in replies if isinstance(reply, Fault)]
    return faults[0] if faults else any(isinstance(r, bytes) and r[1] for r in replies)


def _groups(packer: Packer, checks: Sequence[Check], *, enforce: bool) -> list[Group]:
    indexes = [index for index, check in enumerate(checks) if check.enforce == enforce]
    return _by_slot(indexes, lambda index: packer.slot_of(checks[index]))


def _by_slot(items: Iterable[T], slot_of: Callable[[T], int]) -> list[list[T]]:
    groups: dict[int, list[T]] = {}
    for item in items:
        groups.setdefault(slot_of(item), []).append(item)
    return list(groups.values())


def _was_charged(readings: dict[int, Reading], group: Group) -> bool:
    return any(readings[index][0] for index in group)


def _undo(
    packer: Packer,
    checks: Sequence[Check],
    readings: dict[int, Reading],
    holder: str,
    receipt_id: str,
) -> list[Request]:
    """Return what gives back every charge and every slot."""
    charges: list[tuple[Check, int]] = []
    changes: list[Change] = []
    for index, (allowed, *_, stamp_us) in readings.items():
        check = checks[index]
        if stamp_us != UNCHARGED:
            charges.append((check, stamp_us))
        elif allowed and isinstance(check.limit, Concurrency):
            changes.append(Release(check, holder))
    changes += _parts(packer, Correct(Receipt(receipt_id, tuple(charges)), 0))
    return [packer.change(change) for change in changes]


def _parts(packer: Packer, change: Change) -> list[Change]:
    """Cut a change by slots."""
    if isinstance(change, Correct):
        receipt = change.receipt
        groups = _by_slot(receipt.charges, lambda charge: packer.slot_of(charge[0]))
        return [Correct(Receipt(receipt.id, tuple(each)), change.actual_cost) for each in groups]
    if isinstance(change, Reset):
        return [Reset(tuple(each)) for each in _by_slot(change.checks, packer.slot_of)]
    return [change]


def _unread(check: Check) -> Reading:
    capacity = check.limit.capacity
    fits = check.cost <= capacity
    return (fits, capacity, 0 if fits else NEVER_US, 0, 0, UNCHARGED)
