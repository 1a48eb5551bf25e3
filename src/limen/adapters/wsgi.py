"""`RateLimitMiddleware` for WSGI: Flask, Django, Bottle, Pyramid, or nothing but WSGI.

Pure WSGI (PEP 3333): a response is passed on as it comes, chunk by chunk, and is over when it is
all there, or when the server closes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http.client import responses
from typing import TYPE_CHECKING, Any, Unpack

from limen.adapters.deciders import Source
from limen.adapters.door import Door
from limen.adapters.limit import AnyLimit
from limen.adapters.manner import Manner, Options
from limen.adapters.request import Request, Response
from limen.adapters.visit import Visit
from limen.http import OPTIONAL_WHITESPACE

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

VISIT = "limen.visit"
"""Where an environ has what was said so far."""
_EXPOSE = "access-control-expose-headers"
_NOT_PREFIXED = ("CONTENT_TYPE", "CONTENT_LENGTH")


class RateLimitMiddleware:
    """Limits all requests of an application.

    ```python
    app = RateLimitMiddleware(app, Limiter("redis://localhost:6379"), "100/minute")
    ```

    Plain limits count by address, over the whole application; `RateLimit` says more. `refused` is
    a WSGI application that answers instead of limen when a request is refused; the environ has the
    visit at `"limen.visit"`.
    """

    def __init__(
        self,
        app: WSGIApplication,
        limiter: Source,
        *limits: AnyLimit,
        refused: WSGIApplication | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.app: WSGIApplication = app
        self.door: Door = Door(limiter, *limits, **options)
        self._refused = refused

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse, /
    ) -> Iterable[bytes]:
        """Let a request through, or refuse it."""
        door = self.door
        around: Visit | None = environ.get(VISIT)
        if around is not None and not around.is_over:
            # Whoever made the visit tells the client, and settles it.
            return self._pass_on(around, environ, start_response)
        visit = Visit(WsgiRequest(environ, door.manner))
        environ[VISIT] = visit  # also for what lies further in, which may ask about more
        stay = _Starting(door, visit, start_response)
        try:
            body = self._pass_on(visit, environ, stay)
            if isinstance(body, list | tuple):
                # It is all there, and as good as sent: the next request may come at once, and
                # shall find everything given back.
                stay.sent += sum(map(len, body))
                stay.end()
                return body
            if _is_file(body, environ) and not visit.is_due:
                return body
            return Body(body, stay)
        except BaseException:
            stay.end()
            raise

    def _pass_on(
        self, visit: Visit, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        is_let_in = self.door.enter(visit, self.door.limits)
        app = self.app if is_let_in else self._refused or _refuse
        return app(environ, start_response)


class WsgiRequest(Request):
    """An environ, as limits see it. Functions of the user's get this: there is nothing native."""

    __slots__ = ("environ",)

    def __init__(self, environ: WSGIEnvironment, manner: Manner, native: Any = None) -> None:
        super().__init__(manner, native)
        self.environ: WSGIEnvironment = environ
        """The environ itself."""

    @property
    def method(self) -> str:
        """The method."""
        return self._text("REQUEST_METHOD") or "GET"

    @property
    def path(self) -> str:
        """The whole path, decoded: `SCRIPT_NAME` and `PATH_INFO`."""
        found = self._text("SCRIPT_NAME") + self._text("PATH_INFO")
        if found.isascii():
            return found or "/"
        # What the client sent in UTF-8 comes as if it were Latin-1.
        return found.encode("latin-1", "replace").decode("utf-8", "replace")

    @property
    def peer(self) -> str | None:
        """The address of who connected, as the server has it."""
        return self._text("REMOTE_ADDR") or None

    def header(self, name: str) -> Sequence[str]:
        """Return the value of a header. What was sent several times, the server has joined."""
        return value_of(self.environ, name)

    @property
    def user(self) -> str | None:
        """Who is logged in, as the server says it in `REMOTE_USER`."""
        return self._text("REMOTE_USER") or None

    def _text(self, variable: str) -> str:
        """Return a variable of the environ; nothing when it is missing, or no text."""
        found = self.environ.get(variable, "")
        return found if isinstance(found, str) else ""


