"""`Check`, `Decision` and `Receipt`: what is asked, what is answered, what can be given back."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, get_args

from msgspec import Struct, structs

from limen.errors import InvalidInput, shown
from limen.model.limit import Concurrency, Limit

OnError = Literal["local", "open", "closed"]
Source = Literal["store", "local", "open", "closed"]

Reading = tuple[bool, int, int, int, int, int]
"""What an algorithm says of one check, in whole numbers so that Lua can say the same:

allowed, remaining, retry_after_us, reset_after_us, delay_us, stamp_us.

`retry_after_us` is 0 when allowed and `NEVER_US` when no wait would help. `stamp_us` is where the
charge lies on the state's own timeline, so that a refund finds it again; `UNCHARGED` without one.
"""

NEVER_US = -1
UNCHARGED = -1
MAX_COST = 10**9
_ON_ERROR = get_args(OnError)


class Check(Struct, frozen=True, gc=False):
    """One limit on one key, as `Limiter.decide` takes it."""

    limit: Limit | Concurrency
    key: str
    """Who is counted: `"user:42"`."""
    cost: int = 1
    """How many units are asked for. 0 is always allowed and only reports."""
    subject: str | None = None
    """What must live on one node of a cluster together; None is the key itself."""
    enforce: bool = True
    """False is a shadow: it counts and reports, and never refuses."""
    on_error: OnError | None = None
    """What happens when the store fails; None is the limiter's own setting."""

    def __repr__(self) -> str:
        # Without the key: it may be somebody's API key.
        shadow = "" if self.enforce else ", enforce=False"
        return f"<Check of {self.limit}, cost={self.cost}{shadow}>"

    def validated(self) -> Check:
        """Return the check with its key as text, or raise `InvalidInput`."""
        if not isinstance(self.limit, Limit | Concurrency):
            raise InvalidInput(f"limit must be a Limit or a Concurrency, got {shown(self.limit)}")
        if self.subject is not None and (not isinstance(self.subject, str) or not self.subject):
            raise InvalidInput(f"subject must be non-empty text, got {shown(self.subject)}")
        if self.on_error is not None and self.on_error not in _ON_ERROR:
            expected = ", ".join(_ON_ERROR)
            raise InvalidInput(f"on_error must be {expected} or None, got {shown(self.on_error)}")
        if self.enforce not in (True, False):
            raise InvalidInput(f"enforce must be True or False, got {shown(self.enforce)}")
        valid_cost(self.cost)
        key = valid_key(self.key)
        return self if key is self.key else structs.replace(self, key=key)


class Receipt(Struct, frozen=True):
    """What `refund` and `settle` need to find a charge again. Good for one correction."""

    id: str
    charges: tuple[tuple[Check, int], ...]
    """Each check that was charged, with the `stamp_us` of its charge."""
    source: Source = "store"
    """Who charged it: the store, or this process in its place."""


def receipt_ids() -> Iterator[int]:
    """Return where the ids of receipts come from, in this process.

    They begin at random, and not by the shared generator, which a program may seed.
    """
    return itertools.count(secrets.randbits(62))


