"""`Entry`: a request between its beginning and its end, wherever limits stand in its way.

A middleware, a decorator and a throttle share one entry, and so one visit. It belongs to threads or
to asyncio, as the first of them does; the others, if they are of the other kind, go over there to
ask. So a visit is never settled by who cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from limen._internal.functions import call_async, call_sync
from limen.adapters.aio import AsyncDoor
from limen.adapters.django.installed import Installed, installed
from limen.adapters.django.request import DjangoRequest, needs_user
from limen.adapters.django.stream import leave_at_the_end
from limen.adapters.limit import RateLimit
from limen.adapters.sync import Door
from limen.adapters.visit import Visit
from limen.errors import ConfigurationError
from limen.http import Refusal

VISIT, ENTRY = "limen", "_limen"
"""Where a request has its visit, for the user, and its entry."""
_EXPOSE = "Access-Control-Expose-Headers"
D = TypeVar("D", Door, AsyncDoor)
_needs_user = lru_cache(1_024)(needs_user)


class Refused(Exception):
    """A request that is refused, as `LIMEN["VIEW"]` gets it."""

    def __init__(self, visit: Visit) -> None:
        self.visit: Visit = visit
        self.refusal: Refusal = visit.refusal()
        """The whole response that limen would give."""
        super().__init__(self.refusal.detail)

    @property
    def retry_after(self) -> float | None:
        """Seconds until the request would be let through; None when waiting does not help."""
        return self.visit.answer().retry_after


class Where(NamedTuple):
    """Where limits stand, beside the route of the request."""

    part: str = ""
    """What of its view they stand on, if not on the whole of it: `".post"`."""
    otherwise: str = ""
    """What stands for the route, if none leads there: `"shop.views.search"`."""


_ON_THE_WHOLE = Where()
_NOTHING: frozenset[RateLimit] = frozenset()


class Entry:
    """A request, its visit, and the door it came through."""

    __slots__ = ("asked", "door", "has_end", "installed", "is_asked", "is_free", "request", "visit")

    def __init__(self, http: HttpRequest, here: Installed, door: Door | AsyncDoor | None) -> None:
        self.installed: Installed = here
        self.door: Door | AsyncDoor | None = door
        """None when limen is switched off."""
        self.request: DjangoRequest = DjangoRequest(http, here.manner.addresses)
        self.visit: Visit = Visit(self.request, here.manner)
        self.is_free: bool = door is None
        """Whether nothing is asked: limen is switched off, or the request is exempt."""
        self.is_asked: bool = False
        """Whether what holds everywhere was asked."""
        self.asked: frozenset[RateLimit] = _NOTHING
        """Which limits on views were asked."""
        self.has_end: bool = True
        """Whether somebody ends it, when the response is there."""
        setattr(http, ENTRY, self)
        setattr(http, VISIT, self.visit)

    def pending(
        self,
        on_view: tuple[RateLimit, ...] = (),
        where: Where = _ON_THE_WHOLE,
        *,
        everywhere: bool = False,
    ) -> list[RateLimit]:
        """Return what is to be asked now, and take it for asked."""
        door = self.door
        if door is None or self.is_free:
            return []
        found: list[RateLimit] = []
        if everywhere and not self.is_asked:
            self.is_asked = True
            found += door.limits
        if not on_view:
            return found
        if any(limit not in self.asked for limit in on_view):
            has_route = self.request.match is not None
            place = (self.request.endpoint if has_route else where.otherwise) + where.part
            placed = self.installed.on_view(door, on_view, place)
            pairs = zip(on_view, placed, strict=True)
            found += [at_place for limit, at_place in pairs if limit not in self.asked]
            self.asked = self.asked.union(on_view)
        return found

    def end(self) -> None:
        """Let go of the request, which has the entry, and would else wait for the collector."""
        vars(self.request.http).pop(ENTRY, None)
        self.visit.end()


def begin(http: HttpRequest) -> Entry:
    """Begin with a request, in a thread."""
    here = installed()
    entry = Entry(http, here, here.door if here.settings.enabled else None)
    exempt_when = here.settings.exempt_when
    if exempt_when is not None and not entry.is_free:
        try:
            entry.is_free = bool(call_sync(exempt_when, http))
        except ConfigurationError as error:
            raise ConfigurationError(f"LIMEN['EXEMPT_WHEN']: {error}") from error
    return entry


async def begin_async(http: HttpRequest) -> Entry:
    """Begin with a request, on asyncio.

    The loop of an async view by WSGI ends with it, and so would every connection that is opened
    there: such a request stays with the threads that it came by.
    """
    if not isinstance(http, ASGIRequest):
        return await sync_to_async(begin)(http)
    here = installed()
    entry = Entry(http, here, here.async_door if here.settings.enabled else None)
    exempt_when = here.settings.exempt_when
    if exempt_when is not None and not entry.is_free:
        entry.is_free = bool(
            await _with_user(entry.request, partial(call_async, exempt_when, http))
        )
    return entry


def entry_of(http: HttpRequest) -> Entry | None:
    """Return the entry of a request; None when nobody has begun with it."""
    found: Entry | None = getattr(http, ENTRY, None)
    return found


def visit_of(request: Any) -> Visit:
    """Return the visit of a request, which is also at `request.limen`.

    Takes what a view has: an `HttpRequest`, or the request of Django REST framework.
    """
    found = entry_of(http_of(request))
    if found is None:
        raise ConfigurationError(
            "limen has not seen this request; put limen.adapters.django.RateLimitMiddleware into "
            "MIDDLEWARE, or a limit on the view"
        )
    return found.visit


def http_of(request: Any) -> HttpRequest:
    """Return Django's own request, from what a view was called with."""
    found = getattr(request, "_request", request)
    if isinstance(found, HttpRequest):
        return found
    raise ConfigurationError(
        f"expected a request, got {type(found).__name__}; on methods of a class, limits stand by "
        "method_decorator(ratelimit(...))"
    )


