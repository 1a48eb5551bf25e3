"""Time on the server itself: the worst single call, and what a decision costs, by its own count."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.harness import BenchError, Target
from bench.libraries import LIMITS, Quota
from bench.redis_bytes import ask_all
from bench.redis_libraries import (
    CONCURRENCY,
    HIT,
    ask,
    ask_async,
    build,
    open_async_limiter,
    open_limiter,
    shown,
)
from bench.report import table
from bench.server import Server, Spent
from limen import Check, Limit, Limiter
from limen.backends.redis import script
from limen.model import ALGORITHMS

WORST = Target(500, 100, less_is_better=True)
_STEPS = 100
_KEYS = [f"user:{number}" for number in range(50)]
_ROOMY, _TIGHT = Quota(10_000, 3_600), Quota(5, 3_600)
_BENCHMARK_CLIENTS = 64


@dataclass(frozen=True, slots=True)
class Expiry:
    """A window that is filled at two times; what came first expires in one call."""

    name: str
    first: int
    later: int


def expiries(length: int) -> tuple[Expiry, ...]:
    """Return how a window of this length can expire."""
    return (
        Expiry("all but the newest", length - 1, 1),
        Expiry("half of it", length // 2, length - length // 2),
        Expiry("all of it, and the key", length, 0),
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """What one algorithm costs the server: alone, and in batches."""

    admitted: tuple[Spent, Spent]
    refused: tuple[Spent, Spent]


def worst_call(
    server: Server, length: int, period_s: float, repeats: int, say: Callable[[str], None]
) -> str:
    """Let windows expire at once, and measure the one call that meets it; return the table."""
    say(f"redis, worst call: windows of {length:,} that expire")
    server.flush()
    # Else the server removes an expired key by itself, and no call would have to.
    server.do("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    try:
        with open_limiter(server.url) as limiter:
            ours = {
                **_expire(server, limiter, length, period_s, repeats),
                "nothing: the ring grows instead": _grow(server, limiter, length, repeats),
            }
    finally:
        server.do("DEBUG", "SET-ACTIVE-EXPIRE", 1)
    server.flush()
    say(f"redis, worst call: a sorted set of {length:,}")
    theirs = _sorted_set(server, length, repeats)
    server.flush()
    return worst_table(length, ours, theirs)


def _expire(
    server: Server, limiter: Limiter, length: int, period_s: float, repeats: int
) -> dict[str, list[int]]:
    limit = Limit(length, period_s, algorithm="packed_window")
    filled = [(each, f"{each.name} {n}") for each in expiries(length) for n in range(repeats)]
    began = time.monotonic()
    for each, key in filled:
        _charge(limiter, limit, key, each.first)
    first_done = time.monotonic()
    _sleep_until(began + period_s / 2)
    for each, key in filled:
        _charge(limiter, limit, key, each.later)
    _sleep_until(first_done + period_s + 0.05)
    found: dict[str, list[int]] = {}
    for each, key in filled:
        spent = server.watch(lambda key=key: _charge(limiter, limit, key, 1))  # type: ignore[misc]
        left = limiter.peek(key, limit).remaining
        if left != length - each.later - 1:
            raise BenchError(
                f"a window of {length:,} in {period_s:g} s was not filled in time: "
                f"{left:,} left where {each.name} should have expired"
            )
        found.setdefault(each.name, []).append(spent.script_us)
    return found


def _grow(server: Server, limiter: Limiter, length: int, repeats: int) -> list[int]:
    """Measure the call that has to move nine tenths of a window to where there is room for all."""
    limit = Limit(length, 86_400, algorithm="packed_window")
    found = []
    for number in range(repeats):
        key = f"growing {number}"
        # A ring grows by half: this one holds nine tenths, and then all.
        _charge(limiter, limit, key, length * 6 // 10, steps=1)
        _charge(limiter, limit, key, length * 9 // 10 - length * 6 // 10, steps=1)
        found.append(server.watch(lambda key=key: _charge(limiter, limit, key, 1)).script_us)  # type: ignore[misc]
    return found


def _charge(limiter: Limiter, limit: Limit, key: str, units: int, steps: int = _STEPS) -> None:
    """Charge so many units, in some steps: so the stamps differ."""
    size = -(-units // steps)
    while units > 0:
        decision = limiter.check(key, limit, cost=min(size, units))
        if not decision.allowed or decision.source != "store":
            raise BenchError(f"{key}: a request for {min(size, units)} units was not admitted")
        units -= size


def _sleep_until(when: float) -> None:
    time.sleep(max(when - time.monotonic(), 0))


def _sorted_set(server: Server, length: int, repeats: int) -> list[int]:
    """Measure what the paper's window does when it expires: ZREMRANGEBYSCORE, and nothing else."""
    first = time.time_ns() // 1_000
    stamps = {str(first + number): first + number for number in range(length)}
    server.client.zadd("full", stamps)
    found = []
    for _ in range(repeats):
        server.client.copy("full", "expiring")
        spent = server.watch(lambda: server.client.zremrangebyscore("expiring", 0, "+inf"))
        found.append(spent.each_us["zremrangebyscore"])
    return found


