"""A bucket for each key, for pyrate-limiter: by default it has one bucket for all of them.

This is how its documentation routes by name. Imports the peer, so only `bench.libraries` imports
this, when the peer is to be measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Not the real ones, so that mypy says the same whether the peer is installed or not.
    BucketFactory = object
    MonotonicClock: Any
    RateItem: Any
else:
    from pyrate_limiter import BucketFactory, MonotonicClock, RateItem


class PerKey(BucketFactory):
    """Makes a bucket when a key is first seen, and has the library drop old entries from it."""

    schedule_leak: Callable[[Any], None]

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._now = MonotonicClock().now
        self._buckets: dict[str, Any] = {}

    def wrap_item(self, name: str, weight: int = 1) -> Any:
        """Stamp a request with the time."""
        return RateItem(name, self._now(), weight=weight)

    def get(self, item: Any) -> Any:
        """Return the bucket of a request."""
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = self._make()
            self.schedule_leak(bucket)
        return bucket
