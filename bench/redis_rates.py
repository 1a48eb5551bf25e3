"""Decisions per second on Redis: limen beside its peers, asked by one, by threads and by tasks.

Every call is admitted, and every block is checked for that. Windows are never filled.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median

from bench.harness import WALL, Contestant, Ratio, Target, measure, ratio
from bench.libraries import THROTTLED, Loop
from bench.redis_libraries import (
    HIT,
    HIT_AND_STATS,
    ONE,
    THREE,
    TOKENS,
    AsyncLoop,
    Name,
    build,
    build_async,
    shown,
)
from bench.report import table
from bench.server import Server

KEYS = [f"user:{number}" for number in range(100)]

Times = dict[Name, list[float]]
"""Nanoseconds per decision of each contestant, one figure for each round."""


@dataclass(frozen=True, slots=True)
class Way:
    """How decisions are asked for, and how many in a block."""

    name: str
    askers: int
    calls: int
    rounds: int
    contestants: tuple[Name, ...]
    asyncio: bool = False


TARGETS: dict[tuple[str, Name], Target] = {
    ("64 tasks", HIT): Target(5, 10),
    ("64 tasks", HIT_AND_STATS): Target(5, 10),
    ("one thread", HIT): Target(1.3, 1.5),
    ("one thread", HIT_AND_STATS): Target(1.3, 1.5),
    ("16 threads", HIT): Target(4, 6),
    ("16 threads", HIT_AND_STATS): Target(4, 6),
}
_LONE_TIME = Target(1.5, less_is_better=True)
_CROWD_RATE = Target(0.4)
_PAIRS = (
    (ONE, HIT),
    (ONE, HIT_AND_STATS),
    (TOKENS, (THROTTLED, "token_bucket")),
)


def ways(quick: bool) -> tuple[Way, ...]:
    """Return who asks, and how much of it makes a block."""
    moving = (ONE, HIT, HIT_AND_STATS)
    buckets = (TOKENS, (THROTTLED, "token_bucket"))
    rounds = 3 if quick else 19
    return (
        Way("one thread", 1, 500, rounds, (*moving, THREE, *buckets)),
        Way("16 threads", 16, 1_600, rounds, moving),
        Way("64 tasks", 64, 1_920, rounds, (*moving, THREE), asyncio=True),
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One of ours beside one of theirs."""

    way: str
    ours: Name
    theirs: Name
    found: Ratio

    @property
    def target(self) -> Target | None:
        """What was promised of this pair."""
        return TARGETS.get((self.way, self.theirs))

    @property
    def verdict(self) -> str:
        """How far it got."""
        return self.target.verdict(self.found.of_medians) if self.target else "no target"


def shares(keys: Sequence[str], calls: int, askers: int) -> list[list[str]]:
    """Deal the keys of a block out among those who ask."""
    block = list(islice(cycle(keys), calls))
    return [block[asker::askers] for asker in range(askers)]


def run(server: Server, ways_: Sequence[Way], say: Callable[[str], None]) -> str:
    """Measure every way; return the tables."""
    found: dict[str, Times] = {}
    for way in ways_:
        say(f"redis, {way.name}: {', '.join(' '.join(name) for name in way.contestants)}")
        found[way.name] = measure_way(server, way)
    return "\n\n".join(
        [_heading(ways_), times_table(found), ratios_table(compare(found)), three_table(found)]
    )


def measure_way(server: Server, way: Way) -> Times:
    """Let the contestants of a way take turns."""
    server.flush()
    # The collector stays on, as users have it; but what was left before is nobody's here.
    gc.collect()
    return _measure_tasks(server, way) if way.asyncio else _measure_threads(server, way)


def _measure_threads(server: Server, way: Way) -> Times:
    dealt = shares(KEYS, way.calls, way.askers)
    instances = {name: build(name, server.url) for name in way.contestants}
    with ThreadPoolExecutor(way.askers) as pool:

        def block(loop: Loop) -> Callable[[], int]:
            if way.askers == 1:
                return lambda: loop(dealt[0])
            return lambda: sum(pool.map(loop, dealt))

        found = _measure(way, {name: block(each.loop) for name, each in instances.items()})
    for instance in instances.values():
        instance.close()
    return found


