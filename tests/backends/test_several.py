"""One caller in several lanes: whoever waits for one server does not wait for another."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import hiredis
import pytest

from limen.backends.redis.batch import MAX_REQUESTS, Request
from limen.backends.redis.breaker import Breaker
from limen.backends.redis.deadline import Deadline
from limen.backends.redis.sync_lane import Lane, Ticket, Wire
from limen.backends.redis.sync_several import finish_all

ANSWER = b"\x01\x01"
PATIENCE_S = 30.0


class Peer:
    """Speaks the protocol on the other end of a lane, and answers when it may."""

    def __init__(self, name: str) -> None:
        self.may_answer = threading.Event()
        self.asked = 0
        """How many calls have come."""
        self.lane = Lane(
            self._open, (name, 1), name, PATIENCE_S, Breaker(name, PATIENCE_S), lambda _: None
        )

    def _open(self) -> Wire:
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._serve, args=(theirs,), daemon=True).start()
        return Wire(ours)

    def _serve(self, theirs: socket.socket) -> None:
        reader = hiredis.Reader()
        with theirs, suppress(ConnectionError):  # the lane was closed
            while data := theirs.recv(65_536):
                reader.feed(data)
                while (call := reader.gets()) is not False:
                    self.asked += 1
                    self.may_answer.wait(PATIENCE_S)
                    count, one = int(call[2]), b"$2\r\n%b\r\n" % ANSWER
                    theirs.sendall(one if count == 1 else b"*%d\r\n" % count + one * count)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def peers() -> Iterator[tuple[Peer, Peer]]:
    pair = Peer("slow"), Peer("quick")
    yield pair
    for peer in pair:
        peer.may_answer.set()
        peer.lane.close()


def ask(*lanes: Lane) -> list[object]:
    """Ask once for each lane that is named, all at the same time."""
    deadline = Deadline(PATIENCE_S)
    by_lane: dict[Lane, list[Ticket]] = {}
    for lane in lanes:
        by_lane.setdefault(lane, []).append(Ticket(Request(["k"], b"x", len(ANSWER), 0), deadline))
    for lane, tickets in by_lane.items():
        for ticket in tickets:
            ticket.is_elsewhere = len(by_lane) > 1
        lane.start(*tickets)
    finish_all(by_lane, deadline)
    return [ticket.answer for tickets in by_lane.values() for ticket in tickets]


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S / 2
    while not is_so():
        assert time.monotonic() < end, "it is not so"
        time.sleep(0.001)


def lead(threads: ThreadPoolExecutor, peer: Peer) -> Future[list[object]]:
    """Have somebody lead a lane, whose server has been asked and holds back its answer."""
    before = peer.asked
    leads = threads.submit(ask, peer.lane)
    until(lambda: peer.asked > before)
    return leads


def test_who_stands_in_two_lanes_takes_the_lead_in_either(
    threads: ThreadPoolExecutor, peers: tuple[Peer, Peer]
) -> None:
    slow, quick = peers
    others = [lead(threads, peer) for peer in peers]
    both = threads.submit(ask, slow.lane, quick.lane)
    until(lambda: all(len(peer.lane._waiting) == 1 for peer in peers))
    quick.may_answer.set()
    assert others[1].result(PATIENCE_S) == [ANSWER]
    # It leads there now, although it waits for the other server too.
    until(lambda: quick.asked == 2)
    assert threads.submit(ask, quick.lane).result(PATIENCE_S) == [ANSWER]
    assert not both.done()
    slow.may_answer.set()
    assert others[0].result(PATIENCE_S) == [ANSWER]
    assert both.result(PATIENCE_S) == [ANSWER, ANSWER]


def test_who_leads_in_one_lane_takes_the_lead_in_another(
    threads: ThreadPoolExecutor, peers: tuple[Peer, Peer]
) -> None:
    slow, quick = peers
    other = lead(threads, quick)
    both = threads.submit(ask, slow.lane, quick.lane)
    until(lambda: slow.asked == 1 and len(quick.lane._waiting) == 1)
    quick.may_answer.set()
    assert other.result(PATIENCE_S) == [ANSWER]
    until(lambda: quick.asked == 2)
    assert threads.submit(ask, quick.lane).result(PATIENCE_S) == [ANSWER]
    assert not both.done()
    slow.may_answer.set()
    assert both.result(PATIENCE_S) == [ANSWER, ANSWER]


def test_a_reply_is_read_before_that_of_a_slower_server(
    threads: ThreadPoolExecutor, peers: tuple[Peer, Peer]
) -> None:
    slow, quick = peers
    both = threads.submit(ask, slow.lane, quick.lane)
    until(lambda: slow.asked == quick.asked == 1)
    follows = threads.submit(ask, quick.lane)
    quick.may_answer.set()
    assert follows.result(PATIENCE_S) == [ANSWER]
    assert not both.done()
    slow.may_answer.set()
    assert both.result(PATIENCE_S) == [ANSWER, ANSWER]


def test_more_than_one_call_holds_are_answered_by_the_next(peers: tuple[Peer, Peer]) -> None:
    _, quick = peers
    quick.may_answer.set()
    count = MAX_REQUESTS + 12
    assert ask(*[quick.lane] * count) == [ANSWER] * count
    assert quick.asked == 2


def test_those_whose_time_is_over_are_told_so(peers: tuple[Peer, Peer]) -> None:
    slow, quick = peers
    for peer in peers:
        peer.may_answer.set()
        assert ask(peer.lane) == [ANSWER]
    slow.may_answer.clear()
    deadline = Deadline(1.5)
    tickets = [Ticket(Request(["k"], b"x", len(ANSWER), 0), deadline) for _ in peers]
    slow.lane.start(tickets[0])
    quick.lane.start(tickets[1])
    finish_all({slow.lane: tickets[:1], quick.lane: tickets[1:]}, deadline)
    answers = [ticket.answer for ticket in tickets]
    assert getattr(answers[0], "kind", None) == "timeout"
    assert answers[1] == ANSWER
    until(lambda: slow.lane.is_idle)
