"""limen decides, for every request, whether it may pass."""

from limen.errors import (
    ConfigurationError,
    InvalidInput,
    InvalidLimit,
    LimenError,
    RateLimitExceeded,
    StoreError,
)
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Check, Concurrency, Decision, Limit

__version__ = "0.1.0"

__all__ = [
    "AsyncLimiter",
    "Check",
    "Concurrency",
    "ConfigurationError",
    "Decision",
    "InvalidInput",
    "InvalidLimit",
    "LimenError",
    "Limit",
    "Limiter",
    "RateLimitExceeded",
    "StoreError",
    "__version__",
]
