"""Measure `Limiter` on Redis with many threads: rate, cost of Redis, connections, and fairness.

Each line is one process with so many threads, which all decide as fast as they can: directly, and
through a proxy that delays each packet by 1 ms in either direction. Run as `python -m
bench.threads`; with `--tree` for the library of another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from tests.faults.proxy import proxy

from bench import server
from bench.compare import NEW_TREE, cpu_s
from bench.harness import BenchError
from bench.report import table
from limen import Limiter

_COUNTS = (1, 4, 16, 64, 200)
_DELAYED = (16, 64, 200)
_DELAY_S = 0.001
_SECONDS, _WARM_UP_S = 3.0, 0.5
_DEADLINE_S = 5.0
"""The default of 50 ms would give fallback decisions on a busy machine."""
_LIMIT = "90000000/minute token_bucket"


@dataclass(slots=True)
class Figures:
    """The result of one process."""

    decisions: int
    """All decisions, the warm-up included."""
    per_s: float
    fewest: float
    """The decisions of the slowest thread, as a share of the mean of all threads."""
    longest_ms: float
    """The longest call."""
    late: int
    """Decisions of the fallback, because the deadline had passed."""
    own_us: float
    """The CPU time of the process, for one decision."""


def decide(url: str, count: int) -> Figures:
    """Decide in so many threads for some seconds."""
    totals, counts, longest, late = [0] * count, [0] * count, [0.0] * count, [0] * count
    ends, measures = threading.Event(), threading.Event()

    def run(number: int, limiter: Limiter) -> None:
        key = f"user:{number}"
        while not ends.is_set():
            before = time.perf_counter()
            decision = limiter.check(key, _LIMIT)
            totals[number] += 1
            if measures.is_set():
                counts[number] += 1
                longest[number] = max(longest[number], time.perf_counter() - before)
                late[number] += decision.source != "store"

    with Limiter(url, namespace=f"threads-{time.time_ns()}", deadline=_DEADLINE_S) as limiter:
        limiter.ping()
        threads = [threading.Thread(target=run, args=(n, limiter)) for n in range(count)]
        for thread in threads:
            thread.start()
        time.sleep(_WARM_UP_S)
        measures.set()
        start, start_cpu = time.perf_counter(), time.process_time()
        time.sleep(_SECONDS)
        spent, spent_cpu = time.perf_counter() - start, time.process_time() - start_cpu
        decided = sum(counts)
        ends.set()
        for thread in threads:
            thread.join()
    return Figures(
        decisions=sum(totals),
        per_s=decided / spent,
        fewest=min(counts) * count / max(1, sum(counts)),
        longest_ms=1e3 * max(longest),
        late=sum(late),
        own_us=1e6 * spent_cpu / max(1, decided),
    )


@contextmanager
def delayed(port: int) -> Iterator[int]:
    """Yield the port of a proxy in another process, which delays all bytes."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_proxy, args=(port, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join(10)


def _serve_proxy(port: int, pipe: Connection) -> None:
    with proxy(port, precise=True) as running:
        running.delay = _DELAY_S
        pipe.send(running.port)
        pipe.recv()


def line(redis: server.Server, url: str, count: int, tree: Path, way: str) -> list[str]:
    """Run one process and return its line of the table."""
    before_s = cpu_s(redis.pid)
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.threads", "--process", url, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}"},
    )
    time.sleep(_SECONDS)
    connections = len(redis.client.client_list()) - 1
    output, _ = process.communicate(timeout=60)
    if process.returncode:
        raise BenchError(f"a process with {count} threads ended with {process.returncode}")
    figures = Figures(**json.loads(output))
    redis_us = 1e6 * (cpu_s(redis.pid) - before_s) / figures.decisions
    return [
        way,
        str(count),
        f"{figures.per_s:,.0f}",
        f"{figures.own_us:.0f}",
        f"{redis_us:.0f}",
        str(connections),
        f"{figures.fewest:.2f}",
        f"{figures.longest_ms:.0f}",
        str(figures.late),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.threads", description=__doc__)
    parser.add_argument("--tree", type=Path, default=NEW_TREE, help="another checkout of limen")
    parser.add_argument("--process", nargs=2, metavar=("URL", "THREADS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        url, count = options.process
        print(json.dumps(asdict(decide(url, int(count)))))
        return
    tree = options.tree.resolve()
    with server.started() as redis, delayed(redis.port) as delayed_port:
        far = f"redis://127.0.0.1:{delayed_port}"
        lines = [
            *(line(redis, redis.url, count, tree, "direct") for count in _COUNTS),
            *(line(redis, far, count, tree, "1 ms each way") for count in _DELAYED),
        ]
    head = ["Redis", "threads", "decisions/s", "own CPU, µs", "Redis CPU, µs", "connections"]
    print(table([*head, "slowest thread", "longest call, ms", "late"], lines))


if __name__ == "__main__":
    try:
        main()
    except BenchError as error:
        sys.exit(f"bench.threads: {error}")
