"""Four workers share one upstream that wants its requests evenly spaced.

A leaky bucket answers with a delay, and `acquire` sits it out. The workers know nothing of each
other: whoever asks first goes first.
"""

import asyncio
import time

from limen import AsyncLimiter, Limit

UPSTREAM = Limit(100, 1, algorithm="leaky_bucket")  # 100 a second: one every 10 ms


async def worker(limiter: AsyncLimiter, pages: list[str], fetched: list[float]) -> None:
    while pages:
        pages.pop()
        await limiter.acquire("upstream", UPSTREAM)
        fetched.append(time.monotonic())  # here the page would be fetched


async def main() -> None:
    limiter = AsyncLimiter()
    pages = [f"/page/{number}" for number in range(8)]
    fetched: list[float] = []
    began = time.monotonic()
    await asyncio.gather(*(worker(limiter, pages, fetched) for _ in range(4)))
    # Seven intervals lie between eight pages; a timer of the machine may be a little early.
    assert fetched[-1] - began >= 0.065
    print(f"{len(fetched)} pages fetched, one every 10 ms at most")


asyncio.run(main())
