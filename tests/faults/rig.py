"""Load from several processes at once, the history of what each was told, and what it amounts to.

Each worker asks by a schedule, whether or not it is answered: a slow store must not make the load
lighter. Knows nothing of faults: who breaks the store, and when, is the test's own business.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import math
import multiprocessing
import operator
import os
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from limen import AsyncLimiter, Decision, Limit, Limiter
from tests.waiting import generous

LIMIT = Limit(100, 10, algorithm="packed_window")
WORKERS = 4
DEADLINE_S = 0.05
FIRST_P99_S = generous(0.06)
"""What p99 may be in the first second of a fault."""
P99_S = generous(0.002)
"""What it may be from then on."""

_SLACK_S = 0.001
"""By how much the clocks of two processes may drift apart within one window."""
_PATIENCE_S = 20.0
_BETWEEN_PAUSES_S = (0.2, 0.6)
NICE = 10
"""For processes that may starve while the store must not: its slowness would be another fault."""
_REST_S = 3.0
_KEPT_LINES = 200
_TICK_S = 0.005
_FROZEN_S = 0.03
_THAW_S = 0.1
"""How long after a freeze there is still work left from it."""


class Asked(NamedTuple):
    """One line of the history."""

    at: float
    """`time.monotonic()` when it was asked: the same clock in all processes of the machine."""
    took: float
    """Seconds."""
    worker: int
    key: str
    allowed: bool
    source: str
    """store, local, open, closed; empty when it raised."""
    fault: str
    """The kind of fault because of which the store did not decide; empty when it did."""
    error: str
    """The exception's text; empty without one."""


class Vitals(NamedTuple):
    """What a worker takes up, between two requests."""

    rss: int
    """Bytes."""
    fds: int
    tasks: int
    """Of asyncio; 0 in a worker with threads."""
    threads: int
    shards: tuple[Any, ...]
    """What `limiter.shards` says."""
    logged: int
    """How many lines it has logged so far."""
    at: float
    """`time.monotonic()` when it was looked at."""
    cpu: float
    """Seconds for which it has used a processor so far."""


