"""FastAPI: limits as dependencies of a route, a router or an application.

```python
app = FastAPI()
install(app, AsyncLimiter("redis://localhost:6379"), "1000/hour")

@app.get("/search", dependencies=[Depends(RateLimit("10/minute", key="user"))])
async def search(): ...
```

`install` puts a middleware around the application, which writes the headers, whatever an endpoint
returns. Works for Starlette alike, whose routes take no dependencies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from limen.adapters import limit
from limen.adapters.asgi import DOOR, VISIT, AsgiRequest, RateLimitMiddleware, Scope
from limen.adapters.deciders import AsyncSource
from limen.adapters.door import AsyncDoor
from limen.adapters.manner import Options
from limen.adapters.missing import missing
from limen.adapters.visit import Passage, Visit
from limen.errors import ConfigurationError
from limen.http import Refusal

try:
    from fastapi import FastAPI, HTTPException
    from starlette.exceptions import HTTPException as StarletteHTTPException
    from starlette.exceptions import WebSocketException
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
    from starlette.routing import Mount
except ImportError as _error:
    raise missing("fastapi", _error) from None


RESPONSES: dict[int | str, dict[str, Any]] = {
    429: {
        "description": "Over a limit; `Retry-After` says when to come back",
        "headers": {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds"}},
        "content": {
            "application/problem+json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                        "violated-policies": {"type": "array", "items": {"type": "string"}},
                        "retry-after": {"type": "integer"},
                    },
                    "required": ["title", "status"],
                }
            }
        },
    }
}
"""What OpenAPI says of a refusal: `FastAPI(responses=RESPONSES)`, or of a router or a route."""


class Refused(HTTPException):
    """Stop a request that is over a limit. `visit` tells which, and when to come back."""

    def __init__(self, visit: Visit) -> None:
        self.visit: Visit = visit
        self.refusal: Refusal = visit.refusal()
        """The whole response."""
        # A handler of the application's own writes its own body. The headers that tell of the
        # limits are written by the middleware.
        retry_after = {name: text for name, text in self.refusal.headers if name == "Retry-After"}
        super().__init__(self.refusal.status, self.refusal.detail, retry_after)


class RateLimit(limit.RateLimit):
    """A `RateLimit` that is a dependency: `Depends(RateLimit("10/minute"))`.

    What depends on it gets the `Passage`, which tells where the request stands under it. Without a
    `scope`, it counts each endpoint that it is put on apart, by the template of its path; and apart
    from the limits that stand around it, such as those of a router.
    """

    async def __call__(self, connection: HTTPConnection) -> Passage:
        """Let a request through, or raise `Refused`."""
        scope = connection.scope
        visit: Visit | None = scope.get(VISIT)
        door: AsyncDoor | None = scope.get(DOOR)
        if visit is None or door is None:
            raise ConfigurationError(
                "limen is not installed in this application; call "
                "limen.adapters.fastapi.install(app, limiter) when it is made"
            )
        door.take(self)
        before = len(visit.passages)
        request = _FastapiRequest(scope, visit.manner, connection)
        if not await door.enter(visit, [self.at(self._place(scope))], request):
            raise Refused(visit)
        found = visit.passages[before:]
        return found[0] if found else Passage((), None, None)

    def _place(self, scope: Scope) -> str | None:
        place = endpoint_of(scope)
        dependant = _dependant(scope)
        if place is None or self.scope is not None or dependant is None:
            return place
        number = _number_of(self, dependant)
        return place if number == 1 else f"{place} #{number}"


def install(
    app: FastAPI,
    limiter: AsyncSource,
    *limits: limit.AnyLimit,
    **options: Unpack[Options],
) -> None:
    """Let limits work in an application: those given here hold for all of its requests.

    To be called once, when the application is made; middleware that is added later, such as the
    one for CORS, lies around it.
    """
    # What is wrong is to be seen now: the middleware is made when the server starts.
    AsyncDoor(limiter, *limits, **options)
    app.add_middleware(RateLimitMiddleware, limiter, *limits, **options)
    app.add_exception_handler(Refused, _refuse)
    if limits:
        for status, described in RESPONSES.items():
            app.router.responses.setdefault(status, described)


def endpoint_of(scope: Scope) -> str | None:
    """Return what tells endpoints apart: methods and template, `"GET /users/{id}"`."""
    template = template_of(scope)
    if template is None:
        return None
    methods = getattr(scope.get("route"), "methods", None) or ()
    names = "|".join(sorted(set(methods) - {"HEAD", "OPTIONS"}))
    return f"{names} {template}" if names else template


def template_of(scope: Scope) -> str | None:
    """Return the template of the path, with the prefixes of routers and of mounted applications."""
    route = scope.get("route")
    # Where a router is included, its prefix is not in the route but beside it.
    found = getattr(_context(scope), "path_format", None) or getattr(route, "path_format", None)
    template: str | None = found or getattr(route, "path", None)
    if template is None or "app_root_path" not in scope:
        return template
    # Inside of a mounted application, whose own path may have parameters.
    around: str = scope["root_path"].removeprefix(scope["app_root_path"])
    return _mounted(getattr(scope.get("router"), "routes", ()), around) + template


def _mounted(routes: Iterable[Any], path: str) -> str:
    """Return the template under which an application is mounted at a path."""
    for route in routes:
        if isinstance(route, Mount):
            match = route.path_regex.match(f"{path}/")
            if match is not None:
                rest = match.groupdict()["path"].rstrip("/")
                inside = _mounted(route.routes, f"/{rest}") if rest else ""
                return route.path_format.removesuffix("/{path}") + inside
    return "/{mounted}"


def _context(scope: Scope) -> Any:
    return scope.get("fastapi", {}).get("effective_route_context")


def _dependant(scope: Scope) -> Any:
    """Return what FastAPI knows of the dependencies of an endpoint; None when it does not say."""
    found = getattr(_context(scope), "dependant", None)
    return found or getattr(scope.get("route"), "dependant", None)


def _number_of(limit: RateLimit, dependant: Any) -> int:
    """Return which one a limit is of those around an endpoint that count the same; from inside.

    A router and its route may both have one. So whoever adds another around them, to the router,
    changes nothing for those that were there.
    """
    found = [each for each in _limits_of(dependant) if each.counts_with(limit)]
    places = [number for number, each in enumerate(reversed(found), 1) if each is limit]
    return places[-1] if places else 1


def _limits_of(dependant: Any) -> list[RateLimit]:
    found: list[RateLimit] = []
    for each in dependant.dependencies:
        found += _limits_of(each)
        if isinstance(each.call, RateLimit) and each.call not in found:
            found.append(each.call)
    return found


class _FastapiRequest(AsgiRequest):
    __slots__ = ()

    @property
    def route(self) -> str | None:
        return template_of(self.scope)

    @property
    def endpoint(self) -> str | None:
        return endpoint_of(self.scope)

    def passes(self, error: Exception) -> bool:
        return isinstance(error, StarletteHTTPException | WebSocketException)


async def _refuse(connection: Any, error: Exception) -> Response:
    assert isinstance(error, Refused)
    refusal = error.refusal
    return Response(refusal.body, refusal.status, dict(refusal.headers))
