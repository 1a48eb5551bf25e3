"""Trouble at random, from a seed: a plan of faults, the hands that cause them, and the judge.

The judge knows of each window how much may have been admitted in it, given the faults that were in
force: the limit; once more, if processes may have counted for themselves; and once more for each
time that the store lost its state.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from limen import Limit
from tests import servers
from tests.faults.proxy import Proxy
from tests.faults.rig import Asked, History

KEPT = ("--appendonly", "yes", "--appendfsync", "no")
"""With this a kill loses nothing: all is written before it is answered, and the kernel has it."""
OPTIONS = (*KEPT, "--busy-reply-threshold", "100")
RECOVERY_S = 1.0
"""How long after the end of a fault processes may still count for themselves."""
_EDGE_S = 0.001


@dataclass
class Place:
    """What a nemesis lays hands on."""

    server: servers.Server
    between: Proxy
    random: Random

    @contextmanager
    def admin(self) -> Iterator[redis.Redis]:
        client = redis.Redis(
            port=self.server.port, socket_timeout=10, retry=Retry(NoBackoff(), 0), protocol=3
        )
        try:
            yield client
        finally:
            client.close()


Trouble = Callable[[Place, float], AbstractContextManager[None]]
"""Begins a fault that is to last for so many seconds, and ends it."""


class Kind(NamedTuple):
    """A kind of fault."""

    cause: Trouble
    disturbs: bool = True
    """Whether processes may count for themselves because of it."""
    loses: bool = False
    """Whether the store's state is lost by it."""
    lasts: bool = True
    """Whether it has a duration, or is over when it is done."""


@contextmanager
def _killed(place: Place, _: float) -> Iterator[None]:
    place.server.kill()
    yield
    place.server.restart()


@contextmanager
def _emptied(place: Place, _: float) -> Iterator[None]:
    place.server.kill()
    rmtree(place.server.folder / "appendonlydir")
    yield
    place.server.restart()


@contextmanager
def _paused(place: Place, _: float) -> Iterator[None]:
    place.server.pause()
    yield
    place.server.resume()


@contextmanager
def _flushed(place: Place, _: float) -> Iterator[None]:
    with place.admin() as admin:
        admin.flushall()
    yield


@contextmanager
def _scripts_flushed(place: Place, _: float) -> Iterator[None]:
    with place.admin() as admin, _again(0.01, admin.script_flush):
        yield


@contextmanager
def _out_of_memory(place: Place, _: float) -> Iterator[None]:
    with place.admin() as admin:
        admin.config_set("maxmemory", "1")
        yield
        admin.config_set("maxmemory", "0")


@contextmanager
def _clients_paused(place: Place, seconds: float) -> Iterator[None]:
    with place.admin() as admin:
        admin.client_pause(max(int(1_000 * seconds), 1))
    yield


@contextmanager
def _busy(place: Place, _: float) -> Iterator[None]:
    def work() -> None:
        with place.admin() as admin, suppress(redis.RedisError):
            admin.eval("while true do end", 0)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    with place.admin() as admin:
        while thread.is_alive():
            with suppress(redis.ResponseError):  # it is not that long at work, or has just ended
                admin.script_kill()
            thread.join(0.05)


@contextmanager
def _too_many_clients(place: Place, _: float) -> Iterator[None]:
    with place.admin() as admin:
        before = int(admin.config_get("maxclients")["maxclients"] or 0)
        admin.config_set("maxclients", "1")
        place.between.cut()
        yield
        admin.config_set("maxclients", before)


@contextmanager
def _late(place: Place, _: float) -> Iterator[None]:
    place.between.delay = place.random.uniform(0.02, 0.3)
    yield
    place.between.delay = 0.0


@contextmanager
def _jitter(place: Place, _: float) -> Iterator[None]:
    place.between.jitter = 0.02
    yield
    place.between.jitter = 0.0


@contextmanager
def _cut(place: Place, _: float) -> Iterator[None]:
    with _again(place.random.uniform(0.02, 0.5), place.between.cut):
        yield


@contextmanager
def _cut_mid_reply(place: Place, _: float) -> Iterator[None]:
    def cut() -> None:
        place.between.cut_reply_after(place.random.randrange(60))

    with _again(place.random.choice((0.002, 0.05)), cut):
        yield


@contextmanager
def _garbage(place: Place, _: float) -> Iterator[None]:
    def send() -> None:
        place.between.garbage(place.random.randbytes(place.random.randrange(1, 60)))

    with _again(place.random.choice((0.002, 0.05)), send):
        yield


@contextmanager
def _replies_dropped(place: Place, _: float) -> Iterator[None]:
    place.between.drop_replies()
    yield
    place.between.drop_replies(False)


