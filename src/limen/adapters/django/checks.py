"""System checks: what `manage.py check` says of the setting, and of limits on views. Asks no store.

| id | what is wrong |
|---|---|
| `limen.E001` | `LIMEN` is no dict |
| `limen.E002` | an unknown key |
| `limen.E003` | a value that is not what its key takes |
| `limen.E004` | a limit |
| `limen.E005` | a style of headers |
| `limen.E006` | proxies, or the header that they write |
| `limen.E007` | a dotted path that leads nowhere |
| `limen.E008` | keys that exclude one another |
| `limen.E009` | the store, the service, the rules or the limiter cannot be made |
| `limen.E010` | limits on a view that cannot be asked about |
| `limen.W001` | limits, and no middleware |
| `limen.W002` | limits by user, and nobody is known to be logged in yet |
| `limen.W003` | on deployment: each process counts for itself |
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Warning
from django.urls import get_resolver
from django.utils.module_loading import import_string

from limen.adapters.django.decorator import limits_on, views_of
from limen.adapters.django.installed import Installed, on_view
from limen.adapters.django.middleware import RateLimitMiddleware
from limen.adapters.django.settings import PATH_HINT, LostPath, read
from limen.adapters.plan import apart
from limen.errors import LimenError

_MIDDLEWARE = "limen.adapters.django.RateLimitMiddleware"
_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


def check_setting(**_: Any) -> list[CheckMessage]:
    """Return what is wrong with `LIMEN`."""
    settings, troubles = read(getattr(django_settings, "LIMEN", {}))
    found: list[CheckMessage] = [
        Error(trouble.message, hint=trouble.hint, id=trouble.id) for trouble in troubles
    ]
    if found or not settings.enabled:
        return found
    try:
        limits = Installed(settings).any_door.limits
    except LostPath as error:
        return [Error(f"LIMEN: {error}", hint=PATH_HINT, id="limen.E007")]
    except (LimenError, ImportError) as error:
        hint = "the message says what was expected; nothing was connected to"
        return [Error(f"LIMEN: {error}", hint=hint, id="limen.E009")]
    middleware = _middleware()
    if limits and RateLimitMiddleware not in middleware:
        found.append(_no_middleware("LIMEN has limits that hold everywhere"))
    keys = [limit.key for limit in limits if limit.key.function is None]
    if any(key.reads_user for key in keys) and _is_above_authentication(middleware):
        found.append(
            Warning(
                "limits count by user, and RateLimitMiddleware does not come after "
                "AuthenticationMiddleware: to it, nobody is logged in",
                hint=f"put {_MIDDLEWARE!r} below {_AUTHENTICATION!r} in MIDDLEWARE",
                id="limen.W002",
            )
        )
    return found


def check_views(**_: Any) -> list[CheckMessage]:
    """Return what is wrong with limits on views."""
    settings, troubles = read(getattr(django_settings, "LIMEN", {}))
    if troubles or not settings.enabled or not getattr(django_settings, "ROOT_URLCONF", None):
        return []
    views = dict.fromkeys(views_of(get_resolver().url_patterns))
    limited = {view: limits for view in views if (limits := limits_on(view))}
    throttled = [view for view in views if hasattr(getattr(view, "cls", None), "throttle_classes")]
    if not limited and "rest_framework" not in sys.modules:
        return []
    found: list[CheckMessage] = []
    if limited and RateLimitMiddleware not in _middleware():
        names = ", ".join(sorted({_name(view) for view in limited})[:3])
        found.append(_no_middleware(f"there are limits on views ({names})"))
    try:
        here = Installed(settings)
    except (LimenError, ImportError):
        return found  # check_setting says so
    for view, limits in limited.items():
        try:
            own = on_view(here.any_door, limits, "any")
            # One that does not always hold may stand beside others.
            apart([limit for limit in own if limit.exempt_when is None])
        except LimenError as error:
            hint = "change the limit, or LIMEN"
            found.append(Error(f"limits on {_name(view)}: {error}", hint=hint, id="limen.E010"))
    return found + _of_throttles(throttled, here)


def _of_throttles(views: list[Any], here: Installed) -> list[CheckMessage]:
    """Return what is wrong with throttles, where there is REST framework at all."""
    if "rest_framework" not in sys.modules:
        return []
    from limen.adapters.django.rest import default_throttles, troubles_of

    troubles = [
        f"throttles on {_name(view)}: {trouble}"
        for view in views
        for trouble in troubles_of(here, view)
    ]
    with suppress(ImportError):  # REST framework says so itself
        default = troubles_of(here, None, default_throttles())
        troubles += [f"DEFAULT_THROTTLE_CLASSES: {trouble}" for trouble in default]
    hint = "give the throttle limits, or its scope some in LIMEN['SCOPES']"
    return [Error(trouble, hint=hint, id="limen.E010") for trouble in dict.fromkeys(troubles)]


def check_store(**_: Any) -> list[CheckMessage]:
    """Return what is wrong for a deployment, where many processes answer."""
    raw = getattr(django_settings, "LIMEN", {})
    settings, troubles = read(raw)
    if troubles or not settings.enabled or {"SERVICE", "LIMITER"} & set(raw):
        return []
    if not settings.store.startswith("memory:"):
        return []
    message = "LIMEN counts in memory: each process for itself, and anew after each start"
    hint = 'name a store that all share, LIMEN = {"STORE": "redis://localhost:6379", ...}'
    return [Warning(message, hint=hint, id="limen.W003")]


def _no_middleware(why: str) -> Warning:
    return Warning(
        f"{why}, and RateLimitMiddleware is not in MIDDLEWARE",
        hint=f"add {_MIDDLEWARE!r}: it limits every request, and writes headers on all responses",
        id="limen.W001",
    )


def _middleware() -> list[Any]:
    """Return what stands in MIDDLEWARE; a class that is derived from ours is ours."""
    found: list[Any] = []
    for path in django_settings.MIDDLEWARE:
        try:
            middleware = import_string(path)
        except ImportError:
            continue  # Django says so itself
        is_ours = isinstance(middleware, type) and issubclass(middleware, RateLimitMiddleware)
        found.append(RateLimitMiddleware if is_ours else path)
    return found


def _is_above_authentication(middleware: list[Any]) -> bool:
    if RateLimitMiddleware not in middleware:
        return False
    return _AUTHENTICATION not in middleware[: middleware.index(RateLimitMiddleware)]


def _name(view: Any) -> str:
    """Return what a view is called; of a class, what that is called."""
    named: Any = getattr(view, "cls", None) or getattr(view, "view_class", None) or view
    return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__name__)}"
