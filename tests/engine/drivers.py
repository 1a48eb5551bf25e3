"""Both engines, called in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType

from limen.engine import AsyncEngine, AsyncRuleSlot, Engine, RuleSlot, Verdict
from limen.rules import RuleSet, parse_text
from limen.testing import ManualClock

Facts = Mapping[str, str]
CALLERS = 8


class Threaded:
    """An `Engine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def use(self, rules: str | RuleSet) -> None:
        self._engine.use(parse_text(rules) if isinstance(rules, str) else rules)

    @property
    def version(self) -> str:
        return self._engine.rules.version

    def decide(self, facts: Facts, cost: int = 1) -> Verdict:
        return self._engine.decide(facts, cost)

    def peek(self, facts: Facts, cost: int = 1) -> Verdict:
        return self._engine.peek(facts, cost)

    def slot(self, facts: Facts, cost: int = 1) -> RuleSlot | BlockingSlot:
        return self._engine.slot(facts, cost)

    def refund(self, verdict: Verdict) -> bool:
        return self._engine.refund(verdict)

    def settle(self, verdict: Verdict, actual: int | Mapping[str, int]) -> bool:
        return self._engine.settle(verdict, actual)

    def decide_all(
        self, requests: Iterable[Facts], after_each: Callable[[], None]
    ) -> list[Verdict]:
        """Ask by many threads at once."""

        def ask(facts: Facts) -> Verdict:
            verdict = self._engine.decide(facts)
            after_each()
            return verdict

        with ThreadPoolExecutor(CALLERS) as pool:
            return list(pool.map(ask, requests))


class Blocking(Threaded):
    """An `AsyncEngine`, whose verbs wait."""

    def __init__(self, engine: AsyncEngine, runner: asyncio.Runner) -> None:
        self._async, self._runner = engine, runner

    def use(self, rules: str | RuleSet) -> None:
        self._async.use(parse_text(rules) if isinstance(rules, str) else rules)

    @property
    def version(self) -> str:
        return self._async.rules.version

    def decide(self, facts: Facts, cost: int = 1) -> Verdict:
        return self._runner.run(self._async.decide(facts, cost))

    def peek(self, facts: Facts, cost: int = 1) -> Verdict:
        return self._runner.run(self._async.peek(facts, cost))

    def slot(self, facts: Facts, cost: int = 1) -> BlockingSlot:
        return BlockingSlot(self._async.slot(facts, cost), self._runner)

    def refund(self, verdict: Verdict) -> bool:
        return self._runner.run(self._async.refund(verdict))

    def settle(self, verdict: Verdict, actual: int | Mapping[str, int]) -> bool:
        return self._runner.run(self._async.settle(verdict, actual))

    def decide_all(
        self, requests: Iterable[Facts], after_each: Callable[[], None]
    ) -> list[Verdict]:
        """Ask by many tasks at once."""
        waiting = list(requests)[::-1]

        async def ask() -> list[Verdict]:
            found = []
            while waiting:
                found.append(await self._async.decide(waiting.pop()))
                after_each()
            return found

        async def ask_all() -> list[list[Verdict]]:
            return list(await asyncio.gather(*(ask() for _ in range(CALLERS))))

        return [verdict for found in self._runner.run(ask_all()) for verdict in found]


class BlockingSlot:
    """An `AsyncRuleSlot`, whose verbs wait."""

    def __init__(self, slot: AsyncRuleSlot, runner: asyncio.Runner) -> None:
        self._slot, self._runner = slot, runner

    @property
    def id(self) -> str | None:
        return self._slot.id

    @property
    def verdict(self) -> Verdict | None:
        return self._slot.verdict

    def acquire(self) -> Verdict:
        return self._runner.run(self._slot.acquire())

    def renew(self) -> bool:
        return self._runner.run(self._slot.renew())

    def release(self) -> bool:
        return self._runner.run(self._slot.release())

    def __enter__(self) -> BlockingSlot:
        self._runner.run(self._slot.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._runner.run(self._slot.__aexit__(kind, error, traceback))


def left(engine: Threaded, facts: Facts) -> dict[str, int | None]:
    """Return what each limit of each rule has left, by its name."""
    return {part.name: part.remaining for part in engine.peek(facts, 0).parts}


def answers(engine: Threaded, times: int, facts: Facts, cost: int = 1) -> list[bool]:
    """Ask several times, and return who was allowed."""
    return [engine.decide(facts, cost).allowed for _ in range(times)]


def clock_at(when: str) -> ManualClock:
    """Return a clock that stands at a time in UTC, such as `2026-12-24T18:00`."""
    return ManualClock(datetime.fromisoformat(f"{when}:00+00:00").timestamp())
