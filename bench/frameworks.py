"""Frameworks: what a limit adds to a request, beside slowapi, Flask-Limiter and django-ratelimit.

A trivial application is called as its server would call it, with nothing on the wire: what is left
is the application, and what a limit adds to it. The same application without any limit takes turns
with those that have one, and each is told by what it adds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median

from bench import framework_apps as apps
from bench import server
from bench.framework_apps import CLIENTS, LIMEN, PLAIN, Application, Asgi, Wsgi
from bench.harness import WALL, BenchError, Contestant, Target, measure
from bench.report import table

TARGET = Target(1.0, 0.5, less_is_better=True)
"""What limen adds, with the least that a peer adds as the measure."""
_ROUNDS, _QUICK_ROUNDS = 15, 2
_CALLS, _QUICK_CALLS = 1_000, 200


@dataclass(frozen=True, slots=True)
class Added:
    """What one library adds to one framework, in microseconds, for each round."""

    framework: str
    library: str
    store: str
    us: list[float]


def run(quick: bool, say: Callable[[str], None]) -> str:
    """Measure; return the tables."""
    rounds, calls = (_QUICK_ROUNDS, _QUICK_CALLS) if quick else (_ROUNDS, _CALLS)
    found: list[Added] = []
    with server.started() as redis, asyncio.Runner() as runner:
        for store, url in (("memory", None), ("Redis", redis.url)):
            for framework, made in apps.FRAMEWORKS.items():
                say(f"frameworks: {framework}, {store}")
                with made(url) as each:
                    found += added(framework, store, each, runner, rounds, calls)
    return f"{_heading(rounds, calls)}\n\n{added_table(found)}\n\n{_NOTES}"


def added(
    framework: str,
    store: str,
    each: Sequence[Application],
    runner: asyncio.Runner,
    rounds: int,
    calls: int,
) -> list[Added]:
    """Return what each application adds to the one without limits."""
    for application in each:
        _check(application, runner)
    contestants = [
        Contestant(application.name, _block(application, runner, calls), calls)
        for application in each
    ]
    # In memory, the work is all there is; on Redis, the waiting is what a user feels.
    clock = time.process_time_ns if store == "memory" else WALL
    times = measure(contestants, calls, rounds, clock)
    plain = times[PLAIN]
    return [
        Added(
            framework,
            application.name,
            store,
            [(ns - base) / 1e3 for ns, base in zip(times[application.name], plain, strict=True)],
        )
        for application in each
        if application.name != PLAIN
    ]


def added_table(found: Sequence[Added]) -> str:
    """Return the figures, and how far limen got."""
    rows: list[list[str]] = []
    for one in found:
        us = median(one.us)
        verdict = ratio = ""
        if one.library == LIMEN:
            least = min(
                median(other.us)
                for other in found
                if (other.framework, other.store) == (one.framework, one.store)
                and other.library != LIMEN
            )
            ratio = f"{us / least:.2f}x"
            verdict = TARGET.verdict(us / least)
            if one.store != "memory":
                # Half is the goal in memory; on Redis both wait for the same store.
                verdict = "met minimum" if verdict == "met goal" else verdict
        name = f"**{one.library}**" if one.library == LIMEN else one.library
        rows.append([f"{one.framework}, {one.store}", name, f"{us:.1f}", ratio, verdict])
    return table(["framework", "limited by", "µs added", "of the least of them", "target"], rows)


def _block(application: Application, runner: asyncio.Runner, calls: int) -> Callable[[], int]:
    """Return what calls an application; returns how many of the calls were answered."""
    first = cycle(range(0, len(CLIENTS), calls))
    app = application.app

    def block() -> int:
        start = next(first)
        clients = CLIENTS[start : start + calls]
        return runner.run(app.ask(clients)) if isinstance(app, Asgi) else app.ask(clients)

    return block


def _check(application: Application, runner: asyncio.Runner) -> None:
    """See that an application tells of its limits, if the library can."""
    app: Asgi | Wsgi = application.app
    answered = runner.run(app.ask(CLIENTS[:1])) if isinstance(app, Asgi) else app.ask(CLIENTS[:1])
    told = any("ratelimit" in name for name in app.told)
    if answered != 1 or told != application.tells:
        raise BenchError(
            f"{application.name} did not answer as it should: "
            f"{answered} of 1, headers {', '.join(sorted(app.told))}"
        )


def _heading(rounds: int, calls: int) -> str:
    return (
        "### Frameworks\n\n"
        "A trivial application with one limit for each address, called as its server would call "
        f"it; {rounds} rounds of alternating blocks of {calls:,} requests from {len(CLIENTS):,} "
        "addresses, all admitted, headers on. µs added: the median of what a block takes longer "
        "than that of the same application without limits; in memory CPU time, on Redis time."
    )


_NOTES = (
    "Each as its documentation begins: limen counts exactly, in any window, and tells of all; "
    "slowapi and Flask-Limiter count in fixed windows; django-ratelimit in fixed windows in "
    "Django's cache, and has no headers. The measure is the peer that adds least: at most as much "
    "as it, goal half of it in memory. slowapi's calls of Redis hold up the event loop."
)
