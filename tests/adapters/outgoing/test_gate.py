"""What happens between a request's turn and its departure, without a network."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from limen import AsyncLimiter, ConfigurationError, Limiter
from limen.adapters.outgoing import RateLimited
from limen.adapters.outgoing.gate import Gate, Settings
from limen.flow import run, run_async
from limen.testing import ManualClock

HOST = "https://api.example.com"
REQUEST = SimpleNamespace(url=SimpleNamespace(scheme="https", netloc=b"api.example.com"))


def settings(*limits: str, wait: float | None = None) -> Settings:
    return Settings(limits, "host", 1, None, wait, True, 300.0)


class Interrupted(ManualClock):
    """A clock on which, while somebody sleeps, a server asks for a pause; once."""

    gate: Any = None

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        if self.gate is not None:
            gate, self.gate = self.gate, None
            gate.learn(HOST, 429, {"retry-after": "100"})


def test_a_pause_that_begins_while_a_request_waits_for_its_limits_holds_it_too() -> None:
    clock = Interrupted()
    limiter = Limiter(clock=clock)
    gate = Gate(limiter, settings("2/minute"), RateLimited, is_async=False)
    run(gate.admit(REQUEST))
    run(gate.admit(REQUEST))
    clock.gate = gate
    assert run(gate.admit(REQUEST)) == HOST
    assert 160 <= clock.monotonic() <= 170
    # What was counted before the pause was given back: now one is counted, not two.
    assert limiter.peek(HOST, "2/minute").remaining == 1


def test_a_pause_that_begins_while_a_task_waits_for_its_limits_holds_it_too() -> None:
    async def main() -> None:
        clock = Interrupted()
        limiter = AsyncLimiter(clock=clock)
        gate = Gate(limiter, settings("2/minute"), RateLimited, is_async=True)
        await run_async(gate.admit(REQUEST))
        await run_async(gate.admit(REQUEST))
        clock.gate = gate
        assert await run_async(gate.admit(REQUEST)) == HOST
        assert 160 <= clock.monotonic() <= 170
        assert (await limiter.peek(HOST, "2/minute")).remaining == 1

    asyncio.run(main())


def test_who_is_refused_for_a_pause_that_began_meanwhile_is_charged_nothing() -> None:
    clock = Interrupted()
    limiter = Limiter(clock=clock)
    gate = Gate(limiter, settings("2/minute", wait=70), RateLimited, is_async=False)
    run(gate.admit(REQUEST))
    run(gate.admit(REQUEST))
    clock.gate = gate
    with pytest.raises(RateLimited) as told:
        run(gate.admit(REQUEST))
    assert told.value.retry_after == 100
    assert limiter.peek(HOST, "2/minute").remaining == 2


def test_the_hosts_of_a_gate_may_be_called_from_several_loops() -> None:
    gate = Gate(AsyncLimiter(), settings("1000/minute"), RateLimited, is_async=True)
    done: list[str | None] = []

    async def many() -> None:
        done.extend(await asyncio.gather(*(run_async(gate.admit(REQUEST)) for _ in range(50))))

    threads = [threading.Thread(target=asyncio.run, args=(many(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [HOST] * 200


def test_a_function_that_is_async_by_a_detour_is_an_error_for_threads() -> None:
    async def is_internal(request: Any) -> bool:
        return False

    exempt = Settings(("1/hour",), "host", 1, lambda request: is_internal(request), 0, True, 300.0)
    gate = Gate(Limiter(), exempt, RateLimited, is_async=False)
    with pytest.raises(ConfigurationError, match="is async, and this adapter runs in threads"):
        run(gate.admit(REQUEST))


def test_another_event_loop_than_that_of_asyncio_is_an_error_that_says_so() -> None:
    gate = Gate(AsyncLimiter(), settings("1/minute"), RateLimited, is_async=True)
    # As other loops do it: nobody has told asyncio.
    with pytest.raises(ConfigurationError, match="runs on asyncio, and this is another event loop"):
        run_async(gate.admit(REQUEST)).send(None)


def test_a_store_that_is_closed_when_it_is_away_says_so() -> None:
    limiter = Limiter("redis://127.0.0.1:1", on_error="closed")
    gate = Gate(limiter, settings("1/minute", wait=0), RateLimited, is_async=False)
    with pytest.raises(RateLimited, match="nobody can count it, and on_error is 'closed'"):
        run(gate.admit(REQUEST))
    limiter.close()
