"""A caller's own connection: when to look out for a reply, and when to sleep."""

from __future__ import annotations

import errno
import select
import signal
import socket
import ssl
import time
from typing import Any

import hiredis
import pytest
import redis

from limen.backends.redis import sync_lane
from limen.backends.redis.deadline import Deadline
from limen.backends.redis.sync_lane import Wire


class Sluggish:
    """Polls a socket. Who looks out sees what is there; who sleeps is woken late."""

    def __init__(self, watched: socket.socket) -> None:
        self._poll = select.poll()
        self._poll.register(watched, select.POLLIN)
        self.slept = 0

    def poll(self, milliseconds: float) -> Any:
        if milliseconds:
            self.slept += 1
            time.sleep(2 * sync_lane._WATCHED_S)
        return self._poll.poll(milliseconds)


def ask(wire: Wire, server: socket.socket, times: int, *, after_s: float = 0.0) -> None:
    """Ask some times, and be answered after a while."""
    for _ in range(times):
        wire.send(b"a question", Deadline(1))
        if after_s:
            wire._sent_at -= after_s  # as if so much time had passed
        assert server.recv(100) == b"a question"
        server.sendall(b"+an answer\r\n")
        assert wire.receive(Deadline(1)) == b"an answer"


def test_who_slept_looks_out_again_when_replies_come_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_lane, "_CORES", 2)
    monkeypatch.setattr(sync_lane, "_WATCHED_S", 0.002)  # a busy machine is slow, too
    ours, server = socket.socketpair()
    with ours, server:
        wire = Wire(ours)
        wire._poll = sluggish = Sluggish(ours)
        # One reply that took an hour is no worse than one that took too long.
        ask(wire, server, 1, after_s=3_600)
        ask(wire, server, 20, after_s=0.05)
        was_asleep = sluggish.slept
        assert was_asleep
        ask(wire, server, 8 * sync_lane._SLEPT)
        sluggish.slept = 0
        ask(wire, server, 20)
        assert not sluggish.slept


class SoftLimit(OSError):
    """What a worker's own signal handler may raise."""


class Late(TimeoutError):
    """Another."""


@pytest.mark.parametrize(
    ("error", "is_theirs"),
    [
        (KeyboardInterrupt(), True),
        (SoftLimit("too long"), True),
        (Late("too late"), True),
        (
            type("SoftTimeLimitExceeded", (Exception,), {"__module__": "billiard.exceptions"})(),
            True,
        ),
        (ConnectionError("the server closed the connection"), False),
        (ConnectionResetError(errno.ECONNRESET, "reset"), False),
        (SoftLimit(errno.EPIPE, "of a socket of its own"), False),
        (TimeoutError(errno.ETIMEDOUT, "the network is away"), False),
        (ssl.SSLError("bad record"), False),
        (redis.exceptions.ConnectionError("no"), False),
        (hiredis.ProtocolError("garbage"), False),
        (AssertionError("we are wrong"), False),
        (TimeoutError("timed out"), True),
        (sync_lane.Expired("timed out"), False),
    ],
    ids=repr,
)
def test_what_is_thrown_in_is_told_from_what_goes_wrong(
    error: BaseException, is_theirs: bool
) -> None:
    assert sync_lane._was_thrown_in(error) is is_theirs


class Unpolled(socket.socket):
    """A socket that cannot be polled, as those of TLS and gevent."""


def unpolled_pair() -> tuple[socket.socket, socket.socket]:
    ours, server = socket.socketpair()
    unpolled = Unpolled(fileno=ours.detach())
    return unpolled, server


def test_full_send_buffer_ends_with_the_deadline() -> None:
    ours, server = unpolled_pair()
    with ours, server:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        with pytest.raises(sync_lane.Expired):
            Wire(ours).send(b"x" * 10_000_000, Deadline(0.05))


def test_silent_server_ends_with_the_deadline() -> None:
    ours, server = unpolled_pair()
    with ours, server:
        start = time.monotonic()
        with pytest.raises(sync_lane.Expired):
            Wire(ours).receive(Deadline(0.05))
        assert 0.045 < time.monotonic() - start < 1


def test_time_out_of_a_signal_handler_reaches_the_caller() -> None:
    def interrupt(*_: object) -> None:
        raise TimeoutError("the worker has taken too long")

    ours, server = unpolled_pair()
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        with ours, server, pytest.raises(TimeoutError, match="the worker"):
            Wire(ours).receive(Deadline(0.05))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
