"""A store that dies, hangs, crawls, stammers or comes and goes: what callers see, in figures."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from random import Random

import pytest

from limen import Limit
from tests import servers
from tests.faults.figures import say
from tests.faults.nemesis import KEPT
from tests.faults.proxy import Proxy, proxy
from tests.faults.rig import FIRST_P99_S, LIMIT, P99_S, WORKERS, History, rig
from tests.waiting import FULL

SHORT = Limit(40, 2, algorithm="packed_window")
LOAD = LIMIT if FULL else SHORT
PERIOD_S = LOAD.period_us / 1e6
BEFORE_S, OUTAGE_S, AFTER_S = (3.0, 10.0, 11.0) if FULL else (0.7, 2.5, 2.2)
MOST = 0.95 if FULL else 0.9
"""What the store decides at least when all is well: on a busy machine, an answer may be late."""
SLOW_S = 30.0 if FULL else 3.0
MOST_CPU = 0.3
"""Which part of the machine the load may use: else it is the load that makes callers wait."""
MOST_FROZEN = 0.1
"""For which part of a full run the machine may stand still: what happened then proves nothing."""
KEY = "customer-4711"


@dataclass
class Place:
    """Where it goes wrong."""

    server: servers.Server
    between: Proxy


Trouble = Callable[[Place], AbstractContextManager[None]]


@contextmanager
def killed(place: Place) -> Iterator[None]:
    place.server.kill()
    yield
    place.server.restart()


@contextmanager
def paused(place: Place) -> Iterator[None]:
    place.server.pause()
    yield
    place.server.resume()


@contextmanager
def slow(place: Place) -> Iterator[None]:
    place.between.delay = 0.2
    yield
    place.between.delay = 0.0


@contextmanager
def resetting_mid_reply(place: Place) -> Iterator[None]:
    random = Random(9)
    with again_and_again(lambda: place.between.cut_reply_after(random.randrange(40))):
        yield


@contextmanager
def sending_garbage(place: Place) -> Iterator[None]:
    random = Random(9)
    with again_and_again(lambda: place.between.garbage(random.randbytes(random.randrange(1, 60)))):
        yield


@contextmanager
def swallowing_replies(place: Place) -> Iterator[None]:
    place.between.drop_replies()
    yield
    place.between.drop_replies(False)


@contextmanager
def again_and_again(do: Callable[[], None]) -> Iterator[None]:
    """Do it every millisecond, so that no reply gets by."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.001):
            do()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


@contextmanager
def place(*options: str) -> Iterator[Place]:
    with (
        servers.process(servers.binaries()["valkey"], *options) as server,
        proxy(server.port) as between,
    ):
        yield Place(server, between)


def machine(history: History) -> dict[str, float]:
    """Return the figures of the machine itself."""
    return {"cpu_share": history.cpu_share(), "frozen_share": history.frozen_share()}


def check_callers(history: History) -> None:
    """Nobody saw an error, and nobody can read in the log who was limited, or drowns in it."""
    assert not history.errors()
    assert not [line for line in history.lines if KEY in line]
    seconds = history.asked[-1].at - history.asked[0].at
    assert max(each.logged for each in history.after) <= 10 * seconds


def check_machine(history: History) -> None:
    """The machine had room for the load: what callers waited for was the store."""
    assert history.cpu_share() < MOST_CPU
    if FULL:
        assert history.frozen_share() < MOST_FROZEN


def check_bound(history: History, times: int) -> int:
    """No window has more than so many times the limit; return how many the worst one has."""
    admitted = history.most_admitted(KEY, PERIOD_S)
    assert admitted <= times * LOAD.quota, history.sources()
    return admitted


def check_back(history: History, returned: float) -> None:
    """After a second, the store decides again."""
    assert history.share_of_store(returned + 1, returned + 2) > MOST


def go_through(name: str, trouble: Trouble, *options: str, through: bool, times: int = 2) -> None:
    """Cause trouble in the middle of a load, and check all that was promised for it."""
    with ExitStack() as stack:
        where = stack.enter_context(place(*options))
        port = where.between.port if through else where.server.port
        load = stack.enter_context(rig(f"redis://127.0.0.1:{port}", keys=[KEY], limit=LOAD))
        load.seconds(BEFORE_S)
        began = time.monotonic()
        with trouble(where):
            load.seconds(OUTAGE_S)
            ended = time.monotonic()
        returned = time.monotonic()
        load.seconds(AFTER_S)
        history = load.stop()
    figures = {
        "p99_before": history.p99(0, began),
        "p99_first": history.p99(began, began + 1),
        "p99_after": history.p99(began + 1, ended),
        "p99_back": history.p99(returned + 1, math.inf),
        # What is late after that has another cause.
        "back": history.back_on_store(returned, until=returned + 2),
        "freezes": len(history.freezes),
        **machine(history),
    }
    admitted = history.most_admitted(KEY, PERIOD_S)
    bound = times * LOAD.quota
    say(name, admitted=admitted, bound=bound, **figures, opened=history.opened())
    check_machine(history)
    check_callers(history)
    check_bound(history, times)
    assert history.share_of_store(0, began - 0.2) > 0.9
    assert history.degraded(began, ended), "nothing was wrong"
    assert history.opened() >= WORKERS
    assert figures["p99_first"] <= FIRST_P99_S
    assert figures["p99_after"] <= P99_S
    check_back(history, returned)


