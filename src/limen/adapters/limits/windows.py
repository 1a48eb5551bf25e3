"""The windows of `limits` in limen's words, and decisions in the numbers of `limits`. Pure.

A storage of `limits` is told a key, and not always the limit; but the key tells it, since every
strategy takes it from `RateLimitItem.key_for`: `LIMITER/user/42/10/2/minute` is 10 in 2 minutes.
So a hit can be decided as a whole, instead of counted first and compared afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import nextafter

from limits import parse
from msgspec import Struct

from limen.errors import InvalidInput, shown
from limen.flow import Flow
from limen.model import AlgorithmName, Check, Decision, Limit

_LOOKS = 3
"""How often to look again for when a hit is set free, while others keep changing the answer."""
NO_RESET = (
    "a shared store is not searched for keys: clear limits one by one, or use another namespace"
)
_KNOWN = 4_096
_THOUSANDTHS = 1_000
_MAX_IN_THOUSANDTHS = 1_000_000


class Window(Struct, frozen=True):
    """A limit of `limits`, and the one of limen that decides it."""

    quota: int
    """How many hits fit: 10 in `10/minute`. May be 0."""
    expiry: float
    """Seconds."""
    limit: Limit
    unit: int = 1
    """How much of `limit` one hit takes."""

    def holds(self, amount: int) -> bool:
        """Return whether so many hits fit when nothing else is counted.

        Raises `InvalidInput` for a cost that is not a whole number.
        """
        if not isinstance(amount, int):
            raise InvalidInput(
                f"cost must be a whole number, got {shown(amount)}; to count parts of a hit, "
                "multiply limits and costs, such as 1000/minute and cost=500"
            )
        return amount <= self.quota

    def counted(self, decision: Decision) -> int:
        """Return how many hits are counted."""
        return (self.limit.quota - decision.remaining) // self.unit

    def counted_by(self, decision: Decision, amount: int) -> int:
        """Return what a counter would show after a hit: beyond the quota when it was refused."""
        return self.counted(decision) + (0 if decision.allowed else amount)

    def next_cost(self, decision: Decision) -> int:
        """Return the cost of one hit more than fits now: it fits as soon as one is set free."""
        return (self.quota - self.counted(decision) + 1) * self.unit

    def tells_next(self, decision: Decision) -> bool:
        """Return whether a peek tells when a hit is set free: it asked for that, or none is."""
        return not self.counted(decision) or decision.cost == self.next_cost(decision)

    def ends(self, decision: Decision, now: float) -> float:
        """Return when a fixed window ends: now, when nothing is counted."""
        return now + max(decision.reset_after, decision.retry_after or 0.0)

    def moving(self, decision: Decision, now: float) -> tuple[float, int]:
        """Return when the oldest hit in view was made, and how many are in view."""
        counted = self.counted(decision)
        return (now + _wait(decision) - self.expiry, counted) if counted else (now, 0)

    def sliding(self, decision: Decision) -> tuple[int, float, int, float]:
        """Return the estimate in the form of two windows: count and seconds of each.

        Both are told as one, the current: its count is the whole estimate, and its seconds are
        those until a hit is set free. The strategy makes of that what it would make of two, and
        rounds nothing a second time. It takes the seconds modulo the expiry.
        """
        counted = self.counted(decision)
        if not counted:
            return 0, 0.0, 0, 0.0
        return 0, 0.0, counted, min(_wait(decision), nextafter(self.expiry, 0.0))


def peek_at_next(window: Window, peek: Callable[[int], Flow[Decision]]) -> Flow[Decision]:
    """Return a peek that tells when the next hit is set free, if others leave it the time.

    `peek` peeks at a cost.
    """
    decision = yield from peek(window.unit)
    for _ in range(_LOOKS):
        if window.tells_next(decision):
            break
        decision = yield from peek(window.next_cost(decision))
    return decision


def fixed(key: str, expiry: float | None = None) -> Window:
    """Return the fixed window of a key. With an `expiry`, it has to be the one the key tells."""
    quota, told = _told_by(key)
    if expiry is not None and expiry != told:
        raise InvalidInput(f"the key tells of {told} seconds, and the expiry is {expiry}")
    return _window("fixed_window", quota, told, 1)


def moving(quota: int, expiry: float) -> Window:
    """Return the moving window of a limit."""
    return _window("packed_window", quota, expiry, 1)


def sliding(key: str, expiry: float, instances: int) -> Window:
    """Return the sliding window of a key.

    The algorithm rounds its estimate up, to be never too generous; `limits` documents that it is
    rounded down. Counted in thousandths, with a thousandth less than one hit on top of the quota,
    it is: `floor(x) + 1 <= quota` is `x < quota`, and that is here `x <= quota - 0.001`. Whole hits
    are for huge limits, and for those so small that a process's share of one is less than a hit.
    """
    quota, _ = _told_by(key)
    unit = _THOUSANDTHS if instances <= quota < _MAX_IN_THOUSANDTHS else 1
    return _window("sliding_counter", quota, expiry, unit)


def all_of(key: str, instances: int) -> tuple[Check, ...]:
    """Return every state that a key may have, whichever strategy it was used with."""
    _, expiry = _told_by(key)
    # A state is found by its period. The quota may be one that a moving window does not take.
    windows = fixed(key), moving(1, expiry), sliding(key, expiry, instances)
    return tuple([Check(window.limit, key) for window in windows])


def _wait(decision: Decision) -> float:
    wait = decision.retry_after
    return decision.reset_after if wait is None else wait


def _told_by(key: str) -> tuple[int, int]:
    """Return the quota and the expiry that a key ends in."""
    parts = key.rsplit("/", 3) if isinstance(key, str) else ()
    told = _read(*parts[1:]) if len(parts) == 4 else None
    if told is None:
        # Not the key itself: it may be somebody's API key.
        raise InvalidInput(
            "a storage of limen takes the keys of RateLimitItem.key_for, which end in "
            "'amount/multiples/granularity'; the key given does not"
        )
    return told


@lru_cache(_KNOWN)
def _read(amount: str, multiples: str, granularity: str) -> tuple[int, int] | None:
    try:
        item = parse(f"{amount}/{multiples} {granularity}")
    except ValueError:
        return None
    return item.amount, item.get_expiry()


@lru_cache(_KNOWN)
def _window(algorithm: AlgorithmName, quota: int, expiry: float, unit: int) -> Window:
    # Limits of nothing are for others; with one hit, of which none is ever taken, it is the same.
    most = max(quota, 1) * unit + unit - 1
    name = None if unit == 1 else "thousandths"
    from_first = algorithm == "fixed_window"
    limit = Limit(most, expiry, algorithm=algorithm, name=name, from_first=from_first)
    return Window(quota, expiry, limit, unit)
