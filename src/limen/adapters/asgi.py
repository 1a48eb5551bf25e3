"""`RateLimitMiddleware` for whatever speaks ASGI.

Pure ASGI: a response is passed on as it comes, chunk by chunk. Websockets are limited as they
connect, and hold their slots until they close.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any, Unpack

from limen.adapters.deciders import AsyncSource
from limen.adapters.door import AsyncDoor
from limen.adapters.limit import AnyLimit
from limen.adapters.manner import Manner, Options
from limen.adapters.request import Request, Response
from limen.adapters.visit import Visit
from limen.http import OPTIONAL_WHITESPACE, Refusal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

VISIT, DOOR = "limen.visit", "limen.door"
"""Where a scope has what was said so far, and who said it."""
_STARTS = ("http.response.start", "websocket.accept", "websocket.http.response.start")
_BODIES = ("http.response.body", "websocket.http.response.body")
_DENIAL = "websocket.http.response"


class RateLimitMiddleware:
    """Limits all requests of an application.

    ```python
    app = RateLimitMiddleware(app, AsyncLimiter("redis://localhost:6379"), "100/minute")
    ```

    Plain limits count by address, over the whole application; `RateLimit` says more. `refused` is
    an ASGI application that answers instead of limen when a request is refused; the scope has the
    visit at `"limen.visit"`.
    """

    def __init__(
        self,
        app: App,
        limiter: AsyncSource,
        *limits: AnyLimit,
        refused: App | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.app: App = app
        self.door: AsyncDoor = AsyncDoor(limiter, *limits, **options)
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            if scope["type"] == "lifespan":
                # In the worker, after any fork.
                await self.door.connect()
            await self.app(scope, receive, send)
            return
        door = self.door
        around: Visit | None = scope.get(VISIT)
        if around is not None and around.is_over:
            around = None
        visit = around or Visit(AsgiRequest(scope, door.manner))
        # Also for what lies further in, which may ask about more.
        scope[VISIT], scope[DOOR] = visit, door
        if around is not None:
            # Whoever made the visit tells the client, and settles it.
            await self._pass_on(visit, scope, receive, send)
            return
        sending = _Sending(visit, door, send)
        try:
            await self._pass_on(visit, scope, receive, sending)
        finally:
            if visit.is_due:
                await sending.leave()
            visit.end()

    async def _pass_on(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        if await self.door.enter(visit, self.door.limits):
            await self.app(scope, receive, send)
        else:
            await self._refuse(visit, scope, receive, send)

    async def _refuse(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        if self._refused is not None:
            await self._refused(scope, receive, send)
            return
        refusal = visit.refusal()
        if scope["type"] == "http":
            await _send(send, "http.response", refusal)
            return
        await receive()  # the wish to connect, which is to be answered
        if _DENIAL in scope.get("extensions", ()):
            await _send(send, _DENIAL, refusal)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": ""})


class AsgiRequest(Request):
    """A scope, as limits see it. Functions of the user's get this, for there is nothing native."""

    __slots__ = ("scope",)

    def __init__(self, scope: Scope, manner: Manner, native: Any = None) -> None:
        super().__init__(manner, native)
        self.scope: Scope = scope
        """The scope itself."""

    @property
    def method(self) -> str:
        """The method; of a websocket, GET."""
        return str(self.scope.get("method", "GET"))

    @property
    def path(self) -> str:
        """The path, decoded."""
        return str(self.scope["path"])

    @property
    def peer(self) -> str | None:
        """The address of who connected, as the server has it."""
        client = self.scope.get("client")
        return client[0] if client else None

    def header(self, name: str) -> Sequence[str]:
        """Return the values of a header."""
        return values_of(self.scope["headers"], name)

    def is_socket(self, peer: str) -> bool:
        """Return False: servers have no address for a socket. Any text comes from a header."""
        return False

    @property
    def user(self) -> str | None:
        """Who is logged in, as Starlette's `AuthenticationMiddleware` puts it into the scope."""
        return user_of(self.scope.get("user"))


def values_of(headers: Iterable[tuple[bytes, bytes]], name: str) -> list[str]:
    """Return the values of a header, whose name is in lower case."""
    wanted = name.encode("latin-1")
    return [
        value.decode("latin-1").strip(OPTIONAL_WHITESPACE)
        for each, value in headers
        if each.lower() == wanted
    ]


def user_of(user: Any) -> str | None:
    """Return who an object of Starlette's kind stands for; None for nobody."""
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    for name in ("identity", "username", "display_name"):
        try:
            found = getattr(user, name, None)
        except NotImplementedError:  # as the users do that Starlette brings along
            continue
        if found:
            return str(found)
    return None


class _Sending:
    """Passes messages on, and puts headers on the first."""

    __slots__ = ("_door", "_send", "_sent", "_start", "_visit")

    def __init__(self, visit: Visit, door: AsyncDoor, send: Send) -> None:
        self._visit = visit
        self._door = door
        self._send = send
        self._start: Message | None = None
        self._sent = 0

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if kind in _STARTS:
            visit = self._visit
            # A list: ASGI allows headers that can be read only once.
            message = {**message, "headers": list(message.get("headers", ()))}
            self._start = message
            if visit.is_due:
                visit.responded(self.response)
            theirs = message["headers"]
            ours = _raw(visit.headers(values_of(theirs, "access-control-expose-headers")))
            names = [name for name, _ in ours]
            # Nothing is said twice. The last word is that of who counts.
            theirs = [pair for pair in theirs if pair[0].lower() not in names]
            message = {**message, "headers": theirs + ours}
        elif kind in _BODIES:
            self._sent += len(message.get("body", b""))
            if not message.get("more_body", False) and self._visit.is_due:
                # Before the last of it: whoever has the whole answer finds it settled.
                await self.leave()
        elif kind == "websocket.close" and self._start is None:
            # Not accepted, which a client sees as a 403.
            self._start = {"status": 403}
        await self._send(message)

    async def leave(self) -> None:
        """Settle what was sent; without anything, that the application failed."""
        await self._door.leave(self._visit, self.response)

    @property
    def response(self) -> Response:
        """What was sent so far; without anything, that the application failed."""
        start = self._start
        if start is None:
            return Response(500)
        pairs = start.get("headers", ())
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}
        return Response(start.get("status", 101), headers, self._sent)


def _raw(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def _send(send: Send, kind: str, refusal: Refusal) -> None:
    length = ("Content-Length", str(len(refusal.body)))
    headers = _raw([*refusal.headers, length])
    await send({"type": f"{kind}.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": refusal.body})
