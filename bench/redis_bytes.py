"""Memory on Redis: bytes for each request in a full exact window, and bytes for each user.

States are filled through the limiter, a request at a time, so they have grown as they grow in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.harness import BenchError, Target
from bench.libraries import Quota
from bench.redis_libraries import CONCURRENCY, ask_async, open_async_limiter
from bench.report import table
from bench.server import Server
from limen import Decision
from limen.model import ALGORITHMS

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_TASKS = 64
PAPER_REQUEST_BYTES = 8
_WINDOWS = ("packed_window", "rolling_window")

# Table 2 of the paper, in bytes per user, for L = 100 and C = 50.
PAPER_USER_BYTES = {"token_bucket": 16, "fixed_window": 16, "rolling_window": 800, CONCURRENCY: 800}
_FULL = {"packed_window": 100, "rolling_window": 100, CONCURRENCY: 50}


@dataclass(frozen=True, slots=True)
class Users:
    """Some users of one algorithm, each with so many requests."""

    algorithm: str
    users: int
    requests: int
    quota: int

    @property
    def paper_bytes(self) -> int | None:
        """What the paper says a user takes. It thinks of its windows as full."""
        if self.algorithm in _FULL and self.requests < self.quota:
            return None
        return PAPER_USER_BYTES.get(self.algorithm)


def request_target(seconds: int, length: int) -> Target:
    """Return what `packed_window` should need for a request."""
    goal = 5.0 if seconds == _MINUTE else 6.0 if length >= 1_000 else None
    return Target(7.5, goal, less_is_better=True)


def cases(users: int, full_users: int) -> list[Users]:
    """Return every algorithm after one request, then those that grow, when they are full."""
    first = [Users(algorithm, users, 1, 100) for algorithm in (*ALGORITHMS, CONCURRENCY)]
    return first + [Users(each, full_users, size, size) for each, size in _FULL.items()]


def per_request(server: Server, lengths: Sequence[int], say: Callable[[str], None]) -> str:
    """Fill windows of each length; return the table."""
    found: dict[tuple[int, int, str], float] = {}
    for seconds in (_MINUTE, _DAY):
        for length in lengths:
            say(f"redis, bytes per request: {length:,} in {seconds:,} s")
            for algorithm in _WINDOWS:
                server.flush()
                quota = Quota(length, seconds)
                fill(server, algorithm, quota, ["user:1"] * length)
                found[seconds, length, algorithm] = sum(server.key_bytes()) / length
    return requests_table(found)


def per_user(server: Server, cases_: Sequence[Users], say: Callable[[str], None]) -> str:
    """Measure how the server grows with users; return the table."""
    # What a first call leaves behind, the script above all, is nobody's.
    fill(server, "packed_window", Quota(1, _HOUR), ["warm"])
    found = {}
    for case in cases_:
        say(f"redis, bytes per user: {case.algorithm}, {case.users:,} x {case.requests:,}")
        server.flush()
        before = server.used_memory()
        keys = (f"user:{user}" for _ in range(case.requests) for user in range(case.users))
        fill(server, case.algorithm, Quota(case.quota, _HOUR), keys)
        found[case] = (server.used_memory() - before) / case.users
    server.flush()
    return users_table(found)


def fill(server: Server, algorithm: str, quota: Quota, keys: Iterable[str]) -> None:
    """Ask once for each of the keys, many at a time; every request has to be admitted."""
    asked, admitted = asyncio.run(_fill(server.url, algorithm, quota, keys))
    if admitted != asked:
        raise BenchError(f"{algorithm}: {admitted} of {asked} requests were admitted")


async def _fill(url: str, algorithm: str, quota: Quota, keys: Iterable[str]) -> tuple[int, int]:
    async with open_async_limiter(url) as limiter:
        return await ask_all(ask_async(limiter, algorithm, quota), keys)


async def ask_all(
    ask: Callable[[str], Awaitable[Decision]], keys: Iterable[str], tasks: int = _TASKS
) -> tuple[int, int]:
    """Ask for each key, from several tasks; return how many were asked and how many admitted."""
    left = iter(keys)

    async def work() -> tuple[int, int]:
        asked = admitted = 0
        for key in left:
            decision = await ask(key)
            asked += 1
            admitted += decision.allowed and decision.source == "store"
        return asked, admitted

    done = await asyncio.gather(*[work() for _ in range(tasks)])
    return sum(asked for asked, _ in done), sum(admitted for _, admitted in done)


def requests_table(found: dict[tuple[int, int, str], float]) -> str:
    """Return the bytes for each request, both windows side by side, with the verdict on ours."""
    rows = []
    for seconds, length in dict.fromkeys((seconds, length) for seconds, length, _ in found):
        packed, rolling = (found[seconds, length, algorithm] for algorithm in _WINDOWS)
        target = request_target(seconds, length)
        goal = "" if target.goal is None else f", goal {target.goal:g}"
        rows.append(
            [
                "a minute" if seconds == _MINUTE else "a day",
                f"{length:,}",
                f"**{packed:.2f}**",
                f"{rolling:.1f}",
                f"{PAPER_REQUEST_BYTES}",
                f"{target.minimum:g}{goal}",
                target.verdict(packed),
            ]
        )
    windows = [f"`{algorithm}`" for algorithm in _WINDOWS]
    head = ["period", "quota", *windows, "the paper's ideal", "at most", "target"]
    return (
        "Bytes per request in a full window, by MEMORY USAGE with SAMPLES 0: key, value and all "
        "that belongs to them, divided by the quota. `rolling_window` is a sorted set, and holds "
        f"10,000 at most. The paper counts {PAPER_REQUEST_BYTES} bytes for a stamp and nothing "
        f"for the rest.\n\n{table(head, rows)}"
    )


def users_table(found: dict[Users, float]) -> str:
    """Return the bytes for each user and the megabytes for a million of them."""
    rows = []
    for case, bytes_ in found.items():
        name = f"`{case.algorithm}`"
        if case.requests > 1:
            kind = "held" if case.algorithm == CONCURRENCY else "used"
            name += f", {case.requests} of {case.quota} {kind}"
        paper = case.paper_bytes
        rows.append(
            [
                name,
                f"{case.users:,}",
                f"{bytes_:,.0f}",
                f"{bytes_:,.0f} MB",
                "" if paper is None else f"{paper:,}",
                "" if paper is None else f"{paper:,} MB",
            ]
        )
    head = ["on Redis", "users", "bytes per user", "a million", "paper, per user", "paper, million"]
    return (
        "Bytes per user, after one request of each key `user:<n>` unless it says more: growth of "
        "the server's used_memory, so with key, expiry and tables; a million is scaled from that. "
        "Beside it table 2 of the paper, which counts numbers alone, and windows as full (L = 100, "
        f"C = 50).\n\n{table(head, rows)}"
    )