@dataclass
class History:
    """What all workers were told, in the order they asked."""

    asked: list[Asked]
    before: list[Vitals] = field(default_factory=list)
    """Of each worker when it was connected, and idle."""
    after: list[Vitals] = field(default_factory=list)
    """Of each worker when its last request was answered."""
    lines: list[str] = field(default_factory=list)
    """The first lines that each worker has logged."""
    freezes: list[tuple[float, float]] = field(default_factory=list)
    """From when to when the machine stood still: the test, which does nothing, did not run."""

    def errors(self) -> list[Asked]:
        """Return what callers saw as an exception, or never saw answered."""
        return [each for each in self.asked if each.error]

    def keys(self) -> list[str]:
        return sorted({each.key for each in self.asked})

    def most_admitted(self, key: str | None = None, period: float = 10.0) -> int:
        """Return what was admitted of one key in its worst window; without one, of the worst key.

        Counts what was asked and answered within the window. When exactly in between a request was
        charged is not known, so one that reaches over an edge may belong to the next window.
        """
        keys = self.keys() if key is None else [key]
        return max((worst(self.admitted(each), period)[0] for each in keys), default=0)

    def admitted(self, key: str) -> list[Asked]:
        """Return what was let through of one key."""
        return [each for each in self.asked if each.allowed and each.key == key]

    def p99(self, since: float, until: float) -> float:
        """Return how many seconds 99 of 100 requests took at most, of those asked between these.

        Without those that were under way while the machine stood still; unless they are the most.
        """
        asked = [each for each in self.asked if since <= each.at < until]
        moving = [each for each in asked if not self.is_frozen(each)]
        took = sorted(each.took for each in (moving if 2 * len(moving) > len(asked) else asked))
        return took[math.ceil(len(took) * 0.99) - 1] if took else 0.0

    def is_frozen(self, asked: Asked) -> bool:
        """Return whether the machine stood still while somebody waited, or just before."""
        last = bisect_right(self.freezes, (asked.at + asked.took, math.inf)) - 1
        return last >= 0 and self.freezes[last][1] + _THAW_S >= asked.at

    def degraded(
        self, since: float = 0.0, until: float = math.inf, keys: Sequence[str] | None = None
    ) -> list[Asked]:
        """Return what somebody else than the store decided, of what was asked between these."""
        return [
            each
            for each in self.asked
            if each.source != "store"
            and since <= each.at < until
            and (keys is None or each.key in keys)
        ]

    def back_on_store(self, since: float, until: float = math.inf) -> float:
        """Return after how many seconds every answer to every worker is the store's.

        Without end when the last answer to some worker is not.
        """
        last: dict[int, Asked] = {}
        degraded = since
        for each in self.asked:
            if since <= each.at < until:
                last[each.worker] = each
                if each.source != "store":
                    degraded = max(degraded, each.at)
        if not last or any(each.source != "store" for each in last.values()):
            return math.inf
        return degraded - since

    def share_of_store(self, since: float, until: float) -> float:
        """Return which part of what was asked in between the store has decided.

        Without what was asked while the machine stood still; unless that is all.
        """
        asked = [each for each in self.asked if since <= each.at < until]
        moving = [each for each in asked if not self.is_frozen(each)] or asked
        return sum(each.source == "store" for each in moving) / max(len(moving), 1)

    def opened(self) -> int:
        """Return how often a breaker has opened, over all workers, since they were connected."""
        return _opened(self.after) - _opened(self.before)

    def cpu_share(self) -> float:
        """Return which part of the machine's processors all workers used while they asked."""
        cores = os.cpu_count() or 1
        pairs = zip(self.before, self.after, strict=True)
        return sum((end.cpu - begin.cpu) / (end.at - begin.at) for begin, end in pairs) / cores

    def frozen_share(self) -> float:
        """Return for which part of the run the machine stood still."""
        if not self.asked:
            return 0.0
        first, last = self.asked[0].at, self.asked[-1].at + self.asked[-1].took
        frozen = sum(max(min(end, last) - max(begin, first), 0.0) for begin, end in self.freezes)
        return frozen / max(last - first, _TICK_S)

    def sources(self, since: float = 0.0, until: float = math.inf) -> Counter[str]:
        """Return who decided how many."""
        return Counter(each.source for each in self.asked if since <= each.at < until)


def worst(admitted: Sequence[Asked], period: float) -> tuple[int, float]:
    """Return how many surely lie in one window of that length, and when the worst such begins."""
    # What took longer than a window lies in none for certain.
    sure = [each for each in admitted if each.took < period]
    begins = sorted(each.at for each in sure)
    ends = sorted(each.at + each.took for each in sure)
    most, when = 0, 0.0
    for before, begin in enumerate(begins):
        # All that has ended by then, without what began before: that has ended too.
        count = bisect_left(ends, begin + period - _SLACK_S) - before
        if count > most:
            most, when = count, begin
    return most, when


def _opened(vitals: Sequence[Vitals]) -> int:
    return sum(shard.opened for each in vitals for shard in each.shards)


