"""From settings to a service that runs: this process alone, or as the parent of its workers."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from msgspec import Struct

from limen.server import logs
from limen.server.admin import admin_app
from limen.server.app import App
from limen.server.place import Place, Prepared
from limen.server.protocol import Limits
from limen.server.serve import Hooks, Tls, bind, serve
from limen.server.service import Service
from limen.server.settings import Settings
from limen.server.supervise import Parent, supervise

_PARENTS_PATIENCE_S = 10.0
_logger = logging.getLogger("limen.server")
# A decision makes some hundred objects that die with it, and hardly any cycles.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


class Started(Struct, frozen=True):
    """What there is to tell when a service starts."""

    address: str
    """Where it is: `http://127.0.0.1:8080`."""
    prepared: Prepared


def run(
    settings: Settings,
    arguments: Sequence[str],
    worker_of: Parent | None,
    tell: Callable[[Started], object],
) -> int:
    """Serve as the settings say until somebody ends it; return the exit code.

    `arguments` are those of the command, with which it is called again for each worker. `tell` is
    called once, when there is something to connect to. Raises `LimenError` for what stands against
    it.
    """
    logs.set_up(settings.log)
    tls = Tls(settings.tls.certificate, settings.tls.key) if settings.tls.is_on else None
    if worker_of is not None:
        return _serve(settings, worker_of.listeners, tls, worker_of)
    listeners = [bind(settings.bind.host, settings.bind.port)]
    prepared = asyncio.run(Place(settings).prepare())
    tell(Started(_address(settings, listeners[0]), prepared))
    if settings.workers == 1:
        return _serve(settings, listeners, tls, None)
    # -P: what lies in the folder where it is started is not imported.
    command = [sys.executable, "-P", "-m", "limen", *arguments]
    patience = settings.http.drain_timeout + _PARENTS_PATIENCE_S
    return supervise(command, listeners, settings.workers, stop_timeout=patience)


def _serve(
    settings: Settings,
    listeners: Sequence[socket.socket],
    tls: Tls | None,
    worker_of: Parent | None,
) -> int:
    def make() -> App:
        service = Service(settings)
        return App(service, admin_app(service))

    http = settings.http
    limits = Limits(
        max_header=http.max_header,
        read_timeout=http.read_timeout,
        keep_alive=http.keep_alive,
        drain_timeout=http.drain_timeout,
    )
    hooks = Hooks(ready=_settle_down, signals={signal.SIGHUP: _tell_reload})
    return serve(make, listeners, limits, tls=tls, parent=worker_of, hooks=hooks)


def _tell_reload() -> None:
    _logger.info(
        "SIGHUP: the certificate was loaded anew, if there is one; rules and tokens are followed "
        "all the time; other settings need a restart, or several workers"
    )


def _settle_down() -> None:
    """Let the collector of garbage pass over what is there to stay, and come less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 100)


def _address(settings: Settings, listener: socket.socket) -> str:
    scheme = "https" if settings.tls.is_on else "http"
    host, port = settings.bind.host or "localhost", listener.getsockname()[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
