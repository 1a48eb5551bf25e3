"""The administration of the service, under `/admin/v1`: rules, keys, tokens, audit, operations and
insight.

It is a FastAPI app; the data plane answers `/v1`. Every route needs a role.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import limen
from limen.server.admin import (
    insight,
    keys,
    live,
    openapi,
    operations,
    overrides,
    problems,
    rules,
    tokens,
)
from limen.server.admin.authorization import MAX_REQUESTS, PREFIX
from limen.server.admin.docs_page import page
from limen.server.admin.live import Live
from limen.server.dashboard.pages import SECURITY_HEADERS
from limen.server.http.exchange import (
    NO_STORE,
    RETRY_SOON,
    Rejected,
    RequestIds,
    header,
    internal_error,
)
from limen.server.worker.container import Service
from limen.server.worker.pools import PerToken

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
    )
    app.state.service = service
    app.state.live = Live(service)
    app.state.requests = PerToken(MAX_REQUESTS, "requests in progress")
    app.add_middleware(_Framed, request_ids=service.request_ids)
    problems.install(app)
    _describe(app, service)
    for module in (rules, overrides, keys, tokens, operations, insight, live):
        app.router.routes += module.ROUTES
    return app


def _describe(app: FastAPI, service: Service) -> None:
    """Add `/openapi.json` and `/docs`, which need no token."""

    @cache
    def description() -> dict[str, Any]:
        return openapi.describe(app, service.settings, live.EVENTS)

    async def openapi_json() -> dict[str, Any]:
        return description()

    async def docs() -> HTMLResponse:
        headers = {name.decode(): value.decode() for name, value in SECURITY_HEADERS}
        return HTMLResponse(page(description()), headers=headers)

    app.openapi = description  # type: ignore[method-assign]  # as FastAPI says one should
    app.router.add_api_route("/openapi.json", openapi_json, include_in_schema=False)
    app.router.add_api_route("/docs", docs, include_in_schema=False)


class _Framed:
    """Adds the headers that all responses have: the request id, and that nothing is stored.

    An unexpected exception is logged here, once, and becomes a problem document. Starlette would
    answer it without these headers, and raise it again for the server to log. A request that the
    server cancels at the end of the drain timeout gets 503.
    """

    def __init__(self, app: ASGIApp, request_ids: RequestIds) -> None:
        self._app = app
        self._request_ids = request_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id_ = scope["limen_id"] = self._request_ids.id_of(header(scope["headers"], b"x-request-id"))
        is_started = False

        async def framed(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                headers = message["headers"]
                headers.append((b"x-request-id", id_.encode()))
                if header(headers, b"cache-control") is None:
                    headers.append(NO_STORE)
            await send(message)

        try:
            await self._app(scope, receive, framed)
        except asyncio.CancelledError:
            response = Rejected(503, "the service stops; try again", [RETRY_SOON]).response(id_)
        except Exception:
            response = internal_error(id_)
        else:
            return
        # Without the rest of a response the server closes the connection.
        if not is_started:
            await problems.asgi_response(response)(scope, receive, framed)
