"""The door of the administration: who may do what, and how a request is read before it is answered.

A route without a role cannot be made, and nothing of a request is looked at before its token is.
Knows no rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import wraps
from typing import Any, ClassVar, Literal, cast, get_args

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from limen.errors import did_you_mean, shown
from limen.server.access import Access, Caller, unknown
from limen.server.admin.body import decoded
from limen.server.exchange import Rejected, read_body
from limen.server.openapi import SCHEME, errors
from limen.server.pools import Pool

PREFIX = "/admin/v1"
Rank = Literal["viewer", "editor", "admin"]
"""The roles that have something to do here, each with all that those before it may."""
_RANKS: tuple[str, ...] = get_args(Rank)
_LARGE = 65_536
"""The size of a body, in bytes, above which a thread parses it."""
_WITH_BODY = ("POST", "PUT")
"""The methods whose body is read; no route takes one with another method."""
MAX_BODY = 16 * 2**20
"""The longest body, in bytes, of a route for editors: a large rule set."""
MAX_VIEWER_BODY = 4 * 2**20
"""The longest body of a route for viewers. `json.loads` holds the GIL: 4 MiB of nested lists stop
the process for half a second."""
MAX_URGENT_BODY = 65_536
"""The longest body of an urgent route, which is not part of `MAX_REQUESTS`."""
MAX_REQUESTS = 32
"""How many requests of one token a process works on at a time."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def admit(access: Access, scope: Any, rank: Rank) -> Caller:
    """Return who asks, or raise `Rejected`: 401 without a good token, 403 with too low a role."""
    caller = access.caller(scope)
    if caller is None:
        raise unknown("a token is needed: send it as 'Authorization: Bearer ...'")
    if caller.role not in _RANKS or _RANKS.index(caller.role) < _RANKS.index(rank):
        raise Rejected(403, f"this needs the role {_at_least(rank)}, and yours is {caller.role}")
    return caller


def caller_of(request: Request) -> Caller:
    """Return who asks; every route has let them in already."""
    caller: Caller = request.state.caller
    return caller


class Guarded(APIRoute):
    """A route that lets in who may, reads the body as JSON, and only then does what it is for."""

    is_urgent: ClassVar[bool] = False
    """Whether `MAX_REQUESTS` does not apply to it."""

    def get_route_handler(self) -> Handler:
        """Return the route with its guard in front."""
        handle, rank = super().get_route_handler(), rank_of(self)
        fields = [field.alias for field in self.dependant.query_params]
        takes_any = "parameters" in (self.openapi_extra or {})
        longest = MAX_VIEWER_BODY if rank == "viewer" else MAX_BODY
        if self.is_urgent:
            longest = MAX_URGENT_BODY

        async def guarded(request: Request) -> Response:
            state = request.app.state
            caller = request.state.caller = admit(state.access, request.scope, rank)
            if not takes_any:
                _check_query(request, fields)
            # Counted before the body is read: a body that never ends counts as well.
            with nullcontext() if self.is_urgent else state.requests.hold(caller.token):
                return await handle(await _read(request, longest, state.pools.compute))

        return guarded


class Urgent(Guarded):
    """A route that answers however many requests its token has in progress."""

    is_urgent = True


def rank_of(route: APIRoute) -> Rank:
    """Return the role that a route asks for. Raises when it asks for none: that is a mistake."""
    said = (route.openapi_extra or {}).get("security", [])
    [rank] = [rank for way in said for rank in way.get(SCHEME, [])]
    if rank not in _RANKS:
        raise ValueError(f"{route.path} asks for the role {rank}")
    return cast(Rank, rank)


class Door:
    """Adds routes to the app, each for a role."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def add(
        self,
        rank: Rank,
        method: str,
        path: str,
        endpoint: Callable[..., Any],
        *,
        also: tuple[int, ...] = (),
        status: int = 200,
        extra: dict[str, Any] | None = None,
        urgent: bool = False,
    ) -> None:
        """Let those of a role, and above, use an endpoint.

        `also` are the statuses of errors that are its own, beside those that every route may give.
        `urgent` answers however many requests the token has in progress.
        """
        words = " ".join((endpoint.__doc__ or "").split())
        summary, _, more = words.partition(". ")
        usual = {401, 403, 422}
        if method in _WITH_BODY:
            usual |= {400, 413}
        if not urgent:
            usual.add(429)
        self._app.router.add_api_route(
            f"{PREFIX}{path}",
            _encoded(endpoint, status),
            methods=[method],
            status_code=status,
            summary=summary.rstrip("."),
            description=more,
            tags=[path.split("/")[1]],
            responses=cast(Any, errors({*usual, *also})),
            route_class_override=Urgent if urgent else Guarded,
            openapi_extra={"security": [{SCHEME: [rank]}], **(extra or {})},
        )


def _encoded(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    """Return an endpoint whose answer is encoded by pydantic alone.

    On the loop: pydantic holds the GIL meanwhile, so a thread would delay the loop as much.
    """

    @wraps(endpoint)
    async def answered(*args: Any, **fields: Any) -> Response:
        found: Response | BaseModel = await endpoint(*args, **fields)
        if isinstance(found, Response):
            return found
        return Response(found.model_dump_json(), status, media_type="application/json")

    return answered


class _Read(Request):
    """A request whose body was read."""

    said: Any = None

    async def json(self) -> Any:
        return self.said


async def _read(request: Request, longest: int, pool: Pool) -> Request:
    body = b""
    if request.method in _WITH_BODY:
        body = await read_body(request.scope, request.receive, longest)
    # Whatever it says it is: nothing else than JSON is taken, here or under /v1.
    headers = [each for each in request.scope["headers"] if each[0] != b"content-type"]
    headers.append((b"content-type", b"application/json"))
    read = _Read({**request.scope, "headers": headers})
    read._body = body
    if body:
        is_large = len(body) > _LARGE
        token = caller_of(request).token
        read.said = await pool.run(token, decoded, body) if is_large else decoded(body)
    return read


def _check_query(request: Request, fields: list[str]) -> None:
    names = Counter(name for name, _ in request.query_params.multi_items())
    for name, times in names.items():
        if name not in fields:
            hint = did_you_mean(name, fields)
            raise Rejected(422, f"unknown parameter {shown(name)} in the query{hint}")
        if times > 1:
            raise Rejected(422, f"the parameter {name!r} stands twice in the query")


def _at_least(rank: Rank) -> str:
    enough = _RANKS[_RANKS.index(rank) :]
    return f"{', '.join(enough[:-1])} or {enough[-1]}" if enough[:-1] else enough[0]
