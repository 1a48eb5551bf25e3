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
from limen.server.grpc import GrpcConnections, GrpcLimits
from limen.server.http import HttpConnections, HttpLimits
from limen.server.insight.workers import gathering
from limen.server.process import logs
from limen.server.process.control_plane import ControlServer, control_plane
from limen.server.process.data_plane import DataPlane
from limen.server.process.grpc_methods import methods_of
from limen.server.process.listen import Tls, bind
from limen.server.process.server import Hooks, Site, serve
from limen.server.process.supervisor import Parent, supervise
from limen.server.settings import Settings
from limen.server.settings.bind import Bind
from limen.server.worker.container import Service
from limen.server.worker.data_dir import Place, Prepared

_LEAST_MESSAGE = 1_048_576
_PARENTS_PATIENCE_S = 10.0
_logger = logging.getLogger("limen.server")
# A decision makes some hundred objects that die with it, and hardly any cycles.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


class Started(Struct, frozen=True):
    """The addresses of a service that starts."""

    address: str
    """The data plane: `http://127.0.0.1:8080`."""
    admin: str | None
    """The control plane: `http://127.0.0.1:8082`; None when it is off."""
    grpc: str | None
    """The rate limit service of Envoy: `127.0.0.1:8081`; None when it is off."""
    prepared: Prepared


class Listeners(Struct, frozen=True):
    """The sockets of a service."""

    data: socket.socket
    grpc: socket.socket | None
    admin: socket.socket | None

    def named(self) -> dict[str, socket.socket]:
        """Return those that are on, with the names under which workers inherit them."""
        named = {"data": self.data, "grpc": self.grpc, "admin": self.admin}
        return {name: listener for name, listener in named.items() if listener is not None}


def run(
    settings: Settings,
    arguments: Sequence[str],
    worker_of: Parent | None,
    tell: Callable[[Started], object],
) -> int:
    """Serve as the settings say until a signal ends it; return the exit code.

    `arguments` are those of the command, with which it is called again for each worker. `tell` is
    called once, when clients can connect. Raises `LimenError` when the service cannot start.
    """
    logs.set_up(settings.log)
    if worker_of is not None:
        listeners = _inherited(settings, worker_of)
        return _serve(_with_ports(settings, listeners), listeners, worker_of)
    _tls(settings, "http/1.1")  # an error in it is reported before anything else is done
    listeners = _bind(settings)
    prepared = asyncio.run(Place(settings).prepare())
    settings = _with_ports(settings, listeners)
    tell(_started(settings, prepared))
    if settings.workers == 1:
        return _serve(settings, listeners, None)
    # -P: modules in the current folder are not imported.
    command = [sys.executable, "-P", "-m", "limen", *arguments]
    patience = settings.http.drain_timeout + _PARENTS_PATIENCE_S
    with gathering(settings.data_dir) as shared:
        return supervise(
            command, listeners.named(), settings.workers, shared=shared, stop_timeout=patience
        )


class Worker:
    """The program of one process: the service, its data plane, and its control plane."""

    def __init__(self, settings: Settings, listeners: Listeners, worker_of: Parent | None) -> None:
        if worker_of is None:
            self.service: Service = Service(settings)
        else:
            others_serve = worker_of.others_serve
            self.service = Service(settings, worker_of.folder, others_serve=others_serve)
        self._listeners = listeners

    async def start(self) -> None:
        """Start to follow rules and tokens."""
        await self.service.start()

    def sites(self) -> list[Site]:
        """Return the listeners for decisions: HTTP, and gRPC."""
        service, settings = self.service, self.service.settings
        data = HttpConnections(DataPlane(service), _http_limits(settings))
        sites = [Site(self._listeners.data, data, _tls(settings, "http/1.1"))]
        if self._listeners.grpc is not None:
            sites.append(Site(self._listeners.grpc, _grpc(service), _tls(settings, "h2")))
        return sites

    def companions(self) -> list[ControlServer]:
        """Return the server of the control plane."""
        listener, settings = self._listeners.admin, self.service.settings
        if listener is None:
            return []
        tls, drain_timeout = _tls(settings, "http/1.1"), settings.http.drain_timeout
        return [ControlServer(control_plane(self.service), listener, tls, drain_timeout)]

    async def close(self) -> None:
        """Close the service."""
        await self.service.close()


