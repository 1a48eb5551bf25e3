"""The data plane: the routes of the listener that serves decisions, and their access control."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from msgspec import Struct

from limen.errors import InvalidInput, InvalidLimit
from limen.server.api.handlers import SLOTS
from limen.server.auth.tokens import admit
from limen.server.gateway import auth
from limen.server.http import Request, Response
from limen.server.http.exchange import (
    JSON,
    NO_STORE,
    RETRY_SOON,
    TEXT,
    Rejected,
    body_too_long,
    internal_error,
    repeated_header,
    wrong_method,
)
from limen.server.insight.watch import Surface
from limen.server.worker.container import Service

HEALTH_PATHS = ("/healthz", "/readyz")
_PEER_HEALTH = "/healthcheck"
_LOCAL_ORIGIN = re.compile(rb"https?://(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
Handle = Callable[[Request], Awaitable[Response]]


class _Route(Struct, frozen=True):
    methods: Mapping[str, Handle] = {}
    any_method: Handle | None = None
    needs_rules: bool = True
    is_public: bool = False
    """Whether it needs no token here; `/v1/auth` has a token of its own."""
    surface: Surface | None = None
    """Under which name responses are counted whose client has gone."""


class DataPlane:
    """Answers every request of the data plane. It is the `Handler` of `HttpConnections`."""

    def __init__(self, service: Service) -> None:
        self.service: Service = service
        self._max_body = service.settings.http.max_body
        self._is_open = service.settings.checks_are_open
        v1 = service.handlers
        self._auth = _Route(
            any_method=auth.Auth(service).respond, needs_rules=False, is_public=True, surface="auth"
        )
        self._slot = _Route({"POST": v1.renew, "DELETE": v1.release}, needs_rules=False)
        self._routes: dict[str, _Route] = {
            "/v1/check": _Route({"POST": v1.check}),
            "/v1/refund": _Route({"POST": v1.refund}, needs_rules=False),
            "/v1/settle": _Route({"POST": v1.settle}, needs_rules=False),
            "/v1/usage": _Route({"GET": v1.usage}),
            "/v1/slots": _Route({"POST": v1.acquire}),
            "/json": _Route({"POST": service.envoy.should_limit_json}, surface="envoy"),
            auth.PATH: self._auth,
        }
        reads = {"GET": self._health, "HEAD": self._health}
        health = _Route(reads, needs_rules=False, is_public=True)
        self._routes |= dict.fromkeys((*HEALTH_PATHS, _PEER_HEALTH), health)

    def begin(self, request: Request) -> Response | None:
        """Find the route of a request, and check its method and its token."""
        request.id = self.service.request_ids.id_of(request.named.get(b"x-request-id"))
        try:
            request.route = self._route(request)
        except Rejected as error:
            return self._with_id(request, error.response(request.id))
        return None

    def too_large(self, request: Request) -> Response:
        """Return the response to a request whose body is too long."""
        return self._with_id(request, body_too_long(self._max_body).response(request.id))

    async def respond(self, request: Request) -> Response:
        """Return the response to a request."""
        handle, surface = request.route
        try:
            response = await handle(request)
        except Rejected as error:
            response = error.response(request.id)
        except (InvalidInput, InvalidLimit) as error:
            response = Rejected(422, str(error)).response(request.id)
        except Exception:
            response = internal_error(request.id)
        else:
            if surface is not None and request.peer.is_gone():
                self.service.watch.see_undelivered(surface, allowed=response.status < 400)
        return self._with_id(request, response)

    def _route(self, request: Request) -> tuple[Handle, Surface | None]:
        path = request.path
        route = self._routes.get(path)
        if route is None:
            if path.startswith(auth.PREFIX):
                route = self._auth
            elif path.startswith(SLOTS) and len(path) > len(SLOTS):
                route = self._slot
            else:
                raise self._not_here(path)
        handle = route.any_method or route.methods.get(request.method)
        if handle is None:
            raise wrong_method(path, request.method, *route.methods)
        if not route.is_public:
            self._authorize(request)
        if route.needs_rules and not self.service.has_rules:
            self.service.require_rules()
        return handle, route.surface

    def _authorize(self, request: Request) -> None:
        token = request.named.get(b"authorization")
        if token is not None and request.repeats(b"authorization"):
            raise repeated_header("authorization")
        if token is not None or not self._is_open:
            caller = None if token is None else self.service.access.bearer(token.decode("latin-1"))
            admit(caller, "'Authorization: Bearer ...'")
            return
        origin = request.named.get(b"origin")
        if origin is not None and not _LOCAL_ORIGIN.fullmatch(origin):
            # A listener on loopback without tokens is not meant for web pages in a browser there.
            raise Rejected(403, "pages of other sites may not ask without a token")

    def _not_here(self, path: str) -> Rejected:
        settings = self.service.settings
        address = settings.admin.bind
        if address is None:
            where = "which is off"
        elif settings.is_loopback:
            where = f"which listens at {address}"
        else:  # clients on other hosts do not learn addresses of this one
            where = "a separate listener"
        return Rejected(
            404,
            f"there is nothing at {path[:200]} on the data plane. The admin API, the dashboard, "
            f"/docs and /metrics are on the control plane, {where} (admin.bind)",
        )

    async def _health(self, request: Request) -> Response:
        if request.path == _PEER_HEALTH:
            return self._peer_health()
        return health_response(self.service, request.path)

    def _peer_health(self) -> Response:
        """Report the same as `/readyz` in the form of envoyproxy/ratelimit, for its probes."""
        if self.service.health.status == "starting":
            return Response(500, [TEXT, NO_STORE])
        return Response(200, [TEXT, NO_STORE], b"OK")

    def _with_id(self, request: Request, response: Response) -> Response:
        response.headers.append((b"x-request-id", request.id.encode()))
        return response


def health_response(service: Service, path: str) -> Response:
    """Return the response to `/healthz` or `/readyz`."""
    if path == "/healthz":
        return Response(200, [JSON, NO_STORE], b'{"status":"ok"}')
    health = service.health
    body = msgspec.json.encode(health)
    # A process that misses something still decides; only without rules it cannot.
    if health.status == "starting":
        return Response(503, [JSON, NO_STORE, RETRY_SOON], body)
    return Response(200, [JSON, NO_STORE], body)
