"""Memory: bytes for each key, and bytes for each request that an exact window remembers.

Every figure comes from a process of its own, which is born, fills one store, and says by how much
its resident memory grew. So nothing is left out: dict, lock, key text, allocator and all.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness import BenchError
from bench.libraries import LIMEN, LIMITS, THROTTLED, Quota, build
from bench.report import table
from limen.model import ALGORITHMS

_STATM = Path("/proc/self/statm")
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_PROCESSES = 2
_MANY_KEYS, _QUICK_KEYS = 1_000_000, 100_000
_MANY_STAMPS, _QUICK_STAMPS = 1_000_000, 300_000

# limits sweeps all keys in a thread that contends with the caller, and takes about a minute for a
# million keys or stamps. An eighth of them fills a hash table to the same degree.
_SHARE_OF_LIMITS = 8

_PEERS = (
    (LIMITS, "fixed window"),
    (LIMITS, "moving window"),
    (LIMITS, "sliding window counter"),
    (THROTTLED, "fixed_window"),
    (THROTTLED, "sliding_window"),
    (THROTTLED, "token_bucket"),
    (THROTTLED, "leaking_bucket"),
    (THROTTLED, "gcra"),
)
_WINDOWS = ("packed_window", "rolling_window")
_LENGTHS = (100, 1_000, 10_000)


@dataclass(frozen=True, slots=True)
class Case:
    """One store to fill: so many keys, so many requests of each."""

    library: str
    algorithm: str
    seconds: int
    keys: int
    requests: int
    quota: int

    @property
    def name(self) -> str:
        """How the tables call it."""
        return self.algorithm if self.library == LIMEN else f"{self.library}, {self.algorithm}"


def grown(case: Case) -> int:
    """Fill the store of a case; return by how many bytes this process grew."""
    quota = Quota(case.quota, case.seconds, case.keys)
    # First a small one, so that what a first call loads and caches is not counted.
    warm = build(case.library, case.algorithm, quota)
    warm.loop(f"warm:{number}" for number in range(10))
    warm.rest()
    instance = build(case.library, case.algorithm, quota)
    before = _resident()
    for _ in range(case.requests):
        # Key texts are made anew, as a server makes them: what a store keeps of them is its own.
        admitted = instance.loop(f"user:{number}" for number in range(case.keys))
        if admitted != case.keys:
            raise BenchError(f"{case.name}: {admitted} of {case.keys} keys were admitted")
    instance.rest()
    growth = _resident() - before
    if case.requests == case.quota and instance.loop(f"user:{n}" for n in range(case.keys)):
        raise BenchError(f"{case.name}: windows of {case.seconds} s ran out before they were full")
    return growth


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    gc.collect()
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        # Without /proc there is only the peak, which is the same as long as a process grows.
        unit = 1 if sys.platform == "darwin" else 1_024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def run(quick: bool, say: Callable[[str], None]) -> str:
    """Measure every case; return the tables."""
    per_key = _per_key(_QUICK_KEYS if quick else _MANY_KEYS)
    per_request = _per_request(_QUICK_STAMPS if quick else _MANY_STAMPS)
    bytes_ = _measure([*per_key, *per_request], say)
    return f"{keys_table(per_key, bytes_)}\n\n{requests_table(per_request, bytes_)}"


def _per_key(keys: int) -> list[Case]:
    ours = [Case(LIMEN, algorithm, _HOUR, keys, 1, 100) for algorithm in ALGORITHMS]
    fewer = keys // _SHARE_OF_LIMITS
    return ours + [
        Case(library, algorithm, _HOUR, fewer if library == LIMITS else keys, 1, 100)
        for library, algorithm in _PEERS
    ]


def _per_request(stamps: int) -> list[Case]:
    ours = [
        Case(LIMEN, algorithm, seconds, stamps // length, length, length)
        for algorithm in _WINDOWS
        for seconds in (_MINUTE, _DAY)
        for length in _LENGTHS
    ]
    # limits keeps the same object for a stamp whatever the period, and is too slow for a minute.
    fewer = stamps // _SHARE_OF_LIMITS
    return ours + [
        Case(LIMITS, "moving window", _DAY, fewer // length, length, length) for length in _LENGTHS
    ]


def _measure(cases: Sequence[Case], say: Callable[[str], None]) -> dict[Case, int]:
    bytes_ = {}
    # Spawned, not forked, and each for one case: a process begins with nothing of another's.
    with multiprocessing.get_context("spawn").Pool(_PROCESSES, maxtasksperchild=1) as pool:
        for number, (case, found) in enumerate(
            zip(cases, pool.imap(grown, cases, chunksize=1), strict=True), 1
        ):
            say(f"footprint {number}/{len(cases)}: {case.name}, {case.keys:,} x {case.requests:,}")
            bytes_[case] = found
    return bytes_


def keys_table(cases: Sequence[Case], bytes_: dict[Case, int]) -> str:
    """Return the bytes for each key after one request."""
    rows = [[_shown(case), f"{case.keys:,}", f"{bytes_[case] / case.keys:,.0f}"] for case in cases]
    return (
        "### Memory for each key\n\n"
        "After one request of each key `user:<n>`, an hour's limit; "
        f"{_source()}, one process each. limits with an eighth of the keys, because a million take "
        "it a minute; throttled-py with its store's `MAX_SIZE` raised from 1,024.\n\n"
        f"{table(['in memory', 'keys', 'bytes per key'], rows)}"
    )


def requests_table(cases: Sequence[Case], bytes_: dict[Case, int]) -> str:
    """Return the bytes for each request in full windows."""
    rows = [
        [
            _shown(case),
            "a minute" if case.seconds == _MINUTE else "a day",
            f"{case.quota:,}",
            f"{case.keys:,}",
            f"{bytes_[case] / (case.keys * case.requests):,.1f}",
        ]
        for case in cases
    ]
    return (
        "### Memory for each request in an exact window\n\n"
        "Every window full; all that its key costs is divided among its requests, "
        f"{_source()}.\n\n"
        f"{table(['full windows', 'period', 'quota', 'keys', 'bytes per request'], rows)}"
    )


def _shown(case: Case) -> str:
    return f"`{case.name}`" if case.library == LIMEN else case.name


def _source() -> str:
    return "growth of the process, " + (
        "resident, by /proc/self/statm" if _STATM.exists() else "peak, by getrusage"
    )
