"""What observing costs: each limiter, and the service, beside the same with nobody who watches.

The cost is small beside what a busy machine adds by chance. So two who differ in nothing else take
turns in many short blocks, each round gives one difference or one ratio between neighbours, and the
median of those is the cost.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.servers import free_port

from bench import server
from bench.harness import WALL, Contestant, Target, measure, rotated
from bench.libraries import Instance, Quota
from bench.memory import ROOMY, TIGHT, Times, admitted_phase, refused_phase
from bench.redis_libraries import QUOTA, AsyncLoop, limen_async_loop, limen_loop
from bench.redis_rates import KEYS, shares
from bench.report import table
from bench.service import CLIENTS, Block, Contender, document, process, until_ready
from bench.service import measure as measure_servers
from limen import AsyncLimiter, Limiter
from limen.observe.metrics import Metrics

ALGORITHMS = ("packed_window", "fixed_window")
"""The default, and one that has hardly anything to do: there, watching weighs most."""
MOST_US = Target(0.3, less_is_better=True)
MOST_PERCENT = Target(10, less_is_better=True)
WITHOUT, WATCHED = "without", "watched"
UNWATCHED, KEYLESS, DEFAULT = "unwatched", "keyless", "default"
TASKS = 64
_MEMORY_KEYS = [f"user:{number}" for number in range(1_000)]
# Far from the default of 50 ms: on a busy machine a fallback would spoil the block.
_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything is measured."""

    pairs: int
    """Of limiters in memory, each with its own states."""
    memory_rounds: int
    """Of each pair."""
    redis_rounds: int
    redis_calls: int
    """In a block, of all tasks together."""
    service_rounds: int
    service_s: float
    """How long a block of the service takes; a look at the decisions is taken every second."""


FULL = Sizes(10, 30, 60, 1_920, 9, 1.25)
QUICK = Sizes(4, 10, 10, 640, 2, 0.5)


@dataclass(frozen=True, slots=True)
class Row:
    """What one comparison found, as the table shows it."""

    what: str
    without: str
    watched: str
    cost: str
    target: str
    verdict: str

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        return [self.what, self.without, self.watched, self.cost, self.target, self.verdict]


def run(quick: bool, say: Callable[[str], None]) -> str:
    """Measure; return the table."""
    return measure_all(QUICK if quick else FULL, say)


def measure_all(sizes: Sizes, say: Callable[[str], None]) -> str:
    """Measure so much; return the table."""
    rows = []
    for algorithm in ALGORITHMS:
        say(f"observing: memory, {algorithm}")
        rows.append(time_row(algorithm, *in_memory(algorithm, sizes)))
    with server.started() as redis:
        say(f"observing: Redis, {TASKS} tasks")
        times = on_redis(redis.url, sizes.redis_rounds, sizes.redis_calls)
        without, watched = [[1e9 / each for each in times[name]] for name in (WITHOUT, WATCHED)]
        rows.append(rate_row(f"on Redis, {TASKS} tasks", without, watched))
    with server.started() as redis, TemporaryDirectory() as folder, ExitStack() as stack:
        say(f"observing: the service, {CLIENTS} connections on one worker")
        contenders = {
            name: stack.enter_context(_service(name, Path(folder), redis.url))
            for name in (UNWATCHED, KEYLESS, DEFAULT)
        }
        blocks = measure_servers(contenders, sizes.service_rounds, sizes.service_s)
    return observing_table([*rows, *service_rows(blocks)], blocks, sizes)


def in_memory(algorithm: str, sizes: Sizes) -> tuple[Times, Times]:
    """Return what limiters in memory take, and what those take that are watched."""
    admitted = _phase(algorithm, ROOMY, sizes)
    refused = _phase(algorithm, TIGHT, sizes)
    without, watched = [Times(admitted[name], refused[name]) for name in (WITHOUT, WATCHED)]
    return without, watched


def _phase(algorithm: str, quota: Quota, sizes: Sizes) -> dict[str, list[float]]:
    """Let pairs take turns, one pair after the other.

    Where a limiter happens to lie in memory makes it faster or slower than its twin, by as much as
    a third of what is promised. So there are several pairs, and nobody is always made first.
    """
    found: dict[str, list[float]] = {WITHOUT: [], WATCHED: []}
    for number in range(sizes.pairs):
        with ExitStack() as stack:
            contestants = [
                _contestant(name, algorithm, quota, stack) for name in rotated(list(found), number)
            ]
            # The collector stays on, as users have it; but what the last pair left is nobody's.
            gc.collect()
            times = measure(contestants, len(_MEMORY_KEYS), sizes.memory_rounds)
        for name, each in times.items():
            found[name] += each
    return found


def _contestant(name: str, algorithm: str, quota: Quota, stack: ExitStack) -> Contestant:
    keys = _MEMORY_KEYS
    limiter = stack.enter_context(Limiter(observers=[Metrics()] if name == WATCHED else []))
    instance = Instance(limen_loop(limiter, f"{quota.units}/{quota.seconds}s {algorithm}"))
    if quota is TIGHT:
        return refused_phase(instance, name, keys, keys)
    return admitted_phase(instance, name, keys)