def worst_table(length: int, ours: dict[str, list[int]], theirs: Sequence[int]) -> str:
    """Return the worst calls, with the verdict on those that meet an expiry."""
    rows = []
    for name, found in ours.items():
        expires = not name.startswith("nothing")
        verdict = WORST.verdict(max(found)) if expires else "no target"
        rows.append(
            ["`packed_window`", name, f"{median(found):,.0f}", f"**{max(found):,}**", verdict]
        )
    rows.append(
        ["bare sorted set", "all of it", f"{median(theirs):,.0f}", f"**{max(theirs):,}**", ""]
    )
    head = ["on Redis", "what expires", "µs, median", "µs, worst", "target"]
    return (
        f"The worst single call at {length:,} requests in a window, in microseconds of the server "
        f"(INFO commandstats), {len(theirs)} times each. The sorted set is ZREMRANGEBYSCORE alone, "
        f"without a script around it. At most {WORST.minimum:g}, goal {WORST.goal:g}.\n\n"
        f"{table(head, rows)}"
    )


def per_decision(server: Server, decisions: int, say: Callable[[str], None]) -> str:
    """Measure each algorithm alone and in batches; return the table."""
    found: dict[str, Figures] = {}
    for algorithm in (*ALGORITHMS, CONCURRENCY):
        say(f"redis, server time: {algorithm}")
        server.flush()
        admitted, refused = (
            (
                _alone(server, algorithm, quota, decisions),
                _batched(server, algorithm, quota, decisions),
            )
            for quota in (_ROOMY, _TIGHT)
        )
        found[algorithm] = Figures(admitted, refused)
    say(f"redis, server time: {LIMITS}")
    server.flush()
    peer = _peer(server, decisions)
    server.flush()
    return decisions_table(found, peer, decisions)


def _block(decisions: int) -> list[str]:
    return [_KEYS[number % len(_KEYS)] for number in range(decisions)]


def _alone(server: Server, algorithm: str, quota: Quota, decisions: int) -> Spent:
    with open_limiter(server.url) as limiter:
        one = ask(limiter, algorithm, quota)

        def work(keys: Iterable[str]) -> int:
            return sum(one(key).allowed for key in keys)

        _prepare(lambda: work(_KEYS), algorithm, quota)
        return _watch(server, lambda: work(_block(decisions)), algorithm, quota, decisions)


def _batched(server: Server, algorithm: str, quota: Quota, decisions: int) -> Spent:
    with asyncio.Runner() as runner:
        limiter = open_async_limiter(server.url)
        one = ask_async(limiter, algorithm, quota)

        def work(keys: Iterable[str]) -> int:
            return runner.run(ask_all(one, keys))[1]

        _prepare(lambda: work(_KEYS), algorithm, quota)
        spent = _watch(server, lambda: work(_block(decisions)), algorithm, quota, decisions)
        runner.run(limiter.aclose())
        return spent


