"""gRPC: interceptors for `grpc.server` and for `grpc.aio.server`, and for all kinds of methods.

```python
limited = RateLimitInterceptor(Limiter("redis://localhost:6379"), "100/minute")
server = grpc.server(ThreadPoolExecutor(16), interceptors=[limited])
```

A refused call does not reach its handler. It ends with `RESOURCE_EXHAUSTED`, and with what gRPC has
to say when to come back. Knows no messages and no generated code; needs grpcio alone.
"""

from limen.adapters.missing import missing

try:
    import grpc  # noqa: F401  # asked for here, so that one place tells what to install
except ImportError as _error:
    raise missing("grpc", _error) from None

from limen.adapters.grpc.call import Call, CallResponse
from limen.adapters.grpc.gate import visit_of
from limen.adapters.grpc.interceptors import AsyncRateLimitInterceptor, RateLimitInterceptor
from limen.adapters.grpc.methods import INFRASTRUCTURE

__all__ = [
    "INFRASTRUCTURE",
    "AsyncRateLimitInterceptor",
    "Call",
    "CallResponse",
    "RateLimitInterceptor",
    "visit_of",
]
