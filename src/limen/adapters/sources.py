"""Who may be asked: a limiter, an engine or a client, for threads or for asyncio. Pure.

Engines are known without importing them: rules need packages that not everybody has.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from limen.adapters.limit import Item, RateLimit
from limen.client import AsyncClient, Client
from limen.errors import ConfigurationError, InvalidInput, shown
from limen.limiter import AsyncLimiter, Limiter
from limen.model import Concurrency, Limit

if TYPE_CHECKING:
    from limen.engine import AsyncEngine, Engine

    Source = Limiter | Engine | Client
    AsyncSource = AsyncLimiter | AsyncEngine | AsyncClient

Kind = Literal["limiter", "engine", "client"]


def kind_of(source: object, *, is_async: bool) -> Kind:
    """Return what can be asked, or raise a `ConfigurationError` that names what could be."""
    right: tuple[tuple[Kind, Any], ...] = (("limiter", Limiter), ("client", Client))
    wrong: tuple[tuple[Kind, Any], ...] = (("limiter", AsyncLimiter), ("client", AsyncClient))
    engine = sys.modules.get("limen.engine")
    if engine is not None:
        right += (("engine", engine.Engine),)
        wrong += (("engine", engine.AsyncEngine),)
    if is_async:
        right, wrong = wrong, right
    for kind, type_ in right:
        if isinstance(source, type_):
            return kind
    names = {kind: type_.__name__ for kind, type_ in right}
    for kind, type_ in wrong:
        if isinstance(source, type_):
            # The other kind would stop the whole loop for each answer, or could not be awaited.
            how = "asyncio" if is_async else "threads"
            raise ConfigurationError(
                f"this adapter is for {how}; give it {_article(names[kind])}, "
                f"got {_article(type_.__name__)}"
            )
    expected = ", ".join([_article(name) for name in names.values()])
    # Not the value itself: it may be an address with a password.
    raise ConfigurationError(f"expected {expected}, got {_article(type(source).__name__)}")


def valid_for(kind: Kind, limit: object) -> RateLimit:
    """Return a limit that this kind of source can decide, or raise `ConfigurationError`."""
    if not isinstance(limit, RateLimit):
        raise ConfigurationError(f"expected a RateLimit, got {shown(limit)}")
    if kind == "limiter" and not limit.limits:
        raise ConfigurationError(
            "a limiter knows no rules: give limits such as '100/minute', or an engine or a client"
        )
    if kind == "client":
        _valid_elsewhere(limit)
    return limit


def _valid_elsewhere(limit: RateLimit) -> None:
    if len([each for each in limit.limits if isinstance(each, Concurrency)]) > 1:
        raise ConfigurationError(f"a service grants one Concurrency at a time, got {limit!r}")
    if any(each.name is not None for each in limit.limits):
        raise ConfigurationError(
            f"a service cannot tell limits apart by name, got {limit!r}; give it a scope instead"
        )
    if limit.on_error is not None:
        raise ConfigurationError(
            "what happens while a service is away is said to its client: on_error belongs there"
        )


def one_number(actual: int | Mapping[str, int]) -> int:
    """Return what a request cost under limits of one's own, or raise `InvalidInput`."""
    if isinstance(actual, int):
        return actual
    raise InvalidInput("only rules charge by attributes; limits of your own take one number")


def own_of(item: Item) -> tuple[str, Concurrency | None, list[Limit]]:
    """Return key, place and limits of one's own, as a service takes them."""
    limits = item.limit.limits
    place = next((limit for limit in limits if isinstance(limit, Concurrency)), None)
    return item.checks[0].key, place, [limit for limit in limits if isinstance(limit, Limit)]


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOaeio" else f"a {name}"