class Decision(Struct, frozen=True, gc=False):
    """The answer to one or several checks. True in a condition when allowed.

    With several checks, `limit`, `key`, `remaining`, `retry_after` and `reset_after` are those of
    the binding one: of the refusing ones the longest to wait for, else the one nearest its limit.
    """

    limit: Limit | Concurrency
    """The limit that binds. Its `str` is what to show: `100/minute`."""
    key: str
    """Who was counted: `"user:42"`."""
    cost: int
    """How many units were asked for."""
    allowed: bool
    """Whether the request may pass."""
    remaining: int
    """How many units are left after this decision; before it, for `peek`. Never negative."""
    retry_after: float | None
    """Seconds until the same request would pass, if nobody else comes; None is never."""
    reset_after: float
    """Seconds until nothing is counted any more, if nobody else comes."""
    delay: float
    """Seconds to wait before going on, from a leaky bucket; else 0.0."""
    stamp_us: int
    """Where the charge lies on the state's own timeline; `UNCHARGED` without one."""
    source: Source
    """Who decided: the store, or who stood in for it."""
    id: int
    """What makes its receipt good for one correction only."""
    subject: str | None = None
    """As in the check: what must live together."""
    enforce: bool = True
    """As in the check: False is a shadow."""
    several: tuple[Decision, ...] = ()
    """The parts, when there are several."""
    fault: str = ""
    """Why the store did not decide: `timeout`, `connection`, ...; empty when it did."""

    @property
    def degraded(self) -> bool:
        """Whether somebody else than the store decided; `source` says who, `fault` why."""
        return self.source != "store"

    @property
    def parts(self) -> tuple[Decision, ...]:
        """The decision of each check, in the order they were given."""
        return self.several or (self,)

    @property
    def receipt(self) -> Receipt | None:
        """What can be refunded or settled; None when nothing was charged."""
        charged = [part for part in self.parts if part.stamp_us != UNCHARGED]
        if not charged:
            return None
        charges = tuple(
            (Check(part.limit, part.key, part.cost, part.subject), part.stamp_us)
            for part in charged
        )
        # Of one decision, all that is charged is charged by the same.
        return Receipt(f"{self.id:016x}", charges, charged[0].source)

    def __bool__(self) -> bool:
        return self.allowed

    def __repr__(self) -> str:
        # Without the key: it may be somebody's API key.
        verdict = "allowed" if self.allowed else "refused"
        retry = "" if self.allowed else f", retry_after={self.retry_after}"
        delay = f", delay={self.delay}" if self.delay else ""
        fault = f", fault={self.fault}" if self.fault else ""
        return (
            f"<Decision {verdict}: {self.limit}, remaining={self.remaining}{retry}"
            f", reset_after={self.reset_after}{delay}, source={self.source}{fault}>"
        )


class Bound(Protocol):
    """The result of one limit: a `Decision`, or a `Quota` of `limen.http`."""

    @property
    def limit(self) -> Limit | Concurrency:
        """The limit."""

    @property
    def allowed(self) -> bool:
        """Whether this limit admits the request."""

    @property
    def remaining(self) -> int:
        """How many units are left."""

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same request would pass; None is never."""


def binding(parts: Sequence[Bound]) -> int:
    """Return the index of the binding limit; of equals, the first. `parts` is not empty.

    If any limit refuses, it is the refusing one with the longest `retry_after`. Otherwise it is the
    one with the smallest share of its capacity left.
    """
    refusing, longest = -1, -1.0
    # The first share that is compared is smaller than 1 / 0.
    nearest, left, capacity = 0, 1, 0
    for index, part in enumerate(parts):
        if not part.allowed:
            retry_after = part.retry_after
            wait = math.inf if retry_after is None else retry_after
            if wait > longest:
                refusing, longest = index, wait
        elif refusing < 0:
            its_left, its_capacity = part.remaining, part.limit.capacity
            # Multiplied crosswise, because a quotient would be rounded.
            if its_left * capacity < left * its_capacity:
                nearest, left, capacity = index, its_left, its_capacity
    return nearest if refusing < 0 else refusing


def decision_of(
    check: Check, reading: Reading, source: Source, id_: int, fault: str = ""
) -> Decision:
    """Build the decision of one check from its reading: seconds instead of microseconds."""
    allowed, remaining, retry_us, reset_us, delay_us, stamp_us = reading
    # A division takes longer than a comparison, and this function runs for every check.
    return Decision(
        check.limit,
        check.key,
        check.cost,
        allowed,
        remaining,
        0.0 if allowed else None if retry_us == NEVER_US else retry_us / 1e6,
        reset_us / 1e6,
        delay_us / 1e6 if delay_us else 0.0,
        stamp_us,
        source,
        id_,
        check.subject,
        check.enforce,
        (),
        fault,
    )


def valid_key(key: object) -> str:
    """Return a key as text, or raise `InvalidInput`."""
    if isinstance(key, bytes) and key:
        # One text for each byte string, also where it is not UTF-8.
        return key.decode("utf-8", "surrogateescape")
    if isinstance(key, str) and key:
        # The text itself: a subclass may print as something else, as an Enum does.
        return str.__str__(key)
    # Not the key itself: it may be somebody's API key.
    empty = "empty " if isinstance(key, str | bytes) else ""
    got = f"{empty}{type(key).__name__}"
    raise InvalidInput(f"key must be non-empty text or bytes, got {got}")


def valid_cost(cost: object, name: str = "cost") -> int:
    """Return a cost, or raise `InvalidInput`."""
    if type(cost) is int and 0 <= cost <= MAX_COST:
        return cost
    raise InvalidInput(f"{name} must be a whole number from 0 to {MAX_COST:,}, got {shown(cost)}")
