"""Random histories for the property tests: true time passes, and the clock may step back."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st

from limen.algorithms import STATES
from limen.model import UNCHARGED, Limit, Reading

ALGORITHM_NAMES = sorted(STATES)
EXACT = ("packed_window", "rolling_window")
START_US = 1_790_000_000_123_457


@dataclass(frozen=True)
class Step:
    """Some time passes, the clock steps back by some, then somebody asks."""

    passes_us: int
    back_us: int
    cost: int
    limit: int
    """Which of the limits is in force: an index."""


@dataclass(frozen=True)
class Admission:
    at_us: int
    """True time, which never steps back."""
    cost: int
    reading: Reading


@dataclass
class World:
    """One state under a clock that may step back, and what it admitted in true time."""

    state: Any
    true_us: int = START_US
    lag_us: int = 0

    def __post_init__(self) -> None:
        self.admissions: list[Admission] = []

    @property
    def now_us(self) -> int:
        return self.true_us - self.lag_us

    def ask(self, step: Step, limit: Limit) -> Reading:
        self.true_us += step.passes_us
        self.lag_us += step.back_us
        reading: Reading = self.state.decide(limit, self.now_us, step.cost, True)
        if reading[0] and step.cost:
            assert reading[5] != UNCHARGED
            self.admissions.append(Admission(self.true_us, step.cost, reading))
        return reading

    def peek(self, limit: Limit, cost: int, later_us: int = 0) -> Reading:
        """Say what would be said later, without touching the state."""
        reading: Reading = deepcopy(self.state).decide(limit, self.now_us + later_us, cost, False)
        return reading


def fresh(limit: Limit) -> World:
    return World(STATES[limit.algorithm](limit))


# Made once, and not anew for every example: that takes longer than to draw from them.
_PERIODS_US = st.sampled_from([1, 3, 10, 60, 1_000, 1_000_000, 60_000_000, 86_400_000_000])
_QUOTAS = st.lists(st.integers(1, 12) | st.sampled_from([97, 100]), min_size=1, max_size=3)
_BURSTS = st.none() | st.integers(1, 15)
_PARTS_OF_A_PERIOD = st.none() | st.just(0.0) | st.just(0.5)
_INTERVALS = st.sampled_from([0.1, 0.5, 1])
_COSTS = st.integers(0, 4) | st.just(1)
_INDEXES = st.integers(0, 2)


@st.composite
def limits(draw: st.DrawFn, algorithm: str) -> list[Limit]:
    """Up to three limits that share one state: only their numbers differ."""
    period = draw(_PERIODS_US) / 1e6
    options: dict[str, Any] = {}
    found = []
    for quota in draw(_QUOTAS):
        if algorithm.endswith("bucket"):
            options["burst"] = draw(_BURSTS)
        if algorithm == "leaky_bucket":
            part = draw(_PARTS_OF_A_PERIOD)
            options["max_delay"] = None if part is None else part * period
        if algorithm in EXACT and draw(st.booleans()):
            options["min_interval"] = max(period * draw(_INTERVALS), 1e-6)
        if algorithm in EXACT:
            options["count_denied"] = draw(st.booleans())
        found.append(Limit(quota, period, algorithm=algorithm, **options))
    return found


@cache
def steps(period_us: int, most: int = 40, back: bool = True) -> st.SearchStrategy[list[Step]]:
    """Steps around the scale of the period, with some bursts and some silences."""
    passes = (
        st.just(0)
        | st.integers(0, max(period_us // 10, 1))
        | st.integers(0, 3 * period_us)
        | st.sampled_from([1, period_us - 1, period_us, period_us + 1])
    )
    backs = st.just(0) | st.just(0) | passes | st.just(5 * period_us) if back else st.just(0)
    return st.lists(st.builds(Step, passes, backs, _COSTS, _INDEXES), max_size=most)


@cache
def histories(
    algorithm: str, back: bool = True, change: bool = True
) -> st.SearchStrategy[tuple[list[Limit], list[Step]]]:
    some = limits(algorithm)

    @st.composite
    def build(draw: st.DrawFn) -> tuple[list[Limit], list[Step]]:
        found = draw(some)
        kept = found if change else found[:1]
        return kept, draw(steps(kept[0].period_us, back=back))

    return build()


def play(found: list[Limit], trace: list[Step]) -> World:
    world = fresh(found[0])
    for step in trace:
        world.ask(step, found[step.limit % len(found)])
    return world


def most_in_any(admissions: list[Admission], width_us: int, at: Callable[[Admission], int]) -> int:
    """Return the most units that fall into any half-open stretch of `width_us`."""
    most = 0
    for first in admissions:
        begin = at(first)
        units = sum(a.cost for a in admissions if begin <= at(a) < begin + width_us)
        most = max(most, units)
    return most
