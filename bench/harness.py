"""Alternating blocks, medians, ratios and verdicts. Knows nothing of rate limiting.

Contestants take turns: each runs one block of calls, then the next one does, for some rounds. So a
machine that is slow for a second is slow for everybody, and a ratio within one round means
something even when the times themselves wander.

Time is the CPU time of this process, all its threads together. With wall time, a busy machine makes
whoever uses threads look much slower than it is, and a library's waiting is not its work. Where the
waiting is what a user feels, as with a store on another machine, the clock is `WALL`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

T = TypeVar("T")
WALL: Callable[[], int] = time.perf_counter_ns
_TRIES = 3


class BenchError(Exception):
    """The bench cannot go on; the message is one line for the reader."""


def nothing() -> None:
    """Do nothing: the default of what surrounds a block."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody who runs blocks of calls."""

    name: str
    block: Callable[[], int]
    """Run one block; return how many of its calls were admitted. This is what is timed."""
    expected: int
    """How many calls must have been admitted for the block to count."""
    before: Callable[[], object] = nothing
    """Get ready for the block, off the clock."""
    after: Callable[[], object] = nothing
    """Finish what the block left behind, off the clock, so that the next one does not pay."""


def rotated(items: Sequence[T], by: int) -> list[T]:
    """Return the items, beginning with another one: nobody is always behind the same neighbour."""
    start = by % len(items)
    return [*items[start:], *items[:start]]


def measure(
    contestants: Sequence[Contestant],
    calls: int,
    rounds: int,
    clock: Callable[[], int] = time.process_time_ns,
) -> dict[str, list[float]]:
    """Return nanoseconds per call of each contestant, one figure for each round.

    One more round is run before, and forgotten: it creates the keys and warms the interpreter.
    """
    times: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for round_ in range(rounds + 1):
        for contestant in rotated(contestants, round_):
            nanoseconds = _time_block(contestant, clock)
            if round_:
                times[contestant.name].append(nanoseconds / calls)
    return times


def _time_block(contestant: Contestant, clock: Callable[[], int]) -> int:
    """Time one block that did what it claims to do.

    A second try is for windows that happen to begin anew while the block runs. A contestant that
    never does what it claims is an error, because its time would mean something else.
    """
    admitted = -1
    for _ in range(_TRIES):
        contestant.before()
        start = clock()
        admitted = contestant.block()
        nanoseconds = clock() - start
        contestant.after()
        if admitted == contestant.expected:
            return nanoseconds
    raise BenchError(
        f"{contestant.name}: {admitted} calls of a block were admitted, "
        f"expected {contestant.expected}"
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long they take as we do."""

    of_medians: float
    low: float
    """The least in any round."""
    high: float
    """The most in any round."""


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Compare two contestants of one measurement."""
    each = [their / our for our, their in zip(ours, theirs, strict=True)]
    return Ratio(median(theirs) / median(ours), min(each), max(each))


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should be: the minimum that must hold, and the goal beyond it."""

    minimum: float
    goal: float | None = None
    """None where only the minimum is promised."""
    less_is_better: bool = False

    def verdict(self, value: float) -> str:
        """Say how far `value` got. Never rounds in our favour."""
        sign = -1 if self.less_is_better else 1
        if sign * value < sign * self.minimum:
            return "MISSED"
        if self.goal is None or sign * value < sign * self.goal:
            return "met minimum"
        return "met goal"
