"""Nothing but WSGI: limits around an application that knows nothing of them.

    waitress-serve --listen=127.0.0.1:8000 examples.wsgi_app:app
    curl -i localhost:8000

REDIS_URL=redis://localhost:6379 lets any number of processes share the limits.
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from limen import Limiter
from limen.adapters import RateLimit
from limen.adapters.wsgi import RateLimitMiddleware

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def hello(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello\n"]


limiter = Limiter(os.environ.get("REDIS_URL", "memory://"))
app = RateLimitMiddleware(
    hello,
    limiter,
    RateLimit("5/minute", exempt_when=lambda request: request.path == "/healthz"),
    RateLimit("1000/minute", key="everyone"),
)
