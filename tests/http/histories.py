"""Random requests under random limits on a clock that is moved by hand, and their decisions."""

from __future__ import annotations

import random
from collections.abc import Iterator

from limen import Limiter
from limen.model import Check, Concurrency, Decision, Limit
from limen.testing import ManualClock

PERIODS = (0.001, 0.25, 1.0, 1.5, 7.0, 60.0, 3_600.0, 86_400.0)
NAMES = (None, None, "uploads", 'a "b" \\c', "größe %", "x" * 190, "\t\x7f")
WINDOWS = ("fixed_window", "sliding_counter", "rolling_window", "packed_window")
BUCKETS = ("token_bucket", "leaky_bucket")
START = 1_790_000_000.123457


class History:
    """One limiter, one key, a few limits that stay; each `ask` is a random request."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock(START + self.random.random() * 1e7)
        self.limiter = Limiter(clock=self.clock)
        self.limits = distinct(some_limit(self.random) for _ in range(self.random.randint(1, 4)))
        self.cost = 1

    def ask(self) -> Decision:
        self.cost = self.random.choice((1, 1, 1, 2, 5))
        return self.again()

    def again(self) -> Decision:
        return self.limiter.decide(*[Check(limit, "key", self.cost) for limit in self.limits])

    def pause(self) -> None:
        """Let some time pass, or none, on the scale of one of the limits."""
        period = self.random.choice(self.limits).period
        scale = period if isinstance(period, float) else 86_400.0
        self.clock.advance(self.random.choice((0, 0, 0, scale * self.random.random() / 3)))


def some_limit(of: random.Random) -> Limit:
    quota = of.choice((1, 2, 3, 7, 10, 97))
    name = of.choice(NAMES)
    if of.random() < 0.1:
        return Limit(quota, of.choice(("month", "calendar day")), name=name)
    period = of.choice(PERIODS)
    if of.random() < 0.4:
        return Limit(
            quota,
            period,
            algorithm=(algorithm := of.choice(BUCKETS)),
            burst=of.choice((None, 1, 4, 20)),
            max_delay=of.choice((None, period / 2)) if algorithm == "leaky_bucket" else None,
            name=name,
        )
    algorithm = of.choice(WINDOWS)
    is_exact = algorithm in ("rolling_window", "packed_window")
    return Limit(
        quota,
        period,
        algorithm=algorithm,
        min_interval=of.choice((None, None, period / 10)) if is_exact else None,
        count_denied=is_exact and of.random() < 0.2,
        name=name,
    )


def distinct(limits: Iterator[Limit]) -> list[Limit]:
    return list({limit.identity: limit for limit in limits}.values())


def slots(seed: int, requests: int) -> Iterator[tuple[Decision, ManualClock, Limiter, Concurrency]]:
    """Requests that take slots and never let go: only their leases end."""
    of = random.Random(seed)
    clock = ManualClock(START)
    limiter = Limiter(clock=clock)
    concurrency = Concurrency(of.randint(1, 4), of.choice((0.3, 1.0, 30.5)), name=of.choice(NAMES))
    for _ in range(requests):
        clock.advance(of.choice((0, 0, of.random() * concurrency.lease)))
        yield limiter.slot("key", concurrency).acquire(), clock, limiter, concurrency
