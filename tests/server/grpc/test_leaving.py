"""How a connection ends that nobody broke: by GOAWAY, and without a call that is lost."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hpack import Encoder
from hyperframe.frame import RstStreamFrame, WindowUpdateFrame
from msgspec import structs

from tests.server.grpc.inside import Inside, Pipe
from tests.server.grpc.serving import LOOPS, PATIENT, Methods, Served
from tests.server.grpc.wire import (
    BIG,
    EACH,
    INITIAL_WINDOW_SIZE,
    NO_ERROR,
    PREFACE,
    WAIT,
    Wire,
    as_bytes,
    data,
    head,
    headers,
    prefixed,
    raw,
)

LAST = 2**31 - 1
LIMITS = structs.replace(PATIENT, grace=0.2, write_timeout=0.5)


@pytest.fixture(params=LOOPS)
def leaving(request: pytest.FixtureRequest) -> Iterator[Served]:
    """One that leaves early."""
    with Served(LIMITS, request.param) as served:
        served.methods.go_on.clear()
        yield served


def test_a_client_is_asked_to_go_and_served_until_it_does(leaving: Served) -> None:
    with Wire(leaving.port) as wire:
        wire.call(1, b"slow", WAIT)
        wire.asks_again()
        leaving.call(leaving.connections.drain)
        wire.until(lambda: len(wire.goaways) == 1)
        assert wire.goaways[0].last_stream_id == LAST
        wire.call(3, b"was on its way")
        assert wire.read(3).messages == [b"was on its way"]
        wire.until(lambda: len(wire.goaways) == 2)
        assert wire.goaways[1].last_stream_id == 3
        leaving.call(leaving.methods.go_on.set)
        assert wire.read(1).messages == [b"slow"]
        assert wire.goes_away() == NO_ERROR
    assert leaving.count == 0


def test_a_call_that_comes_too_late_breaks_none_that_came_in_time(leaving: Served) -> None:
    with Wire(leaving.port) as wire:
        wire.call(1, b"slow", WAIT)
        wire.asks_again()
        leaving.call(leaving.connections.drain)
        wire.until(lambda: len(wire.goaways) == 2)
        assert wire.goaways[1].last_stream_id == 1
        wire.call(3, b"too late")
        wire.send(WindowUpdateFrame(3, 5), RstStreamFrame(3, 8), wire.head(5))
        wire.asks_again()
        leaving.call(leaving.methods.go_on.set)
        assert wire.read(1).messages == [b"slow"]
        assert wire.goes_away() == NO_ERROR
        assert not wire.answer(3).headers
    assert b"too late" not in leaving.methods.seen


def test_who_watches_is_told_that_it_is_over(leaving: Served) -> None:
    with Wire(leaving.port) as wire:
        wire.send(wire.head(1, EACH), data(1, prefixed(b"one")))
        wire.until(lambda: wire.answer(1).messages == [b"one"])
        leaving.call(leaving.connections.drain)
        assert wire.read(1).status == 14
        assert wire.goes_away() == NO_ERROR


def test_a_call_that_never_ends_does_not_keep_a_connection(leaving: Served) -> None:
    with Wire(leaving.port, {INITIAL_WINDOW_SIZE: 3}) as wire:
        wire.call(1, b"1000", BIG)
        wire.until(lambda: len(wire.answer(1).data) == 3)
        leaving.call(leaving.connections.drain)
        assert wire.goes_away() == NO_ERROR
        assert wire.answer(1).reset == 8


def test_who_comes_while_it_leaves_is_greeted_first(leaving: Served) -> None:
    leaving.call(leaving.connections.drain)
    with Wire(leaving.port) as wire:
        wire.call(1, b"x")
        assert wire.read(1).messages == [b"x"]
        assert wire.goes_away() == NO_ERROR
        assert [each.last_stream_id for each in wire.goaways] == [LAST, 1]


def test_who_has_not_said_a_word_is_left_without_one(leaving: Served) -> None:
    with Wire(leaving.port, greets=False) as wire:
        leaving.call(leaving.connections.drain)
        assert wire.socket.recv(100) == b""


def test_connections_grow_old_and_not_all_at_once() -> None:
    with Served(structs.replace(LIMITS, max_age=0.5)) as served:
        ages = {served.connections.age() for _ in range(100)}
        assert 0.45 <= min(ages) < max(ages) <= 0.55
        began = time.monotonic()
        with Wire(served.port) as wire:
            wire.call(1, b"x")
            wire.read(1)
            assert wire.goes_away() == NO_ERROR
            assert [each.last_stream_id for each in wire.goaways] == [LAST, 1]
        assert 0.6 <= time.monotonic() - began <= 20


def test_a_client_that_follows_the_rules_loses_no_call_by_age() -> None:
    """Clients go on on a new connection when told to; each call is answered once."""
    answered = 0

    def go_on_asking(served: Served) -> int:
        count, ends = 0, time.monotonic() + 1.5
        while time.monotonic() < ends:
            with Wire(served.port) as wire:
                number = 1
                while not wire.goaways and time.monotonic() < ends:
                    wire.call(number, b"%d" % number)
                    assert wire.read(number).messages == [b"%d" % number]
                    count, number = count + 1, number + 2
        return count

    with Served(structs.replace(LIMITS, max_age=0.2)) as served, ThreadPoolExecutor(4) as pool:
        asked: list[Future[int]] = [pool.submit(go_on_asking, served) for _ in range(4)]
        answered = sum(each.result() for each in asked)
        assert len(served.methods.seen) == answered


def test_all_is_cut_in_the_end(leaving: Served) -> None:
    with Wire(leaving.port) as wire:
        wire.call(1, b"slow", WAIT)
        wire.send(wire.head(3, EACH))
        wire.asks_again()
        asyncio.run_coroutine_threadsafe(leaving.connections.cut(), leaving.loop).result(5)
        assert wire.socket.recv(100) == b""
    assert leaving.count == 0
    leaving.call(leaving.methods.go_on.set)


@pytest.mark.parametrize("end", [b"", raw(6, 0, 0, b"broken")])
def test_a_connection_that_has_ended_is_gone_at_once(end: bytes) -> None:
    """The collector of garbage comes seldom in a worker."""

    async def talk() -> bool:
        inside = Inside(Methods().by_path)
        connection = inside.connections.make()
        connection.connection_made(Pipe())
        block = Encoder().encode(list(headers(EACH).items()))
        connection.data_received(PREFACE + raw(4) + as_bytes(head(1, block)) + end)
        await asyncio.sleep(0.01)
        connection.connection_lost(None)
        await asyncio.sleep(0.01)
        inside.close()
        seen = weakref.ref(connection)
        del connection
        return seen() is None

    gc.disable()
    try:
        assert asyncio.run(talk())
    finally:
        gc.enable()