class Rig:
    """The workers, while they ask."""

    def __init__(self, workers: list[_Worker]) -> None:
        self._workers = workers
        self._history: History | None = None
        self._freezes: list[tuple[float, float]] = []
        self._watching = threading.Event()
        self._watch = threading.Thread(target=self._look_for_freezes, daemon=True)
        self._watch.start()

    def _look_for_freezes(self) -> None:
        last = time.monotonic()
        while not self._watching.wait(_TICK_S):
            now = time.monotonic()
            if now - last > _FROZEN_S:
                self._freezes.append((last, now))
            last = now

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid or 0 for worker in self._workers]

    def seconds(self, s: float) -> None:
        """Let the load go on for that long."""
        time.sleep(s)

    def shards(self) -> list[Vitals]:
        """Return what `limiter.shards` says in each worker now, and what the worker takes up."""
        return [worker.ask("vitals") for worker in self._workers]

    def stop(self) -> History:
        """End the load and collect the history. The second time, return the same."""
        if self._history is None:
            for worker in self._workers:
                worker.pipe.send("stop")
            found = [worker.answer() for worker in self._workers]
            self.end()
            asked = [each for history, _ in found for each in history.asked]
            self._history = History(
                sorted(asked),
                [vitals for history, _ in found for vitals in history.before],
                [vitals for history, _ in found for vitals in history.after],
                [line for _, lines in found for line in lines],
                self._freezes,
            )
        return self._history

    def end(self) -> None:
        """Look for freezes no more."""
        self._watching.set()
        self._watch.join(10)


@contextmanager
def rig(
    url: str,
    *,
    keys: Sequence[str] = ("hot",),
    rate: float = 40.0,
    limit: Limit = LIMIT,
    limits: Mapping[str, Limit] | None = None,
    deadline: float = DEADLINE_S,
    warm: bool = True,
    pauses: tuple[float, float] | None = None,
) -> Iterator[Rig]:
    """Start the workers; yield when all of them are connected and ask.

    Two have an `AsyncLimiter`, two a `Limiter` and a few threads. Each asks `rate` times a second
    in all, for the keys in turn; one that is there twice is asked for twice as often. `limits` are
    those of keys that have another than `limit`. Without `warm`, they begin without a connection.
    With `pauses`, each worker stops running every few tenths of a second, for a random time between
    these two numbers of seconds, and gives way to the store where processors are scarce.
    """
    load = _Load(url, tuple(keys), rate, limit, dict(limits or {}), deadline, warm, pauses)
    spawn = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    try:
        for number in range(WORKERS):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_work, args=(load, number, there), daemon=True)
            process.start()
            there.close()
            workers.append(_Worker(process, here))
        for worker in workers:
            worker.answer()
        begin = time.monotonic() + 0.1
        for worker in workers:
            worker.pipe.send(begin)
        for worker in workers:
            worker.answer()
        started = Rig(workers)
        try:
            yield started
            started.stop()
        finally:
            started.end()
    finally:
        for worker in workers:
            worker.end()


@dataclass
class _Worker:
    """One of them, as the test sees it."""

    process: BaseProcess
    pipe: Connection

    def ask(self, word: str) -> Any:
        self.pipe.send(word)
        return self.answer()

    def answer(self) -> Any:
        if not self.pipe.poll(_PATIENCE_S + 10):
            raise TimeoutError("a worker of the rig does not answer")
        said = self.pipe.recv()
        if isinstance(said, Exception):
            raise said
        return said

    def end(self) -> None:
        self.pipe.close()
        self.process.join(2)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(10)
        self.process.close()


class _Load(NamedTuple):
    """What every worker is told."""

    url: str
    keys: tuple[str, ...]
    rate: float
    limit: Limit
    limits: dict[str, Limit]
    deadline: float
    warm: bool
    pauses: tuple[float, float] | None

    def turn(self, number: int, count: int) -> tuple[str, Limit]:
        """Return what a worker asks for in its request of this count."""
        key = self.keys[(count + number) % len(self.keys)]
        return key, self.limits.get(key, self.limit)

    def due(self, number: int, count: int) -> float:
        """Return how many seconds after the beginning a worker asks for the count-th time."""
        return (count + number / WORKERS) / self.rate


class _Asker(Protocol):
    """Asks in one of the two ways."""

    def connect(self) -> None:
        """Find the store, or raise."""

    def begin(self, at: float) -> None:
        """Ask by the schedule from then on; return when it has begun."""

    def pause(self, seconds: float) -> None:
        """Stop the worker for that long, as a blocking call does."""

    def finish(self) -> None:
        """Ask no more; return when all is answered."""

    def tasks(self) -> int:
        """Return how many tasks there are."""

    def shards(self) -> tuple[Any, ...]:
        """Return what the limiter says of its servers."""

    def close(self) -> None:
        """Let go of the store."""


