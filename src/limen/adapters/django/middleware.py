"""`RateLimitMiddleware`: limits every request of a project, and tells its client, by WSGI and ASGI.

Asks once: about what holds everywhere, together with what stands on the view. For that it finds the
view itself, before Django does; where Django then finds another, what stands on that one is asked
about too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from limen.adapters.django.decorator import any_limited, is_exempt, limits_on
from limen.adapters.django.entry import Entry, drive, enter, entry_of, handle, refuse
from limen.adapters.django.installed import installed
from limen.adapters.limit import RateLimit
from limen.flow import Flow

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
        self._is_async = is_async = iscoroutinefunction(get_response)

        def process_view(request: HttpRequest, view: Any, *_: Any) -> Any:
            return drive(_look_at_view(request, view, is_async), is_async)

        self.process_view: Callable[..., Any] = process_view
        """What Django calls when it has found the view."""
        if is_async:
            markcoroutinefunction(self)
            markcoroutinefunction(process_view)
        # A wrong setting is to be seen when the server starts, and not with the first request.
        installed()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Let a request through, or refuse it."""
        get_response = partial(self.get_response, request)
        flow = handle(request, _beforehand, get_response, self._is_async)
        response: HttpResponseBase | Awaitable[HttpResponseBase] = drive(flow, self._is_async)
        return response


def _look_at_view(request: HttpRequest, view: Any, is_async: bool) -> Flow[HttpResponseBase | None]:
    entry = entry_of(request)
    if entry is None or (yield from enter(entry, _of_view(entry, view), is_async)):
        return None
    return (yield from refuse(entry, is_async))


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
