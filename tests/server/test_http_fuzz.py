"""Random HTTP/1.1 on one connection: the result does not depend on the split into packets.

The bytes go to `HttpConnection.data_received` directly, behind a transport in memory. Limits on
sizes that depend on packets, deadlines and `Expect` are in `test_protocol.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limen.server.http import HttpConnections, HttpLimits, Request, Response
from limen.server.http.connection import MAX_PIPELINED, HttpConnection
from tests.server.raw import request

# All inputs are shorter than `max_header`. A longer input has two results: a head that has not
# ended is measured by packets, so one large packet passes and many small ones are answered by 431.
LIMITS = HttpLimits(max_header=65_536, max_body=400)
DATE = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"


# A connection in memory


class EchoHandler:
    """A handler that records requests. Paths with `refused` and `slow` take other code paths."""

    def __init__(self) -> None:
        self.handled: list[Request] = []

    def begin(self, request: Request) -> Response | None:
        return Response(403, [], b"refused") if "refused" in request.path else None

    def too_large(self, request: Request) -> Response:
        return Response(413, [], b"too large")

    async def respond(self, request: Request) -> Response:
        self.handled.append(request)
        if "slow" in request.path:
            for _ in range(3):
                await asyncio.sleep(0)
        line = b"%b %b ? %b" % (request.method.encode(), request.raw_path, request.query)
        fields = [name + b"=" + value for name, value in request.headers]
        return Response(200, [], b"\n".join([line, *fields, b"", request.body]))


class MemoryTransport(asyncio.Transport):
    """A transport that keeps what is written and calls `connection_lost` like a real one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._is_closing = False
        self.writes: list[bytes] = []
        self.is_read_paused = False
        self.has_written_eof = False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        raise AssertionError("the server aborted the connection")

    def pause_reading(self) -> None:
        assert not self.is_read_paused
        self.is_read_paused = True

    def resume_reading(self) -> None:
        assert self.is_read_paused
        self.is_read_paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_written_eof = True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        assert not self._is_closing
        assert not self.has_written_eof
        self.writes.append(bytes(data))


class Outcome(NamedTuple):
    """The result of some packets on a connection."""

    responses: list[bytes]
    closes: bool
    """Whether the server closed the connection, or its side of it, before the client did."""
    handled: list[Request]

    @property
    def statuses(self) -> list[int]:
        return [int(response[9:12]) for response in self.responses]


