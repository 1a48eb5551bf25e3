"""HTTP on a socket: uvicorn's protocol, with the limits on time and size that it lacks.

Owns deadlines, the size of a request's head, what a client is told that keeps to neither, and how
connections end when the server does. Knows nothing of what is served, of signals or of processes.

No request has a timer: each connection holds one number, its deadline, and one look round twice a
second finds those whose time is over. Some of uvicorn's methods are replaced whole, since they
start timers, or make objects of classes of their own; tests/server/test_protocol.py holds on to
what is relied on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from ipaddress import IPv6Address
from math import inf
from typing import Any, Protocol
from urllib.parse import unquote

import httptools
from msgspec import Struct
from uvicorn import Config
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from limen.backends.sampled import SampledLog
from limen.server.cycle import Cycle, Refused
from limen.server.peer import Peer, extensions_of

MAX_HEADERS = 100
"""How many headers a request may have."""
MAX_PIPELINED = 256
"""How many requests may wait on one connection for those before them."""
GRACE_S = 1.0
"""How long an idle connection is kept while the server ends: a request may be on its way."""
_LINGER_S, _LINGER_BYTES = 1.0, 4_194_304
_MOST_CONNECTIONS, _OTHER_FILES = 100_000, 64
_LOOK_S = 0.5
_TOO_LATE = "The request did not arrive in time."
_TOO_LARGE = "The request line and the headers are larger than {:,} bytes."
_TOO_MANY = f"There are more than {MAX_HEADERS} headers."
_TOO_DEEP = f"More than {MAX_PIPELINED} requests wait for an answer on this connection."
_NO_UPGRADE = "A request with a body cannot ask for another protocol; send it without Upgrade."
_MALFORMED = "This is not HTTP/1.1 as RFC 9112 has it."
_NO_HOST = "The Host header is missing."
_HOST_REPEATED = "The Host header is repeated; send it once."
_INVALID_HOST = "The Host header is not a host with an optional port, such as limen.example:8080."
_VERSIONS_WITHOUT_HOST = ("0.9", "1.0")
_OPTIONAL_WHITESPACE = b" \t"
# uri-host [":" port] of RFC 9110: an IPv6 address in brackets, or a name, which can be empty.
_HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?")
_logger = logging.getLogger("limen.server")


class Limits(Struct, frozen=True):
    """What a client may take: seconds and bytes."""

    max_header: int = 16_384
    """The bytes of the request line and the headers together; more is answered by 431."""
    read_timeout: float = 10.0
    """From the first byte of a request to its last, however they trickle in; then 408."""
    keep_alive: float = 75.0
    """How long a connection may be idle between two requests."""
    write_timeout: float = 30.0
    """How long a client may leave lie what was sent to it."""
    drain_timeout: float = 30.0
    """How long requests under way may take when the server ends."""


class Quick(Protocol):
    """A short way to answer some requests: those that come in one packet, or as head and body."""

    def learn(self, packet: bytes, scope: Any, *, is_whole: bool) -> None:
        """See the packet with which a request began that goes the long way.

        Only the parser knows where it ended: `is_whole` says whether by the end of the packet.
        """

    def read(self, packet: bytes) -> Any:
        """Return what is asked; None for what has to go the long way."""

    def awaits(self, packet: bytes) -> bool:
        """Return whether to wait for the body of what has come, and then to read both."""

    def answer(
        self, asking: Any, tell: Callable[[int, bytes, bytes], object]
    ) -> Coroutine[Any, Any, None] | None:
        """Tell the status, the headers as they are sent, and the body; return what is to be run."""


class Connections:
    """All connections of a server, and the one timer that looks after them."""

    def __init__(
        self,
        config: Config,
        limits: Limits,
        app_state: dict[str, Any],
        quick: Quick | None = None,
    ) -> None:
        self.limits: Limits = limits
        self.quick: Quick | None = quick
        """The short way; None where there is none, and while the server ends."""
        self.date: bytes = b""
        """The header of that name, as it is sent."""
        self.is_draining: bool = False
        self.idle_s: float = limits.keep_alive
        """How long a connection that has nothing to do is kept."""
        # Deadlines shorter than the default ones are looked at more often.
        shortest = min(limits.read_timeout, limits.keep_alive, limits.write_timeout)
        self.look_s: float = max(min(_LOOK_S, shortest / 4), 0.01)
        self._config = config
        self._app_state = app_state
        self._loop = asyncio.get_running_loop()
        self._state = ServerState()
        self._most = _most_connections()
        self._log = SampledLog()
        self._timer: asyncio.TimerHandle | None = None
        self._unsent: list[tuple[Connection, int, bytes, bytes]] = []
        """Answers of the short way that are ready."""
        self._look_round()

    def __len__(self) -> int:
        return len(self._state.connections)

    def make(self) -> Connection:
        """Return what speaks HTTP on a new connection; a loop calls it."""
        return Connection(self._config, self._state, self._app_state, self._loop, self)

    def send_soon(self, connection: Connection, status: int, head: bytes, body: bytes) -> None:
        """Send an answer behind all others that are ready, and these all at once.

        One reply of the store answers many requests. To make an answer and to send it by turns
        takes a quarter longer: neither finds in the caches what it left there.
        """
        self._unsent.append((connection, status, head, body))
        if len(self._unsent) == 1:
            self._loop.call_soon(self._send_all)

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, []
        for connection, status, head, body in unsent:
            try:
                connection.send(status, head, body)
            except Exception as error:  # of one: the others are sent theirs all the same
                self._log.warn("send", f"an answer could not be sent: {error!r}")
                connection.transport.abort()

    def is_too_many(self) -> bool:
        """Return whether there are more connections than files may be open, and say so."""
        if len(self) <= self._most:
            return False
        self._log.warn("connections", f"more than {self._most:,} connections; new ones are closed")
        return True

    def drain(self) -> None:
        """Let every connection end as soon as nobody waits for an answer on it."""
        self.is_draining = True
        self.quick = None
        self.idle_s = min(self.idle_s, GRACE_S)
        for connection in self._all():
            connection.shutdown()

    async def wait_until_done(self) -> None:
        """Return when there are no connections left, and nothing that was begun on one."""
        # To be told of it would cost every request something, for the sake of the last.
        while self._state.connections or self._state.tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def cut(self) -> None:
        """End every connection now, and call off whatever still runs for one."""
        for connection in self._all():
            connection.transport.abort()
        await asyncio.sleep(0.02)  # who is told that the client has gone may end in peace
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def close(self) -> None:
        """Look after them no longer."""
        if self._timer is not None:
            self._timer.cancel()

    def _all(self) -> list[Connection]:
        return [each for each in self._state.connections if isinstance(each, Connection)]

    def _look_round(self) -> None:
        self._timer = self._loop.call_later(self.look_s, self._look_round)
        date = formatdate(time.time(), usegmt=True).encode()
        self._state.default_headers = [(b"date", date)]
        self.date = b"date: %b\r\n" % date
        now = self._loop.time()
        for connection in self._all():
            connection.look(now)


class Connection(HttpToolsProtocol):
    """One connection, which is looked at from time to time and closed when its time is over."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        shared: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self.logger: logging.Logger = _logger
        self.access_log = False
        self._shared = shared
        self._max_header = shared.limits.max_header
        self._read_timeout = shared.limits.read_timeout
        self._deadline = inf
        """When to give up on the client: it has to send, or to ask for something, until then."""
        self._unsent_since = inf
        self._is_reading = False
        """Whether a request has begun to arrive, and not all of it is there."""
        self._is_in_head = False
        """Whether it is its head that arrives: until it ends there is no cycle for it."""
        self._is_deaf = False
        """Whether what still comes is thrown away, because the last answer is decided."""
        self._room = inf
        """How many bytes of that may still come."""
        self._is_idle = True
        """Whether nothing has begun to arrive, and nobody waits for an answer."""
        self._is_quick = False
        """Whether a request is answered by the short way."""
        self._head = b""
        """A head that has come before its body, and may go the short way with it."""
        self._held = b""
        """What has come meanwhile."""
        self._has_ended = False
        """Whether meanwhile the client said that it sends no more."""
        self._extensions: dict[str, dict[object, object]] = {}
        self._running: RequestResponseCycle | None = None
        """The request whose turn it is; `cycle` is the newest."""
        # The size of a head is known only when it is over, so until then packets are counted: the
        # one in which it began, and those that since brought neither a body nor an end.
        self._packet = self._first_packet = self._more_packets = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        """Begin: the first request has to come as soon as the rest of one would."""
        super().connection_made(transport)
        self._extensions = extensions_of(Peer(transport))
        self._deadline = self.loop.time() + self._read_timeout
        if self._shared.is_draining:
            self.shutdown()
        if self._shared.is_too_many():
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End: tell the app, also where a later request waits behind the one it works on."""
        super().connection_lost(exc)
        if self._running is not None:
            if not self._running.response_complete:
                self._running.disconnected = True
            self._running.message_event.set()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # uvicorn never keeps it open
        """Answer a client that has asked and says no more; without TLS that is allowed."""
        cycle = self.cycle
        if (self._is_quick or self._held) and self.scheme != "https":
            self._has_ended = True
            return True
        if self.scheme == "https" or cycle is None or cycle.response_complete or cycle.more_body:
            return None
        cycle.keep_alive = False
        self._is_deaf, self._deadline = True, inf
        return True

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if self._is_deaf:
            self._room -= len(data)
            if self._room < 0:
                self.transport.close()
            return
        is_first, latest = self._is_idle, inf
        if is_first:
            if self._head:
                data, self._head, latest = self._head + data, b"", self._deadline
            if self._goes_short(data):
                return
        elif self._is_quick or self._held:
            self._held += data
            self.flow.pause_reading()
            return
        self._packet = len(data)
        self._more_packets += self._packet
        try:
            self.parser.feed_data(data)
            if self._is_reading:
                self._deadline = min(self._deadline, latest)
            if self._more_packets > self._max_header:
                self._refuse(self._too_large())
            elif is_first and not self._is_idle and self._shared.quick is not None:
                self._shared.quick.learn(data, self.scope, is_whole=not self._is_reading)
        except httptools.HttpParserUpgrade:
            # Answered like any other; but the parser has lost its place behind it.
            self.cycle.keep_alive = False
            self._is_deaf = True
        except httptools.HttpParserError as error:
            reason = error.__context__
            self._refuse(reason if isinstance(reason, Refused) else Refused(400, _MALFORMED))

    def _goes_short(self, data: bytes) -> bool:
        """Answer what has come by the short way, or keep it until more comes; if either can be."""
        quick = self._shared.quick
        if quick is None or self.flow.write_paused:
            return False
        asking = quick.read(data)
        if asking is not None:
            self._is_idle, self._is_quick, self._deadline = False, True, inf
            rest = quick.answer(asking, self._tell)
            if rest is not None:
                self._run(rest)
        elif quick.awaits(data):
            self._head, self._deadline = data, self.loop.time() + self._read_timeout
        else:
            return False
        return True

    def on_message_begin(self) -> None:
        """Start the clock of a request."""
        super().on_message_begin()
        self._is_idle = False
        self._first_packet, self._more_packets = self._packet, 0
        self._is_reading = self._is_in_head = True
        self._deadline = self.loop.time() + self._read_timeout

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, but no trailer: a proxy that cleans headers lets those through."""
        if not self._is_in_head:
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Pass a request on, if its head is as it should be."""
        if self._first_packet + self._more_packets > self._max_header:
            self._weigh()
        if len(self.headers) > MAX_HEADERS:
            raise Refused(431, _TOO_MANY)
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Refused(400, _TOO_DEEP)
        if self.parser.should_upgrade() and self._announces_body():
            raise Refused(400, _NO_UPGRADE)
        self._check_host()
        self._describe()
        is_free = self.cycle is None or self.cycle.response_complete
        self.cycle: RequestResponseCycle = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=_logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=not self._shared.is_draining
            and self.scope["http_version"] != "1.0"
            and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._is_in_head = False
        if is_free:
            self._start(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _check_host(self) -> None:
        """Refuse a request without a valid `Host`, as RFC 9112, section 3.2, requires."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1:
            raise Refused(400, _HOST_REPEATED)
        if not hosts:
            if self.parser.get_http_version() in _VERSIONS_WITHOUT_HOST:
                return
            raise Refused(400, _NO_HOST)
        if not _is_host(hosts[0].strip(_OPTIONAL_WHITESPACE)):
            raise Refused(400, _INVALID_HOST)

    def _describe(self) -> None:
        """Tell the app what is asked for, in words of ASGI."""
        scope, version = self.scope, self.parser.get_http_version()
        scope["method"] = self.parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        url = httptools.parse_url(self.url)
        raw_path = url.path or b"/"
        path = raw_path.decode("ascii")
        scope["raw_path"] = raw_path
        scope["path"] = unquote(path) if "%" in path else path
        scope["query_string"] = url.query or b""
        scope["extensions"] = self._extensions

    def _start(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self._run(cycle.run_asgi(app))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_body(self, body: bytes) -> None:
        """Pass on a part of a body."""
        self._more_packets = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the clock of a request."""
        super().on_message_complete()
        self._is_reading, self._more_packets = False, 0
        self._deadline = inf
        if self.cycle.response_complete:
            self._rest()

    def on_response_complete(self) -> None:
        """Turn to the next request, or wait for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        assert self._running is not None
        if not self._running.keep_alive:
            self._end()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start(*self.pipeline.pop())
        elif not self._is_reading:
            self._rest()

    def _rest(self) -> None:
        """Wait for a request."""
        self._is_idle = True
        self._deadline = self.loop.time() + self._shared.idle_s

    def _tell(self, status: int, head: bytes, body: bytes) -> None:
        self._shared.send_soon(self, status, head, body)

    def send(self, status: int, head: bytes, body: bytes) -> None:
        """Send an answer that came by the short way."""
        self._is_quick = False
        if self.transport.is_closing():
            return
        is_last = not self._held and (self._has_ended or self._shared.is_draining)
        end = b"connection: close\r\n\r\n" if is_last else b"\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], self._shared.date, head, end, body)))
        if is_last:
            self.transport.close()
        elif self._held:
            # Not at once: whoever tells this has others to tell.
            self.loop.call_soon(self._go_on)
        else:
            self._rest()

    def _go_on(self) -> None:
        """Read what came while a request was answered by the short way."""
        if self.transport.is_closing():
            return
        data, self._held = self._held, b""
        self._rest()
        self.flow.resume_reading()
        self.data_received(data)
        if self._has_ended and not self._is_quick and not self.eof_received():
            self.transport.close()

    def resume_writing(self) -> None:
        """Give a client that takes what it is sent the whole time again."""
        super().resume_writing()
        self._unsent_since = inf

    def shutdown(self) -> None:
        """End as soon as nobody waits for an answer."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_started:
            cycle.keep_alive = False
        if not self._is_reading and not self._head and self._deadline < inf:
            self._deadline = min(self._deadline, self.loop.time() + self._shared.idle_s)

    def look(self, now: float) -> None:
        """Close the connection if its time is over."""
        if self._is_stuck(now):
            self.transport.abort()
        elif self._is_reading and not self._is_deaf and self._is_waited_for():
            self._deadline += self._shared.look_s
        elif now < self._deadline or self.transport.is_closing():
            return
        elif (self._is_reading or self._head) and not self._is_deaf:
            self._refuse(Refused(408, _TOO_LATE))
        else:
            self.transport.close()

    def _is_waited_for(self) -> bool:
        """Say whether it is we who hold a request up: that time is not the client's."""
        return self.flow.read_paused or (
            not self._is_in_head and self.cycle.waiting_for_100_continue
        )

    def _is_stuck(self, now: float) -> bool:
        """Say whether the client has left lie for too long what was sent to it."""
        if not self.transport.get_write_buffer_size() and not self.transport.is_closing():
            self._unsent_since = inf
            return False
        self._unsent_since = min(self._unsent_since, now)
        return now >= self._unsent_since + self._shared.limits.write_timeout

    def _refuse(self, refused: Refused) -> None:
        """Answer in place of the app, hear no more, and close."""
        self._is_deaf, self._deadline = True, inf
        cycle = self.cycle
        is_of_earlier = self._is_in_head or not self._is_reading
        if cycle is None or (is_of_earlier and cycle.response_complete):
            self._say(refused)
        elif is_of_earlier:
            # Those before it are answered; then the end of the connection says enough.
            cycle.keep_alive = False
        elif cycle is not self._running:
            cycle.keep_alive = False
            self.pipeline[0] = (cycle, refused)
        elif cycle.response_started:
            self.transport.close()
        else:
            cycle.disconnected = True
            # Nobody goes on: an app that still asks for the body must not have that said.
            cycle.waiting_for_100_continue = False
            cycle.message_event.set()
            self._say(refused)

    def _say(self, refused: Refused) -> None:
        headers = self.server_state.default_headers + refused.headers()
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        head = STATUS_LINE[refused.status] + b"".join(lines)
        self.transport.write(head + b"\r\n" + refused.body())
        self._linger()

    def _end(self) -> None:
        """Close the connection behind the last answer."""
        if self._is_reading or self.flow.read_paused:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Close the connection soon, and hear no more.

        Not at once: what the client still sends would be answered by a reset, which may overtake
        our words. But who sends on and on is not listened to: others wait meanwhile.
        """
        self._is_deaf, self._room = True, _LINGER_BYTES
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has gone
                self.transport.write_eof()
        self._deadline = self.loop.time() + _LINGER_S

    def _weigh(self) -> None:
        """Refuse a head that is too large. Called when packets do not tell: they hold more."""
        size = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n\r\n")
        size += sum([len(name) + len(value) + len(": \r\n") for name, value in self.headers])
        if size > self._max_header:
            raise self._too_large()

    def _too_large(self) -> Refused:
        return Refused(431, _TOO_LARGE.format(self._max_header))

    def _announces_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 "))
            for name, value in self.headers
        )


def _is_host(value: bytes) -> bool:
    match = _HOST.fullmatch(value)
    if match is None:
        return False
    if match[1] is not None:
        try:
            IPv6Address(match[1].decode("ascii"))
        except ValueError:
            return False
    return True


def _most_connections() -> int:
    """Return how many connections there may be: as many as files, less some for other things."""
    try:
        import resource
    except ImportError:  # on Windows
        return _MOST_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # What a service may have by asking for it, it asks for.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(min(soft - _OTHER_FILES, _MOST_CONNECTIONS), 1)
