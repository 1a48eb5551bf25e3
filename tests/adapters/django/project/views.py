"""Views of the project, sync and async, each under limits of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.response import Response
from rest_framework.views import APIView

from limen import Concurrency
from limen.adapters.django import Refused, exempt, ratelimit, visit_of
from limen.adapters.django.rest import RateLimitThrottle, ScopedRateLimitThrottle
from tests.adapters.django.project import whom

SLOT = Concurrency(1, lease=60)


def plain(request: HttpRequest, id: int = 0) -> HttpResponse:
    return JsonResponse({"let": "in"})


def log_in(request: HttpRequest, number: int) -> HttpResponse:
    """Log somebody in, without what needs tables."""
    session = request.session
    session[SESSION_KEY] = str(number)
    session[BACKEND_SESSION_KEY] = "tests.adapters.django.project.whom.ByNumber"
    session[HASH_SESSION_KEY] = User(pk=number).get_session_auth_hash()
    return HttpResponse()


@ratelimit("3/day")
def by_address(request: HttpRequest, id: int = 0) -> HttpResponse:
    return JsonResponse({"let": "in"})


@ratelimit("3/day")
async def by_address_async(request: HttpRequest, id: int = 0) -> HttpResponse:
    await asyncio.sleep(0)
    return JsonResponse({"let": "in"})


@ratelimit("2/day", key="user")
async def by_user_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@ratelimit("2/day", key=whom.name_of)
def by_name(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def of_cost(request: HttpRequest) -> int:
    return int(request.GET.get("units", "1"))


def goes_on(until: str | None, start: float) -> bool:
    """Return whether a stream is to last: until a test has seen enough, but not for ever."""
    return until is not None and until not in _released and time.monotonic() < start + 60


async def stream_async(until: str | None) -> AsyncIterator[bytes]:
    start = time.monotonic()
    yield b"first\n"
    while goes_on(until, start):  # noqa: ASYNC110  # it is a thread that ends it
        await asyncio.sleep(0.01)
    yield b"last\n"


def stream(until: str | None) -> Iterator[bytes]:
    start = time.monotonic()
    yield b"first\n"
    while goes_on(until, start):
        time.sleep(0.01)
    yield b"last\n"


_released: set[str] = set()


def release(request: HttpRequest, name: str) -> HttpResponse:
    """End the streams that last until this is asked for."""
    _released.add(name)
    return HttpResponse()


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"part\n" * 1_000
        await asyncio.sleep(0.01)


@ratelimit(SLOT)
def streamed(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(stream(request.GET.get("until")))


@ratelimit(SLOT)
async def streamed_async(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(stream_async(request.GET.get("until")))


@ratelimit(SLOT)
async def endless_async(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(endless())


@ratelimit(SLOT)
async def slow_async(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(float(request.GET.get("seconds", "0")))
    return HttpResponse()


@ratelimit(SLOT)
def fails(request: HttpRequest) -> HttpResponse:
    raise LookupError("nobody is at home")


@ratelimit("1000/day", settle=lambda response: int(response.headers["X-Units"]))
def settled(request: HttpRequest) -> HttpResponse:
    return HttpResponse(headers={"X-Units": "40"})


@ratelimit("1000/day")
def costly(request: HttpRequest) -> HttpResponse:
    visit_of(request).costs(7)
    return HttpResponse()


@ratelimit("2/day", deduct_when=lambda response: response.status_code == 401)
def sign_in(request: HttpRequest) -> HttpResponse:
    return HttpResponse(status=200 if request.GET.get("password") == "right" else 401)


@method_decorator(ratelimit("3/day"), name="dispatch")
class Classy(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @method_decorator(ratelimit("1/day"))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@method_decorator(ratelimit("3/day"), name="dispatch")
class ClassyAsync(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @method_decorator(ratelimit("1/day"))
    async def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@exempt
def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("healthy")


def sorry(request: HttpRequest, refused: Refused) -> HttpResponse:
    """What `LIMEN["VIEW"]` may name."""
    return HttpResponse(f"sorry: {refused}", status=420, content_type="text/plain")


async def sorry_async(request: HttpRequest, refused: Refused) -> HttpResponse:
    return sorry(request, refused)


class Minute(RateLimitThrottle):
    limits = "3/day"


class Daily(RateLimitThrottle):
    rate = "2/day"


class ByUserAlone(RateLimitThrottle):
    limits = ("2/day",)
    key = "user"


class OfScope(RateLimitThrottle):
    scope = "burst"


class Posting(RateLimitThrottle):
    limits = "1/day"

    def allow_request(self, request: Any, view: Any) -> bool:
        return request.method == "GET" or super().allow_request(request, view)


class Api(APIView):
    throttle_classes: Any = (Minute,)

    def get(self, request: Any) -> Response:
        return Response({"let": "in"})

    def post(self, request: Any) -> Response:
        return Response({"let": "in"})


class OtherApi(Api):
    """Shares what `Minute` counts, as with REST framework's own throttles."""


class TwoThrottles(Api):
    throttle_classes = (Minute, Daily)


class UserApi(Api):
    throttle_classes = (ByUserAlone,)


class Scoped(Api):
    throttle_classes = (OfScope,)


class Uploads(Api):
    throttle_classes = (ScopedRateLimitThrottle,)
    throttle_scope = "uploads"


class Unscoped(Api):
    throttle_classes = (ScopedRateLimitThrottle,)


class PostingApi(Api):
    throttle_classes = (Minute, Posting)
