"""Nothing but ASGI: a limit around an application, and a stream that holds a place.

    uvicorn examples.asgi_app:app
    curl -i localhost:8000

REDIS_URL=redis://localhost:6379 lets any number of processes share the limits.
"""

import asyncio
import os

from limen import AsyncLimiter, Concurrency
from limen.adapters import RateLimit
from limen.adapters.asgi import App, Message, RateLimitMiddleware, Receive, Scope, Send


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"hello ", b"world\n"):
        body: Message = {"type": "http.response.body", "body": part, "more_body": True}
        await send(body)
        await asyncio.sleep(0.1)
    await send({"type": "http.response.body", "body": b""})


limiter = AsyncLimiter(os.environ.get("REDIS_URL", "memory://"))
app: App = RateLimitMiddleware(
    hello,
    limiter,
    RateLimit("5/minute", Concurrency(2, lease=30)),
    RateLimit("1000/minute", key="everyone"),
)