def _serve(settings: Settings, listeners: Listeners, worker_of: Parent | None) -> int:
    workers: list[Worker] = []

    def make() -> Worker:
        workers.append(Worker(settings, listeners, worker_of))
        return workers[0]

    hooks = Hooks(ready=_settle_down, signals={signal.SIGHUP: _tell_reload})
    code = serve(make, _http_limits(settings), parent=worker_of, hooks=hooks)
    if any(worker.service.pools.is_busy for worker in workers):
        _exit_now(code)
    return code


def _http_limits(settings: Settings) -> HttpLimits:
    http = settings.http
    return HttpLimits(
        max_header=http.max_header,
        max_body=http.max_body,
        read_timeout=http.read_timeout,
        keep_alive=http.keep_alive,
        drain_timeout=http.drain_timeout,
    )


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


def _bind(settings: Settings) -> Listeners:
    grpc, admin = settings.grpc.bind, settings.admin.bind
    return Listeners(
        bind(settings.bind.host, settings.bind.port),
        None if grpc is None else _bind_optional(grpc, "--grpc-bind"),
        None if admin is None else _bind_optional(admin, "--admin-bind"),
    )


def _bind_optional(place: Bind, option: str) -> socket.socket:
    try:
        return bind(place.host, place.port)
    except ConfigurationError as error:
        hint = f"{option} chooses another address, and {option} '' turns this listener off"
        raise ConfigurationError(f"{error}; {hint}") from None


def _inherited(settings: Settings, parent: Parent) -> Listeners:
    """Return the sockets that a worker has from its parent.

    Raises `ConfigurationError` if the settings have changed since the parent opened them: access
    control depends on the address of each listener.
    """
    wanted = {"data": settings.bind, "grpc": settings.grpc.bind, "admin": settings.admin.bind}
    inherited = parent.listeners
    for name, place in wanted.items():
        listener = inherited.get(name)
        if (place is None) != (listener is None) or (place and not _is_at(listener, place)):
            raise ConfigurationError(
                "the addresses of listeners have changed since limen started; restart limen"
            )
    return Listeners(inherited["data"], inherited.get("grpc"), inherited.get("admin"))


def _is_at(listener: socket.socket | None, place: Bind) -> bool:
    """Return whether a socket listens at a port, and on loopback if it should. Resolves no name."""
    assert listener is not None
    host, port = listener.getsockname()[:2]
    return place.port in (0, port) and (Bind(host, port).is_loopback or not place.is_loopback)


def _with_ports(settings: Settings, listeners: Listeners) -> Settings:
    """Return the settings with the ports that were opened, where the settings say port 0."""

    def bound(place: Bind | None, listener: socket.socket | None) -> Bind | None:
        if place is None or listener is None:
            return None
        return Bind(place.host, listener.getsockname()[1])

    grpc_bind = bound(settings.grpc.bind, listeners.grpc)
    admin_bind = bound(settings.admin.bind, listeners.admin)
    return settings.model_copy(
        update={
            "bind": bound(settings.bind, listeners.data),
            "grpc": settings.grpc.model_copy(update={"bind": grpc_bind}),
            "admin": settings.admin.model_copy(update={"bind": admin_bind}),
        }
    )


def _started(settings: Settings, prepared: Prepared) -> Started:
    scheme = "https" if settings.tls.is_on else "http"
    grpc, admin = settings.grpc.bind, settings.admin.bind
    return Started(
        f"{scheme}://{_shown(settings.bind)}",
        None if admin is None else f"{scheme}://{_shown(admin)}",
        None if grpc is None else _shown(grpc),
        prepared,
    )


def _shown(place: Bind) -> str:
    return str(Bind(place.host or "localhost", place.port))


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
