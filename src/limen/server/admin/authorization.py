"""The routes of the administration: each checks the role of the token, then the query and the body.

A route without a role cannot be added, and the token is checked before anything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import wraps
from typing import Any, Literal, cast, get_args, get_type_hints

import msgspec
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from msgspec import Struct

from limen.errors import did_you_mean, shown
from limen.server.admin.json_body import decoded
from limen.server.admin.openapi import SCHEME, content, errors
from limen.server.auth.tokens import Access, Caller, unknown
from limen.server.http.exchange import Rejected, read_body
from limen.server.worker.pools import Pool

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


class AdminRoute(APIRoute):
    """A route that checks the token, reads the body as JSON, and then calls the endpoint."""

    def __init__(
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
        """Describe an endpoint for a role and those above it.

        `also` are the statuses of its errors, besides those of every route. An `urgent` route
        answers however many requests the token has in progress.
        """
        self._rank = rank
        self._is_urgent = urgent
        self._max_body = MAX_VIEWER_BODY if rank == "viewer" else MAX_BODY
        if urgent:
            self._max_body = MAX_URGENT_BODY
        usual = {401, 403, 422}
        if method in _WITH_BODY:
            usual |= {400, 413}
        if not urgent:
            usual.add(429)
        responses = errors({*usual, *also})
        kind = get_type_hints(endpoint)["return"]
        if issubclass(kind, Struct):
            responses[status] = content(kind.__name__, " ".join((kind.__doc__ or "").split()))
        summary, _, more = " ".join((endpoint.__doc__ or "").split()).partition(". ")
        super().__init__(
            f"{PREFIX}{path}",
            _encoded(endpoint, status),
            methods=[method],
            status_code=status,
            summary=summary.rstrip("."),
            description=more,
            tags=[path.split("/")[1]],
            responses=cast(Any, responses),
            response_model=None,
            response_class=JSONResponse if issubclass(kind, Struct) else kind,
            operation_id=endpoint.__name__,
            openapi_extra={"security": [{SCHEME: [rank]}], **(extra or {})},
        )

    def get_route_handler(self) -> Handler:
        """Return the handler with the checks before it."""
        handle = super().get_route_handler()
        fields = [field.alias for field in self.dependant.query_params]
        takes_any = "parameters" in (self.openapi_extra or {})

        async def authorized(request: Request) -> Response:
            state = request.app.state
            caller = request.state.caller = admit(state.service.access, request.scope, self._rank)
            if not takes_any:
                _check_query(request, fields)
            # Counted before the body is read: a body that never ends counts as well.
            with nullcontext() if self._is_urgent else state.requests.hold(caller.token):
                return await handle(
                    await _read(request, self._max_body, state.service.pools.compute)
                )

        return authorized


def _encoded(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    """Return an endpoint that encodes the message that it returns.

    On the loop: msgspec holds the GIL meanwhile, so a thread would delay the loop as much.
    """

    @wraps(endpoint)
    async def encoded(*args: Any, **fields: Any) -> Response:
        message: Response | Struct = await endpoint(*args, **fields)
        if isinstance(message, Response):
            return message
        return Response(msgspec.json.encode(message), status, media_type="application/json")

    return encoded


class _Read(Request):
    """A request whose body was read."""

    said: Any = None

    async def json(self) -> Any:
        return self.said


async def _read(request: Request, longest: int, pool: Pool) -> Request:
    body = b""
    if request.method in _WITH_BODY:
        body = await read_body(request, longest)
    # Whatever it says it is: nothing else than JSON is taken, here or under /v1.
    headers = [each for each in request.scope["headers"] if each[0] != b"content-type"]
    headers.append((b"content-type", b"application/json"))
    read = _Read({**request.scope, "headers": headers})
    read._body = body
    if body:
        is_large = len(body) > _LARGE
        token = request.state.caller.token
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
