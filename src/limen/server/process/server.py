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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from limen.errors import LimenError
from limen.masking import masked
from limen.server.http.connections import GRACE_S, HttpLimits
from limen.server.process.listen import BACKLOG, Tls, bind
from limen.server.process.supervisor import Parent

__all__ = ["Companion", "Hooks", "HttpLimits", "Program", "Site", "Tls", "bind", "serve"]

_STOPS = (signal.SIGTERM, signal.SIGINT)
_logger = logging.getLogger("limen.server")


class Served(Protocol):
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

    def close(self) -> None:
        """Stop the timers."""


class Site(Struct, frozen=True):
    """A listener, and the connections on it."""

    listener: socket.socket
    served: Served
    tls: Tls | None = None


class Companion(Protocol):
    """A server with a listener of its own in the same event loop."""

    tls: Tls | None

    async def start(self) -> None:
        """Listen."""

    def drain(self) -> None:
        """Stop listening, and let requests in progress finish."""

    async def wait_until_done(self) -> None:
        """Return when they have finished."""

    def cut(self) -> None:
        """Do not wait for them any longer."""


class Program(Protocol):
    """The program of a process. It is made on the event loop."""

    async def start(self) -> None:
        """Start, before anything is accepted. Raises `LimenError` when that is impossible."""

    def sites(self) -> Sequence[Site]:
        """Return the listeners to serve, after the start."""

    def companions(self) -> Sequence[Companion]:
        """Return the servers that listen by themselves, after the start."""

    async def close(self) -> None:
        """End, after the last response."""


class Hooks(Struct, frozen=True):
    """Callbacks of the owner of the process."""

    ready: Callable[[], object] | None = None
    """Requests are accepted now."""
    signals: Mapping[signal.Signals, Callable[[], object]] = {}
    """Called on the loop; for SIGHUP behind the new certificate. Not for SIGTERM and SIGINT."""


def serve(
    make: Callable[[], Program],
    limits: HttpLimits | None = None,
    *,
    parent: Parent | None = None,
    hooks: Hooks | None = None,
) -> int:
    """Serve a program until SIGTERM or SIGINT; return the exit code of the process.

    When the start fails, the reason is on stderr and the code is 1. A stop lets requests in
    progress finish: 0. A second signal does not wait for them: 128 and its number. SIGHUP reloads
    the certificate. With a `parent` it also stops when the parent has gone, and only the parent
    loses patience.
    """
    run = _Run(limits or HttpLimits(), parent, hooks or Hooks())
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(run.main(make))


class _Run:
    """One run of a server, from its start to its end."""

    def __init__(self, limits: HttpLimits, parent: Parent | None, hooks: Hooks) -> None:
        self._limits = limits
        self._parent = parent
        self._hooks = hooks
        self._certificates: list[Tls] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._code = 0

    async def main(self, make: Callable[[], Program]) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_stray)
        self._heed_signals(loop)
        try:
            program = make()
            if not await self._unless(self._stop, program.start()):
                return self._code
            sites, companions = program.sites(), program.companions()
        except LimenError as error:
            return _fail(str(error))
        except Exception as error:
            _logger.debug("the program did not start", exc_info=error)
            return _fail(in_a_line(error))
        each_tls = [*[site.tls for site in sites], *[each.tls for each in companions]]
        self._certificates = [tls for tls in each_tls if tls is not None]
        servers = [await self._listen(loop, site) for site in sites]
        for companion in companions:
            await companion.start()
        self._warn_of_expiry()
        if self._hooks.ready is not None:
            self._hooks.ready()
        if self._parent is not None:
            self._parent.tell_ready()
        await self._stop.wait()
        await self._accept_rest(loop, sites)
        for server in servers:
            server.close()
        draining = [self._drain(site.served) for site in sites]
        draining += [self._drain_companion(each) for each in companions]
        await asyncio.gather(*draining)
        await self._unless(self._hurry, self._close(program))
        return self._code

    def _heed_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number, act in self._hooks.signals.items():
            loop.add_signal_handler(number, act)
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
        act = self._hooks.signals.get(signal.SIGHUP)
        if act is not None:
            act()

    def _warn_of_expiry(self) -> None:
        # All sites share the files of one certificate.
        for warning in {tls.expiry_warning() for tls in self._certificates} - {None}:
            _logger.warning("%s", warning)

    def _on_orphaned(self, loop: asyncio.AbstractEventLoop, parent: Parent) -> None:
        if parent.is_gone():
            loop.remove_reader(parent.line)
            _logger.warning("the parent has gone: this worker ends as well")
            self._stop.set()

    async def _listen(self, loop: asyncio.AbstractEventLoop, site: Site) -> asyncio.AbstractServer:
        options = self._tls_options(site.tls)
        return await loop.create_server(
            site.served.make, sock=site.listener, backlog=BACKLOG, **options
        )

    def _tls_options(self, tls: Tls | None) -> dict[str, Any]:
        if tls is None:
            return {}
        return {
            "ssl": tls.context,
            "ssl_handshake_timeout": self._limits.read_timeout,
            "ssl_shutdown_timeout": self._limits.write_timeout,
        }

    async def _accept_rest(self, loop: asyncio.AbstractEventLoop, sites: Sequence[Site]) -> None:
        """Accept connections in the kernel's backlog: closing the listener would reset them."""
        coming = []
        for site in sites:
            options = self._tls_options(site.tls)
            with contextlib.suppress(OSError):
                while True:
                    accepted = site.listener.accept()[0]
                    made = loop.connect_accepted_socket(site.served.make, accepted, **options)
                    coming.append(made)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await asyncio.gather(*coming, return_exceptions=True)

    async def _drain(self, connections: Served) -> None:
        connections.drain()
        try:
            async with asyncio.timeout(self._limits.drain_timeout):
                await self._unless(self._hurry, connections.wait_until_done())
        except TimeoutError:
            _logger.warning("cut off what was still under way: %d connections", len(connections))
        await connections.cut()
        connections.close()

    async def _drain_companion(self, companion: Companion) -> None:
        companion.drain()
        if not await self._unless(self._hurry, companion.wait_until_done()):
            companion.cut()
            await companion.wait_until_done()

    async def _close(self, program: Program) -> None:
        try:
            await program.close()
        except Exception as error:
            _logger.error("the program did not end well: %s", in_a_line(error), exc_info=error)
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
    """Log what went wrong where nobody waits for it."""
    _logger.error("%s", context.get("message"), exc_info=context.get("exception"))


def in_a_line(error: Exception) -> str:
    """Return the type and the first line of an error."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _fail(reason: str) -> int:
    sys.stderr.write(f"limen: {masked(reason)}\n")
    return 1