def on_redis(url: str, rounds: int, calls: int) -> dict[str, list[float]]:
    """Return nanoseconds per decision of tasks that ask at once, one figure for each round."""
    dealt = shares(KEYS, calls, TASKS)
    limit = f"{QUOTA.units}/{QUOTA.seconds}s"
    metrics = Metrics()

    async def ask_at_once(loop: AsyncLoop) -> int:
        return sum(await asyncio.gather(*[loop(keys) for keys in dealt]))

    with asyncio.Runner() as runner:

        def contestant(name: str, limiter: AsyncLimiter) -> Contestant:
            loop = limen_async_loop(limiter, limit)
            return Contestant(name, lambda: runner.run(ask_at_once(loop)), calls)

        bare = AsyncLimiter(url, namespace=WITHOUT, deadline=_DEADLINE_S)
        watched = metrics.watch(
            AsyncLimiter(url, namespace=WATCHED, deadline=_DEADLINE_S, observers=[metrics])
        )
        gc.collect()
        contestants = [contestant(WITHOUT, bare), contestant(WATCHED, watched)]
        found = measure(contestants, calls, rounds, WALL)
        for limiter in (bare, watched):
            runner.run(limiter.aclose())
    return found


@contextmanager
def _service(name: str, folder: Path, redis: str) -> Iterator[Contender]:
    """Start the service as it is, or without its keys, or without all that watches."""
    port, admin_port = free_port(), free_port()
    rules = folder / f"{name}.json"
    rules.write_text(json.dumps(document(1)))
    command = [
        *(sys.executable, "-m", "bench.unwatched" if name == UNWATCHED else "limen", "serve"),
        *("--bind", f"127.0.0.1:{port}", "--grpc-bind", "", "--store", redis),
        *("--admin-bind", f"127.0.0.1:{admin_port}"),
        *("--rules", str(rules), "--data-dir", str(folder / name), "--log-level", "error"),
    ]
    # Namespaces of their own, because what one sees is for others of its namespace to read.
    environment = {"LIMEN_STORE__DEADLINE": "1", "LIMEN_NAMESPACE": name}
    if name == KEYLESS:
        environment["LIMEN_INSIGHT__ENABLED"] = "false"
    with process(command, environment) as started:
        until_ready(f"http://127.0.0.1:{port}/readyz", started)
        yield Contender(port, started.pid, admin_port=admin_port)


def time_row(algorithm: str, without: Times, watched: Times) -> Row:
    """Return what a decision in memory costs more: the median of what it is in each round."""
    cost_us = median(b - a for a, b in zip(without.both, watched.both, strict=True)) / 1e3
    return Row(
        f"in memory, `{algorithm}`",
        f"{median(without.both) / 1e3:.2f} µs",
        f"{median(watched.both) / 1e3:.2f} µs",
        f"**{cost_us:.2f} µs**",
        f"at most {MOST_US.minimum:g} µs",
        MOST_US.verdict(cost_us),
    )


def rate_row(
    what: str,
    without: Sequence[float],
    watched: Sequence[float],
    target: Target | None = MOST_PERCENT,
) -> Row:
    """Return how much of its rate somebody loses: the median of what it is in each round."""
    kept = median(b / a for a, b in zip(without, watched, strict=True))
    percent = 100 * (1 - kept)
    return Row(
        what,
        f"{median(without):,.0f} a second",
        f"{median(watched):,.0f} a second",
        f"**{percent:.1f} %** ({kept:.2f}x)",
        f"at most {target.minimum:g} %" if target else "",
        target.verdict(percent) if target else "no target",
    )


def service_rows(blocks: Mapping[str, Sequence[Block]]) -> list[Row]:
    """Return what the service loses, beside nothing at all and beside counting alone."""
    unwatched, keyless, default = [
        [block.per_second for block in blocks[name]] for name in (UNWATCHED, KEYLESS, DEFAULT)
    ]
    return [
        rate_row("the service", unwatched, default),
        rate_row("the service, beside `insight.enabled=false`", keyless, default, None),
    ]


def observing_table(
    rows: Sequence[Row], blocks: Mapping[str, Sequence[Block]], sizes: Sizes
) -> str:
    """Return what was measured."""
    unwatched, keyless, default = [
        median(block.cpu_us for block in blocks[name]) for name in (UNWATCHED, KEYLESS, DEFAULT)
    ]
    head = ["", "without", "with", "cost", "should be", "target"]
    return (
        "### Observing\n\n"
        "Beside the same with nobody who watches, in alternating blocks; the cost is the median of "
        "what it is in single rounds. In memory: `observers=[Metrics()]`, CPU time per decision, "
        f"the mean of admitted and refused, {sizes.pairs} pairs of limiters, "
        f"{sizes.memory_rounds} rounds each of {len(_MEMORY_KEYS):,} calls over as many keys. On "
        "Redis: the same observer, "
        f"{sizes.redis_rounds} rounds of {sizes.redis_calls:,} calls. The service: one worker with "
        f"Redis, one rule that matches, {CLIENTS} connections, up to 10,000 users, "
        f"{sizes.service_rounds} rounds of {sizes.service_s:g} s; as it is by default, beside a "
        "build that counts nothing.\n\n"
        f"{table(head, [row.cells for row in rows])}\n\n"
        f"The worker spends {unwatched:.1f} µs of CPU on a request when nobody watches, "
        f"{keyless:.1f} µs when it counts and keeps no keys, and {default:.1f} µs by default."
    )
