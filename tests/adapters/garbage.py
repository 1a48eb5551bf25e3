"""Counts what requests leave to the collector of garbage: without limits, and with some.

In a process of its own, since Django's settings are those of the process.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import Any

from bench.framework_apps import Asgi, Wsgi

from limen import AsyncLimiter, Concurrency, Limiter
from limen.adapters import RateLimit

LIMIT = RateLimit("1000/hour", Concurrency(5, lease=9), deduct_when=lambda response: True)
REQUESTS = 50


def starlette() -> list[Any]:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from limen.adapters.asgi import RateLimitMiddleware

    async def home(request: Any) -> PlainTextResponse:
        return PlainTextResponse("hello")

    plain = Starlette(routes=[Route("/", home)])
    return [Asgi(plain), Asgi(RateLimitMiddleware(plain, AsyncLimiter(), LIMIT))]


def wsgi() -> list[Any]:
    from limen.adapters.wsgi import RateLimitMiddleware

    def plain(environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [])
        return [b"hello"]

    return [Wsgi(plain), Wsgi(RateLimitMiddleware(plain, Limiter(), LIMIT))]


def flask() -> list[Any]:
    from flask import Flask

    from limen.adapters.flask import RateLimits

    def made() -> Any:
        app = Flask("garbage")
        app.add_url_rule("/", view_func=lambda: "hello", endpoint="home")
        return app

    limited = made()
    RateLimits(Limiter(), LIMIT, app=limited)
    return [Wsgi(made()), Wsgi(limited)]


def django() -> list[Any]:
    import django
    from django.conf import settings
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpResponse
    from django.urls import path

    urls = type("urls", (), {"urlpatterns": [path("", lambda request: HttpResponse("hello"))]})
    settings.configure(
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=urls,
        SECRET_KEY="none",
        MIDDLEWARE=[],
        LIMEN={"LIMITS": [LIMIT]},
    )
    django.setup()
    plain = WSGIHandler()
    settings.MIDDLEWARE = ["limen.adapters.django.RateLimitMiddleware"]
    return [Wsgi(plain), Wsgi(WSGIHandler())]


def left_behind(ask: Callable[[], int]) -> int:
    """Return how many objects the collector finds for each request."""
    ask()
    gc.collect()
    gc.disable()
    assert ask() == REQUESTS
    found = gc.collect()
    gc.enable()
    return found // REQUESTS


def main() -> None:
    made = {"starlette": starlette, "wsgi": wsgi, "flask": flask, "django": django}[sys.argv[1]]
    clients = ["192.0.2.7"] * REQUESTS
    with asyncio.Runner() as runner:
        for app in made():

            def ask(app: Asgi | Wsgi = app) -> int:
                return runner.run(app.ask(clients)) if isinstance(app, Asgi) else app.ask(clients)

            sys.stdout.write(f"{left_behind(ask)}\n")


if __name__ == "__main__":
    main()
