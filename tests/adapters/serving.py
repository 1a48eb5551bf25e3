"""An ASGI application on a real socket, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import uvicorn


@contextmanager
def serving(
    app: Any, *closing: Any, lifespan: Any = "off", proxy_headers: bool = False
) -> Iterator[httpx2.Client]:
    """Serve an application under uvicorn; yield a client of it, which follows no redirects.

    What is `closing` has an `aclose`, which is awaited at the end in the loop of the server.
    """
    # By name: without it the small packets of one connection wait for each other.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        config = uvicorn.Config(
            app,
            log_config=None,
            lifespan=lifespan,
            proxy_headers=proxy_headers,
            ws="websockets-sansio",
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)

        async def run() -> None:
            await server.serve([listening])
            for each in closing:
                await each.aclose()

        thread = threading.Thread(target=asyncio.run, args=[run()])
        thread.start()
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(20)
