"""From settings to a service that runs: this process alone, or as the parent of its workers."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from limen.errors import ConfigurationError
from limen.server import logs
from limen.server.admin import admin_app
from limen.server.app import App
from limen.server.listen import Tls, bind, reserve
from limen.server.place import Place, Prepared
from limen.server.protocol import Limits
from limen.server.serve import Hooks, serve
from limen.server.service import Service
from limen.server.settings import Bind, Settings
from limen.server.supervise import Parent, supervise

if TYPE_CHECKING:
    from limen.server.envoy.grpc import GrpcServer

_PARENTS_PATIENCE_S = 10.0
_logger = logging.getLogger("limen.server")
# A decision makes some hundred objects that die with it, and hardly any cycles.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


class Started(Struct, frozen=True):
    """What there is to tell when a service starts."""

    address: str
    """Where it is: `http://127.0.0.1:8080`."""
    grpc: str | None
    """Where Envoy may ask: `127.0.0.1:8081`; None is nowhere."""
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
    if settings.grpc.bind is not None:
        listeners.append(_reserve(settings.grpc.bind))
    prepared = asyncio.run(Place(settings).prepare())
    grpc = None if settings.grpc.bind is None else _place(settings.grpc.bind, listeners[1])
    tell(Started(_address(settings, listeners[0]), grpc, prepared))
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
    """Serve HTTP on the first listener; the second one, if any, keeps an address for gRPC."""

    def make() -> App:
        service = Service(settings)
        door = _grpc_server(service, listeners[1], tls) if len(listeners) > 1 else None
        return App(service, admin_app(service), door)

    http = settings.http
    limits = Limits(
        max_header=http.max_header,
        read_timeout=http.read_timeout,
        keep_alive=http.keep_alive,
        drain_timeout=http.drain_timeout,
    )
    hooks = Hooks(ready=_settle_down, signals={signal.SIGHUP: _tell_reload})
    return serve(make, listeners[:1], limits, tls=tls, parent=worker_of, hooks=hooks)


def _grpc_server(service: Service, reserved: socket.socket, tls: Tls | None) -> GrpcServer:
    # Not before it is needed: it takes a tenth of a second.
    from limen.server.envoy.grpc import GrpcServer

    settings = service.settings
    return GrpcServer(
        service.envoy,
        None if settings.checks_are_open else service.access,
        reserved,
        lambda: service.health.status != "starting",
        tls=tls,
        max_message=settings.http.max_body,
        max_connection_age=settings.grpc.max_connection_age,
    )


def _reserve(place: Bind) -> socket.socket:
    try:
        return reserve(place.host, place.port)
    except ConfigurationError as error:
        hint = "gRPC listens where --grpc-bind says; --grpc-bind '' is nowhere"
        raise ConfigurationError(f"{error}; {hint}") from None


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
    return f"{scheme}://{_place(settings.bind, listener)}"


def _place(bound: Bind, listener: socket.socket) -> str:
    return str(Bind(bound.host or "localhost", listener.getsockname()[1]))