def value_of(environ: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the value of a header in an environ, without the spaces around it; empty without one.

    `name` is in lower case.
    """
    variable = name.upper().replace("-", "_")
    if variable not in _NOT_PREFIXED:
        variable = f"HTTP_{variable}"
    value = environ.get(variable)
    text = value.strip(OPTIONAL_WHITESPACE) if isinstance(value, str) else ""
    return (text,) if text else ()


class Stay(ABC):
    """A request, until its response is sent."""

    __slots__ = ("_door", "_is_over", "sent", "visit")

    def __init__(self, door: Door, visit: Visit) -> None:
        self.visit: Visit = visit
        self.sent: int = 0
        """How many bytes of the response the server was given."""
        self._door = door
        self._is_over = False

    @property
    @abstractmethod
    def response(self) -> Any:
        """What is sent; without anything, that the application failed."""

    def end(self) -> None:
        """Settle, and let go of what was held. Once; and who is refused has nothing left."""
        if self._is_over:
            return
        self._is_over = True
        if self.visit.is_due:
            self._door.leave(self.visit, self.response)
        self.visit.end()


class Body:
    """What an application returned, passed on as it comes. With it ends the stay.

    That is when the application has no more to say: not every server gets to close it.
    """

    __slots__ = ("_body", "_chunks", "_stay")

    def __init__(self, body: Iterable[bytes], stay: Stay) -> None:
        self._body = body
        self._chunks: Iterator[bytes] = iter(body)
        self._stay = stay

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            chunk = next(self._chunks)
        except BaseException:
            self._stay.end()
            raise
        self._stay.sent += len(chunk)
        return chunk

    def close(self) -> None:
        """Be told that all is sent, or that nobody listens any more."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._stay.end()


class _Starting(Stay):
    """A `start_response` that puts headers on the response."""

    __slots__ = ("_headers", "_start", "_status")

    def __init__(self, door: Door, visit: Visit, start: StartResponse) -> None:
        super().__init__(door, visit)
        self._start = start
        self._status = ""
        self._headers: list[tuple[str, str]] = []

    def __call__(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        visit = self.visit
        self._status, self._headers = status, headers
        if visit.is_due:
            visit.responded(self.response)
        exposed = [value for name, value in headers if name.lower() == _EXPOSE]
        told = visit.headers(exposed)
        names = {name.lower() for name, _ in told}
        # Nothing is said twice. The last word is that of who counts.
        told = [pair for pair in headers if pair[0].lower() not in names] + told
        write = self._start(status, told, exc_info) if exc_info else self._start(status, told)

        def count(data: bytes) -> None:
            self.sent += len(data)
            write(data)

        return count

    @property
    def response(self) -> Response:
        """What is sent; without anything, that the application failed."""
        code = self._status[:3]
        headers = {name.lower(): value for name, value in self._headers}
        return Response(int(code) if code.isdecimal() else 500, headers, self.sent)


def _is_file(body: object, environ: WSGIEnvironment) -> bool:
    """Return whether it is a file in the form in which the server sends it best."""
    form = environ.get("wsgi.file_wrapper")
    return isinstance(form, type) and isinstance(body, form)


def _refuse(environ: WSGIEnvironment, start_response: StartResponse, /) -> Iterable[bytes]:
    """Answer who is refused, as an application does."""
    visit: Visit = environ[VISIT]
    refusal = visit.refusal()
    status = f"{refusal.status} {responses.get(refusal.status, 'Refused')}"
    length = ("Content-Length", str(len(refusal.body)))
    start_response(status, [*refusal.headers, length])
    return [] if visit.request.method == "HEAD" else [refusal.body]
