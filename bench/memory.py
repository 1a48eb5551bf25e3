"""Checks in memory that bring back the full decision: limen beside its peers.

Two phases, timed apart. Admitted: a quota that no block ever fills. Refused: every key is spent
before the block. Each phase has a store of its own, and every block is checked to have done what
its phase says. The figure that counts is half of each: the mean of both phases in a round.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.harness import BenchError, Contestant, Ratio, Target, measure, ratio
from bench.libraries import LIMEN, LIMITS, PYRATE, THROTTLED, Instance, Quota, build
from bench.report import table

ROOMY = Quota(10_000, 3_600)
TIGHT = Quota(100, 3_600)
TARGETS = {LIMITS: Target(4, 6), THROTTLED: Target(2.5, 5)}

# Within the 1,024 that throttled-py keeps by default: with more it would forget, not decide.
_KEYS = 1_000
# With the round that warms up, a key is asked 100 times: so an exact window ends up as full as one
# of 100 a minute would be. Peers get slower as theirs fills, and more would flatter limen.
_PASSES = 5
_ROUNDS = 19
_QUICK_ROUNDS = 5

Name = tuple[str, str]
"""A library, and its own name of an algorithm."""

GROUPS: tuple[tuple[Name, ...], ...] = (
    (
        (LIMEN, "fixed_window"),
        (LIMITS, "fixed window"),
        (THROTTLED, "fixed_window"),
    ),
    (
        (LIMEN, "packed_window"),
        (LIMEN, "rolling_window"),
        (LIMITS, "moving window"),
        (PYRATE, "sliding window log"),
    ),
    (
        (LIMEN, "sliding_counter"),
        (LIMITS, "sliding window counter"),
        (THROTTLED, "sliding_window"),
    ),
    (
        (LIMEN, "token_bucket"),
        (THROTTLED, "token_bucket"),
        (THROTTLED, "gcra"),
        (PYRATE, "GCRA"),
    ),
    (
        (LIMEN, "leaky_bucket"),
        (THROTTLED, "leaking_bucket"),
    ),
)
"""Who does the same job, and so takes turns."""


@dataclass(frozen=True, slots=True)
class Times:
    """Nanoseconds per call of one limiter, one figure for each round."""

    admitted: Sequence[float]
    refused: Sequence[float]

    @property
    def both(self) -> list[float]:
        """The mean of the two phases in each round."""
        return [sum(pair) / 2 for pair in zip(self.admitted, self.refused, strict=True)]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One of ours beside one of theirs."""

    ours: Name
    theirs: Name
    admitted: Ratio
    refused: Ratio
    both: Ratio

    @property
    def verdict(self) -> str:
        """How far the ratio of both phases got; what is not in the targets has none."""
        target = TARGETS.get(self.theirs[0])
        return target.verdict(self.both.of_medians) if target else "no target"


def admitted_phase(instance: Instance, name: str, keys: Sequence[str]) -> Contestant:
    """Return blocks in which every call is admitted."""
    return Contestant(name, lambda: instance.loop(keys), len(keys), after=instance.rest)


def refused_phase(
    instance: Instance, name: str, keys: Sequence[str], block: Sequence[str]
) -> Contestant:
    """Return blocks in which every call is refused. `keys` are the different ones of `block`."""

    def spend() -> None:
        # The last pass admits nobody. Later blocks need only that one, or what has refilled.
        for _ in range(TIGHT.units + 2):
            if not instance.loop(keys):
                instance.rest()
                return
        raise BenchError(f"{name}: still admits after {TIGHT.units} calls of each key")

    return Contestant(name, lambda: instance.loop(block), 0, spend, instance.rest)


def run(quick: bool, say: Callable[[str], None]) -> str:
    """Measure every group; return the tables."""
    rounds = _QUICK_ROUNDS if quick else _ROUNDS
    times: dict[Name, Times] = {}
    comparisons: list[Comparison] = []
    for number, group in enumerate(GROUPS, 1):
        say(f"memory {number}/{len(GROUPS)}: {', '.join(' '.join(name) for name in group)}")
        of_group = _measure_group(group, rounds)
        times |= of_group
        comparisons += compare(of_group)
    return f"{_heading(rounds)}\n\n{times_table(times)}\n\n{ratios_table(comparisons)}\n\n{_NOTES}"