class Exchanger:
    """Sends packets to new connections, all on one event loop."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def exchange(self, packets: Sequence[bytes], *, waits: bool = True) -> Outcome:
        """Send packets. If `waits`, the client waits for all due responses before the next packet.

        A client that does not wait still waits while the server has paused reading.
        """
        with no_errors_logged():
            return self._runner.run(self._exchange(packets, waits=waits))

    async def _exchange(self, packets: Sequence[bytes], *, waits: bool) -> Outcome:
        loop, handler = asyncio.get_running_loop(), EchoHandler()
        connections = HttpConnections(handler, LIMITS)
        connections.close()  # stops the timer: neither deadlines nor a new date
        connections.date = DATE
        protocol = connections.make()
        transport = MemoryTransport(loop, protocol)
        protocol.connection_made(transport)
        for packet in packets:
            if transport.is_closing():
                break  # a transport does not read any more
            protocol.data_received(packet)
            assert len(protocol._pending) <= MAX_PIPELINED + 1  # the last one is the refusal
            if waits or transport.is_read_paused:
                await _finish_tasks(protocol)
                assert not transport.is_read_paused
        await _finish_tasks(protocol)
        _check_is_idle(protocol, transport)
        closes = transport.is_closing() or transport.has_written_eof
        if not transport.is_closing() and not protocol.eof_received():
            transport.close()
        await asyncio.sleep(0)
        assert len(connections) == 0
        return Outcome(transport.writes, closes, handler.handled)


async def _finish_tasks(protocol: HttpConnection) -> None:
    """Run the loop until this is the only task, and all responses are written."""
    while len(asyncio.all_tasks()) > 1 or protocol._task is not None:  # noqa: ASYNC110  # no event
        await asyncio.sleep(0)


def _check_is_idle(protocol: HttpConnection, transport: MemoryTransport) -> None:
    assert not protocol._pending
    assert protocol._task is None
    assert transport.is_closing() or not transport.is_read_paused


@contextmanager
def no_errors_logged() -> Iterator[None]:
    """Fail if the server logs an error, or the loop an exception that nothing has caught."""
    errors: list[str] = []

    class ErrorList(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(self.format(record))

    collector = ErrorList(logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("limen.server", "asyncio")]
    for logger in loggers:
        logger.addHandler(collector)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(collector)
    assert errors == []


@pytest.fixture(scope="module")
def exchanger() -> Iterator[Exchanger]:
    with asyncio.Runner() as runner:
        yield Exchanger(runner)


def split(data: bytes, cuts: Sequence[float]) -> list[bytes]:
    """Split data at places between 0 and 1."""
    places = sorted({int(cut * len(data)) for cut in cuts} - {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise([0, *places, len(data)])]


def single_bytes(data: bytes) -> list[bytes]:
    return [data[place : place + 1] for place in range(len(data))]


def check_responses(outcome: Outcome) -> None:
    """Check that each write is one whole response, and that only the last one closes."""
    for place, response in enumerate(outcome.responses, start=1):
        head, _, body = response.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert lines[0].startswith(b"HTTP/1.1 ")
        [length] = [line for line in lines if line.startswith(b"content-length: ")]
        assert not body or length == b"content-length: %d" % len(body)
        is_last = place == len(outcome.responses)
        assert (b"connection: close" in lines) == (is_last and outcome.closes)


# Valid requests


class Sent(NamedTuple):
    """A request as it is sent, and as the handler has to see it."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes
    framed: bytes
    """The body with its chunk sizes, if it is chunked."""

    def encode(self) -> bytes:
        target = self.path + (f"?{self.query}" if self.query else "")
        lines = [f"{self.method} {target} HTTP/1.1", *[f"{name}:{v}" for name, v in self.headers]]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.framed

    def as_handled(self) -> tuple[str, bytes, bytes, list[tuple[bytes, bytes]], bytes]:
        headers = [
            (name.lower().encode(), value.strip(" \t").encode("latin-1"))
            for name, value in self.headers
        ]
        return (self.method, self.path.encode(), self.query.encode(), headers, self.body)


def as_handled(handled: Request) -> tuple[str, bytes, bytes, list[tuple[bytes, bytes]], bytes]:
    """Return a request of the handler in the form of `Sent.as_handled`."""
    headers = [(name, value.strip(b" \t")) for name, value in handled.headers]
    return (handled.method, handled.raw_path, handled.query, headers, handled.body)


TOKEN = "!#$%&'*+-.^_`|~0123456789ABCxyz"
HEADERS = st.lists(
    st.tuples(
        st.text(TOKEN, max_size=8).map("X-".__add__),
        st.text('\t !"(),:;=@[]{}az09\x80\xff', max_size=12),
    ),
    max_size=4,
)
BODIES = st.binary(max_size=60) | st.sampled_from([b"\r\n", b"0\r\n\r\n", request("/in-body")])