@contextmanager
def _refused(place: Place, _: float) -> Iterator[None]:
    place.between.refuse()
    place.between.cut()
    yield
    place.between.refuse(False)


@contextmanager
def _stalled(place: Place, _: float) -> Iterator[None]:
    place.between.stall()
    yield
    place.between.flow()


@contextmanager
def _again(pause_s: float, do: Callable[[], object]) -> Iterator[None]:
    """Do it at once, and again after each pause."""
    stop = threading.Event()

    def work() -> None:
        while True:
            do()
            if stop.wait(pause_s):
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


KINDS = {
    "killed": Kind(_killed),
    "killed and emptied": Kind(_emptied, loses=True),
    "paused": Kind(_paused),
    "flushed": Kind(_flushed, disturbs=False, loses=True, lasts=False),
    "scripts flushed": Kind(_scripts_flushed, disturbs=False),
    "out of memory": Kind(_out_of_memory),
    "clients paused": Kind(_clients_paused),
    "busy with a script": Kind(_busy),
    "too many clients": Kind(_too_many_clients),
    "late": Kind(_late),
    "jitter": Kind(_jitter),
    "cut": Kind(_cut),
    "cut mid-reply": Kind(_cut_mid_reply),
    "garbage": Kind(_garbage),
    "replies dropped": Kind(_replies_dropped),
    "refused": Kind(_refused),
    "stalled": Kind(_stalled),
}
# Two hands, so that faults of the server and of the way to it come together.
_HANDS = (tuple(KINDS)[:9], tuple(KINDS)[9:])


class Planned(NamedTuple):
    """A fault to come."""

    after_s: float
    """Seconds after the beginning."""
    lasts_s: float
    kind: str


def plan(seed: int, seconds: float, period: float) -> list[list[Planned]]:
    """Return what each hand does: storms of faults, and between them calm, for about a period."""
    random = Random(seed)
    hands: list[list[Planned]] = [[] for _ in _HANDS]
    storm = 0.25 * period
    while storm < seconds:
        calm = min(storm + random.uniform(1, 4) * period, seconds)
        for hand, kinds in zip(hands, _HANDS, strict=True):
            at = storm + random.uniform(0, 0.3) * period
            while at < calm:
                kind = random.choice(kinds)
                # Many short ones and a few long ones.
                lasts = period * random.choice((0.02, 0.1, 0.5)) * random.uniform(0.5, 1.5)
                lasts = min(lasts, calm - at) if KINDS[kind].lasts else 0.0
                hand.append(Planned(at, lasts, kind))
                at += lasts + random.uniform(0.01, 0.4) * period
        storm = calm + random.uniform(0.5, 3) * period
    return hands


@dataclass
class Event:
    """A fault that has been, and when."""

    began: float
    ended: float
    kind: str


class Nemesis:
    """Carries out a plan, in the background, and keeps the log of it."""

    def __init__(self, place: Place, hands: list[list[Planned]]) -> None:
        self.log: list[Event] = []
        self._place = place
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._began = 0.0
        self._hands = [threading.Thread(target=self._work, args=(hand,)) for hand in hands]

    def __enter__(self) -> Nemesis:
        self._began = time.monotonic()
        for hand in self._hands:
            hand.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.wait()

    def wait(self) -> None:
        """Return when all is done, and mended."""
        for hand in self._hands:
            hand.join()
        if self._failed:
            raise self._failed[0]

    def _work(self, hand: list[Planned]) -> None:
        try:
            for each in hand:
                if self._stop.wait(max(self._began + each.after_s - time.monotonic(), 0)):
                    return
                began = time.monotonic()
                with KINDS[each.kind].cause(self._place, each.lasts_s):
                    self._stop.wait(each.lasts_s)
                self.log.append(Event(began, time.monotonic(), each.kind))
        except BaseException as error:
            self._failed.append(error)


@dataclass
class Violation:
    """A window in which more was admitted than the faults in force allow."""

    key: str
    begins: float
    admitted: int
    bound: int
    faults: list[Event]
    sources: dict[str, int]

    def __str__(self) -> str:
        faults = "; ".join(
            f"{each.kind} from {each.began - self.begins:+.2f} to {each.ended - self.begins:+.2f}"
            for each in self.faults
        )
        sources = ", ".join(f"{count} by {source}" for source, count in self.sources.items())
        return (
            f"{self.key}: {self.admitted} admitted ({sources}), {self.bound} allowed in the window"
            f" that begins at {self.begins:.3f}; in force, in seconds from then: {faults or 'none'}"
        )


