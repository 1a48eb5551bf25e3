"""`ratelimit` and `exempt`: limits on single views.

A decorator leaves a mark on its view, by which the middleware knows beforehand what to ask. What
the middleware did not see, because another decorator hides the mark, it stands on a method, or
there is no middleware, is asked for when the view is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial, wraps
from itertools import count
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.urls import URLPattern, URLResolver, get_resolver

from limen.adapters import limit
from limen.adapters.django.entry import Where, drive, handle, http_of
from limen.errors import ConfigurationError

V = TypeVar("V", bound=Callable[..., Any])
_LIMITS, _EXEMPT = "limen_limits", "limen_exempt"
_MARK = "limen_limit_"
"""What the names of single marks begin with. Each has a name of its own: `method_decorator` brings
together what several decorators leave on a class, and of one name it keeps only one."""
_numbers = count()


class RateLimit(limit.RateLimit):
    """A `RateLimit` that is a decorator of views, sync and async.

    ```python
    @ratelimit("5/minute", key="user")
    def search(request): ...

    @method_decorator(ratelimit("5/minute"), name="dispatch")
    class Search(View): ...
    ```

    Without a `scope`, it counts each endpoint that it is put on apart, by its route. Needs
    `RateLimitMiddleware` for headers on all responses; alone, it writes them on what its view
    returns.
    """

    def __call__(self, view: V) -> V:
        """Put the limits on a view."""
        if isinstance(view, type) or not callable(view):
            raise ConfigurationError(
                "limits stand on functions; on a class, by "
                '@method_decorator(ratelimit(...), name="dispatch")'
            )
        marks: tuple[limit.RateLimit, ...] = (self, *limits_on(view))
        where = _where(view)

        is_async = _is_async(view)

        @wraps(view)
        def limited(request: Any, /, *args: Any, **kwargs: Any) -> Any:
            flow = handle(
                http_of(request),
                lambda entry: entry.pending(marks, where),
                partial(view, request, *args, **kwargs),
                is_async,
            )
            return drive(flow, is_async)

        if is_async:
            markcoroutinefunction(limited)
        setattr(limited, _LIMITS, marks)
        setattr(limited, f"{_MARK}{next(_numbers)}", self)
        return cast("V", limited)


ratelimit = RateLimit
"""Limit a view, as decorators are written: `@ratelimit("5/minute")`."""


def exempt(view: V) -> V:
    """Let a view be, whatever holds everywhere; what stands on the view itself still does."""
    if isinstance(view, type) or not callable(view):
        raise ConfigurationError(
            'exempt stands on functions; on a class, by @method_decorator(exempt, name="dispatch")'
        )

    @wraps(view)
    def free(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    if _is_async(view):
        markcoroutinefunction(free)
    setattr(free, _EXEMPT, True)
    return cast("V", free)


def limits_on(view: object) -> tuple[limit.RateLimit, ...]:
    """Return the limits that stand on a view, the outermost first."""
    found: tuple[limit.RateLimit, ...] = getattr(view, _LIMITS, ())
    if not found:
        return found
    marks: dict[str, Any] = getattr(view, "__dict__", {})
    numbers = [int(name.removeprefix(_MARK)) for name in marks if name.startswith(_MARK)]
    if len(numbers) <= len(found):
        return found
    # What lies further in was put there before.
    return tuple([marks[f"{_MARK}{number}"] for number in sorted(numbers, reverse=True)])


def is_exempt(view: object) -> bool:
    """Return whether a view is exempt from what holds everywhere."""
    return getattr(view, _EXEMPT, False)


def views_of(patterns: Iterable[URLPattern | URLResolver]) -> Iterator[Any]:
    """Yield the views of a URLconf, included ones too."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from views_of(pattern.url_patterns)
        else:
            yield pattern.callback


def any_limited(urlconf: Any) -> bool:
    """Return whether a URLconf has views that are exempt, or have limits of their own."""
    # By what Django makes of it, and forgets when tests put others in its place.
    return _any_limited(get_resolver(urlconf))


@lru_cache(64)
def _any_limited(resolver: URLResolver) -> bool:
    views = views_of(resolver.url_patterns)
    return any(limits_on(view) or is_exempt(view) for view in views)


def _is_async(view: Any) -> bool:
    """Return whether a view is awaited; so is the `dispatch` of a class with async methods."""
    if iscoroutinefunction(view):
        return True
    return _name_of(view) == "dispatch" and bool(getattr(_owner(view), "view_is_async", False))


def _where(view: Any) -> Where:
    """Return what a view adds to the place of its limits, and where they stand without a route."""
    name = _name_of(view)
    part = f".{name}" if _owner(view) is not None and name != "dispatch" else ""
    module, path = getattr(view, "__module__", ""), getattr(view, "__qualname__", name)
    return Where(part, f"{module}.{path}")


def _owner(view: Any) -> Any:
    """Return the object whose method this is, as `method_decorator` passes it on; or None."""
    return getattr(getattr(view, "func", None), "__self__", None)


def _name_of(view: Any) -> str:
    found: str = getattr(view, "__name__", type(view).__name__)
    return found
