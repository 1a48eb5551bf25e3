"""`StandIn`: who decides while the service is away. Does no I/O, and does not ask whether it is.

`local` counts in this process, at this instance's share of each limit; `open` lets everybody pass,
`closed` nobody. A caller's own limits come with the question. Those of the rules are the ones that
the service last told of the same attributes; before it did, everybody passes.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import structs

from limen.client.questions import Actual, Asked, Whom
from limen.errors import InvalidLimit
from limen.limiter import Limiter, Slot
from limen.model import Check, Concurrency, Decision, Limit, OnError, Receipt, receipt_ids
from limen.wire import Part, Verdict

LOCAL = "local:"
"""What ids and receipts from here begin with. No receipt of a service has a colon."""
_MAX_SEEN = 10_000
_MAX_RECEIPTS = 10_000
_MAX_PARTS = 100
_CLOSED_RETRY_S = 1.0
_PLACES = re.compile(r"(\d+) at once, lease (.+)")


class _Seen(NamedTuple):
    """What the service told of a request."""

    cost: int
    """What was asked for."""
    at: float
    parts: tuple[Part, ...]
    places: tuple[Part, ...]
    """Those parts that are about slots."""


class _Counted(NamedTuple):
    """A part of a verdict, and what is counted for it here."""

    part: Part
    check: Check
    is_asked: bool
    """Whether it is charged at the cost that the request itself gives."""


class _Kept(NamedTuple):
    """What was charged here."""

    whole: Receipt
    asked: Receipt | None
    """What of it was charged at the cost that the request itself gave."""


class StandIn:
    """Stands in for a service that cannot answer."""

    def __init__(self, on_error: OnError, instances: int) -> None:
        self._on_error = on_error
        self._instances = instances
        self._limiter = Limiter("memory://?max_keys=100000")
        self._seen: OrderedDict[Whom, _Seen] = OrderedDict()
        self._receipts: OrderedDict[str, _Kept] = OrderedDict()
        self.begin()

    def begin(self) -> None:
        """Make anew what two processes must not share, in the child of a fork."""
        self._lock = threading.Lock()
        self._ids = receipt_ids()

    def remember(self, asked: Asked, verdict: Verdict, *, slots: bool = False) -> None:
        """Keep what the service told; with `slots`, it told of all the slots, too."""
        if asked.whom is None or self._on_error != "local":
            return
        places = tuple([part for part in verdict.parts if _is_place(part)]) if slots else ()
        with self._lock:
            before = self._seen.get(asked.whom)
            if before is not None and not slots:
                places = before.places
            self._seen[asked.whom] = _Seen(asked.cost, time.monotonic(), verdict.parts, places)
            self._seen.move_to_end(asked.whom)
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)

    def decide(self, asked: Asked) -> Verdict:
        """Decide in the place of the service."""
        if self._on_error == "closed":
            return self._without_counting(allowed=False)
        counted, refusing = self._known(asked, slots=False)
        if refusing is not None:
            return self._refused_by(refusing)
        if not counted or self._on_error == "open":
            return self._without_counting(allowed=True)
        checks = [each.check for each in counted]
        return self._told(counted, self._limiter.decide(*checks, charge=asked.charge))

    def hold(self, asked: Asked) -> tuple[Verdict, Slot | None]:
        """Grant a slot in the place of the service; None without one, or when none is asked for."""
        counted, refusing = self._known(asked, slots=True)
        has_places = any(isinstance(each.check.limit, Concurrency) for each in counted)
        if self._on_error != "local" or refusing is not None or not has_places:
            return self.decide(asked), None
        slot = self._limiter.hold(*[each.check for each in counted])
        decision = slot.acquire()
        return self._told(counted, decision), slot if decision.allowed else None

    def correct(self, receipt: str, actual: Actual) -> bool:
        """Correct what was charged here, once; return whether anything changed."""
        if not isinstance(actual, int):
            # Which rule charges by which attribute is known to the service alone.
            return False
        return self._correct(receipt, actual)

    def refund(self, receipt: str) -> bool:
        """Give back what was charged here, once; return whether there was any."""
        return self._correct(receipt, None)

    def close(self) -> None:
        """Stop counting."""
        self._limiter.close()

    def _correct(self, receipt: str, actual: int | None) -> bool:
        with self._lock:
            kept = self._receipts.pop(receipt, None)
        if kept is None:
            return False
        if actual is None:
            return self._limiter.refund(kept.whole)
        return kept.asked is not None and self._limiter.settle(kept.asked, actual)

    def _known(self, asked: Asked, *, slots: bool) -> tuple[list[_Counted], Part | None]:
        """Return what to count, and the part that refuses without counting, if there is one."""
        if asked.whom is None:
            parts = [_own_part(check) for check in asked.checks]
            pairs = zip(parts, asked.checks, strict=True)
            return [
                _Counted(part, self._share(check), is_asked=True) for part, check in pairs
            ], None
        with self._lock:
            seen = self._seen.get(asked.whom)
            if seen is None:
                return [], None
            self._seen.move_to_end(asked.whom)
        age = time.monotonic() - seen.at
        found = [part for part in seen.parts if not _is_place(part)]
        for part in found:
            if part.reason is not None and part.mode != "shadow" and not part.allowed:
                ends_in = part.retry_after
                if ends_in is None or ends_in > age:
                    left = None if ends_in is None else ends_in - age
                    return [], structs.replace(part, retry_after=left)
        if slots:
            found = [*seen.places, *found]
        return list(self._counted(found, seen.cost, asked.cost))[:_MAX_PARTS], None

    def _counted(self, parts: Sequence[Part], seen_cost: int, cost: int) -> Iterable[_Counted]:
        for part in parts:
            limit = None if part.limit is None else limit_of(part.limit, part.name, self._instances)
            if limit is None or part.mode != "enforce":
                continue
            # The service does not say what gave a cost. One that equals what was asked for then
            # is taken for it: at worst a rule with a cost of its own is too strict.
            is_asked = part.cost == seen_cost
            is_place = isinstance(limit, Concurrency)
            charged = 1 if is_place else cost if is_asked else part.cost
            check = Check(limit, part.key or "everybody", charged)
            yield _Counted(part, check, is_asked and not is_place)

    def _share(self, check: Check) -> Check:
        if self._instances == 1:
            return check
        return structs.replace(check, limit=check.limit.share(self._instances))

    def _told(self, counted: Sequence[_Counted], decision: Decision) -> Verdict:
        told = decision.parts
        binding = 0
        for number, part in enumerate(told):
            if part.limit is decision.limit and part.key == decision.key:
                binding = number
        of = counted[binding].part
        id_ = self._id()
        return Verdict(
            decision.allowed,
            of.rule,
            of.limit,
            decision.remaining,
            decision.retry_after,
            decision.reset_after,
            decision.delay,
            "local",
            True,
            "",
            id_,
            self._keep(id_, counted, decision),
            tuple([_part(each.part, part) for each, part in zip(counted, told, strict=True)]),
        )

    def _keep(self, id_: str, counted: Sequence[_Counted], decision: Decision) -> str | None:
        """Keep the receipt of a decision under the verdict's id, and return it as text."""
        whole = decision.receipt
        if whole is None:
            return None
        by_request = [each.check for each in counted if each.is_asked]
        asked = tuple(
            [
                (check, stamp_us)
                for check, stamp_us in whole.charges
                if any(check.limit is by.limit and check.key == by.key for by in by_request)
            ]
        )
        kept = _Kept(whole, Receipt(whole.id, asked, whole.source) if asked else None)
        with self._lock:
            self._receipts[id_] = kept
            if len(self._receipts) > _MAX_RECEIPTS:
                self._receipts.popitem(last=False)
        return id_

    def _refused_by(self, part: Part) -> Verdict:
        verdict = self._without_counting(allowed=False)
        return structs.replace(
            verdict,
            rule=part.rule,
            retry_after=part.retry_after,
            source="local",
            parts=(part,),
        )

    def _without_counting(self, *, allowed: bool) -> Verdict:
        return Verdict(
            allowed,
            None,
            None,
            None,
            0.0 if allowed else _CLOSED_RETRY_S,
            0.0,
            0.0,
            "open" if allowed else "closed",
            True,
            "",
            self._id(),
            None,
            (),
        )

    def _id(self) -> str:
        return f"{LOCAL}{next(self._ids):016x}"


def _is_place(part: Part) -> bool:
    return part.limit is not None and _PLACES.fullmatch(part.limit) is not None


def _own_part(check: Check) -> Part:
    text = str(check.limit)
    return Part(None, text, text, check.key, "enforce", True, check.cost, None, None, 0.0)


def _part(of: Part, told: Decision) -> Part:
    return structs.replace(
        of,
        allowed=told.allowed,
        cost=told.cost,
        remaining=told.remaining,
        retry_after=told.retry_after,
        reset_after=told.reset_after,
    )


@lru_cache(maxsize=4_096)
def limit_of(text: str, name: str | None = None, instances: int = 1) -> Limit | Concurrency | None:
    """Return one instance's share of a limit that the service told; None if it is not understood.

    Under a name, since two rules may have the same limit on the same key.
    """
    try:
        places = _PLACES.fullmatch(text)
        if places is not None:
            lease = Limit.parse(f"1 per {places[2]}").period
            return Concurrency(int(places[1]), float(lease), name=name).share(instances)
        return Limit.parse(text).share(instances).named(name)
    except (InvalidLimit, ValueError):  # of a service that is newer than this client
        return None