def _prepare(work: Callable[[], int], algorithm: str, quota: Quota) -> None:
    """Create the states; spend them, where they are to be refused."""
    work()
    if quota is _TIGHT:
        for _ in range(_TIGHT.units + 1):
            if not work():
                return
        raise BenchError(f"{algorithm}: still admits after {_TIGHT.units + 2} calls of each key")


def _watch(
    server: Server, work: Callable[[], int], algorithm: str, quota: Quota, decisions: int
) -> Spent:
    admitted: list[int] = []
    spent = server.watch(lambda: admitted.append(work()))
    expected = 0 if quota is _TIGHT else decisions
    if admitted != [expected]:
        raise BenchError(f"{algorithm}: {admitted[0]} calls were admitted, expected {expected}")
    return spent


def _peer(server: Server, decisions: int) -> Spent:
    instance = build(HIT, server.url)
    instance.loop(_KEYS)
    spent = server.watch(lambda: instance.loop(_block(decisions)))
    instance.close()
    return spent


def decisions_table(found: dict[str, Figures], peer: Spent, decisions: int) -> str:
    """Return commands and microseconds for a decision."""

    def each(spent: Spent) -> list[str]:
        return [f"{spent.commands / decisions:.1f}", f"{spent.script_us / decisions:.1f}"]

    rows = []
    for algorithm, figures in found.items():
        admitted, refused = figures.admitted, figures.refused
        rows.append([f"`{algorithm}`", "admitted", *each(admitted[0]), *each(admitted[1])])
        rows.append([f"`{algorithm}`", "refused", *each(refused[0]), *each(refused[1])])
    rows.append([shown(HIT), "admitted", *each(peer), "", ""])
    batches = sum(figures.admitted[1].calls for figures in found.values())
    head = ["one decision", "", "commands, alone", "µs, alone", "commands, batched", "µs, batched"]
    return (
        "What a decision costs the server, by INFO commandstats: commands inside the script, and "
        f"microseconds of the script with all of them; {decisions:,} decisions each. Batched: 64 "
        f"tasks at once, {decisions * len(found) / batches:.0f} decisions to a call of the script."
        f"\n\n{table(head, rows)}"
    )


def benchmark(server: Server, calls: int, say: Callable[[str], None]) -> str:
    """Run redis-benchmark with the same script, if it is there; return a sentence."""
    program = shutil.which("redis-benchmark")
    if program is None:
        return "redis-benchmark is not on PATH here, so the script was not measured without Python."
    say("redis, redis-benchmark")
    server.flush()
    check = Check(Limit(1_000_000, 3_600, algorithm="packed_window"), "user:1")
    [key], packed = script.pack_checks("limen", [check], True)
    # It ends arguments at the first zero. So the request is given as hex, and read as such.
    sha = server.client.script_load(_FROM_HEX + script.text())
    options = ["-p", str(server.port), "-n", str(calls), "-c", str(_BENCHMARK_CLIENTS), "-q"]
    done = subprocess.run(
        [program, *options, "EVALSHA", str(sha), "1", key, packed.hex()],
        capture_output=True,
        timeout=60,
        check=False,
    )
    return benchmark_sentence(done.stdout + done.stderr, calls)


_FROM_HEX = """\
local packed = string.gsub(ARGV[1], "..", function(pair) return string.char(tonumber(pair, 16)) end)
ARGV[1] = packed
"""


def benchmark_sentence(output: bytes, calls: int) -> str:
    """Say what redis-benchmark found."""
    text = output.decode(errors="replace")
    rates = re.findall(r"([\d.]+) requests per second", text)
    if not rates:
        return f"redis-benchmark did not run the script: {text.strip()[:120]!r}."
    return (
        f"For orientation, redis-benchmark with the same script (and what it takes to read a "
        f"request from hex, for it sends no binary arguments), one decision to a call and no "
        f"Python: {float(rates[-1]):,.0f} a second with {_BENCHMARK_CLIENTS} connections "
        f"({calls:,} calls on one key)."
    )
