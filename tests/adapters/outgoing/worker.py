"""One of several processes that call the same API, and share a budget on Redis."""

from __future__ import annotations

import sys

import httpx

from limen import Limiter
from limen.adapters.httpx import RateLimitTransport


def main(store: str, url: str, limit: str, times: str) -> None:
    # Long enough for a machine that has much else to do: a store that is late is no store.
    with (
        Limiter(store, deadline=10) as limiter,
        httpx.Client(transport=RateLimitTransport(limiter, limit, wait=60), timeout=30) as client,
    ):
        for _ in range(int(times)):
            client.get(url)


if __name__ == "__main__":
    main(*sys.argv[1:])
