"""Measure one decision of the library; print µs: CPU time, or for threads the time that passes.

`bench.compare` runs this file with the library of either tree.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time

from limen import AsyncLimiter, Limiter

_LIMIT = "100/minute"
_USERS = 1_000
_PASSES = 200
_TASKS, _PER_TASK = 64, 100
_RUNS = 3
_THREADS_S, _WARM_UP_S = 0.7, 0.3
# The default of 50 ms would give fallback decisions on a busy machine.
_DEADLINE_S = 5.0


def memory_us() -> float:
    """Return the CPU time of `Limiter.check` in memory: half of the calls are refused."""
    check = Limiter().check
    keys = [f"user:{number}" for number in range(_USERS)]
    admitted = 0
    start = time.process_time()
    for _ in range(_PASSES):
        for key in keys:
            admitted += check(key, _LIMIT).allowed
    spent = time.process_time() - start
    assert admitted == 100 * _USERS, f"{admitted} calls were admitted"
    return 1e6 * spent / (_PASSES * _USERS)


async def redis_us(url: str) -> float:
    """Return the CPU time of `AsyncLimiter.check` on Redis, with 64 concurrent tasks."""
    limiter = AsyncLimiter(url, namespace=f"decide-{time.time_ns()}", deadline=_DEADLINE_S)

    async def decide(task: int, calls: int) -> None:
        for number in range(calls):
            decision = await limiter.check(f"user:{task}:{number}", _LIMIT)
            assert decision.source == "store", decision

    async def run(calls: int) -> None:
        await asyncio.gather(*[decide(task, calls) for task in range(_TASKS)])

    await run(10)
    start = time.process_time()
    await run(_PER_TASK)
    spent = time.process_time() - start
    await limiter.aclose()
    return 1e6 * spent / (_TASKS * _PER_TASK)


def threads_us(url: str, count: int) -> float:
    """Return the time per decision of a process with so many threads, after a warm-up."""
    counts = [0] * count
    ends = threading.Event()

    def decide(number: int, limiter: Limiter) -> None:
        key = f"user:{number}"
        while not ends.is_set():
            decision = limiter.check(key, "1000000/minute token_bucket")
            assert decision.source == "store", decision
            counts[number] += 1

    with Limiter(url, namespace=f"decide-{time.time_ns()}", deadline=_DEADLINE_S) as limiter:
        limiter.ping()
        threads = [threading.Thread(target=decide, args=(n, limiter)) for n in range(count)]
        for thread in threads:
            thread.start()
        time.sleep(_WARM_UP_S)
        before, start = sum(counts), time.perf_counter()
        time.sleep(_THREADS_S)
        spent, decided = time.perf_counter() - start, sum(counts) - before
        ends.set()
        for thread in threads:
            thread.join()
    return 1e6 * spent / decided


def main() -> None:
    """Print the least CPU time of some runs, or for threads the time of one run."""
    parser = argparse.ArgumentParser(prog="python -m bench.decide", description=__doc__)
    parser.add_argument("url", nargs="?", help="a store on Redis; without it, memory")
    parser.add_argument("--threads", type=int, default=0, help="use threads instead of asyncio")
    options = parser.parse_args()
    if options.threads:
        print(threads_us(options.url, options.threads))
        return
    url = options.url
    print(min([asyncio.run(redis_us(url)) if url else memory_us() for _ in range(_RUNS)]))


if __name__ == "__main__":
    main()