@st.composite
def chunked(draw: st.DrawFn, body: bytes) -> bytes:
    """Frame a body as chunks, with extensions and trailers."""
    cuts = draw(st.lists(st.floats(0, 1), max_size=3))
    size_format = draw(st.sampled_from(["%x", "%X", "00%x"])).encode()
    extension = draw(st.sampled_from([b"", b";a", b";a=b", b';a="b c"']))
    chunks = [
        size_format % len(chunk) + extension + b"\r\n" + chunk + b"\r\n"
        for chunk in split(body, cuts)
        if chunk
    ]
    trailers = draw(st.sampled_from([b"", b"X-Trailer: 1\r\n", b"Authorization: x\r\n"]))
    return b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    headers = [("Host", " limen"), *draw(HEADERS)]
    if draw(st.booleans()):
        headers.append(("Connection", " keep-alive"))
    body = framed = b""
    match draw(st.sampled_from(["none", "length", "chunked"])):
        case "length":
            body = framed = draw(BODIES)
            headers.append(("Content-Length", f" {len(body)}"))
        case "chunked":
            body = draw(BODIES)
            framed = draw(chunked(body))
            headers.append(("Transfer-Encoding", " chunked"))
    return Sent(
        draw(st.sampled_from(["GET", "POST", "HEAD", "PUT"])),
        draw(st.sampled_from(["/", "/slow", "/refused", "/a%20b", "/refused/x"])),
        draw(st.sampled_from(["", "a=b", "%00&?"])),
        draw(st.permutations(headers)),
        body,
        framed,
    )


@st.composite
def request_sequences(draw: st.DrawFn) -> list[Sent]:
    """Return up to six requests on one connection."""
    sequence = draw(st.lists(requests(), min_size=1, max_size=6))
    if draw(st.booleans()):
        sequence[-1].headers.append(("Connection", " close"))
    return sequence


CUTS = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@given(request_sequences(), CUTS, st.booleans())
def test_valid_requests_get_the_same_responses_however_they_are_split(
    exchanger: Exchanger, sequence: list[Sent], cuts: list[float], waits: bool
) -> None:
    data = b"".join([sent.encode() for sent in sequence])
    whole = exchanger.exchange([data])
    check_responses(whole)
    refused = ["refused" in sent.path for sent in sequence]
    assert whole.statuses == [403 if each else 200 for each in refused]
    assert whole.closes == (("Connection", " close") in sequence[-1].headers)
    expected = [sent for sent in sequence if "refused" not in sent.path]
    assert [as_handled(each) for each in whole.handled] == [each.as_handled() for each in expected]
    for sent, response in zip(sequence, whole.responses, strict=True):
        content = response.partition(b"\r\n\r\n")[2]
        assert (not content) == (sent.method == "HEAD") or not sent.body
    for packets in (split(data, cuts), single_bytes(data)):
        assert exchanger.exchange(packets, waits=waits).responses == whole.responses


# Invalid requests

Mutation = Callable[[bytes], bytes]
PLACES = st.floats(0, 1)
# `Expect: 100-continue` is left out: a client that sends its body in the same packet gets no 100.
FRAGMENTS = st.binary(min_size=1, max_size=4) | st.sampled_from(
    [
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"%",
        b"0\r\n\r\n",
        b"fffffffffffffffff\r\n",
        b"\r\nContent-Length: 5",
        b"\r\nContent-Length: 401",
        b"\r\nContent-Length: 99999999999999999999",
        b"\r\nTransfer-Encoding: chunked",
        b"\r\nTransfer-Encoding: gzip",
        b"\r\nConnection: close",
        b"\r\nConnection: Upgrade\r\nUpgrade: h2c",
        b"\r\nHost: other",
        b"\r\nA: b" * 100,
        b" HTTP/1.0\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"x" * 401,
        request(),
        request("/refused", "Connection: close"),
    ]
)


def _flip(place: float, mask: int) -> Mutation:
    def mutate(data: bytes) -> bytes:
        changed = bytearray(data)
        if changed:
            changed[int(place * (len(data) - 1))] ^= mask
        return bytes(changed)

    return mutate


def _replace(place: float, length: int, fragment: bytes) -> Mutation:
    def mutate(data: bytes) -> bytes:
        start = int(place * len(data))
        return data[:start] + fragment + data[start + length :]

    return mutate


def _insert_line(place: float, fragment: bytes) -> Mutation:
    """Insert at the end of a line, where a fragment changes the meaning and not the form."""

    def mutate(data: bytes) -> bytes:
        lines = data.split(b"\r\n")
        lines[int(place * (len(lines) - 1))] += fragment
        return b"\r\n".join(lines)

    return mutate


