"""limen decides, for every request, whether it may pass."""

from limen.client import AsyncClient, Client
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