def enter(entry: Entry, limits: list[RateLimit], request: DjangoRequest | None = None) -> bool:
    """Ask, from a thread; False when the request is refused."""
    door = entry.door
    if not limits or door is None:
        return True
    request = request or entry.request
    if isinstance(door, Door):
        return door.enter(entry.visit, limits, request)
    if any(map(_needs_user, limits)):
        _ = request.user  # here, where the database may be asked
    return async_to_sync(_enter)(door, entry.visit, limits, request)


async def enter_async(entry: Entry, limits: list[RateLimit]) -> bool:
    """Ask, on asyncio; False when the request is refused."""
    door = entry.door
    if not limits or door is None:
        return True
    if isinstance(door, Door):
        return await sync_to_async(door.enter)(entry.visit, limits, entry.request)
    if any(map(_needs_user, limits)):
        await entry.request.read_user()
    return await _enter(door, entry.visit, limits, entry.request)


async def _enter(
    door: AsyncDoor, visit: Visit, limits: list[RateLimit], request: DjangoRequest
) -> bool:
    found: bool = await _with_user(request, partial(door.enter, visit, limits, request))
    return found


async def _with_user(request: DjangoRequest, ask: Callable[[], Any]) -> Any:
    """Ask, and once more if a function of the user's wants to know who is logged in.

    `request.user` is found out when it is looked at, which asks the database, and Django does not
    have that on a loop. Nothing was charged yet.
    """
    try:
        return await ask()
    except SynchronousOnlyOperation:
        pass
    await request.read_user()
    return await ask()


def refuse(entry: Entry) -> HttpResponseBase:
    """Return the answer to who is refused."""
    view = entry.installed.settings.view
    if view is None:
        return _refusal(entry.visit)
    if iscoroutinefunction(view):
        view = async_to_sync(view)
    response: HttpResponseBase = view(entry.request.http, Refused(entry.visit))
    return response


async def refuse_async(entry: Entry) -> HttpResponseBase:
    """Return the same on asyncio. A view that is not async gets a thread, as it does in Django."""
    view = entry.installed.settings.view
    if view is None:
        return _refusal(entry.visit)
    if not iscoroutinefunction(view):
        view = sync_to_async(view)
    response: HttpResponseBase = await view(entry.request.http, Refused(entry.visit))
    return response


def _refusal(visit: Visit) -> HttpResponse:
    found = visit.refusal()
    response = HttpResponse(found.body, status=found.status)
    _write(response, found.headers)
    return response


def _tell(entry: Entry, response: HttpResponseBase) -> bool:
    """Put the headers on a response; return whether anything is to be done when it is sent."""
    visit = entry.visit
    is_due = visit.is_due
    if is_due:
        visit.responded(response)
    already = response.headers.get(_EXPOSE) if visit.manner.expose else None
    _write(response, visit.headers(already))
    return is_due


def _write(response: HttpResponseBase, headers: Iterable[tuple[str, str]]) -> None:
    for name, value in headers:
        response.headers[name] = value


def finish(entry: Entry, response: HttpResponseBase) -> HttpResponseBase:
    """Tell the client, and settle: now, or when a stream has ended."""
    is_due = _tell(entry, response)
    entry.end()
    if not is_due:
        return response
    door = _door(entry, Door)
    if response.streaming:
        return leave_at_the_end(door, entry.visit, response)
    door.leave(entry.visit, response)
    return response


async def finish_async(entry: Entry, response: HttpResponseBase) -> HttpResponseBase:
    """Do the same on asyncio."""
    if isinstance(entry.door, Door):
        return await sync_to_async(finish)(entry, response)
    is_due = _tell(entry, response)
    entry.end()
    if not is_due:
        return response
    door = _door(entry, AsyncDoor)
    if response.streaming:
        return leave_at_the_end(door, entry.visit, response)
    await door.leave(entry.visit, response)
    return response


def give_up(entry: Entry) -> None:
    """End with a request that has no response, since something was raised."""
    entry.end()
    if entry.visit.is_due:
        _door(entry, Door).leave(entry.visit, _failed(entry))


async def give_up_async(entry: Entry) -> None:
    """Do the same on asyncio, also for a request that is cancelled."""
    entry.end()
    if isinstance(entry.door, Door):
        await sync_to_async(give_up)(entry)
    elif entry.visit.is_due:
        await _door(entry, AsyncDoor).leave(entry.visit, _failed(entry))


def _failed(entry: Entry) -> HttpResponse:
    response = HttpResponse(status=500)
    entry.visit.responded(response)
    return response


def _door(entry: Entry, kind: type[D]) -> D:
    """Return the door of an entry that ends where it began."""
    assert isinstance(entry.door, kind)
    return entry.door
