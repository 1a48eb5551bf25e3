"""From settings to a service that runs: this process alone, or as the parent of its workers."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import msgspec
from msgspec import Struct

from limen.errors import ConfigurationError
from limen.server.grpc.connection import GrpcConnections, GrpcLimits
from limen.server.http import HttpConnections, HttpLimits
from limen.server.insight.workers import gathering
from limen.server.process import logs
from limen.server.process.control_plane import ControlServer, control_plane
from limen.server.process.data_plane import DataPlane
from limen.server.process.grpc_methods import methods_of
from limen.server.process.listen import Tls, bind
from limen.server.process.server import Server, Site, serve
from limen.server.process.supervisor import Parent, supervise
from limen.server.settings import Settings
from limen.server.settings.fields import BY_NAME
from limen.server.settings.values import Bind
from limen.server.worker.container import Service
from limen.server.worker.data_dir import Place, Prepared

_LEAST_MESSAGE = 1_048_576
_PARENTS_PATIENCE_S = 10.0
Listeners = Mapping[str, socket.socket]
"""The sockets of a service, by the names of their settings: `bind`, `grpc.bind`, `admin.bind`."""
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
        _refuse_other_addresses(settings, worker_of.listeners)
        return _serve(_with_ports(settings, worker_of.listeners), worker_of.listeners, worker_of)
    _tls(settings, "http/1.1")  # an error in it is reported before anything else is done
    listeners = {name: _bind(name, place) for name, place in settings.listeners.items()}
    prepared = asyncio.run(Place(settings).prepare())
    settings = _with_ports(settings, listeners)
    tell(_started(settings, prepared))
    if settings.workers == 1:
        return _serve(settings, listeners, None)
    # -P: modules in the current folder are not imported.
    command = [sys.executable, "-P", "-m", "limen", *arguments]
    patience = settings.http.drain_timeout + _PARENTS_PATIENCE_S
    with gathering(settings.data_dir) as shared:
        return supervise(command, listeners, settings.workers, shared=shared, stop_timeout=patience)


class Worker:
    """The program of one process: the service, its data plane, and its control plane."""

    def __init__(self, settings: Settings, listeners: Listeners, worker_of: Parent | None) -> None:
        self._settings = settings
        self._listeners = listeners
        self._parent = worker_of
        self.service: Service | None = None
        """None until the start."""

    async def start(self) -> list[Server]:
        """Start to follow rules and tokens; return the servers of the two planes."""
        settings, parent = self._settings, self._parent
        folder, others_serve = (parent.folder, parent.others_serve) if parent else (None, False)
        service = self.service = Service(settings, folder, others_serve=others_serve)
        await service.start()
        listeners, tls = self._listeners, _tls(settings, "http/1.1")
        limits = msgspec.convert(settings.http, HttpLimits, from_attributes=True)
        data = HttpConnections(DataPlane(service), limits)
        servers: list[Server] = [Site(listeners["bind"], data, limits, tls)]
        if "grpc.bind" in listeners:
            grpc_tls = _tls(settings, "h2")
            servers.append(Site(listeners["grpc.bind"], _grpc(service), limits, grpc_tls))
        if "admin.bind" in listeners:
            app, listener = control_plane(service), listeners["admin.bind"]
            servers.append(ControlServer(app, listener, tls, limits.drain_timeout))
        return servers

    async def close(self) -> None:
        """Close the service."""
        if self.service is not None:
            await self.service.close()


def _serve(settings: Settings, listeners: Listeners, worker_of: Parent | None) -> int:
    worker = Worker(settings, listeners, worker_of)
    code = serve(worker, parent=worker_of, on_ready=_settle_down)
    if worker.service is not None and worker.service.pools.is_busy:
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


def _bind(name: str, place: Bind) -> socket.socket:
    try:
        return bind(place.host, place.port)
    except ConfigurationError as error:
        if name == "bind":
            raise
        flag = BY_NAME[name].flag
        hint = f"{flag} chooses another address, and {flag} '' turns this listener off"
        raise ConfigurationError(f"{error}; {hint}") from None


def _refuse_other_addresses(settings: Settings, inherited: Listeners) -> None:
    """Raise `ConfigurationError` if the settings have changed since the parent opened the sockets.

    Access control depends on the address of each listener.
    """
    places = settings.listeners
    is_same = places.keys() == inherited.keys()
    if not is_same or not all(_is_at(inherited[name], place) for name, place in places.items()):
        raise ConfigurationError(
            "the addresses of listeners have changed since limen started; restart limen"
        )


def _is_at(listener: socket.socket, place: Bind) -> bool:
    """Return whether a socket listens at a port, and on loopback if it should. Resolves no name."""
    host, port = listener.getsockname()[:2]
    return place.port in (0, port) and (Bind(host, port).is_loopback or not place.is_loopback)


def _with_ports(settings: Settings, listeners: Listeners) -> Settings:
    """Return the settings with the ports that were opened, where the settings say port 0."""
    bound = {
        name: Bind(place.host, listeners[name].getsockname()[1])
        for name, place in settings.listeners.items()
    }
    return settings.model_copy(
        update={
            "bind": bound["bind"],
            "grpc": settings.grpc.model_copy(update={"bind": bound.get("grpc.bind")}),
            "admin": settings.admin.model_copy(update={"bind": bound.get("admin.bind")}),
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


def _settle_down() -> None:
    """Let the collector of garbage pass over what is there to stay, and come less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, 20, 100)
