"""From settings to a service that runs: this process alone, or as the parent of its workers."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from msgspec import Struct

from limen.errors import ConfigurationError
from limen.server import logs
from limen.server.admin import admin_app
from limen.server.admin.live import Live
from limen.server.app import App
from limen.server.envoy.methods import methods_of
from limen.server.grpc import GrpcConnections, GrpcLimits
from limen.server.insight.workers import gathering
from limen.server.listen import Tls, bind
from limen.server.place import Place, Prepared
from limen.server.protocol import Limits
from limen.server.serve import Beside, Hooks, serve
from limen.server.service import Service
from limen.server.settings import Bind, Settings
from limen.server.supervise import Parent, supervise

_LEAST_MESSAGE = 1_048_576
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
    if worker_of is not None:
        return _serve(settings, worker_of.listeners, worker_of)
    _tls(settings, "http/1.1")  # what is wrong with it is told before anything else is done
    listeners = [bind(settings.bind.host, settings.bind.port)]
    if settings.grpc.bind is not None:
        listeners.append(_bind_grpc(settings.grpc.bind))
    prepared = asyncio.run(Place(settings).prepare())
    grpc = None if settings.grpc.bind is None else _place(settings.grpc.bind, listeners[1])
    tell(Started(_address(settings, listeners[0]), grpc, prepared))
    if settings.workers == 1:
        return _serve(settings, listeners, None)
    # -P: what lies in the folder where it is started is not imported.
    command = [sys.executable, "-P", "-m", "limen", *arguments]
    patience = settings.http.drain_timeout + _PARENTS_PATIENCE_S
    with gathering(settings.data_dir) as shared:
        return supervise(command, listeners, settings.workers, shared=shared, stop_timeout=patience)


def _serve(
    settings: Settings,
    listeners: Sequence[socket.socket],
    worker_of: Parent | None,
) -> int:
    """Serve HTTP on the first listener, and gRPC on the second one, if there is one."""

    streams: list[Live] = []
    services: list[Service] = []

    def make() -> App:
        if worker_of is None:
            service = Service(settings)
        else:
            service = Service(settings, worker_of.folder, others_serve=worker_of.others_serve)
        admin = admin_app(service)
        streams.append(admin.state.live)
        services.append(service)
        return App(service, admin)

    def end_streams() -> None:
        for each in streams:
            each.end()

    http = settings.http
    limits = Limits(
        max_header=http.max_header,
        read_timeout=http.read_timeout,
        keep_alive=http.keep_alive,
        drain_timeout=http.drain_timeout,
    )
    signals = {signal.SIGHUP: _tell_reload}
    hooks = Hooks(ready=_settle_down, signals=signals, stopping=end_streams)
    beside = [
        Beside(listener, lambda app: _grpc(app.service), _tls(settings, "h2"))
        for listener in listeners[1:]
    ]
    code = serve(
        make,
        listeners[:1],
        limits,
        tls=_tls(settings, "http/1.1"),
        parent=worker_of,
        hooks=hooks,
        beside=beside,
    )
    if any(service.pools.is_busy for service in services):
        _exit_now(code)
    return code


def _exit_now(code: int) -> NoReturn:
    """End the process while threads still work. Python cannot stop them, and would wait."""
    _logger.warning("stopped before work of the admin API was done")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _tls(settings: Settings, protocol: str) -> Tls | None:
    tls = settings.tls
    return Tls(tls.certificate, tls.key, protocol) if tls.is_on else None


def _grpc(service: Service) -> GrpcConnections:
    settings = service.settings
    limits = GrpcLimits(
        # Not less, whatever HTTP takes: no client must make a question of Envoy's too long.
        max_message=max(settings.http.max_body, _LEAST_MESSAGE),
        read_timeout=settings.http.read_timeout,
        max_age=settings.grpc.max_connection_age,
    )
    return GrpcConnections(methods_of(service), limits)


def _bind_grpc(place: Bind) -> socket.socket:
    try:
        return bind(place.host, place.port)
    except ConfigurationError as error:
        hint = "--grpc-bind says where gRPC is spoken, and --grpc-bind '' that it is not"
        raise ConfigurationError(f"{error}; {hint}") from None


def _tell_reload() -> None:
    _logger.info(
        "SIGHUP: rules and tokens are followed all the time; other settings need a restart, or "
        "several workers"
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
