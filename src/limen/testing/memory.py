"""`in_memory`: for a while, a limiter counts in this process, by a clock that a test moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from limen.errors import InvalidInput, shown
from limen.limiter import AsyncLimiter, Limiter
from limen.testing.clock import ManualClock


@contextmanager
def in_memory(
    limiter: Limiter | AsyncLimiter, clock: ManualClock | None = None
) -> Iterator[ManualClock]:
    """Let a limiter count in memory, from nothing, by the clock that is returned.

    For the limiter that an application was made with, whatever its store: nobody has to run Redis
    for the tests, and nobody has to wait. At the end it is as it was.

    ```python
    with in_memory(app.limiter) as clock:
        assert client.get("/").status_code == 200
        assert client.get("/").status_code == 429
        clock.advance(60)
    ```
    """
    if not isinstance(limiter, Limiter | AsyncLimiter):
        raise InvalidInput(f"expected a Limiter or an AsyncLimiter, got {shown(limiter)}")
    used = clock or ManualClock()
    fresh = vars(type(limiter)(clock=used))
    kept = vars(limiter)
    before = {name: kept[name] for name in _STATE if name in kept}
    kept.update({name: fresh[name] for name in before})
    try:
        yield used
    finally:
        kept.update(before)


_STATE = ("_backend", "_memory", "_guard", "_clock", "_lines")
"""What a limiter counts by, and waits by."""