def _work(load: _Load, number: int, pipe: Connection) -> None:
    """Be a worker. Nothing that a limiter raises ends it: that is what the history is for."""
    lines = _Lines()
    logging.getLogger().addHandler(lines)
    notes = _Notes(number)
    asker: _Asker = (_Tasks if number % 2 == 0 else _Threads)(load, number, notes)

    def vitals() -> Vitals:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        fds = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # a path for each would be waste
        rss = pages * os.sysconf("SC_PAGE_SIZE")
        return Vitals(
            rss,
            fds,
            asker.tasks(),
            len(os.listdir("/proc/self/task")),  # noqa: PTH208  # as above
            asker.shards(),
            lines.count,
            time.monotonic(),
            time.process_time(),
        )

    try:
        if load.pauses is not None:
            os.nice(NICE)
        if load.warm:
            asker.connect()
        before = vitals()
        pipe.send("connected")
        asker.begin(pipe.recv())
        pipe.send("begun")
        if load.pauses is not None:
            pausing = (asker.pause, load.pauses, Random(number))
            threading.Thread(target=_keep_pausing, args=pausing, daemon=True).start()
        while pipe.recv() != "stop":
            pipe.send(vitals())
        asker.finish()
        after = vitals()
        ends = time.monotonic() + (_REST_S if load.warm else 0)
        # What is done in the background has some time to come to its end.
        while any(map(operator.gt, after[1:4], before[1:4])) and time.monotonic() < ends:
            time.sleep(0.1)
            after = vitals()._replace(at=after.at, cpu=after.cpu)  # it asks no more
        pipe.send((History(notes.all(), [before], [after]), lines.first))
        asker.close()
    except EOFError:  # the test has ended, and did not care for the history
        os._exit(0)
    except Exception as error:
        pipe.send(RuntimeError(f"worker {number} of the rig: {error!r}"))


def _keep_pausing(
    pause: Callable[[float], None], seconds: tuple[float, float], random: Random
) -> None:
    while True:
        time.sleep(random.uniform(*_BETWEEN_PAUSES_S))
        pause(random.uniform(*seconds))


def stop_all_threads(seconds: float) -> None:
    """Sleep without releasing the interpreter lock: no thread of this process runs meanwhile."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


class _Notes:
    """The history of one worker, packed: it must not look like a leak of what is under test."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._times = array("d")
        self._told: list[tuple[str, bool, str, str, str]] = []
        self._known: dict[tuple[str, bool, str, str, str], tuple[str, bool, str, str, str]] = {}
        self._mutex = threading.Lock()

    def add(self, at: float, key: str, told: Decision | BaseException) -> None:
        took = time.monotonic() - at
        if isinstance(told, Decision):
            fault = getattr(told, "fault", "")
            line = (key, told.allowed, str(told.source), str(fault), "")
        else:
            line = (key, False, "", "", f"{type(told).__name__}: {told}")
        with self._mutex:
            self._times.extend((at, took))
            self._told.append(self._known.setdefault(line, line))

    def all(self) -> list[Asked]:
        times = self._times
        return [
            Asked(times[2 * index], times[2 * index + 1], self._number, *told)
            for index, told in enumerate(self._told)
        ]


