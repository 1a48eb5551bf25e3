"""`Entry`: a request between its beginning and its end, wherever limits stand in its way.

A middleware, a decorator and a throttle share one entry, and so one visit. It belongs to threads or
to asyncio, as the first of them does; the others, if they are of the other kind, go over there to
ask. So a visit is never settled by who cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from limen._internal.functions import call_async, call_sync
from limen.adapters.django.installed import Installed, installed, on_view
from limen.adapters.django.request import DjangoRequest
from limen.adapters.django.stream import leave_at_the_end
from limen.adapters.door import AsyncDoor, Door
from limen.adapters.limit import RateLimit
from limen.adapters.visit import Visit
from limen.errors import ConfigurationError
from limen.flow import Flow, run, run_async
from limen.http import Refusal

VISIT, ENTRY = "limen", "_limen"
"""Where a request has its visit, for the user, and its entry."""
_EXPOSE = "Access-Control-Expose-Headers"
T = TypeVar("T")


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
        self.request: DjangoRequest = DjangoRequest(http, here.manner)
        self.visit: Visit = Visit(self.request)
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
        of_view: tuple[RateLimit, ...] = (),
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
        if any(limit not in self.asked for limit in of_view):
            has_route = self.request.match is not None
            place = (self.request.endpoint if has_route else where.otherwise) + where.part
            pairs = zip(of_view, on_view(door, of_view, place), strict=True)
            found += [at_place for limit, at_place in pairs if limit not in self.asked]
            self.asked = self.asked.union(of_view)
        return found

    def end(self) -> None:
        """Let go of the request, which has the entry, and would else wait for the collector."""
        vars(self.request.http).pop(ENTRY, None)
        self.visit.end()


def handle(
    http: HttpRequest,
    limits_of: Callable[[Entry], list[RateLimit]],
    view: Callable[[], Any],
    is_async: bool,
) -> Flow[HttpResponseBase]:
    """Ask about a request, and answer it: by the view, or refuse it.

    If nobody has begun with it, it begins and ends here.
    """
    around = entry_of(http)
    entry = around or (yield from begin(http, is_async))
    try:
        if (yield from enter(entry, limits_of(entry), is_async)):
            response: HttpResponseBase = yield view()
        else:
            response = yield from refuse(entry, is_async)
    except BaseException:
        if around is None:
            yield from _finish(entry, HttpResponse(status=500), is_async)
        raise
    return response if around else (yield from _finish(entry, response, is_async))


def drive(flow: Flow[T], is_async: bool) -> Any:
    """Run a flow; on asyncio, return what is awaited for that."""
    return run_async(flow) if is_async else run(flow)


def begin(http: HttpRequest, is_async: bool) -> Flow[Entry]:
    """Begin with a request."""
    # The loop of an async view by WSGI ends with it, and so would every connection that is opened
    # there: such a request stays with the threads that it came by.
    if is_async and not isinstance(http, ASGIRequest):
        entry: Entry = yield sync_to_async(run)(begin(http, False))
        return entry
    here = installed()
    door: Door | AsyncDoor | None = None
    if here.settings.enabled:
        door = here.async_door if is_async else here.door
    entry = Entry(http, here, door)
    exempt_when = here.settings.exempt_when
    if exempt_when is None or entry.is_free:
        return entry
    try:
        if is_async:
            ask = partial(call_async, exempt_when, http)
            entry.is_free = bool((yield _with_user(entry.request, ask)))
        else:
            entry.is_free = bool(call_sync(exempt_when, http))
    except ConfigurationError as error:
        raise ConfigurationError(f"LIMEN['EXEMPT_WHEN']: {error}") from error
    return entry


def entry_of(http: HttpRequest) -> Entry | None:
    """Return the entry of a request; None when nobody has begun with it."""
    entry: Entry | None = getattr(http, ENTRY, None)
    return entry


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


def enter(
    entry: Entry, limits: list[RateLimit], is_async: bool, request: DjangoRequest | None = None
) -> Flow[bool]:
    """Ask; False when the request is refused."""
    door = entry.door
    if not limits or door is None:
        return True
    request = request or entry.request
    ask: Any = partial(door.enter, entry.visit, limits, request)
    if isinstance(door, Door):
        ask = sync_to_async(ask) if is_async else ask
    else:
        if any(limit.key.reads_user or not limit.limits for limit in limits):
            # The user comes from a session, which blocks: not on the event loop.
            if is_async:
                yield request.read_user()
            else:
                _ = request.user
        ask = partial(_with_user, request, ask)
        ask = ask if is_async else async_to_sync(ask)
    is_let_in: bool = yield ask()
    return is_let_in


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


def refuse(entry: Entry, is_async: bool) -> Flow[HttpResponseBase]:
    """Return the answer to who is refused. A view of the other kind is called as Django does."""
    view = entry.installed.settings.view
    if view is None:
        refusal = entry.visit.refusal()
        return HttpResponse(refusal.body, status=refusal.status, headers=dict(refusal.headers))
    if iscoroutinefunction(view) != is_async:
        view = sync_to_async(view) if is_async else async_to_sync(view)
    response: HttpResponseBase = yield view(entry.request.http, Refused(entry.visit))
    return response


def _finish(entry: Entry, response: HttpResponseBase, is_async: bool) -> Flow[HttpResponseBase]:
    """Tell the client, and settle: now, or when a stream has ended."""
    door, visit = entry.door, entry.visit
    if is_async and isinstance(door, Door):
        response = yield sync_to_async(run)(_finish(entry, response, False))
        return response
    is_due = visit.is_due
    if is_due:
        visit.responded(response)
    for name, value in visit.headers([response.headers.get(_EXPOSE, "")]):
        response.headers[name] = value
    entry.end()
    if door is None or not is_due:
        return response
    if response.streaming:
        return leave_at_the_end(door, visit, response)
    yield door.leave(visit, response)
    return response
