"""Both limiters called in the same way, and callers that ask at a pace of their own.

The asyncio form runs in a loop of its own thread, which goes on between two calls: what it does
behind its callers is done by itself, as in a program. Knows nothing of the faults.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, Self

from limen import AsyncLimiter, Decision, Limit, Limiter
from tests.waiting import wait_until

PATIENT_S = 5.0
"""A deadline for tests that are not about time."""
WIDE = Limit(1_000_000, 86_400, algorithm="fixed_window")
"""So wide that nobody is refused: what is left tells how many were charged."""
FORMS = ("threads", "asyncio")


def url_of(port: int) -> str:
    return f"redis://127.0.0.1:{port}"


class Form(Protocol):
    """One of the two limiters."""

    name: str
    limiter: Any

    def do(self, verb: Callable[..., Any], *arguments: Any) -> Any:
        """Call a verb of the limiter, or of one of its slots; return what it returns."""

    def at_once(self, calls: list[Callable[[], Any]]) -> list[Any]:
        """Call all of them at the same time; return what each returns."""

    def start(self, rounds: Callable[[], Any]) -> Callable[[], None]:
        """Have a caller make its rounds; return what waits for its end."""

    async def pause(self, seconds: float) -> None:
        """Sleep, in the way of this form."""

    def close(self) -> None:
        """Let go of the store."""


class Threaded:
    """A `Limiter`."""

    name = "threads"

    def __init__(self, url: str, **settings: Any) -> None:
        self.limiter: Any = Limiter(url, **settings)

    def do(self, verb: Callable[..., Any], *arguments: Any) -> Any:
        return verb(*arguments)

    def at_once(self, calls: list[Callable[[], Any]]) -> list[Any]:
        with ThreadPoolExecutor(len(calls)) as pool:
            return [each.result(60) for each in [pool.submit(call) for call in calls]]

    def start(self, rounds: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        thread = threading.Thread(target=asyncio_free, args=(rounds(),), daemon=True)
        thread.start()

        def wait() -> None:
            thread.join(60)
            assert not thread.is_alive(), "a caller hangs"

        return wait

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # never run by a loop

    def close(self) -> None:
        self.limiter.close()


def asyncio_free(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits for a loop that is not there")


class Looped:
    """An `AsyncLimiter`, in a loop of its own thread."""

    name = "asyncio"

    def __init__(self, url: str, **settings: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self._thread.start()
        self.limiter: Any = AsyncLimiter(url, **settings)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(100)

    def do(self, verb: Callable[..., Any], *arguments: Any) -> Any:
        return self.run(_finished(verb, *arguments))

    def at_once(self, calls: list[Callable[[], Any]]) -> list[Any]:
        async def ask() -> list[Any]:
            return list(await asyncio.gather(*[_finished(call) for call in calls]))

        return list(self.run(ask()))

    def start(self, rounds: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        started = asyncio.run_coroutine_threadsafe(rounds(), self.loop)
        return lambda: started.result(60)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def close(self) -> None:
        self.run(self.limiter.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


async def _finished(verb: Callable[..., Any], *arguments: Any) -> Any:
    found = verb(*arguments)
    return await found if inspect.isawaitable(found) else found


@contextmanager
def opened(form: str, url: str, **settings: Any) -> Iterator[Form]:
    """Make a limiter of that form, which has reached its store."""
    made = (Threaded if form == "threads" else Looped)(url, **settings)
    try:
        wait_for_the_store(made, 30)
        yield made
    finally:
        made.close()


def wait_for_the_store(form: Form, seconds: float = 20.0) -> float:
    """Return after how many seconds the store decides again."""
    start = time.monotonic()
    wait_until(lambda: not form.do(form.limiter.check, "again", WIDE).degraded, seconds)
    return time.monotonic() - start


class Stalls:
    """How long the machine itself let somebody wait who only wanted to sleep."""

    def __init__(self) -> None:
        self._late: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sleep, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _sleep(self) -> None:
        while not self._stop.is_set():
            start = time.monotonic()
            time.sleep(0.005)
            self._late.append((start, time.monotonic() - start - 0.005))

    def worst(self, since: float, until: float) -> float:
        """Return the longest of them, in seconds."""
        return max((late for at, late in self._late if since - 1 <= at < until), default=0.0)


class Asked(NamedTuple):
    """What one caller was told."""

    at: float
    """`time.monotonic()` when it asked."""
    took: float
    key: str
    decision: Decision | None
    error: BaseException | None


class Load:
    """Callers that ask for the keys in turn, so many times a second, whatever they are told."""

    def __init__(
        self,
        form: Form,
        *,
        keys: tuple[str, ...] = ("hot",),
        limit: Limit = WIDE,
        rate: float = 100.0,
        callers: int = 4,
    ) -> None:
        self.form = form
        self.asked: list[Asked] = []
        self._keys, self._limit = keys, limit
        self._every_s, self._callers = callers / rate, callers
        self._stopped = False
        self._ends: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        for number in range(self._callers):
            self._ends.append(self.form.start(lambda number=number: self._rounds(number)))  # type: ignore[misc]  # a default binds it now
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        for wait in self._ends:
            wait()

    async def _rounds(self, number: int) -> None:
        due = time.monotonic() + self._every_s * number / self._callers
        turn = number
        while not self._stopped:
            await self.form.pause(max(due - time.monotonic(), 0))
            # What was missed is not made up for: a schedule, but no queue.
            due = max(due + self._every_s, time.monotonic())
            key = self._keys[turn % len(self._keys)]
            turn += 1
            at = time.monotonic()
            decision, error = None, None
            try:
                found = self.form.limiter.check(key, self._limit)
                decision = await found if inspect.isawaitable(found) else found
            except BaseException as caught:
                error = caught
            self.asked.append(Asked(at, time.monotonic() - at, key, decision, error))

    def errors(self) -> list[BaseException]:
        return [each.error for each in self.asked if each.error is not None]

    def faults(self, since: float = 0.0, until: float = float("inf")) -> Counter[str]:
        """Return the kinds that degraded decisions name, and how often."""
        return Counter(
            each.decision.fault
            for each in self.asked
            if since <= each.at < until and each.decision is not None and each.decision.degraded
        )

    def sources(self, since: float = 0.0, until: float = float("inf")) -> Counter[str]:
        return Counter(
            each.decision.source
            for each in self.asked
            if since <= each.at < until and each.decision is not None
        )

    def p99(self, since: float, until: float) -> float:
        """Return what 99 of 100 took at most, of those who asked in between; seconds."""
        took = sorted(each.took for each in self.asked if since <= each.at < until)
        return took[int(0.99 * (len(took) - 1))] if took else 0.0

    def back_after(self, since: float) -> float:
        """Return after how many seconds from then on the store alone has decided."""
        late = [
            each.at + each.took - since
            for each in self.asked
            if each.at >= since and each.decision is not None and each.decision.degraded
        ]
        return max(late, default=0.0)