@dataclass
class Verdict:
    """What the judge says."""

    windows: int = 0
    """How many were looked at."""
    strict: int = 0
    """How many of them had the bound of windows without any fault: the limit itself."""
    tightest: dict[int, float] = field(default_factory=dict)
    """The largest share of its bound that was admitted in a window, for bounds of so many limits.

    1 is the bound of windows without any fault.
    """
    violations: list[Violation] = field(default_factory=list)
    strays: list[Asked] = field(default_factory=list)
    """What was not decided by the store though nothing was wrong: by a machine that was busy."""
    calmest: float | None = None
    """The smallest share of its limit that a key was given in a long calm; None without one."""
    passed: dict[str, float] = field(default_factory=dict)
    """How much of what its limit allows each key was given, over the whole run."""


def judge(history: History, log: Sequence[Event], limits: Mapping[str, Limit]) -> Verdict:
    """Compare every window of every key with what the faults in force allow."""
    disturbed = [(each.began, each.ended + RECOVERY_S) for each in log if KINDS[each.kind].disturbs]
    verdict = Verdict()
    faults = _Spans(disturbed)
    verdict.strays = [each for each in history.degraded() if not faults.touching(each.at, each.at)]
    local = _Spans(disturbed + [(each.at, each.at + each.took) for each in verdict.strays])
    losses = _Spans([(each.began, each.ended) for each in log if KINDS[each.kind].loses])
    for key, limit in limits.items():
        _judge_key(verdict, key, limit, history, log, local, losses)
        _look_for_calm(verdict, key, limit, history, log)
    return verdict


def _judge_key(
    verdict: Verdict,
    key: str,
    limit: Limit,
    history: History,
    log: Sequence[Event],
    local: _Spans,
    losses: _Spans,
) -> None:
    period = limit.period_us / 1e6
    admitted = [each for each in history.admitted(key) if each.took < period]
    begins = [each.at for each in admitted]
    ends = sorted(each.at + each.took for each in admitted)
    # A window can be moved until it begins with an admission, ends with one, or is just rid of a
    # fault, without losing an admission or gaining a fault: so these are all that matter.
    starts = {*begins, *(end - period + 2 * _EDGE_S for end in ends), *local.ends, *losses.ends}
    worst: Violation | None = None
    for start in sorted(starts):
        until = start + period
        # All that has ended by then, without what was asked before: that has ended too.
        count = bisect_left(ends, until - _EDGE_S) - bisect_left(begins, start)
        disturbed = local.touching(start, until) > 0
        times = 1 + disturbed + losses.touching(start, until)
        bound = times * limit.quota
        verdict.windows += 1
        verdict.strict += times == 1
        verdict.tightest[times] = max(verdict.tightest.get(times, 0.0), count / bound)
        if count > bound and (worst is None or count - bound > worst.admitted - worst.bound):
            inside = [each for each in admitted if start <= each.at < until]
            faults = [e for e in log if e.began < until and e.ended + RECOVERY_S > start]
            sources = dict(Counter(each.source for each in inside))
            worst = Violation(key, start, count, bound, faults, sources)
    if worst is not None:
        verdict.violations.append(worst)
    seconds = history.asked[-1].at - history.asked[0].at
    verdict.passed[key] = len(admitted) / (limit.quota * max(seconds / period, 1))


def _look_for_calm(
    verdict: Verdict, key: str, limit: Limit, history: History, log: Sequence[Event]
) -> None:
    """See whether a key is given its limit again when nothing has been wrong for two periods."""
    period = limit.period_us / 1e6
    begins = [each.at for each in history.admitted(key)]
    quiet = history.asked[0].at
    for each in [*sorted(log, key=lambda event: event.began), None]:
        until = history.asked[-1].at if each is None else each.began
        if until - quiet > 2 * period:
            count = bisect_left(begins, until) - bisect_left(begins, until - period)
            share = count / limit.quota
            verdict.calmest = share if verdict.calmest is None else min(verdict.calmest, share)
        if each is not None:
            quiet = max(quiet, each.ended + RECOVERY_S)


class _Spans:
    """Stretches of time, of which one can ask how many touch a window."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        found = list(spans)
        self._begins = sorted(begin for begin, _ in found)
        self.ends = sorted(end for _, end in found)

    def touching(self, since: float, until: float) -> int:
        return bisect_right(self._begins, until) - bisect_left(self.ends, since)


def write(folder: Path, history: History, log: Iterable[Event]) -> None:
    """Keep the history and the log, a line of JSON for each."""
    with (folder / "history.jsonl").open("w") as file:
        for each in history.asked:
            file.write(json.dumps(each._asdict()) + "\n")
    with (folder / "nemesis.jsonl").open("w") as file:
        for event in sorted(log, key=lambda event: event.began):
            file.write(json.dumps(asdict(event)) + "\n")
