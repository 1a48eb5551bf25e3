"""What limen gives to those who test code that uses it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from limen import AsyncLimiter, InvalidInput, Limiter
from limen.testing import ManualClock, in_memory
from tests.client.services import free_port

CONFTEST = 'pytest_plugins = ["limen.testing.fixtures"]\n'
USED = """
import asyncio


def test_a_day_takes_no_day(limen_limiter, limen_clock):
    assert limen_limiter.check("user:42", "1/day").allowed
    assert not limen_limiter.check("user:42", "1/day").allowed
    limen_clock.advance(86_400)
    assert limen_limiter.check("user:42", "1/day").allowed


def test_each_test_begins_anew(limen_limiter):
    assert limen_limiter.check("user:42", "1/day").allowed


def test_asyncio_too(limen_async_limiter):
    assert asyncio.run(limen_async_limiter.check("user:42", "1/day")).allowed
"""


def test_the_fixtures_work_in_a_project_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_used.py").write_text(USED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "3 passed" in told.stdout, told.stdout + told.stderr


def test_a_limiter_on_redis_counts_in_memory_for_a_while() -> None:
    with Limiter(f"redis://127.0.0.1:{free_port()}", deadline=0.5, on_error="closed") as limiter:
        with in_memory(limiter) as clock:
            assert [limiter.check("a", "2/hour").allowed for _ in range(3)] == [True, True, False]
            assert limiter.check("a", "2/hour").source == "store"
            began = time.monotonic()
            assert limiter.acquire("a", "2/hour").allowed
            assert clock.monotonic() == 3_600
            assert time.monotonic() - began < 60
        # Nobody is there, as before.
        assert limiter.check("a", "2/hour").source == "closed"


def test_a_limiter_for_asyncio_too_and_what_was_counted_is_there_again() -> None:
    async def run() -> None:
        async with AsyncLimiter() as limiter:
            await limiter.check("a", "1/hour")
            clock = ManualClock(5.0)
            with in_memory(limiter, clock) as used:
                assert used is clock
                assert await limiter.check("a", "1/hour")
                assert limiter.clock is clock
            assert not await limiter.check("a", "1/hour")

    asyncio.run(run())


def test_anything_else_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="expected a Limiter"), in_memory(3):  # type: ignore[arg-type]
        pass
