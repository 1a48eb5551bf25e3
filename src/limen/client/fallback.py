"""`Fallback`: decides while the service does not answer. Does no I/O.

`local` counts in this process, by the same `Guard` as for a store; `open` admits every request,
`closed` none. A caller's own limits come with its request. The limits of rules are those that the
service last reported for the same attributes; before the first report, every request is admitted.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from msgspec import Struct, structs

from limen.backends import Correct, Fault, Prepared, Release, Renew
from limen.client.questions import Actual, Asked, Whom
from limen.errors import InvalidLimit
from limen.guarded import Guard
from limen.limiter.plan import fall_back
from limen.model import (
    UNCHARGED,
    Check,
    Concurrency,
    Decision,
    Limit,
    OnError,
    Receipt,
    binding,
    receipt_ids,
)
from limen.wire import Part, Verdict

LOCAL = "local:"
"""The prefix of local ids and receipts. A receipt of a service has no colon."""
_MAX_REPORTS = 10_000
_MAX_RECEIPTS = 10_000
_SLOTS = re.compile(r"(\d+) at once, lease (.+)")
_ADMITTED = Verdict(
    allowed=True,
    rule=None,
    limit=None,
    remaining=None,
    retry_after=0.0,
    reset_after=0.0,
    delay=0.0,
    source="open",
    degraded=True,
    version="",
    id="",
    receipt=None,
    parts=(),
)
_REFUSED = structs.replace(_ADMITTED, allowed=False, retry_after=1.0, source="closed")
K = TypeVar("K")
V = TypeVar("V")


class Held(Struct, frozen=True):
    """The result of acquiring a slot."""

    verdict: Verdict
    slot: str | None = None
    """The id of the slot; None if there is none."""
    lease: float | None = None
    """Within how many seconds it has to be renewed; None if there is no slot."""
    local: tuple[Check, ...] = ()
    """The slots of this process, if the service did not answer."""


class _Report(NamedTuple):
    """The limits that the service reported for a request."""

    cost: int
    """The cost of that request."""
    reported_at: float
    parts: tuple[Part, ...]


class _Counted(NamedTuple):
    """A part of a verdict, and the check that counts for it here."""

    part: Part
    check: Check
    by_request: bool
    """Whether it is charged at the cost of the request, and not at one of its attributes."""


class Fallback:
    """Decides in place of a service that does not answer."""

    def __init__(self, service: str, on_error: OnError, instances: int) -> None:
        self._on_error = on_error
        # Nothing is replayed: a service cannot be charged later.
        self.guard: Guard = Guard(on_error, instances, service, f"; {on_error=!s}", max_owed=0)
        self._reports: OrderedDict[Whom, _Report] = OrderedDict()
        self._charges: OrderedDict[str, Sequence[tuple[_Counted, int]]] = OrderedDict()
        """The charges of a verdict, with the stamp of each."""
        self.after_fork()

    def after_fork(self) -> None:
        """Start with a new lock and other ids, in the child of a fork."""
        self._lock = threading.Lock()
        self._ids: Iterator[int] = receipt_ids()

    def remember(self, asked: Asked, verdict: Verdict, *, has_slots: bool) -> None:
        """Keep the limits that the service reported; `has_slots` if the slots are among them."""
        if asked.whom is None or self._on_error != "local":
            return
        parts = verdict.parts
        with self._lock:
            known = self._reports.get(asked.whom)
            if known is not None and not has_slots:
                parts = (*[part for part in known.parts if _is_slot(part)], *parts)
            report = _Report(asked.cost, time.monotonic(), parts)
            _put(self._reports, asked.whom, report, _MAX_REPORTS)

    def decide(self, asked: Asked, fault: Fault, *, slots: bool = False) -> Held:
        """Decide a request, and acquire its slots if asked to."""
        counted: list[_Counted] = []
        refusing: Part | None = None
        if self._on_error == "local":
            counted, refusing = self._known(asked, slots=slots)
        if refusing is not None or not counted:
            self.guard.warn(fault)
            return Held(self._uncounted(refusing))
        holder = self._next_id() if slots else ""
        checks = tuple([each.check for each in counted])
        prepared = Prepared(checks, asked.charge, holder, None)
        verdict = self._verdict(counted, fall_back(self.guard, prepared, fault, 0))
        held = tuple([check for check in checks if isinstance(check.limit, Concurrency)])
        if not held or not verdict.allowed:
            return Held(verdict)
        lease = min([each.limit.lease for each in held if isinstance(each.limit, Concurrency)])
        return Held(verdict, holder, lease, held)

    def change(self, held: Held, change: type[Renew | Release]) -> bool:
        """Renew or release local slots; return whether all of them were still held."""
        changed = [self.guard.change(change(slot, held.slot or "")) for slot in held.local]
        return all(changed)

    def correct(self, receipt_id: str, actual: Actual | None) -> bool:
        """Correct a local charge once, None gives all of it back; return whether it changed."""
        if isinstance(actual, Mapping):
            # Only the service knows which rule charges by which attribute.
            return False
        with self._lock:
            kept = self._charges.pop(receipt_id, ())
        charges = [
            (each.check, stamp_us) for each, stamp_us in kept if actual is None or each.by_request
        ]
        correct = Correct(Receipt(receipt_id, tuple(charges), "local"), actual or 0)
        return bool(charges and self.guard.change(correct))

    def _known(self, asked: Asked, *, slots: bool) -> tuple[list[_Counted], Part | None]:
        """Return what to count, and the part that refuses without counting, if there is one."""
        if asked.whom is None:
            own = [_Counted(_own_part(check), check, by_request=True) for check in asked.checks]
            return own, None
        with self._lock:
            report = self._reports.get(asked.whom)
            if report is None:
                return [], None
            self._reports.move_to_end(asked.whom)
        counted: list[_Counted] = []
        age_s = time.monotonic() - report.reported_at
        for part in report.parts:
            if part.reason is not None and part.mode != "shadow" and not part.allowed:
                left_s = None if part.retry_after is None else part.retry_after - age_s
                if left_s is None or left_s > 0:
                    return [], structs.replace(part, retry_after=left_s)
            limit = None if part.limit is None else limit_of(part.limit, part.name)
            if limit is None or part.mode != "enforce":
                continue
            # The service does not report where a cost came from. One that equals the cost of that
            # request is taken for it: at worst a rule with a cost of its own is too strict.
            by_request = part.cost == report.cost and isinstance(limit, Limit)
            cost = asked.cost if by_request else part.cost
            if isinstance(limit, Limit) or slots:
                counted.append(
                    _Counted(part, Check(limit, part.key or "everybody", cost), by_request)
                )
        return counted, None

    def _verdict(self, counted: Sequence[_Counted], decision: Decision) -> Verdict:
        bound = counted[binding(decision.parts)].part
        id_ = self._next_id()
        charges = [
            (each, part.stamp_us)
            for each, part in zip(counted, decision.parts, strict=True)
            if part.stamp_us != UNCHARGED
        ]
        if charges:
            with self._lock:
                _put(self._charges, id_, charges, _MAX_RECEIPTS)
        return structs.replace(
            _ADMITTED,
            allowed=decision.allowed,
            rule=bound.rule,
            limit=bound.limit,
            remaining=decision.remaining,
            retry_after=decision.retry_after,
            reset_after=decision.reset_after,
            delay=decision.delay,
            source="local",
            id=id_,
            receipt=id_ if charges else None,
            parts=tuple(map(_part, counted, decision.parts)),
        )

    def _uncounted(self, refusing: Part | None) -> Verdict:
        """Return the verdict of a part that refuses, or one for which nothing is counted."""
        verdict = _REFUSED if self._on_error == "closed" else _ADMITTED
        if refusing is not None:
            verdict = structs.replace(
                _REFUSED,
                rule=refusing.rule,
                retry_after=refusing.retry_after,
                source="local",
                parts=(refusing,),
            )
        return structs.replace(verdict, id=self._next_id())

    def _next_id(self) -> str:
        return f"{LOCAL}{next(self._ids):016x}"


def _put(table: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Set an entry of a table that drops the oldest ones."""
    table[key] = value
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)


def _is_slot(part: Part) -> bool:
    return part.limit is not None and _SLOTS.fullmatch(part.limit) is not None


def _own_part(check: Check) -> Part:
    text = str(check.limit)
    return Part(None, text, text, check.key, "enforce", True, check.cost, None, None, 0.0)


def _part(counted: _Counted, decision: Decision) -> Part:
    return structs.replace(
        counted.part,
        allowed=decision.allowed,
        cost=decision.cost,
        remaining=decision.remaining,
        retry_after=decision.retry_after,
        reset_after=decision.reset_after,
    )


@lru_cache(maxsize=4_096)
def limit_of(text: str, name: str | None = None) -> Limit | Concurrency | None:
    """Return a limit that the service reported; None if this version does not understand it.

    Under a name, since two rules may have the same limit on the same key.
    """
    try:
        slots = _SLOTS.fullmatch(text)
        if slots is not None:
            lease = Limit.parse(f"1 per {slots[2]}").period
            return Concurrency(int(slots[1]), float(lease), name=name)
        return Limit.parse(text).named(name)
    except (InvalidLimit, ValueError):
        return None
