"""One process that serves: starts a program, listens, and ends without losing a request.

Owns signals, and the order of things at the start and at the end. Knows nothing of the program's
work, and of other workers only that there may be a parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from limen.errors import LimenError
from limen.masking import masked
from limen.server.connections import GRACE_S
from limen.server.http import HttpLimits
from limen.server.process.listen import BACKLOG, Tls
from limen.server.process.supervisor import Parent

_STOPS = (signal.SIGTERM, signal.SIGINT)
_logger = logging.getLogger("limen.server")


class Server(Protocol):
    """A server with a listener of its own in the event loop of the process."""

    tls: Tls | None

    async def start(self) -> None:
        """Listen."""

    async def drain(self) -> None:
        """Stop listening, and return when the requests in progress are finished."""

    async def cut(self) -> None:
        """End the requests that are still in progress."""


class Program(Protocol):
    """The program of a process."""

    async def start(self) -> Sequence[Server]:
        """Start, and return the servers, which do not listen yet.

        Raises `LimenError` when that is impossible.
        """

    async def close(self) -> None:
        """End, after the last response."""


class Connections(Protocol):
    """All connections of a listener."""

    def __len__(self) -> int: ...

    def make(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""

    def drain(self) -> None:
        """Close every connection as soon as no response is due on it."""

    async def wait_until_done(self) -> None:
        """Return when there are none left."""

    async def cut(self) -> None:
        """Abort all connections."""


class Site:
    """The server for a listening socket and the connections that it accepts."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        limits: HttpLimits,
        tls: Tls | None = None,
    ) -> None:
        """Of the limits, those for TLS and for the drain count."""
        self.tls: Tls | None = tls
        self._listener = listener
        self._connections = connections
        self._drain_timeout = limits.drain_timeout
        self._options: dict[str, Any] = {}
        if tls is not None:
            self._options = {
                "ssl": tls.context,
                "ssl_handshake_timeout": limits.read_timeout,
                "ssl_shutdown_timeout": limits.write_timeout,
            }

    async def start(self) -> None:
        """Listen."""
        loop, make = asyncio.get_running_loop(), self._connections.make
        self._server = await loop.create_server(
            make, sock=self._listener, backlog=BACKLOG, **self._options
        )

    async def drain(self) -> None:
        """Stop listening, and return when all connections are closed or the time is over."""
        await self._accept_rest()
        self._server.close()
        connections = self._connections
        connections.drain()
        try:
            async with asyncio.timeout(self._drain_timeout):
                await connections.wait_until_done()
        except TimeoutError:
            _logger.warning("cut off what was still under way: %d connections", len(connections))

    async def cut(self) -> None:
        """Stop listening, and abort all connections."""
        self._server.close()
        await self._connections.cut()

    async def _accept_rest(self) -> None:
        """Accept connections in the kernel's backlog: closing the listener would reset them."""
        loop, make = asyncio.get_running_loop(), self._connections.make
        coming = []
        with contextlib.suppress(OSError):
            while True:
                accepted = self._listener.accept()[0]
                coming.append(loop.connect_accepted_socket(make, accepted, **self._options))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await asyncio.gather(*coming, return_exceptions=True)


def serve(
    program: Program,
    *,
    parent: Parent | None = None,
    on_ready: Callable[[], object] | None = None,
) -> int:
    """Serve a program until SIGTERM or SIGINT; return the exit code of the process.

    When the start fails, the reason is on stderr and the code is 1. `on_ready` is called when
    requests are accepted. A stop lets requests in progress finish: 0. A second signal does not wait
    for them: 128 and its number. SIGHUP reloads the certificate. With a `parent` it also stops when
    the parent has gone, and only the parent kills it.
    """
    run = _Run(parent)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(run.main(program, on_ready))


class _Run:
    """One run of a process, from its start to its end."""

    def __init__(self, parent: Parent | None) -> None:
        self._parent = parent
        self._certificates: list[Tls] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._code = 0

    async def main(self, program: Program, on_ready: Callable[[], object] | None) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_stray)
        self._heed_signals(loop)
        starting = asyncio.ensure_future(program.start())
        try:
            if not await self._unless(self._stop, starting):
                return self._code
        except LimenError as error:
            return _fail(str(error))
        except Exception as error:
            _logger.debug("the program did not start", exc_info=error)
            return _fail(_in_a_line(error))
        servers = starting.result()
        self._certificates = [server.tls for server in servers if server.tls is not None]
        for server in servers:
            await server.start()
        self._warn_of_expiry()
        if on_ready is not None:
            on_ready()
        if self._parent is not None:
            self._parent.tell_ready()
        await self._stop.wait()
        await asyncio.gather(*[self._end(server) for server in servers])
        await self._unless(self._hurry, self._close(program))
        return self._code

    def _heed_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in _STOPS:
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        if self._parent is not None:
            loop.add_reader(self._parent.line, self._on_orphaned, loop, self._parent)

    def _on_stop(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            _logger.info(
                "%s: requests in progress are finished, then the process ends", number.name
            )
            self._stop.set()
        elif self._parent is None:
            # A terminal or systemd tells a worker what its parent tells it too: there a second
            # signal means nothing, and the parent kills.
            self._code = 128 + number
            self._hurry.set()
            # What does not even end now is ended by the next one.
            signal.signal(number, signal.SIG_DFL)

    def _on_hangup(self) -> None:
        try:
            for tls in self._certificates:
                tls.reload()
            if self._certificates:
                _logger.info("the certificate was loaded anew")
        except LimenError as error:
            _logger.error("the certificate stays as it was: %s", error)
        else:
            self._warn_of_expiry()
        _logger.info(
            "SIGHUP: rules and tokens are followed all the time; other settings need a restart, or "
            "several workers"
        )

    def _warn_of_expiry(self) -> None:
        # All servers share the files of one certificate.
        for warning in {tls.expiry_warning() for tls in self._certificates} - {None}:
            _logger.warning("%s", warning)

    def _on_orphaned(self, loop: asyncio.AbstractEventLoop, parent: Parent) -> None:
        loop.remove_reader(parent.line)
        _logger.warning("the parent has gone: this worker ends as well")
        self._stop.set()

    async def _end(self, server: Server) -> None:
        await self._unless(self._hurry, server.drain())
        await server.cut()

    async def _close(self, program: Program) -> None:
        try:
            await program.close()
        except Exception as error:
            _logger.error("the program did not end well: %s", _in_a_line(error), exc_info=error)
            self._code = 1

    async def _unless(self, event: asyncio.Event, work: Awaitable[object]) -> bool:
        """Do some work unless an event comes first; say whether it was done."""
        doing = asyncio.ensure_future(work)
        waiting = asyncio.create_task(event.wait())
        try:
            await asyncio.wait([doing, waiting], return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                doing.result()
            return doing.done()
        finally:
            doing.cancel()
            waiting.cancel()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _log_stray(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that no code awaits."""
    _logger.error("%s", context.get("message"), exc_info=context.get("exception"))


def _in_a_line(error: Exception) -> str:
    """Return the type and the first line of an error."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _fail(reason: str) -> int:
    sys.stderr.write(f"limen: {masked(reason)}\n")
    return 1
