"""A reply that is lost: what was asked for is charged once at most, and corrected once at most.

The store's own counters are read over another way, which no fault touches.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from random import Random

import pytest
import redis

from limen import Check, Concurrency, Decision, Limit, Limiter
from tests.faults.callers import (
    FORMS,
    PATIENT_S,
    WIDE,
    Form,
    opened,
    url_of,
    wait_for_the_store,
)
from tests.faults.figures import say
from tests.faults.proxy import Proxy, proxy
from tests.faults.rig import DEADLINE_S
from tests.waiting import FULL, wait_until

CHECK_REPLY = len(b"$38\r\n") + 38 + 2
CHANGE_REPLY = len(b"$2\r\n") + 2 + 2
OTHERS = (
    Limit(1_000_000, 86_400, algorithm="fixed_window", name="second"),
    Limit(1_000_000, 86_400, algorithm="packed_window", name="third"),
)
SEVERAL_REPLY = len(b"$112\r\n") + 112 + 2
BATCH = 20
TURNS = 50 if FULL else 3


@pytest.fixture
def direct(port: int) -> Iterator[Limiter]:
    """Reads the counters, on a way of its own."""
    with redis.Redis(port=port) as admin:
        admin.flushall()
    with Limiter(url_of(port), deadline=PATIENT_S) as limiter:
        yield limiter


@pytest.fixture
def between(port: int, direct: Limiter) -> Iterator[Proxy]:
    with proxy(port) as made:
        yield made


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, between: Proxy) -> Iterator[Form]:
    """A limiter behind the proxy, which waits longer than any test."""
    with opened(request.param, url_of(between.port), deadline=PATIENT_S) as made:
        yield made


@pytest.fixture(params=FORMS)
def hasty(request: pytest.FixtureRequest, between: Proxy) -> Iterator[Form]:
    """The same with the usual deadline."""
    with opened(request.param, url_of(between.port), deadline=DEADLINE_S) as made:
        yield made


def charged(direct: Limiter, key: str, limit: Limit = WIDE) -> int:
    decision = direct.peek(key, limit)
    assert decision.source == "store"
    return limit.quota - decision.remaining


def held(direct: Limiter, key: str, slots: Concurrency) -> int:
    decision = direct.decide(Check(slots, key), charge=False)
    assert decision.source == "store"
    return slots.slots - decision.remaining


def ask_at_once(form: Form, keys: list[str]) -> list[Decision]:
    """Ask once for each key, all at the same time."""
    return form.at_once([partial(form.limiter.check, key, WIDE) for key in keys])


def offsets(reply_bytes: int, few: int = 12) -> list[int]:
    """Return where a reply is cut: behind every byte of it in full, else behind some."""
    if FULL or reply_bytes <= few:
        return list(range(reply_bytes + 1))
    step = reply_bytes / few
    return sorted({round(step * turn) for turn in range(few)} | {1, reply_bytes - 1, reply_bytes})


def cuts(form: Form, between: Proxy, places: list[int]) -> Iterator[int]:
    """Yield each place; the first reply that comes then is cut there, and lost with its way."""
    for place in places:
        # More is well than not, so that nobody takes the server for dead.
        for _ in range(3):
            wait_for_the_store(form)
        between.cut_reply_after(place)
        yield place


class TestCutAtEveryByte:
    def test_a_request_is_charged_once(self, form: Form, between: Proxy, direct: Limiter) -> None:
        told: dict[int, Decision] = {}
        for place in cuts(form, between, offsets(CHECK_REPLY, 45)):
            told[place] = form.do(form.limiter.check, f"cut {place}", WIDE)
        wait_for_the_store(form)
        assert {place: charged(direct, f"cut {place}") for place in told} == dict.fromkeys(told, 1)
        lost = {place for place, decision in told.items() if decision.degraded}
        assert lost == {place for place in told if place < CHECK_REPLY}
        assert {told[place].fault for place in lost} == {"connection"}
        assert all(decision.allowed for decision in told.values())

    def test_each_request_of_a_batch_is_charged_once_at_most(
        self, form: Form, between: Proxy, direct: Limiter
    ) -> None:
        batch_reply = len(b"*20\r\n") + BATCH * CHECK_REPLY
        told: dict[str, Decision] = {}
        for place in cuts(form, between, offsets(batch_reply)):
            keys = [f"batch {place} {number}" for number in range(BATCH)]
            told.update(zip(keys, ask_at_once(form, keys), strict=True))
        wait_for_the_store(form)
        found = {key: charged(direct, key) for key in told}
        assert set(found.values()) <= {0, 1}
        assert [key for key in told if not told[key].degraded and found[key] != 1] == []
        assert any(decision.degraded for decision in told.values())

    def test_several_limits_are_charged_once_each(
        self, form: Form, between: Proxy, direct: Limiter
    ) -> None:
        asked = []
        for place in cuts(form, between, offsets(SEVERAL_REPLY)):
            key = f"several {place}"
            asked.append(key)
            decision = form.do(form.limiter.check, key, WIDE, *OTHERS)
            assert decision.degraded == (place < SEVERAL_REPLY)
        wait_for_the_store(form)
        for key in asked:
            assert [charged(direct, key, limit) for limit in (WIDE, *OTHERS)] == [1, 1, 1]

    def test_a_slot_is_granted_once_and_comes_back(
        self, form: Form, between: Proxy, direct: Limiter
    ) -> None:
        three = Concurrency(3, lease=60)
        slots = []
        for place in cuts(form, between, offsets(CHECK_REPLY)):
            slot = form.limiter.slot(f"slot {place}", three)
            assert form.do(slot.acquire).allowed
            slots.append((place, slot))
        wait_for_the_store(form)
        assert {held(direct, f"slot {place}", three) for place, _ in slots} == {1}
        for place, slot in slots:
            assert form.do(slot.release)
            assert held(direct, f"slot {place}", three) == 0

    def test_a_release_whose_reply_is_lost_frees_one_slot(
        self, form: Form, between: Proxy, direct: Limiter
    ) -> None:
        three = Concurrency(3, lease=60)
        for place in offsets(CHANGE_REPLY):
            mine = form.limiter.slot(f"free {place}", three)
            others = direct.slot(f"free {place}", three)
            assert form.do(mine.acquire).source == others.acquire().source == "store"
            for _ in cuts(form, between, [place]):
                form.do(mine.release)
            wait_for_the_store(form)
            form.do(mine.release)
            assert held(direct, f"free {place}", three) == 1, "another's slot was freed"

    @pytest.mark.parametrize(("actual_cost", "left"), [(0, 5), (2, 7), (8, 13)])
    def test_a_correction_is_applied_once(
        self, form: Form, between: Proxy, direct: Limiter, actual_cost: int, left: int
    ) -> None:
        for place in offsets(CHANGE_REPLY):
            key = f"correct {actual_cost} {place}"
            first, second = (direct.check(key, WIDE, cost=5) for _ in range(2))
            assert charged(direct, key) == 10
            assert second.receipt is not None
            for _ in cuts(form, between, [place]):
                done = form.do(form.limiter.settle, first, actual_cost)
                assert done is (place >= CHANGE_REPLY), "it cannot know"
            wait_for_the_store(form)
            assert charged(direct, key) == left, "it was lost on the way there, or sent twice"
            assert form.do(form.limiter.settle, first, actual_cost) is False
            assert charged(direct, key) == left


class TestCutOnTheWay:
    """Not the reply but the connection: before the server has heard, and after it has done."""

    def ask_behind(self, form: Form, key: str, told: list[Decision]) -> threading.Thread:
        def ask() -> None:
            told.append(form.do(form.limiter.check, key, WIDE))

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        return thread

    def test_what_never_arrived_is_not_sent_again(
        self, form: Form, between: Proxy, direct: Limiter
    ) -> None:
        told: list[Decision] = []
        for turn in range(TURNS):
            for _ in range(3):
                wait_for_the_store(form)
            between.stall()
            asking = self.ask_behind(form, f"before {turn}", told)
            time.sleep(0.03)
            between.cut()
            asking.join(10)
            between.flow()
        wait_for_the_store(form)
        # The caller cannot know: so nobody asks once more, and nobody charges it later.
        time.sleep(0.3)
        assert [decision.source for decision in told] == ["local"] * TURNS
        assert [charged(direct, f"before {turn}") for turn in range(TURNS)] == [0] * TURNS

    def test_what_was_done_is_not_done_again(
        self, form: Form, between: Proxy, direct: Limiter
    ) -> None:
        told: list[Decision] = []
        for turn in range(TURNS):
            key = f"after {turn}"
            for _ in range(3):
                wait_for_the_store(form)
            between.drop_replies()
            asking = self.ask_behind(form, key, told)
            wait_until(lambda key=key: charged(direct, key), interval_s=0.002)  # type: ignore[misc]
            between.cut()
            asking.join(10)
            between.drop_replies(False)
        wait_for_the_store(form)
        time.sleep(0.3)
        assert [decision.source for decision in told] == ["local"] * TURNS
        assert [charged(direct, f"after {turn}") for turn in range(TURNS)] == [1] * TURNS


class TestSilence:
    def test_requests_without_an_answer_are_charged_once_at_most(
        self, between: Proxy, direct: Limiter
    ) -> None:
        asked = [f"silent {number}" for number in range(60)]
        told: list[Decision] = []
        with ExitStack() as stack:
            way = url_of(between.port)
            forms = [stack.enter_context(opened(name, way, deadline=DEADLINE_S)) for name in FORMS]
            between.drop_replies()
            for start in range(0, 60, 10):
                told += ask_at_once(forms[start % 20 == 0], asked[start : start + 10])
            between.drop_replies(False)
            for form in forms:
                wait_for_the_store(form)
            time.sleep(0.3)  # what was surely not charged is charged now, behind everybody
        found = Counter(charged(direct, key) for key in asked)
        assert {decision.source for decision in told} == {"local"}
        assert set(found) <= {0, 1}
        assert found[1] > 0

    def test_a_slot_without_an_answer_is_free_after_its_lease(
        self, hasty: Form, between: Proxy, direct: Limiter
    ) -> None:
        # Its release is lost, too: the store is away all the time.
        one = Concurrency(1, lease=0.5)
        between.drop_replies()
        slot = hasty.limiter.slot("k", one)
        assert hasty.do(slot.acquire).source == "local"
        hasty.do(slot.release)
        between.cut()
        wait_until(lambda: not held(direct, "k", one))


def rage(between: Proxy, seconds: float) -> None:
    """Break the way in every manner it can be broken, by chance."""
    chance = Random(9)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(chance.random() * 0.1)
        fault = chance.randrange(5)
        if fault == 0:
            between.cut()
        elif fault == 1:
            between.cut_reply_after(chance.randrange(200))
        elif fault == 2:
            between.garbage(b"$38\r\n" + bytes(38) + b"\r\n")
        elif fault == 3:
            between.drop_replies()
            time.sleep(chance.random() * 0.1)
            between.drop_replies(False)
        else:
            between.stall()
            time.sleep(chance.random() * 0.1)
            between.flow()


def test_in_a_storm_of_faults_each_request_is_charged_once_at_most(
    between: Proxy, direct: Limiter
) -> None:
    seconds = 20.0 if FULL else 0.6
    asked: list[Counter[str]] = []
    answered: list[Counter[str]] = []
    stop = threading.Event()

    def ask(form: Form, number: int) -> None:
        mine, done = Counter[str](), Counter[str]()
        asked.append(mine)
        answered.append(done)
        turn = 0
        while not stop.is_set():
            turn += 1
            # Each key once: what one is charged twice for must not hide behind what another lost.
            keys = [f"{form.name} {number} {turn} {more}" for more in range(4)]
            mine.update(keys)
            for decision in ask_at_once(form, keys):
                assert decision.allowed
                done[decision.key] += decision.source == "store"
            time.sleep(0.002)

    with ExitStack() as stack:
        way = url_of(between.port)
        forms = [stack.enter_context(opened(name, way, deadline=DEADLINE_S)) for name in FORMS]
        threads = [
            threading.Thread(target=ask, args=(form, number))
            for form in forms
            for number in range(3)
        ]
        for thread in threads:
            thread.start()
        rage(between, seconds)
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), "a caller hangs"
        for form in forms:
            wait_for_the_store(form)
        time.sleep(0.5)  # for what is charged behind everybody
    requests, decisions = sum(asked, Counter[str]()), sum(answered, Counter[str]())
    found = {key: charged(direct, key) for key in requests}
    counts = {key: (decisions[key], found[key], requests[key]) for key in requests}
    wrong = {key: each for key, each in counts.items() if not each[0] <= each[1] <= each[2]}
    assert wrong == {}
    for name in FORMS:
        mine = [key for key in requests if key.startswith(name)]
        figures = {
            "asked": sum(requests[key] for key in mine),
            "answered": sum(decisions[key] for key in mine),
            "charged": sum(found[key] for key in mine),
        }
        say(f"lost replies, {name}", **figures)
        assert 0 < figures["answered"] < figures["asked"]
