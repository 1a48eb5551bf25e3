"""The control plane: admin API, dashboard, metrics and health, as one FastAPI app on uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from limen.server.admin import admin_app
from limen.server.admin.problems import asgi_response
from limen.server.auth.cookies import PATH as SESSION
from limen.server.auth.tokens import unknown
from limen.server.dashboard import pages
from limen.server.dashboard.session import Sessions
from limen.server.process.data_plane import HEALTH_PATHS, health_response
from limen.server.process.listen import Tls
from limen.server.worker.container import Service

_MAX_CONNECTIONS, _MAX_SOCKETS = 200, 250
"""Above the first number requests get 503, above the second connections are closed at once: open
sockets must not use up the files of the process, which the data plane needs."""
_FIRST_REQUEST_S = 10.0
"""Within what time a new connection has to send something."""
_KEEP_ALIVE_S = 75
_DRAIN_S = 5
"""Longer, a client that does not finish its request would hold up the end of the process."""
_POLL_S = 0.01


def control_plane(service: Service) -> FastAPI:
    """Return the app of the control plane."""
    app = admin_app(service)
    addresses = service.settings.gateway.client_addresses()
    signed_in = Sessions(service.access, service.cookies, addresses)
    files = pages.Pages()

    async def metrics(request: Request) -> Response:
        if not service.settings.metrics_are_open:
            caller = service.access.caller(request.scope)
            if caller is None or caller.role == "check":
                raise unknown("/metrics needs a token of a viewer: 'Authorization: Bearer ...'")
        text, kind = await service.insight.metrics(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind})

    async def health(request: Request) -> Response:
        return asgi_response(health_response(service, request.url.path))

    async def page(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        response = files.response(request.url.path, known.encode("latin-1"))
        if response is None:
            raise HTTPException(404)
        return asgi_response(response)

    routes = {"/metrics": metrics, **dict.fromkeys(HEALTH_PATHS, health)}
    routes |= dict.fromkeys((*pages.ROUTES, "/rules/{rule:path}", "/ui/{file:path}"), page)
    app.router.routes += [Route(path, answer, methods=["GET"]) for path, answer in routes.items()]
    methods = ["GET", "POST", "DELETE"]
    app.router.routes.append(Route(SESSION, signed_in.answer, methods=methods))
    return app


class ControlServer:
    """uvicorn in the event loop of this process: it leaves signals and the event loop alone."""

    def __init__(
        self, app: FastAPI, listener: socket.socket, tls: Tls | None, drain_timeout: float
    ) -> None:
        self.tls: Tls | None = tls
        self._app = app
        self._listener = listener
        config = uvicorn.Config(
            app,
            # Unlike httptools in uvicorn, h11 limits the size of a head.
            http=_Protocol,
            ws="none",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            log_level="error",
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, min(_DRAIN_S, round(drain_timeout))),
        )
        config.load()
        if tls is not None:
            config.ssl = tls.context
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started and not self._task.done():  # noqa: ASYNC110  # no event
            await asyncio.sleep(_POLL_S)
        if self._task.done():
            self._task.result()

    async def drain(self) -> None:
        """Stop listening, end live streams, and return when requests in progress are finished."""
        self._app.state.live.end()
        self._server.should_exit = True
        await self._wait()

    async def cut(self) -> None:
        """Do not wait for requests any longer."""
        self._server.should_exit = self._server.force_exit = True
        await self._wait()

    async def _wait(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])


class _Protocol(H11Protocol):
    """uvicorn's protocol with two limits that it lacks: on sockets, and on silent clients."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the timer that ends idle connections, which uvicorn starts after a response."""
        super().connection_made(transport)
        if len(self.connections) > _MAX_SOCKETS:
            transport.abort()
            return
        end = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(_FIRST_REQUEST_S, end)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process, which stops all its listeners together."""
        yield