class TestOutages:
    def test_killed_and_back_with_its_state(self) -> None:
        go_through("killed", killed, *KEPT, through=False)

    @pytest.mark.slow
    def test_killed_and_back_empty(self) -> None:
        go_through("killed, state lost", killed, through=False, times=3)

    @pytest.mark.slow
    def test_paused(self) -> None:
        go_through("paused", paused, through=False)

    @pytest.mark.parametrize(
        "trouble",
        [
            slow,
            pytest.param(resetting_mid_reply, marks=pytest.mark.slow),
            pytest.param(sending_garbage, marks=pytest.mark.slow),
            pytest.param(swallowing_replies, marks=pytest.mark.slow),
        ],
    )
    def test_broken_on_the_way(self, trouble: Trouble) -> None:
        name = trouble.__name__.replace("_", " ")
        go_through(name, trouble, through=True)


class TestComesAndGoes:
    @pytest.mark.slow
    def test_a_flapping_store_hands_out_no_fresh_limit(self) -> None:
        with place() as where, ExitStack() as stack:
            url = f"redis://127.0.0.1:{where.between.port}"
            load = stack.enter_context(rig(url, keys=[KEY], limit=LOAD))
            load.seconds(BEFORE_S)
            began = time.monotonic()
            for _ in range(10):
                where.between.refuse()
                where.between.cut()
                load.seconds(2)
                where.between.refuse(False)
                load.seconds(2)
            returned = time.monotonic() - 2
            history = load.stop()
        back, p99 = history.back_on_store(returned), history.p99(began, math.inf)
        admitted, bound = history.most_admitted(KEY, PERIOD_S), 2 * LOAD.quota
        opened = history.opened()
        # Of what the limit allows in that time. What was used up before it began is over by then.
        later = [each for each in history.admitted(KEY) if each.at > began + PERIOD_S]
        passed = len(later) / (LOAD.quota * (history.asked[-1].at - began - PERIOD_S) / PERIOD_S)
        figures = {"passed": passed, "p99": p99, "back": back, "opened": opened}
        say("flapping", admitted=admitted, bound=bound, **figures, **machine(history))
        check_machine(history)
        check_callers(history)
        check_bound(history, 2)
        assert passed < 1.4, "what was admitted elsewhere is not settled"
        assert opened >= 10 * WORKERS, "it was not asked while it was there"
        assert p99 <= FIRST_P99_S
        check_back(history, returned)


class TestSlow:
    """A store that answers, but nearly too late. Delays are those of one way, in seconds."""

    def test_below_half_of_the_deadline_the_store_decides(self) -> None:
        # 10 to 20 ms for a round trip.
        history, p99 = answer_slowly("slow, below half of the deadline", 0.005, 0.005)
        check_bound(history, 2 if history.degraded() else 1)
        assert 0.01 < p99 <= FIRST_P99_S
        assert history.opened() == 0
        assert history.share_of_store(0, math.inf) > MOST

    @pytest.mark.slow
    def test_within_the_deadline_no_decision_takes_longer(self) -> None:
        # 20 to 40 ms: a caller that first waits for the round trip of another may be too late.
        history, p99 = answer_slowly("slow but within the deadline", 0.01, 0.01)
        check_bound(history, 2)
        assert 0.02 < p99 <= FIRST_P99_S
        assert history.opened() == 0

    @pytest.mark.slow
    def test_around_the_deadline_no_decision_takes_longer(self) -> None:
        # 28 to 56 ms.
        history, p99 = answer_slowly("slow, around the deadline", 0.014, 0.014)
        check_bound(history, 2)
        assert 0.02 < p99 <= FIRST_P99_S


def answer_slowly(name: str, delay: float, jitter: float) -> tuple[History, float]:
    """Let the store answer late for a while; return what callers saw, and the p99 of that time."""
    with place() as where, ExitStack() as stack:
        url = f"redis://127.0.0.1:{where.between.port}"
        load = stack.enter_context(rig(url, keys=[KEY], limit=LOAD))
        load.seconds(0.5)
        began = time.monotonic()
        where.between.delay, where.between.jitter = delay, jitter
        load.seconds(SLOW_S)
        ended = time.monotonic()
        where.between.delay = where.between.jitter = 0.0
        history = load.stop()
    p99_first, p99 = history.p99(began, began + 1), history.p99(began + 1, ended)
    say(
        name,
        admitted=history.most_admitted(KEY, PERIOD_S),
        bound=2 * LOAD.quota,
        p99_first=p99_first,
        p99_after=p99,
        store_share=history.share_of_store(began, ended),
        opened=history.opened(),
        **machine(history),
    )
    check_machine(history)
    check_callers(history)
    assert p99_first <= FIRST_P99_S
    return history, p99
