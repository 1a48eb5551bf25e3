"""The two limiters: checks in, decisions out. Knows no rules, no HTTP, no way to keep a state."""

from limen.backends import Prepared
from limen.limiter.aio import AsyncLimiter
from limen.limiter.slot import AsyncSlot, Slot
from limen.limiter.sync import Limiter

__all__ = ["AsyncLimiter", "AsyncSlot", "Limiter", "Prepared", "Slot"]
