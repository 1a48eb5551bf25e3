"""limen decides, for every request, whether it may pass."""

from typing import TYPE_CHECKING, Any

from limen.errors import (
    ConfigurationError,
    Conflict,
    InvalidInput,
    InvalidLimit,
    InvalidRules,
    LimenError,
    RateLimitExceeded,
    StoreError,
)
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Check, Concurrency, Decision, Limit

if TYPE_CHECKING:
    from limen.client import AsyncClient, Client

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncLimiter",
    "Check",
    "Client",
    "Concurrency",
    "ConfigurationError",
    "Conflict",
    "Decision",
    "InvalidInput",
    "InvalidLimit",
    "InvalidRules",
    "LimenError",
    "Limit",
    "Limiter",
    "RateLimitExceeded",
    "StoreError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # The clients are for those who ask a service; the others need not wait for them.
    if name in ("AsyncClient", "Client"):
        from limen import client

        found = globals()[name] = getattr(client, name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
