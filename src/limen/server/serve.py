"""One process that serves: listens, starts the app, answers, and ends without losing a request.

Owns signals, and the order of things at the start and at the end. Knows nothing of what the app
does, and of other workers only that there may be a parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct
from uvicorn import Config

from limen.errors import LimenError
from limen.masking import masked
from limen.server.lifespan import App, Lifespan, NotStarted, in_a_line
from limen.server.listen import BACKLOG, Tls, bind
from limen.server.protocol import GRACE_S, Connections, Limits
from limen.server.supervise import Parent

__all__ = ["App", "Beside", "Hooks", "Limits", "Tls", "bind", "serve"]

_STOPS = (signal.SIGTERM, signal.SIGINT)
_logger = logging.getLogger("limen.server")


class Served(Protocol):
    """All connections on a listener."""

    def __len__(self) -> int: ...

    def make(self) -> asyncio.BaseProtocol:
        """Return what speaks on a new connection."""

    def drain(self) -> None:
        """Let every connection end as soon as nobody waits for an answer on it."""

    async def wait_until_done(self) -> None:
        """Return when there are none left."""

    async def cut(self) -> None:
        """End all of them now."""

    def close(self) -> None:
        """Look after them no longer."""


class Beside(Struct, frozen=True):
    """What is served beside the app, on a listener of its own."""

    listener: socket.socket
    open: Callable[[Any], Served]
    """Called on the loop when the app has started, with the app."""
    tls: Tls | None = None


class Hooks(Struct, frozen=True):
    """What the owner of an app wants to be told of."""

    ready: Callable[[], object] | None = None
    """Requests are accepted now."""
    signals: Mapping[signal.Signals, Callable[[], object]] = {}
    """Called on the loop; for SIGHUP behind the new certificate. Not for SIGTERM and SIGINT."""
    stopping: Callable[[], object] | None = None
    """The stop begins: an answer that would go on for ever has to end now."""


def serve(
    app_factory: Callable[[], App],
    listeners: Sequence[socket.socket],
    limits: Limits | None = None,
    *,
    tls: Tls | None = None,
    parent: Parent | None = None,
    hooks: Hooks | None = None,
    beside: Sequence[Beside] = (),
) -> int:
    """Serve an app until SIGTERM or SIGINT; return the exit code of the process.

    The app is made on the loop, and started before anything is accepted; when that fails the
    reason is on stderr, and the code 1. A stop lets requests under way finish: 0. A second signal
    does not wait for them: 128 and its number. SIGHUP loads the certificate anew. With a `parent`
    it also stops when that has gone, and leaves it to the parent to lose patience.
    """
    run = _Run(listeners, limits or Limits(), tls, parent, hooks or Hooks(), beside)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(run.main(app_factory))


class _Site(NamedTuple):
    listener: socket.socket
    served: Served
    tls: Tls | None


class _Run:
    """One run of a server, from its start to its end."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        limits: Limits,
        tls: Tls | None,
        parent: Parent | None,
        hooks: Hooks,
        beside: Sequence[Beside],
    ) -> None:
        self._listeners = listeners
        self._beside = beside
        self._limits = limits
        self._tls = tls
        self._parent = parent
        self._hooks = hooks
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._code = 0

    async def main(self, app_factory: Callable[[], App]) -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_stray)
        self._heed_signals(loop)
        try:
            app = app_factory()
            lifespan = Lifespan(app)
            if not await self._unless(self._stop, lifespan.start()):
                await lifespan.call_off()
                return self._code
        except (LimenError, NotStarted) as error:
            return _fail(str(error))
        except Exception as error:
            _logger.debug("the app could not be made", exc_info=error)
            return _fail(in_a_line(error))
        quick = getattr(app, "quick", None)
        connections = Connections(config_of(app), self._limits, lifespan.state, quick)
        sites = [_Site(each, connections, self._tls) for each in self._listeners]
        sites += [_Site(each.listener, each.open(app), each.tls) for each in self._beside]
        servers = [await self._listen(loop, site) for site in sites]
        self._warn_of_expiry()
        if self._hooks.ready is not None:
            self._hooks.ready()
        if self._parent is not None:
            self._parent.tell_ready()
        await self._stop.wait()
        if self._hooks.stopping is not None:
            self._hooks.stopping()
        await self._accept_rest(loop, sites)
        for server in servers:
            server.close()
        await asyncio.gather(*[self._drain(served) for served in {site.served for site in sites}])
        if not await self._unless(self._hurry, self._end(lifespan)):
            await lifespan.call_off()
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
            self._stop.set()
        elif self._parent is None:
            # A terminal or systemd tells a worker what its parent tells it too: there a second
            # signal means nothing, and the parent kills.
            self._code = 128 + number
            self._hurry.set()
            # What does not even end now is ended by the next one.
            signal.signal(number, signal.SIG_DFL)

    def _on_hangup(self) -> None:
        certificates = self._certificates()
        try:
            for tls in certificates:
                tls.reload()
            if certificates:
                _logger.info("the certificate was loaded anew")
        except LimenError as error:
            _logger.error("the certificate stays as it was: %s", error)
        else:
            self._warn_of_expiry()
        act = self._hooks.signals.get(signal.SIGHUP)
        if act is not None:
            act()

    def _certificates(self) -> list[Tls]:
        return [tls for tls in (self._tls, *[each.tls for each in self._beside]) if tls is not None]

    def _warn_of_expiry(self) -> None:
        # All sites share the files of one certificate.
        for warning in {tls.expiry_warning() for tls in self._certificates()} - {None}:
            _logger.warning("%s", warning)

    def _on_orphaned(self, loop: asyncio.AbstractEventLoop, parent: Parent) -> None:
        if parent.is_gone():
            loop.remove_reader(parent.line)
            _logger.warning("the parent has gone: this worker ends as well")
            self._stop.set()

    async def _listen(self, loop: asyncio.AbstractEventLoop, site: _Site) -> asyncio.AbstractServer:
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

    async def _accept_rest(self, loop: asyncio.AbstractEventLoop, sites: Sequence[_Site]) -> None:
        """Accept whom the kernel has let in already: it would turn them away again."""
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

    async def _end(self, lifespan: Lifespan) -> None:
        if not await lifespan.stop():
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


def config_of(app: App) -> Config:
    """Return what uvicorn's protocol wants to know."""
    config = Config(
        lambda: app,
        factory=True,
        interface="asgi3",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        log_level="warning",
    )
    config.load()
    return config


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _log_stray(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what went wrong where nobody waits for it."""
    _logger.error("%s", context.get("message"), exc_info=context.get("exception"))


def _fail(reason: str) -> int:
    sys.stderr.write(f"limen: {masked(reason)}\n")
    return 1
