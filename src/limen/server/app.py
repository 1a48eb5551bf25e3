"""The service as an ASGI app: who is asked for what, by path and method.

The paths of `/v1` are answered here, without a framework in between; `/admin` and the description
of the API are left to another app, and what no API is asked for to the dashboard.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from limen.errors import InvalidInput, InvalidLimit
from limen.server.access import admit, unknown
from limen.server.dashboard import pages
from limen.server.dashboard import session as sessions
from limen.server.exchange import (
    GIVEN_ID,
    JSON,
    NO_STORE,
    PROBLEM,
    RETRY_SOON,
    TEXT,
    Gone,
    Headers,
    Receive,
    Rejected,
    Reply,
    Scope,
    Send,
    header,
    mistake,
    read_body,
    respond,
    wrong_method,
)
from limen.server.gateway import auth
from limen.server.insight.metrics import metrics_text
from limen.server.peer import is_gone
from limen.server.quick import Quick
from limen.server.service import Service

ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
_SLOTS = "/v1/slots/"
_ENVOY = "/json"
_NEED_RULES = frozenset({"/v1/check", "/v1/usage", "/v1/slots", _ENVOY})
_ADMIN = ("/admin", "/docs", "/openapi.json")
_LOCAL = re.compile(rb"https?://(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")


class Asked(NamedTuple):
    """What a handler is given."""

    body: bytes
    query: bytes
    slot: str
    id: str


Handler = Callable[[Asked], Awaitable[Reply]]


class App:
    """Answers every request of one worker."""

    def __init__(self, service: Service, admin: ASGIApp) -> None:
        self.service: Service = service
        self._admin = admin
        self._max_body = service.settings.http.max_body
        self._is_open = service.settings.checks_are_open
        self._auth = auth.Auth(service)
        self._sessions = sessions.Sessions(
            service.access, service.cookies, service.settings.gateway.client_addresses()
        )
        self._pages = pages.Pages()
        decisions = service.decisions
        self._handlers: dict[str, dict[str, Handler]] = {
            "/v1/check": {"POST": lambda asked: decisions.check(asked.body, asked.id)},
            "/v1/refund": {"POST": lambda asked: decisions.refund(asked.body)},
            "/v1/settle": {"POST": lambda asked: decisions.settle(asked.body)},
            "/v1/usage": {"GET": lambda asked: decisions.usage(asked.query, asked.id)},
            "/v1/slots": {"POST": lambda asked: decisions.acquire(asked.body, asked.id)},
            _ENVOY: {"POST": lambda asked: service.envoy.should_limit_json(asked.body, asked.id)},
        }
        self._slot_handlers: dict[str, Handler] = {
            "POST": lambda asked: decisions.renew(asked.slot),
            "DELETE": lambda asked: decisions.release(asked.slot),
        }
        self._ids = itertools.count(1)
        self.quick: Quick = Quick(
            decisions,
            service.access,
            self._new_id,
            lambda: service.has_rules,
            is_open=self._is_open,
            max_body=self._max_body,
            max_header=service.settings.http.max_header,
        )
        """The short way of what is asked most; for a server that knows it."""
        self._encode = msgspec.json.Encoder().encode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or live through the start and the end of the worker."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        id_ = self._id_of(scope)
        headers: Headers = [(b"x-request-id", id_.encode())]
        try:
            await self._answer(scope, receive, send, id_, headers)
        except Rejected as error:
            found = [*headers, PROBLEM, NO_STORE, *error.headers]
            await respond(send, error.status, found, error.body(id_))
        except (InvalidInput, InvalidLimit) as error:
            rejected = Rejected(422, str(error))
            await respond(send, 422, [*headers, PROBLEM, NO_STORE], rejected.body(id_))
        except Gone:
            return
        except Exception:
            # If an answer had begun, this fails, and the connection is closed.
            await respond(send, 500, [*headers, PROBLEM, NO_STORE], mistake(id_).body)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, id_: str, headers: Headers
    ) -> None:
        path: str = scope["path"]
        by_method = self._handlers.get(path)
        slot = ""
        if by_method is None:
            if path == auth.PATH or path.startswith(auth.PREFIX):
                forwarded = await self._auth.answer(scope, receive, id_)
                if is_gone(scope):
                    self.service.watch.see_undelivered("auth", allowed=forwarded.status < 400)
                await respond(send, forwarded.status, headers + forwarded.headers, forwarded.body)
                return
            if path.startswith(_SLOTS) and len(path) > len(_SLOTS):
                by_method, slot = self._slot_handlers, path[len(_SLOTS) :]
            else:
                await self._elsewhere(scope, receive, send, headers)
                return
        handler = by_method.get(scope["method"])
        if handler is None:
            raise wrong_method(scope, *by_method)
        if not self._is_open or header(scope, b"authorization") is not None:
            admit(self.service.access.caller(scope), "'Authorization: Bearer ...'")
        elif (origin := header(scope, b"origin")) is not None and not _LOCAL.fullmatch(origin):
            # What listens on loopback without a token is not for the pages in a browser there.
            raise Rejected(403, "pages of other sites may not ask without a token")
        if path in _NEED_RULES:
            self.service.require_rules()
        body = await read_body(scope, receive, self._max_body)
        reply = await handler(Asked(body, scope["query_string"], slot, id_))
        if path == _ENVOY and is_gone(scope):
            self.service.watch.see_undelivered("envoy", allowed=reply.status < 400)
        await respond(send, reply.status, [*headers, JSON, NO_STORE, *reply.headers], reply.body)

    async def _elsewhere(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers
    ) -> None:
        path = scope["path"]
        if path in ("/healthz", "/readyz", "/healthcheck"):
            if scope["method"] not in ("GET", "HEAD"):
                raise wrong_method(scope, "GET", "HEAD")
            if path == "/healthcheck":
                await self._tell_peer_health(send, headers)
            else:
                await self._tell_health(scope, send, headers, is_ready=path == "/readyz")
        elif path == "/metrics":
            await self._tell_metrics(scope, send, headers)
        elif path.startswith(_ADMIN):
            scope["limen_id"] = headers[0][1].decode()
            await self._admin(scope, receive, send)
        elif path == sessions.PATH:
            reply = await self._sessions.answer(scope, receive)
            found = [*headers, JSON, NO_STORE, *reply.headers]
            await respond(send, reply.status, found, reply.body)
        elif (file := self._pages.find(path)) is not None:
            await pages.give(file, scope, send, headers)
        else:
            raise Rejected(404, f"there is nothing at {path[:200]}; see /docs")

    async def _tell_health(
        self, scope: Scope, send: Send, headers: Headers, *, is_ready: bool
    ) -> None:
        status, body = 200, b'{"status":"ok"}'
        if is_ready:
            health = self.service.health
            # Whoever decides without something it should have decides all the same.
            body = self._encode(health)
            if health.status == "starting":
                status, headers = 503, [*headers, RETRY_SOON]
        await respond(send, status, [*headers, JSON, NO_STORE], body)

    async def _tell_peer_health(self, send: Send, headers: Headers) -> None:
        """Say the same as `/readyz`, in the words of envoyproxy/ratelimit: for its probes."""
        status, body = (500, b"") if self.service.health.status == "starting" else (200, b"OK")
        await respond(send, status, [*headers, TEXT, NO_STORE], body)

    async def _tell_metrics(self, scope: Scope, send: Send, headers: Headers) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise wrong_method(scope, "GET", "HEAD")
        if not self.service.settings.metrics_are_open:
            caller = self.service.access.caller(scope)
            if caller is None or caller.role == "check":
                raise unknown("/metrics needs a token of a viewer: 'Authorization: Bearer ...'")
        figures, workers = await self.service.insight.figures()
        accept = (header(scope, b"accept") or b"").decode("latin-1")
        text, kind = await metrics_text(figures, workers, accept)
        found = [*headers, (b"content-type", kind.encode()), NO_STORE]
        await respond(send, 200, found, text)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.service.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.service.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _id_of(self, scope: Scope) -> str:
        given = header(scope, b"x-request-id")
        if given is not None and GIVEN_ID.fullmatch(given):
            return given.decode("ascii")
        return self._new_id()

    def _new_id(self) -> str:
        return f"{self.service.id}-{next(self._ids):x}"
