"""Fixtures of pytest: `pytest_plugins = ["limen.testing.fixtures"]` in a `conftest.py` brings them.

They are not there by themselves, since a plugin that is would be imported for every run of pytest.
"""

from __future__ import annotations

import pytest

from limen.limiter import AsyncLimiter, Limiter
from limen.testing.clock import ManualClock


@pytest.fixture
def limen_clock() -> ManualClock:
    """The clock of the other two: `limen_clock.advance(60)`."""
    return ManualClock()


@pytest.fixture
def limen_limiter(limen_clock: ManualClock) -> Limiter:
    """A limiter in memory, with nothing counted."""
    return Limiter(clock=limen_clock)


@pytest.fixture
def limen_async_limiter(limen_clock: ManualClock) -> AsyncLimiter:
    """The same for asyncio."""
    return AsyncLimiter(clock=limen_clock)
