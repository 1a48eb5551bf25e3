"""The section about Redis: starts a real server, and puts together what is measured on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from bench import redis_bytes, redis_rates, redis_time
from bench.server import started


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything is measured."""

    ways: Sequence[redis_rates.Way]
    lengths: Sequence[int]
    """Of full windows."""
    users: int
    full_users: int
    window: int
    """The length of the windows that expire."""
    period_s: float
    """Their period, in half of which all of them have to be filled."""
    repeats: int
    decisions: int


FULL = Sizes(redis_rates.ways(False), (100, 1_000, 10_000), 10_000, 200, 100_000, 4.0, 7, 1_920)
QUICK = Sizes(redis_rates.ways(True), (100, 1_000), 2_000, 50, 100_000, 2.0, 3, 640)


def run(quick: bool, say: Callable[[str], None]) -> str:
    """Measure all there is on Redis; return the tables."""
    return measure_all(QUICK if quick else FULL, say)


def measure_all(sizes: Sizes, say: Callable[[str], None]) -> str:
    """Measure so much; return the tables."""
    with started() as server:
        parts = [
            f"### On Redis\n\n{server.name} on the same machine, by TCP; redis-py "
            f"{version('redis')}, hiredis {version('hiredis')}.",
            redis_rates.run(server, sizes.ways, say),
            redis_time.benchmark(server, 10 * sizes.decisions, say),
            "### Server time",
            redis_time.per_decision(server, sizes.decisions, say),
            redis_time.worst_call(server, sizes.window, sizes.period_s, sizes.repeats, say),
        ]
    # Another one, because peers keep their connections, and connections take memory.
    with started() as server:
        parts += [
            "### Memory on Redis",
            redis_bytes.per_request(server, sizes.lengths, say),
            redis_bytes.per_user(server, redis_bytes.cases(sizes.users, sizes.full_users), say),
        ]
    return "\n\n".join(parts)