class _Lines(logging.Handler):
    """Counts what is logged, and keeps the first lines."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.first: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        if len(self.first) < _KEPT_LINES:
            self.first.append(f"{record.name} {record.levelname}: {record.getMessage()}")


class _Threads:
    """A limiter and threads, each of which takes every so-manyth request of the schedule."""

    def __init__(self, load: _Load, number: int, notes: _Notes) -> None:
        self._load, self._number, self._notes = load, number, notes
        self._limiter = Limiter(load.url, instances=WORKERS, deadline=load.deadline)
        self._stop = threading.Event()
        # So many that one is free, even when every request takes the whole deadline twice.
        count = max(4, math.ceil(2 * load.rate * load.deadline))
        self._threads = [
            threading.Thread(target=self._ask, args=(each, count), daemon=True)
            for each in range(count)
        ]
        self._begin = 0.0

    def connect(self) -> None:
        self._limiter.ping()
        for _ in range(50):
            self._limiter.check("the rig's own", self._load.limit)

    def begin(self, at: float) -> None:
        self._begin = at
        for thread in self._threads:
            thread.start()

    def _ask(self, first: int, step: int) -> None:
        count = first
        while True:
            due = self._begin + self._load.due(self._number, count)
            if self._stop.wait(max(due - time.monotonic(), 0)):
                return
            key, limit = self._load.turn(self._number, count)
            at = time.monotonic()
            told: Decision | BaseException
            try:
                told = self._limiter.check(key, limit)
            except BaseException as error:
                told = error
            self._notes.add(at, key, told)
            count += step

    def pause(self, seconds: float) -> None:
        stop_all_threads(seconds)

    def finish(self) -> None:
        self._stop.set()
        ends = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(ends - time.monotonic(), 0))
            if thread.is_alive():
                self._notes.add(ends - _PATIENCE_S, "", TimeoutError("it was never answered"))

    def tasks(self) -> int:
        return 0

    def shards(self) -> tuple[Any, ...]:
        return tuple(getattr(self._limiter, "shards", ()))

    def close(self) -> None:
        self._limiter.close()


class _Tasks:
    """A limiter in a loop of its own, in which every request is a task of its own."""

    def __init__(self, load: _Load, number: int, notes: _Notes) -> None:
        self._load, self._number, self._notes = load, number, notes
        self._loop = asyncio.new_event_loop()
        self._stopped = False
        self._schedule: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._limiter = self._run(self._make())

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * _PATIENCE_S)

    async def _make(self) -> AsyncLimiter:
        return AsyncLimiter(self._load.url, instances=WORKERS, deadline=self._load.deadline)

    def connect(self) -> None:
        self._run(self._connect())

    async def _connect(self) -> None:
        await self._limiter.ping()
        for _ in range(50):
            await self._limiter.check("the rig's own", self._load.limit)

    def begin(self, at: float) -> None:
        self._run(self._start(at))

    async def _start(self, at: float) -> None:
        self._schedule = asyncio.create_task(self._keep_schedule(at))

    async def _keep_schedule(self, begin: float) -> None:
        count = 0
        while not self._stopped:
            due = begin + self._load.due(self._number, count)
            await asyncio.sleep(max(due - time.monotonic(), 0))
            task = asyncio.create_task(self._ask(*self._load.turn(self._number, count)))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            count += 1

    async def _ask(self, key: str, limit: Limit) -> None:
        at = time.monotonic()
        told: Decision | BaseException
        try:
            told = await self._limiter.check(key, limit)
        except BaseException as error:
            told = error
        self._notes.add(at, key, told)

    def pause(self, seconds: float) -> None:
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def finish(self) -> None:
        self._run(self._finish())

    async def _finish(self) -> None:
        self._stopped = True
        if self._schedule is not None:
            await self._schedule
        if self._open:
            await asyncio.wait(self._open, timeout=_PATIENCE_S)
        for _ in self._open:
            at = time.monotonic() - _PATIENCE_S
            self._notes.add(at, "", TimeoutError("it was never answered"))

    def tasks(self) -> int:
        return int(self._run(self._count()))

    async def _count(self) -> int:
        return len(asyncio.all_tasks()) - 1

    def shards(self) -> tuple[Any, ...]:
        return tuple(getattr(self._limiter, "shards", ()))

    def close(self) -> None:
        self._run(self._limiter.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
