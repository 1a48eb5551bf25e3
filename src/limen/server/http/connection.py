"""One HTTP/1.1 connection: parses requests, hands them to the handler in order, writes responses.

A request is handled when all of it has arrived. Pipelined requests wait in a queue, and reading
pauses meanwhile. There is no timer per request: each connection has one deadline, and
`HttpConnections` looks at all deadlines twice a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from functools import lru_cache
from ipaddress import IPv6Address
from math import inf
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import httptools

from limen.server.http.message import Headers, Rejected, Request, Response
from limen.server.http.peer import Peer

if TYPE_CHECKING:
    from limen.server.http.connections import HttpConnections

MAX_HEADERS = 100
"""How many headers a request may have."""
MAX_PIPELINED = 256
"""How many requests may wait on one connection for those before them."""
_MAX_CACHED = 256
"""The longest URL and Host, in bytes, of which the parsed form is cached."""
_LINGER_S, _LINGER_BYTES = 1.0, 4_194_304
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TOO_LATE = "The request did not arrive in time."
_TOO_LARGE = "The request line and the headers are larger than {:,} bytes."
_TOO_MANY = f"There are more than {MAX_HEADERS} headers."
_TOO_DEEP = f"More than {MAX_PIPELINED} requests wait for an answer on this connection."
_NO_UPGRADE = "A request with a body cannot ask for another protocol; send it without Upgrade."
_MALFORMED = "The request is not valid HTTP/1.1 (RFC 9112)."
_MALFORMED_ERRORS = (httptools.HttpParserError, UnicodeDecodeError)
_NO_HOST = "The Host header is missing."
_HOST_REPEATED = "The Host header is repeated; send it once."
_BUG = "The server made a mistake, and has logged it."
_INVALID_HOST = "The Host header is not a host with an optional port, such as limen.example:8080."
_VERSIONS_WITHOUT_HOST = ("0.9", "1.0")
_OPTIONAL_WHITESPACE = b" \t"
# uri-host [":" port] of RFC 9110: an IPv6 address in brackets, or a name, which can be empty.
_HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?")
_logger = logging.getLogger("limen.server")


class _BodyTooLarge(Exception):
    """Stop the parser: the body is longer than the limit."""


class HttpConnection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, shared: HttpConnections) -> None:
        self._shared = shared
        self._loop = shared.loop
        self._handler = shared.handler
        self._max_header = shared.limits.max_header
        self._max_body = shared.limits.max_body
        self._parser = httptools.HttpRequestParser(self)
        # Without it, the parser fails on bytes behind a request with `Connection: close`, and that
        # request would not be answered.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._is_tls = False
        self._deadline = inf
        """When the connection is given up: the client must send a request or the rest of it."""
        self._unsent_since = inf
        # The request that is arriving.
        self._receiving = self._in_head = False
        self._request: Request | None = None
        self._url = b""
        self._headers: Headers = []
        self._body: bytes | bytearray = b""
        self._body_size = 0
        self._expects_continue = False
        # The size of a head is known only at its end. Until then packets are counted: the one in
        # which the head began, and later ones without a part of a body or the end of a message.
        self._packet = self._first_packet = self._later_packets = 0
        # Requests that have arrived.
        self._pending: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        """Handles the oldest request that has no response yet."""
        self._read_paused = self._write_paused = False
        self._is_half_closed = False
        """Whether the client has closed its side and waits for responses."""
        self._discards = False
        """Whether bytes that still arrive are dropped, because the last response is decided."""
        self._discard_left = inf
        self._is_cut = False
        """Whether the last response answers a request that has not arrived whole."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start: the first request must arrive within the read timeout."""
        self.transport: asyncio.Transport = cast("asyncio.Transport", transport)
        self._peer = Peer(self.transport)
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._deadline = self._loop.time() + self._shared.limits.read_timeout
        self._shared.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End: pending requests are dropped; a decision in progress is completed."""
        self._pending.clear()
        self._forget_request()
        # The parser refers to this object. Without that cycle, the memory of the connection is free
        # at once, and not when the garbage collector runs.
        del self._parser
        self._shared.discard(self, self._task)

    def eof_received(self) -> bool:
        """Keep the connection while responses are due; TLS does not allow that."""
        if self._is_tls or (self._task is None and not self._pending):
            return False
        self._is_half_closed = self._discards = True
        # The rest of a request that is arriving will not come.
        self._forget_request()
        self._deadline = inf
        return True

    def data_received(self, data: bytes) -> None:
        """Parse the bytes."""
        if self._discards:
            self._discard_left -= len(data)
            if self._discard_left < 0:
                self.transport.close()
            return
        self._packet = len(data)
        self._later_packets += self._packet
        try:
            self._parser.feed_data(data)
            if self._later_packets > self._max_header:
                raise self._too_large()
        except httptools.HttpParserUpgrade:
            # The request is answered like any other; but the parser cannot go on behind it.
            self._discards = True
        except httptools.HttpParserError as error:
            self._cut(self._refusal_of(error.__context__))
        except Rejected as error:
            self._cut(error.response())
        else:
            if self._expects_continue:
                self._continue_or_cut()

    def on_message_begin(self) -> None:
        """Start the clock of a request."""
        self._receiving = self._in_head = True
        self._first_packet, self._later_packets = self._packet, 0
        self._url, self._headers = b"", []
        self._body, self._body_size = b"", 0
        self._expects_continue = False
        self._request = None
        self._deadline = self._loop.time() + self._shared.limits.read_timeout

    def on_url(self, url: bytes) -> None:
        """Keep the target; it may arrive in parts."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, but no trailer: a proxy that filters headers lets trailers through."""
        if self._in_head:
            self._headers.append((name.lower(), value))
            if len(self._headers) > MAX_HEADERS:
                raise Rejected(431, _TOO_MANY)

    def on_headers_complete(self) -> None:
        """Check the head, and let the handler check it."""
        headers = self._headers
        if self._first_packet + self._later_packets > self._max_header:
            self._check_head_size()
        if len(self._pending) >= MAX_PIPELINED:
            raise Rejected(400, _TOO_DEEP)
        parser = self._parser
        upgrades = parser.should_upgrade()
        if upgrades and _announces_body(headers):
            raise Rejected(400, _NO_UPGRADE)
        version = parser.get_http_version()
        method = parser.get_method().decode("ascii")
        target = _target if len(self._url) <= _MAX_CACHED else _target.__wrapped__
        request = Request(method, *target(self._url), headers, self._peer)
        named = request.named
        self._check_host(request, version)
        self._request = request
        is_1_0 = version == "1.0"
        request.keep_alive = parser.should_keep_alive() and not is_1_0 and not upgrades
        try:
            request.refusal = self._handler.begin(request)
        except Exception as error:
            request.refusal = _internal_error(error)
        self._in_head = False
        expected = named.get(b"expect")
        if expected is not None:
            self._expects_continue = expected.lower() == b"100-continue" and not is_1_0
        length = named.get(b"content-length")
        if length is not None and int(length) > self._max_body:
            raise _BodyTooLarge

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body, unless the request is refused already."""
        self._later_packets = 0
        self._expects_continue = False
        self._body_size += len(body)
        if self._body_size > self._max_body:
            raise _BodyTooLarge
        assert self._request is not None
        if self._request.refusal is not None:
            return
        if not self._body:
            self._body = body
            return
        # Not a list of parts: an object for each chunk of two bytes takes twenty times as much.
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += body

    def on_message_complete(self) -> None:
        """Hand the request on."""
        request = self._request
        assert request is not None
        request.body = bytes(self._body)
        self._forget_request()
        self._later_packets = 0
        self._deadline = inf
        self._pending.append(request)
        self._advance()

    def pause_writing(self) -> None:
        """Start no request until the client has read its responses."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        self._write_paused = False
        self._unsent_since = inf
        self._advance()

    def drain(self) -> None:
        """Close the connection after the responses that are due; soon, if there are none."""
        if not self._receiving and self._deadline < inf:
            self._deadline = min(self._deadline, self._loop.time() + self._shared.idle_s)

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def check_deadline(self, now: float) -> None:
        """Close the connection if its time is over."""
        if self._is_stuck(now):
            self.transport.abort()
        elif self._receiving and not self._discards and self._holds_up_client():
            self._deadline += self._shared.check_s
        elif now < self._deadline or self.transport.is_closing():
            return
        elif self._receiving and not self._discards:
            self._cut(Rejected(408, _TOO_LATE).response())
        else:
            self.transport.close()

    def _advance(self) -> None:
        """Handle the next request, if its turn has come; pause or resume reading."""
        transport = self.transport
        while self._pending and self._task is None and not self._write_paused:
            if transport.is_closing():
                return
            request = self._pending.popleft()
            if request.refusal is None:
                self._task = self._loop.create_task(self._respond(request))
            else:
                self._write(request, request.refusal)
        if self._pending or (self._write_paused and not self._discards):
            if not self._read_paused and not transport.is_closing():
                self._read_paused = True
                transport.pause_reading()
            return
        if self._read_paused:
            self._resume_reading()
        if self._task is None:
            if self._expects_continue:
                self._continue_or_cut()
            elif not self._receiving and not self._discards:
                self._deadline = self._loop.time() + self._shared.idle_s

    async def _respond(self, request: Request) -> None:
        try:
            response = await self._handler.respond(request)
        except asyncio.CancelledError:
            self.transport.abort()
            raise
        except Exception as error:
            response, request.keep_alive = _internal_error(error), False
        self._shared.finish_soon(self, request, response)

    def finish(self, request: Request, response: Response) -> None:
        """Write the response to the request in progress, and handle the next one."""
        self._task = None
        if not self.transport.is_closing():
            self._write(request, response)
            self._advance()

    def _write(self, request: Request, response: Response) -> None:
        """Write a response, and close the connection behind it if it is the last one."""
        is_last = not request.keep_alive
        if not self._pending and not self._receiving:
            is_last = is_last or self._is_half_closed or self._shared.is_draining
        is_head = request.method == "HEAD"
        encoded = response.encode(self._shared.date, close=is_last, is_head=is_head)
        self.transport.write(encoded)
        if is_last:
            self._pending.clear()
            if self._receiving or self._read_paused or self._is_cut:
                self._linger()
            else:
                self._discards = True
                self.transport.close()

    def _continue_or_cut(self) -> None:
        """Answer `Expect: 100-continue`, when all requests before it have their responses."""
        request = self._request
        assert request is not None
        if request.refusal is not None:
            self._cut(request.refusal)
        elif self._task is None and not self._pending:
            self._expects_continue = False
            self.transport.write(_CONTINUE)

    def _cut(self, response: Response) -> None:
        """Answer a request that has not arrived whole, drop the rest of it, and close."""
        request = self._request if self._receiving and not self._in_head else None
        if request is None:
            request = Request("", b"", "", b"", [], self._peer)
        request.refusal, request.keep_alive = response, False
        self._forget_request()
        self._is_cut = self._discards = True
        self._deadline = inf
        self._pending.append(request)
        self._advance()

    def _linger(self) -> None:
        """Close the connection soon, and drop what arrives until then.

        At once would be too early: the kernel answers bytes that still arrive with a reset, which
        can overtake the response. The number of bytes is limited, because other clients wait.
        """
        self._forget_request()
        self._discards, self._discard_left = True, _LINGER_BYTES
        self._resume_reading()
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has gone
                self.transport.write_eof()
        self._deadline = self._loop.time() + _LINGER_S

    def _forget_request(self) -> None:
        """Drop the request that is arriving, and free its memory."""
        self._receiving = self._in_head = self._expects_continue = False
        self._request = None
        self._url, self._headers, self._body = b"", [], b""

    def _resume_reading(self) -> None:
        if self._read_paused and not self.transport.is_closing():
            self._read_paused = False
            self.transport.resume_reading()

    def _holds_up_client(self) -> bool:
        """Return whether the server delays the request that is arriving."""
        return self._read_paused or self._expects_continue

    def _is_stuck(self, now: float) -> bool:
        """Return whether the client has not read its responses for too long."""
        if not self.transport.get_write_buffer_size() and not self.transport.is_closing():
            self._unsent_since = inf
            return False
        self._unsent_since = min(self._unsent_since, now)
        return now >= self._unsent_since + self._shared.limits.write_timeout

    def _refusal_of(self, reason: BaseException | None) -> Response:
        """Return the response to a request that the parser or one of its callbacks gave up."""
        if isinstance(reason, _BodyTooLarge):
            assert self._request is not None
            return self._request.refusal or self._handler.too_large(self._request)
        if isinstance(reason, Rejected):
            return reason.response()
        if isinstance(reason, Exception) and not isinstance(reason, _MALFORMED_ERRORS):
            return _internal_error(reason)
        return Rejected(400, _MALFORMED).response()

    def _check_host(self, request: Request, version: str) -> None:
        """Refuse a request without a valid `Host`, as RFC 9112, section 3.2, requires."""
        host = request.named.get(b"host")
        if host is None:
            if version not in _VERSIONS_WITHOUT_HOST:
                raise Rejected(400, _NO_HOST)
            return
        if request.repeats(b"host"):
            raise Rejected(400, _HOST_REPEATED)
        is_host = _is_host if len(host) <= _MAX_CACHED else _is_host.__wrapped__
        if not is_host(host):
            raise Rejected(400, _INVALID_HOST)

    def _check_head_size(self) -> None:
        """Refuse a head that is too large. Packets alone do not tell: they contain more."""
        size = len(self._parser.get_method()) + len(self._url) + len("  HTTP/1.1\r\n\r\n")
        size += sum([len(name) + len(value) + len(": \r\n") for name, value in self._headers])
        if size > self._max_header:
            raise self._too_large()

    def _too_large(self) -> Rejected:
        return Rejected(431, _TOO_LARGE.format(self._max_header))


def _internal_error(error: Exception) -> Response:
    """Log an exception of the handler, and return the response to its request."""
    _logger.error("a mistake in the handler of a request", exc_info=error)
    return Rejected(500, _BUG).response()


def _announces_body(headers: Headers) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 "))
        for name, value in headers
    )


@lru_cache(maxsize=256)
def _target(url: bytes) -> tuple[bytes, str, bytes]:
    """Return the path as it was sent, the decoded path, and the query. Raises for invalid URLs."""
    parsed = httptools.parse_url(url)
    raw_path = parsed.path or b"/"
    path = raw_path.decode("ascii")
    return raw_path, unquote(path) if "%" in path else path, parsed.query or b""


@lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    match = _HOST.fullmatch(value.strip(_OPTIONAL_WHITESPACE))
    if match is None:
        return False
    if match[1] is not None:
        try:
            IPv6Address(match[1].decode("ascii"))
        except ValueError:
            return False
    return True
