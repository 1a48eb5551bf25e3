"""Throttles for Django REST framework, which itself answers those that are refused.

```python
class SearchThrottle(RateLimitThrottle):
    limits = ("10/minute", "1000/day")

class Search(APIView):
    throttle_classes = [SearchThrottle]
```

All of them on a view are asked in one call: who is refused by one is charged by none. What REST
framework's own throttles refuse stays charged.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from limen.adapters.django.entry import Entry, begin, enter, entry_of, http_of
from limen.adapters.django.installed import Installed
from limen.adapters.django.request import DjangoRequest
from limen.adapters.keys import Key, KeyFunction
from limen.adapters.limit import AnyLimit, RateLimit, listed, rate_limits
from limen.adapters.missing import missing
from limen.adapters.plan import apart
from limen.errors import ConfigurationError, LimenError, did_you_mean
from limen.flow import run

try:
    from rest_framework.exceptions import APIException
    from rest_framework.request import Request
    from rest_framework.settings import api_settings
    from rest_framework.throttling import BaseThrottle
    from rest_framework.views import APIView
except ImportError as _error:
    raise missing("drf", _error) from None


class RateLimitThrottle(BaseThrottle):
    """A throttle whose limits stand in its class, or by its `scope` in `LIMEN["SCOPES"]`.

    Counts over all views that it stands on, as REST framework's own throttles do. Functions get the
    request of REST framework.
    """

    limits: ClassVar[AnyLimit | tuple[AnyLimit, ...] | list[AnyLimit]] = ()
    """What is allowed: `"10/minute"`, or several. A `RateLimit` says more than `key` can."""
    rate: ClassVar[str | None] = None
    """The same, as REST framework calls it."""
    key: ClassVar[Key | str | tuple[Key | str, ...] | KeyFunction] = "user_or_ip"
    """Whom it counts apart. A function stands here as `staticmethod`."""
    scope: ClassVar[str | None] = None
    """What shares one count; where no limits are given, their name in `LIMEN["SCOPES"]`."""

    _wait: float | None = None

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Ask about a request; about all throttles of the view, if this is its first."""
        http = http_of(request)
        entry = entry_of(http)
        if entry is None:
            entry = run(begin(http, False))
            entry.has_end = False
        if entry.is_free or not entry.visit.allowed:
            return True  # limen is switched off, or another throttle has refused it already
        limits = entry.pending(self._together(request, view, entry.installed))
        if not limits:
            return True
        if not entry.has_end:
            _refuse_without_end(limits)
        native = _RestRequest(http, entry.visit.manner, request)
        is_let_in = run(enter(entry, limits, False, native))
        if not entry.has_end:
            view.headers.update(entry.visit.headers())
        return is_let_in or self._refuse(entry)

    def wait(self) -> float | None:
        """Return the seconds after which to come back; None when waiting does not help."""
        return self._wait

    def scope_of(self, request: Request, view: APIView) -> str | None:
        """Return the scope for a request."""
        return self.scope

    def _together(self, request: Request, view: APIView, here: Installed) -> tuple[RateLimit, ...]:
        """Return the limits of this throttle, and of others that will be asked for them anyhow."""
        own: Any = type(self)
        found = list(_limits(own, self.scope_of(request, view), here))
        for other in view.get_throttles():
            kind: Any = type(other)
            # One that decides by itself whether to ask at all does so when its turn comes.
            if isinstance(other, RateLimitThrottle) and kind.allow_request is _PLAIN:
                more = _limits(kind, other.scope_of(request, view), here)
                found += [limit for limit in more if limit not in found]
        return tuple(found)

    def _refuse(self, entry: Entry) -> bool:
        refusal = entry.visit.refusal()
        if refusal.status != 429:
            raise Refused(refusal.status, refusal.detail)
        self._wait = entry.visit.answer().retry_after
        return False


class ScopedRateLimitThrottle(RateLimitThrottle):
    """A throttle for views that name their scope: `throttle_scope = "uploads"`.

    The limits are those of `LIMEN["SCOPES"]`. A view that names none is not limited by it.
    """

    def scope_of(self, request: Request, view: APIView) -> str | None:
        """Return the scope that the view names."""
        return getattr(view, "throttle_scope", None)


class _RestRequest(DjangoRequest):
    __slots__ = ()

    def passes(self, error: Exception) -> bool:
        return isinstance(error, APIException) or super().passes(error)


class Refused(APIException):
    """A refusal that no waiting mends, or that comes of a store that is away: 403, or 503."""

    def __init__(self, status: int, detail: str) -> None:
        self.status_code: int = status
        super().__init__(detail, "refused")


_PLAIN = RateLimitThrottle.allow_request


@lru_cache(1_024)
def _limits(throttle: Any, scope: str | None, here: Installed) -> tuple[RateLimit, ...]:
    """Return the limits of a class of throttles."""
    limits: tuple[AnyLimit, ...] = listed(throttle.rate or throttle.limits)
    if not limits and scope is not None:
        scopes = here.settings.scopes
        if scope not in scopes:
            raise ConfigurationError(
                f"LIMEN['SCOPES'] has no limits for {scope!r}{did_you_mean(scope, scopes)}"
            )
        limits = scopes[scope]
    if not limits:
        if issubclass(throttle, ScopedRateLimitThrottle):
            return ()
        limits = (RateLimit(key=throttle.key, scope=scope),)
    place = f"{throttle.__module__}.{throttle.__qualname__}"
    return tuple([limit.at(place) for limit in rate_limits(limits, key=throttle.key, scope=scope)])


def _refuse_without_end(limits: list[RateLimit]) -> None:
    if any(limit.has_slots or limit.is_corrected for limit in limits):
        raise ConfigurationError(
            "slots, deduct_when and settle need to know when a response is sent; put "
            "limen.adapters.django.RateLimitMiddleware into MIDDLEWARE"
        )


def troubles_of(here: Installed, view: Any, throttles: Any = None) -> list[str]:
    """Return what is wrong with throttles, those of a view or others, for the system checks."""
    found: list[str] = []
    limits: list[RateLimit] = []
    for throttle in _of_view(view, "throttle_classes") if throttles is None else throttles:
        if not isinstance(throttle, type) or not issubclass(throttle, RateLimitThrottle):
            continue
        if throttle.scope_of is RateLimitThrottle.scope_of:
            scope = throttle.scope
        elif throttle.scope_of is ScopedRateLimitThrottle.scope_of:
            scope = _of_view(view, "throttle_scope")
        else:
            continue  # who finds it out from the request can only be asked then
        kind: Any = throttle
        try:
            limits += here.any_door.take(*_limits.__wrapped__(kind, scope, here))
        except LimenError as error:
            found.append(f"{throttle.__qualname__}: {error}")
    try:
        apart([limit for limit in limits if limit.exempt_when is None])
    except LimenError as error:
        found.append(str(error))
    return found


def default_throttles() -> Any:
    """Return the throttles of all views that name none."""
    return api_settings.DEFAULT_THROTTLE_CLASSES or ()


def _of_view(view: Any, name: str) -> Any:
    """Return what the class of a view says, unless `as_view` or a router was told otherwise."""
    told = getattr(view, "initkwargs", {})
    return told[name] if name in told else getattr(getattr(view, "cls", None), name, None)