def _duplicate(place: float, length: int) -> Mutation:
    def mutate(data: bytes) -> bytes:
        start = int(place * len(data))
        return data[: start + length] + data[start:]

    return mutate


def _truncate(place: float) -> Mutation:
    return lambda data: data[: int(place * len(data))]


LENGTHS = st.integers(1, 60)
MUTATIONS = st.one_of(
    st.builds(_flip, PLACES, st.integers(1, 255)),
    st.builds(_replace, PLACES, LENGTHS, st.just(b"")),
    st.builds(_replace, PLACES, st.just(0), FRAGMENTS),
    st.builds(_insert_line, PLACES, FRAGMENTS),
    st.builds(_duplicate, PLACES, LENGTHS),
    st.builds(_truncate, PLACES),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = b"".join([sent.encode() for sent in draw(request_sequences())])
    for mutate in draw(st.lists(MUTATIONS, min_size=1, max_size=4)):
        data = mutate(data)
    return data


def check_same_outcome(exchanger: Exchanger, data: bytes, cuts: list[float], waits: bool) -> None:
    assert len(data) < LIMITS.max_header
    whole = exchanger.exchange([data])
    check_responses(whole)
    assert set(whole.statuses) <= {200, 400, 403, 413, 431}
    for packets in (split(data, cuts), single_bytes(data)):
        parts = exchanger.exchange(packets, waits=waits)
        assert (parts.statuses, parts.closes) == (whole.statuses, whole.closes)
        assert parts.responses == whole.responses


@given(mutated(), CUTS, st.booleans())
def test_mutated_requests_get_the_same_responses_however_they_are_split(
    exchanger: Exchanger, data: bytes, cuts: list[float], waits: bool
) -> None:
    check_same_outcome(exchanger, data, cuts, waits)


@given(st.binary(max_size=200) | st.lists(FRAGMENTS, max_size=8).map(b"".join), CUTS, st.booleans())
@example(b"", [0.5], True)
def test_random_bytes_get_the_same_responses_however_they_are_split(
    exchanger: Exchanger, data: bytes, cuts: list[float], waits: bool
) -> None:
    check_same_outcome(exchanger, data, cuts, waits)


@given(st.integers(MAX_PIPELINED - 2, 2 * MAX_PIPELINED), CUTS, st.booleans())
def test_a_flood_of_requests_waits_in_a_bounded_queue(
    exchanger: Exchanger, count: int, cuts: list[float], waits: bool
) -> None:
    """The split decides how many requests are answered, because it decides how many wait."""
    data = b"".join([request(f"/slow/{number}") for number in range(count)])
    outcome = exchanger.exchange(split(data, cuts), waits=waits)
    check_responses(outcome)
    answered = len(outcome.handled)
    assert [each.path for each in outcome.handled] == [f"/slow/{n}" for n in range(answered)]
    if outcome.closes:
        assert MAX_PIPELINED < answered < count
        assert outcome.statuses == [200] * answered + [400]
    else:
        assert outcome.statuses == [200] * count


# Request smuggling

HIDDEN = request("/hidden")
IN_CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
BEHIND_CHUNKS = b"0\r\n\r\n" + HIDDEN


class Layout(NamedTuple):
    """A body with a hidden request; its two lengths disagree on whether it is in the body."""

    body: bytes
    length: int
    """The `Content-Length` for which a reader of chunks sees other requests."""
    is_behind_chunks: bool
    """Whether the hidden request is a request of its own for a reader of chunks."""

    @property
    def is_behind_length(self) -> bool:
        return self.length < len(self.body)


LAYOUTS = {
    "in a chunk": Layout(IN_CHUNK, IN_CHUNK.index(HIDDEN), False),
    "behind the last chunk": Layout(BEHIND_CHUNKS, len(BEHIND_CHUNKS), True),
}