def _measure_tasks(server: Server, way: Way) -> Times:
    dealt = shares(KEYS, way.calls, way.askers)

    async def ask_at_once(loop: AsyncLoop) -> int:
        return sum(await asyncio.gather(*[loop(keys) for keys in dealt]))

    with asyncio.Runner() as runner:
        instances = {name: build_async(name, server.url) for name in way.contestants}

        def block(loop: AsyncLoop) -> Callable[[], int]:
            return lambda: runner.run(ask_at_once(loop))

        found = _measure(way, {name: block(each.loop) for name, each in instances.items()})

        async def close() -> None:
            for instance in instances.values():
                await instance.close()

        runner.run(close())
    return found


def _measure(way: Way, blocks: dict[Name, Callable[[], int]]) -> Times:
    contestants = [Contestant(" ".join(name), block, way.calls) for name, block in blocks.items()]
    found = measure(contestants, way.calls, way.rounds, WALL)
    return {name: found[" ".join(name)] for name in blocks}


def compare(found: dict[str, Times]) -> list[Comparison]:
    """Set ours beside theirs, wherever both were measured."""
    return [
        Comparison(way, ours, theirs, ratio(times[ours], times[theirs]))
        for way, times in found.items()
        for ours, theirs in _PAIRS
        if ours in times and theirs in times
    ]


def times_table(found: dict[str, Times]) -> str:
    """Return the medians."""
    rows = [
        [way, shown(name), f"{1e9 / median(each):,.0f}", f"{median(each) / 1e3:,.1f}"]
        for way, times in found.items()
        for name, each in times.items()
    ]
    return table(["asked by", "on Redis", "decisions per second", "µs per decision"], rows)


def ratios_table(comparisons: Sequence[Comparison]) -> str:
    """Return the ratios, each with its target and its verdict, and how many got how far."""
    rows = [
        [
            each.way,
            shown(each.ours),
            shown(each.theirs),
            f"**{each.found.of_medians:.2f}x**",
            f"{each.found.low:.2f} to {each.found.high:.2f}",
            f"{each.target.minimum:g}x, goal {each.target.goal:g}x" if each.target else "",
            each.verdict,
        ]
        for each in comparisons
    ]
    head = ["asked by", "limen", "peer", "rate", "in single rounds", "at least", "target"]
    verdicts = [each.verdict for each in comparisons if each.target]
    counts = ", ".join(
        f"{verdicts.count(verdict)} {verdict}" for verdict in ("met goal", "met minimum", "MISSED")
    )
    return (
        "How many times as many decisions as the peer:\n\n"
        f"{table(head, rows)}\n\nOf {len(verdicts)} ratios: {counts}. {_NOTES}"
    )


def three_table(found: dict[str, Times]) -> str:
    """Return what three limits on one request cost beside one."""
    lone, crowd = found["one thread"], found["64 tasks"]
    time, rate = ratio(lone[ONE], lone[THREE]), ratio(crowd[THREE], crowd[ONE])
    rows = [
        [
            "one thread",
            f"**{time.of_medians:.2f}x** the time",
            f"{time.low:.2f} to {time.high:.2f}",
            f"at most {_LONE_TIME.minimum:g}x",
            _LONE_TIME.verdict(time.of_medians),
        ],
        [
            "64 tasks",
            f"**{rate.of_medians:.2f}x** the rate",
            f"{rate.low:.2f} to {rate.high:.2f}",
            f"at least {_CROWD_RATE.minimum:g}x",
            _CROWD_RATE.verdict(rate.of_medians),
        ],
    ]
    head = ["asked by", "three limits beside one", "in single rounds", "should be", "target"]
    return f"One request under three limits, all or nothing:\n\n{table(head, rows)}"


def _heading(ways_: Sequence[Way]) -> str:
    blocks = ", ".join(f"{way.calls:,} for {way.name}" for way in ways_)
    return (
        f"{ways_[0].rounds} rounds of alternating blocks, after one that opens the connections and "
        f"is not counted. Calls in a block: {blocks}; {len(KEYS)} keys, 10,000 an hour each, never "
        "filled. Wall time, not CPU time: waiting for the server is what is measured."
    )


_NOTES = (
    "limits: the moving window, on redis-py. `hit` answers yes or no; with `get_window_stats` it "
    "says what a decision of limen says, except for retry after. throttled-py says it all in one "
    "call, as limen does; it is here for orientation."
)
