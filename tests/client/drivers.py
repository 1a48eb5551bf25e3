"""Both clients, called in the same way."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from limen import AsyncClient, Client
from limen.client import AsyncServiceSlot, ServiceSlot, Verdict

Facts = Mapping[str, str]
_users = itertools.count(1)


def somebody(path: str = "/search") -> dict[str, str]:
    """Return a request of somebody who was never seen before."""
    return {"user": f"u{next(_users)}", "path": path}


class Threaded:
    """A `Client`."""

    def __init__(self, client: Client) -> None:
        self.client: Any = client

    def decide(self, facts: Facts, cost: int = 1) -> Verdict:
        verdict: Verdict = self.client.decide(facts, cost=cost)
        return verdict

    def check(self, key: str, *limits: Any, cost: int = 1) -> Verdict:
        verdict: Verdict = self.client.check(key, *limits, cost=cost)
        return verdict

    def peek(self, facts: Facts, cost: int = 1) -> Verdict:
        verdict: Verdict = self.client.peek(facts, cost=cost)
        return verdict

    def usage(self, facts: Facts) -> Verdict:
        verdict: Verdict = self.client.usage(facts)
        return verdict

    def decide_many(self, requests: Iterable[Facts], cost: int = 1) -> list[Verdict]:
        verdicts: list[Verdict] = self.client.decide_many(requests, cost=cost)
        return verdicts

    def refund(self, verdict: Any) -> bool:
        changed: bool = self.client.refund(verdict)
        return changed

    def settle(self, verdict: Any, actual: Any) -> bool:
        changed: bool = self.client.settle(verdict, actual)
        return changed

    def slot(self, facts: Facts) -> ServiceSlot | BlockingSlot:
        slot: ServiceSlot = self.client.slot(facts)
        return slot

    def together(self, calls: Iterable[Callable[[], Any]], callers: int = 64) -> list[Any]:
        """Make all the calls, so many at once; what one raises is what it returns."""

        def call(each: Callable[[], Any]) -> Any:
            try:
                return each()
            except Exception as error:
                return error

        with ThreadPoolExecutor(callers) as pool:
            return list(pool.map(call, calls))

    def during(self, calls: Iterator[Callable[[], Any]], callers: int) -> list[Exception]:
        """Have so many callers make a call each, again and again; return what was raised."""
        firsts = list(itertools.islice(calls, callers))
        raised: list[Exception] = []
        going = threading.Event()

        def work(call: Callable[[], Any]) -> None:
            try:
                while not going.is_set():
                    call()
            except Exception as error:
                raised.append(error)

        threads = [threading.Thread(target=work, args=(call,)) for call in firsts]
        for thread in threads:
            thread.start()
        for _ in calls:
            time.sleep(0.01)
        going.set()
        for thread in threads:
            thread.join()
        return raised

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self.client.close()


class Blocking(Threaded):
    """An `AsyncClient`, whose verbs wait."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self.client = client
        self._runner = runner

    def _run(self, work: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._runner.run(_await(work))
        return work  # for `together`, which awaits it

    def decide(self, facts: Facts, cost: int = 1) -> Any:
        return self._run(self.client.decide(facts, cost=cost))

    def check(self, key: str, *limits: Any, cost: int = 1) -> Any:
        return self._run(self.client.check(key, *limits, cost=cost))

    def peek(self, facts: Facts, cost: int = 1) -> Any:
        return self._run(self.client.peek(facts, cost=cost))

    def usage(self, facts: Facts) -> Any:
        return self._run(self.client.usage(facts))

    def decide_many(self, requests: Iterable[Facts], cost: int = 1) -> Any:
        return self._run(self.client.decide_many(requests, cost=cost))

    def refund(self, verdict: Any) -> Any:
        return self._run(self.client.refund(verdict))

    def settle(self, verdict: Any, actual: Any) -> Any:
        return self._run(self.client.settle(verdict, actual))

    def slot(self, facts: Facts) -> BlockingSlot:
        return BlockingSlot(self.client.slot(facts), self._run)

    def together(self, calls: Iterable[Callable[[], Any]], callers: int = 64) -> list[Any]:
        waiting = list(enumerate(calls))[::-1]
        found: dict[int, Any] = {}

        async def work() -> None:
            while waiting:
                number, call = waiting.pop()
                try:
                    found[number] = await call()
                except Exception as error:
                    found[number] = error

        async def work_all() -> None:
            await asyncio.gather(*(work() for _ in range(callers)))

        self._runner.run(work_all())
        return [found[number] for number in range(len(found))]

    def during(self, calls: Iterator[Callable[[], Any]], callers: int) -> list[Exception]:
        firsts = list(itertools.islice(calls, callers))
        raised: list[Exception] = []
        is_over = False

        async def work(call: Callable[[], Any]) -> None:
            try:
                while not is_over:
                    await call()
            except Exception as error:
                raised.append(error)

        async def work_all() -> None:
            nonlocal is_over
            tasks = [asyncio.create_task(work(call)) for call in firsts]
            for _ in calls:
                await asyncio.sleep(0.01)
            is_over = True
            await asyncio.gather(*tasks)

        self._runner.run(work_all())
        return raised

    def pause(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))

    def close(self) -> None:
        self._runner.run(self.client.aclose())


class BlockingSlot:
    """An `AsyncServiceSlot`, whose verbs wait."""

    def __init__(self, slot: AsyncServiceSlot, run: Callable[[Any], Any]) -> None:
        self._slot, self._run = slot, run

    @property
    def verdict(self) -> Verdict | None:
        return self._slot.verdict

    def acquire(self) -> Any:
        return self._run(self._slot.acquire())

    def renew(self) -> Any:
        return self._run(self._slot.renew())

    def release(self) -> Any:
        return self._run(self._slot.release())

    def __enter__(self) -> BlockingSlot:
        self._run(self._slot.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._slot.__aexit__(kind, error, traceback))


async def _await(work: Any) -> Any:
    return await work
