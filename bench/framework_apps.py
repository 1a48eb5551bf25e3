"""The applications of `bench.frameworks`: trivial ones, without limits and with those of a library.

Knows how an application is called, and nothing of time.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from limen import AsyncLimiter, Limiter

PLAIN, LIMEN = "no limit", "limen"
CLIENTS = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(3_000)]
_LIMIT = "10000/hour"
_PEERS_LIMIT = "1000000/hour"
"""More, since a fixed window costs the same whatever it holds, and nobody is to be refused."""


class Asgi:
    """An ASGI application, called without a server."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.told: list[str] = []
        """The names of the headers of the last answer, in lower case."""

    async def ask(self, clients: Sequence[str]) -> int:
        """Ask for each client; return how many were answered well."""
        app, answered = self._app, 0
        headers = [(b"host", b"localhost"), (b"accept", b"*/*")]
        last: Any = None

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            nonlocal last, answered
            if message["type"] == "http.response.start":
                last = message
                answered += message["status"] == 200

        for client in clients:
            scope = {
                "type": "http",
                "asgi": {"version": "3.0"},
                "http_version": "1.1",
                "method": "GET",
                "scheme": "http",
                "path": "/",
                "raw_path": b"/",
                "query_string": b"",
                "root_path": "",
                "headers": headers,
                "client": (client, 1),
                "server": ("localhost", 80),
            }
            await app(scope, receive, send)
        self.told = [name.decode().lower() for name, _ in last["headers"]]
        return answered


class Wsgi:
    """A WSGI application, called without a server."""

    def __init__(self, app: Any, path: str = "/") -> None:
        self._app = app
        self._path = path
        self.told: list[str] = []
        """The names of the headers of the last answer, in lower case."""

    def ask(self, clients: Sequence[str]) -> int:
        """Ask for each client; return how many were answered well."""
        app, answered = self._app, 0
        last: Any = None

        def start(status: str, headers: Any, error: Any = None) -> Any:
            nonlocal last, answered
            last = headers
            answered += status.startswith("200")

        for client in clients:
            environ = {
                "REQUEST_METHOD": "GET",
                "SCRIPT_NAME": "",
                "PATH_INFO": self._path,
                "QUERY_STRING": "",
                "REMOTE_ADDR": client,
                "SERVER_NAME": "localhost",
                "SERVER_PORT": "80",
                "SERVER_PROTOCOL": "HTTP/1.1",
                "HTTP_HOST": "localhost",
                "HTTP_ACCEPT": "*/*",
                "wsgi.version": (1, 0),
                "wsgi.url_scheme": "http",
                "wsgi.input": io.BytesIO(),
                "wsgi.errors": io.StringIO(),
                "wsgi.multithread": True,
                "wsgi.multiprocess": False,
                "wsgi.run_once": False,
            }
            body = app(environ, start)
            try:
                for _ in body:
                    pass
            finally:
                if hasattr(body, "close"):
                    body.close()
        self.told = [name.lower() for name, _ in last]
        return answered


@dataclass(frozen=True, slots=True)
class Application:
    """One that takes part."""

    name: str
    app: Asgi | Wsgi
    tells: bool = True
    """Whether its responses tell of the limit."""


@contextmanager
def starlette(url: str | None) -> Iterator[list[Application]]:
    """Yield Starlette applications; without the address of a store, they count in memory."""
    from slowapi import Limiter as SlowLimiter
    from slowapi.middleware import SlowAPIASGIMiddleware
    from slowapi.util import get_remote_address
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from limen.adapters.asgi import RateLimitMiddleware

    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    def app(endpoint: Any = home) -> Any:
        return Starlette(routes=[Route("/", endpoint)])

    limited = app()
    limited.add_middleware(RateLimitMiddleware, AsyncLimiter(url or "memory://"), _LIMIT)

    def slow(**settings: Any) -> Any:
        return SlowLimiter(get_remote_address, headers_enabled=True, storage_uri=url, **settings)

    by_middleware = app()
    by_middleware.state.limiter = slow(default_limits=[_PEERS_LIMIT])
    by_middleware.add_middleware(SlowAPIASGIMiddleware)
    limiter = slow()

    async def again(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    decorated = app(limiter.limit(_PEERS_LIMIT)(again))
    decorated.state.limiter = limiter
    yield [
        Application(PLAIN, Asgi(app()), tells=False),
        Application(LIMEN, Asgi(limited)),
        Application("slowapi, decorator", Asgi(decorated)),
        Application("slowapi, middleware", Asgi(by_middleware)),
    ]


@contextmanager
def flask(url: str | None) -> Iterator[list[Application]]:
    """Yield Flask applications."""
    from flask import Flask
    from flask_limiter import Limiter as FlaskLimiter
    from flask_limiter.util import get_remote_address

    from limen.adapters.flask import RateLimits

    def app() -> Any:
        made = Flask("bench")
        made.add_url_rule("/", view_func=lambda: "hello", endpoint="home")
        return made

    limited, theirs = app(), app()
    with ExitStack() as stack:
        limiter = stack.enter_context(Limiter(url or "memory://"))
        RateLimits(limiter, _LIMIT, app=limited)
        FlaskLimiter(
            get_remote_address,
            app=theirs,
            default_limits=[_PEERS_LIMIT],
            storage_uri=url or "memory://",
            headers_enabled=True,
        )
        yield [
            Application(PLAIN, Wsgi(app()), tells=False),
            Application(LIMEN, Wsgi(limited)),
            Application("Flask-Limiter", Wsgi(theirs)),
        ]


@contextmanager
def django(url: str | None) -> Iterator[list[Application]]:
    """Yield Django applications. Settings are those of the process, and put back at the end."""
    import django as django_
    from django.conf import settings
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpRequest, HttpResponse
    from django.test.utils import override_settings
    from django.urls import path

    def home(request: HttpRequest) -> HttpResponse:
        return HttpResponse("hello")

    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"],
            SECRET_KEY="bench",
            USE_TZ=True,
            SILENCED_SYSTEM_CHECKS=["django_ratelimit.E003", "django_ratelimit.W001"],
        )
        django_.setup()
    from django_ratelimit.decorators import ratelimit

    caches: dict[str, Any] = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
        if url is None
        else {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}
    }
    theirs = ratelimit(key="ip", rate="1000000/h", block=True)(home)
    urls = type("urls", (), {"urlpatterns": [path("", home), path("theirs", theirs)]})

    def made(*middleware: str) -> WSGIHandler:
        with override_settings(MIDDLEWARE=middleware):
            return WSGIHandler()

    ours = {"STORE": url or "memory://", "LIMITS": [_LIMIT]}
    with override_settings(CACHES=caches, LIMEN=ours, ROOT_URLCONF=urls):
        limited = made("limen.adapters.django.RateLimitMiddleware")
        yield [
            Application(PLAIN, Wsgi(made()), tells=False),
            Application(LIMEN, Wsgi(limited)),
            Application("django-ratelimit", Wsgi(made(), "/theirs"), tells=False),
        ]


FRAMEWORKS: dict[str, Callable[[str | None], AbstractContextManager[list[Application]]]] = {
    "Starlette": starlette,
    "Flask": flask,
    "Django": django,
}