def _measure_group(group: Sequence[Name], rounds: int) -> dict[Name, Times]:
    keys = [f"user:{number}" for number in range(_KEYS)]
    block = keys * _PASSES
    roomy = {name: build(*name, ROOMY) for name in group}
    tight = {name: build(*name, TIGHT) for name in group}
    contestants = []
    for name in group:
        contestants.append(admitted_phase(roomy[name], _phase(name, "admitted"), block))
        contestants.append(refused_phase(tight[name], _phase(name, "refused"), keys, block))
    # The collector stays on, as users have it; but what the last group left is not this one's.
    gc.collect()
    found = measure(contestants, len(block), rounds)
    for instance in (*roomy.values(), *tight.values()):
        instance.rest()
        instance.close()
    return {
        name: Times(found[_phase(name, "admitted")], found[_phase(name, "refused")])
        for name in group
    }


def _phase(name: Name, phase: str) -> str:
    return f"{' '.join(name)}, {phase}"


def compare(times: dict[Name, Times]) -> list[Comparison]:
    """Set each of ours beside each peer of its group."""
    return [
        Comparison(
            ours,
            theirs,
            ratio(times[ours].admitted, times[theirs].admitted),
            ratio(times[ours].refused, times[theirs].refused),
            ratio(times[ours].both, times[theirs].both),
        )
        for ours in times
        if ours[0] == LIMEN
        for theirs in times
        if theirs[0] != LIMEN
    ]


def times_table(times: dict[Name, Times]) -> str:
    """Return the medians in nanoseconds per call."""
    rows = [
        [
            _shown(name),
            f"{median(found.admitted):,.0f}",
            f"{median(found.refused):,.0f}",
            f"{median(found.both):,.0f}",
        ]
        for name, found in times.items()
    ]
    return table(["ns per call, median", "admitted", "refused", "both"], rows)


def ratios_table(comparisons: Sequence[Comparison]) -> str:
    """Return the ratios, each with its verdict, and how many got how far."""
    rows = [
        [
            _shown(each.ours),
            _shown(each.theirs),
            f"{each.admitted.of_medians:.2f}x",
            f"{each.refused.of_medians:.2f}x",
            f"**{each.both.of_medians:.2f}x**",
            f"{each.both.low:.2f} to {each.both.high:.2f}",
            each.verdict,
        ]
        for each in comparisons
    ]
    head = ["limen", "peer", "admitted", "refused", "both", "in single rounds", "target"]
    verdicts = [each.verdict for each in comparisons if each.theirs[0] in TARGETS]
    counts = ", ".join(
        f"{verdicts.count(verdict)} {verdict}" for verdict in ("met goal", "met minimum", "MISSED")
    )
    targets = "; ".join(
        f"{library} at least {target.minimum:g}x, goal {target.goal:g}x"
        for library, target in TARGETS.items()
    )
    return (
        "How many times as long the peer takes:\n\n"
        f"{table(head, rows)}\n\nTargets: {targets}. Of {len(verdicts)} ratios: {counts}."
    )


def _shown(name: Name) -> str:
    library, algorithm = name
    return f"`{algorithm}`" if library == LIMEN else f"{library}, {algorithm}"


def _heading(rounds: int) -> str:
    return (
        "### Checks in memory\n\n"
        "One thread, one limit, the full decision read: allowed, remaining, retry after, reset "
        f"after. {rounds} rounds of alternating blocks of {_KEYS * _PASSES:,} calls over {_KEYS:,} "
        f"keys. Admitted: {ROOMY.units:,} an hour, never filled. Refused: {TIGHT.units} an hour, "
        "spent. Both: the mean of the two in each round; it is what the targets are about. CPU "
        "time of the process, threads of a library included."
    )


_NOTES = (
    "limits: `hit`, then `get_window_stats`, which is where its remaining and reset come from; it "
    "has no retry after. throttled-py: `limit`, which returns the state. pyrate-limiter: "
    "`try_acquire(blocking=False)` with a bucket factory that has one bucket for each key; it "
    "returns yes or no and nothing else, so it does less work and there is no target. The moving "
    "window of limits wanders from round to round: a thread of its own sweeps all keys about every "
    "10 ms, and the garbage collector walks its entries."
)
