"""The administration of the service, under `/admin/v1`: rules, keys, tokens, audit, the fleet,
and what is decided.

FastAPI answers here, and the decisions of `/v1` elsewhere. Closed: every route asks for a role.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import limen
from limen.server import openapi
from limen.server.admin import fleet, insight, keys, live, problems, rules, special, tokens
from limen.server.admin.desk import Desk
from limen.server.admin.guard import MAX_REQUESTS, PREFIX, Door
from limen.server.admin.live import Live
from limen.server.admin.page import page
from limen.server.dashboard.pages import SECURITY_HEADERS
from limen.server.pools import PerToken
from limen.server.service import Service

__all__ = ["PREFIX", "admin_app"]


def admin_app(service: Service) -> FastAPI:
    """Return the app that answers `/admin`, `/docs` and `/openapi.json`."""
    app = FastAPI(
        title="limen",
        version=limen.__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.access = service.access
    app.state.live = Live(service)
    app.state.pools = service.pools
    app.state.requests = PerToken(MAX_REQUESTS, "requests in progress")
    app.add_middleware(_Framed)
    problems.install(app)
    _describe(app, service)
    door, desk = Door(app), Desk(service)
    for room in (rules, special, keys, tokens, fleet, insight, live):
        room.install(door, desk)
    return app


def _describe(app: FastAPI, service: Service) -> None:
    """Tell everybody what there is: neither page needs a token, or anything from elsewhere."""
    told: dict[str, Any] = {}

    def description() -> dict[str, Any]:
        if not told:
            told.update(openapi.describe(app, service.settings))
            live.describe(told)
        return told

    async def openapi_json() -> dict[str, Any]:
        return description()

    async def docs() -> HTMLResponse:
        return HTMLResponse(page(description()), headers=_security_headers())

    app.openapi = description  # type: ignore[method-assign]  # as FastAPI says one should
    app.router.add_api_route("/openapi.json", openapi_json, include_in_schema=False)
    app.router.add_api_route("/docs", docs, include_in_schema=False)


def _security_headers() -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in SECURITY_HEADERS}


class _Framed:
    """Gives every answer the headers that all of them have."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id_ = str(scope.get("limen_id", "")).encode()

        async def framed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(b"cache-control", b"no-store"), (b"x-request-id", id_)]
            await send(message)

        await self._app(scope, receive, framed)
