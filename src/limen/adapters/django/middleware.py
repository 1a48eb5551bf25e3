"""`RateLimitMiddleware`: limits every request of a project, and tells its client, by WSGI and ASGI.

Asks once: about what holds everywhere, together with what stands on the view. For that it finds the
view itself, before Django does; where Django then finds another, what stands on that one is asked
about too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from limen.adapters.django.decorator import any_limited, is_exempt, limits_on
from limen.adapters.django.entry import (
    Entry,
    begin,
    begin_async,
    enter,
    enter_async,
    entry_of,
    finish,
    finish_async,
    give_up,
    give_up_async,
    refuse,
    refuse_async,
)
from limen.adapters.django.installed import installed
from limen.adapters.limit import RateLimit

GetResponse = Callable[[HttpRequest], Any]


class RateLimitMiddleware:
    """Limits every request, as the setting `LIMEN` says, and writes the headers of all limits.

    ```python
    MIDDLEWARE = [..., "limen.adapters.django.RateLimitMiddleware"]
    LIMEN = {"STORE": "redis://localhost:6379", "LIMITS": ["100/minute"]}
    ```

    Where limits count by `user`, it stands below `AuthenticationMiddleware`.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response: GetResponse = get_response
        self._is_async = iscoroutinefunction(get_response)
        self.process_view: Callable[..., Any] = self._look_at_view
        """What Django calls when it has found the view."""
        if self._is_async:
            markcoroutinefunction(self)
            self.process_view = self._look_at_view_async
        # A wrong setting is to be seen when the server starts, and not with the first request.
        installed()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Let a request through, or refuse it."""
        if entry_of(request) is not None:  # it stands there twice
            response: HttpResponseBase | Awaitable[HttpResponseBase] = self.get_response(request)
            return response
        return self._answer_async(request) if self._is_async else self._answer(request)

    def _answer(self, request: HttpRequest) -> HttpResponseBase:
        entry = begin(request)
        try:
            is_let_in = enter(entry, _beforehand(entry))
            response = self.get_response(request) if is_let_in else refuse(entry)
        except BaseException:
            give_up(entry)
            raise
        return finish(entry, response)

    async def _answer_async(self, request: HttpRequest) -> HttpResponseBase:
        entry = await begin_async(request)
        try:
            if await enter_async(entry, _beforehand(entry)):
                response = await self.get_response(request)
            else:
                response = await refuse_async(entry)
        except BaseException:
            await give_up_async(entry)
            raise
        return await finish_async(entry, response)

    def _look_at_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        entry = entry_of(request)
        limits = _of_view(entry, view) if entry is not None else None
        if entry is None or not limits or enter(entry, limits):
            return None
        return refuse(entry)

    async def _look_at_view_async(
        self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any
    ) -> HttpResponseBase | None:
        entry = entry_of(request)
        if entry is None or await enter_async(entry, _of_view(entry, view)):
            return None
        return await refuse_async(entry)


def _beforehand(entry: Entry) -> list[RateLimit]:
    """Return what to ask before anything else sees the request.

    Without limits that hold everywhere, what stands on the view can wait until Django has found it.
    """
    if entry.is_free or entry.door is None or not entry.door.limits:
        return []
    http = entry.request.http
    if not any_limited(getattr(http, "urlconf", settings.ROOT_URLCONF)):
        return entry.pending(everywhere=True)
    match = entry.request.match
    if match is None:
        return entry.pending(everywhere=True)
    return _of_view(entry, match.func)


def _of_view(entry: Entry, view: Callable[..., Any]) -> list[RateLimit]:
    """Return what is still to be asked, now that the view is known."""
    return entry.pending(limits_on(view), everywhere=not is_exempt(view))
