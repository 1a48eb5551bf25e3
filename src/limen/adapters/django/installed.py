"""`Installed`: what the setting stands for. Made when the server starts, and when it changes.

Requests come by threads (WSGI) and by asyncio (ASGI), in one process both: there is a door for
each, and behind them one count. On Redis and in a service that is so anyhow; in memory, the two
limiters are given the same store.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from limen import fork
from limen._internal.functions import name_of
from limen.adapters.aio import AsyncDoor
from limen.adapters.deciders import Kind, kind_of
from limen.adapters.django.settings import LostPath, Settings, named, read
from limen.adapters.limit import RateLimit
from limen.adapters.manner import Manner, manner_of
from limen.adapters.sync import Door
from limen.client import AsyncClient, Client
from limen.errors import ConfigurationError
from limen.limiter import AsyncLimiter, Limiter

if TYPE_CHECKING:
    from limen.adapters.deciders import AsyncSource, Source

_MAX_TAKEN = 10_000
_DEADLINE_S = 0.05
_TIMEOUT_S = 0.25


class Installed:
    """What the setting stands for: whom to ask, about what, and how to answer.

    Raises a `LimenError` for what cannot be: a store without its package, rules that are wrong.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings: Settings = settings
        """What the setting says."""
        self.manner: Manner = manner_of(settings.options)
        """How clients are told."""
        self._source: Source | None = None
        self._async_source: AsyncSource | None = None
        if settings.enabled:
            self._source, self._async_source = _sources(settings)
        self.on_view: Callable[..., tuple[RateLimit, ...]] = lru_cache(_MAX_TAKEN)(_on_view)
        """Limits of a view, as a door takes them, at the place where they stand."""

    @cached_property
    def door(self) -> Door:
        """Where requests come through in threads."""
        source = self._source
        if source is None:
            raise _one_sided("threads", "Limiter")
        limits = _limits(self.settings, kind_of(source, is_async=False))
        return Door(source, *limits, adapter="Django's WSGI", **self.settings.options)

    @cached_property
    def async_door(self) -> AsyncDoor:
        """Where requests come through on asyncio."""
        source = self._async_source
        if source is None:
            raise _one_sided("asyncio", "AsyncLimiter")
        limits = _limits(self.settings, kind_of(source, is_async=True))
        return AsyncDoor(source, *limits, **self.settings.options)

    @property
    def any_door(self) -> Door | AsyncDoor:
        """One of the two, to see what can be asked about here."""
        return self.door if self._async_source is None else self.async_door

    def close(self) -> None:
        """Let go of the store. What the user made is left to the user."""
        if self.settings.limiter is not None:
            return
        if self._source is not None:
            _closable(self._source).close()
        if self._async_source is not None:
            _run(_closable(self._async_source).aclose)


class _Holder:
    """Where the one that is in force is kept: there is one for a process, as of the settings."""

    def __init__(self) -> None:
        self._now: Installed | None = None
        self.after_fork()
        fork.watch(self)

    def after_fork(self) -> None:
        """Make anew what two processes must not share. Not for you to call."""
        self._lock = threading.Lock()

    def get(self) -> Installed:
        """Return it; the first who asks makes it, and nobody else."""
        found = self._now
        if found is not None:
            return found
        with self._lock:
            if self._now is None:
                self._now = Installed(_read())
                setting_changed.connect(self._changed, dispatch_uid="limen")
            return self._now

    def _changed(self, setting: str, **_: object) -> None:
        if setting == "LIMEN":
            with self._lock:
                found, self._now = self._now, None
            if found is not None:
                found.close()


installed: Callable[[], Installed] = _Holder().get
"""Return what the setting stands for now, or raise a `LimenError` that says all that is wrong."""


def _read() -> Settings:
    found, troubles = read(getattr(django_settings, "LIMEN", {}))
    if troubles:
        raise ConfigurationError("; ".join([trouble.message for trouble in troubles]))
    return found


def _limits(settings: Settings, kind: Kind) -> list[RateLimit]:
    """Return what holds for every request."""
    given = settings.limits or ()
    found = [limit for limit in given if isinstance(limit, RateLimit)]
    plain = [limit for limit in given if not isinstance(limit, RateLimit)]
    if plain:
        found.insert(0, RateLimit(*plain, key=settings.key))
    # Who names rules wants them. A service may also be there for limits of one's own alone.
    by_rules = kind == "engine" or (kind == "client" and settings.limits is None)
    if by_rules and all(limit.limits for limit in found):
        found.append(RateLimit())
    return found


def _on_view(
    door: Door | AsyncDoor, limits: tuple[RateLimit, ...], place: str
) -> tuple[RateLimit, ...]:
    """Return limits, the outermost first, each at a place of its own.

    They are numbered from inside, and the innermost has no number: whoever puts another one around
    a view changes nothing for those there.
    """
    taken = door.take(*limits)
    numbers = range(len(taken), 0, -1)
    return tuple(
        [
            limit.at(place if number == 1 else f"{place} #{number}")
            for number, limit in zip(numbers, taken, strict=True)
        ]
    )


def _sources(settings: Settings) -> tuple[Source | None, AsyncSource | None]:
    """Return whom to ask, in threads and on asyncio."""
    if settings.limiter is not None:
        return _given(settings.limiter)
    if settings.service is not None:
        timeout = _TIMEOUT_S if settings.deadline is None else settings.deadline
        asked: Any = {"token": settings.token, "timeout": timeout, **_when_away(settings)}
        return Client(settings.service, **asked), AsyncClient(settings.service, **asked)
    deadline = _DEADLINE_S if settings.deadline is None else settings.deadline
    made: Any = {"namespace": settings.namespace, "deadline": deadline, **_when_away(settings)}
    limiter = Limiter(settings.store, **made)
    twin = AsyncLimiter.beside(limiter) or AsyncLimiter(settings.store, **made)
    if settings.rules is None:
        return limiter, twin
    from limen.engine import AsyncEngine, Engine
    from limen.rules import load

    rules = load(settings.rules)
    return Engine(rules, limiter), AsyncEngine(rules, twin)


def _when_away(settings: Settings) -> dict[str, Any]:
    return {"on_error": settings.on_error, "instances": settings.instances}


def _given(limiter: Any) -> tuple[Source | None, AsyncSource | None]:
    """Return what the user made: one, from which the other may follow, or both."""
    given = limiter if isinstance(limiter, list | tuple) else (limiter,)
    made = list(map(_made, given))
    sources: list[Any] = [each for each in made if _is_for(each, is_async=False)]
    async_sources: list[Any] = [each for each in made if _is_for(each, is_async=True)]
    if not made or len(sources) > 1 or len(async_sources) > 1:
        raise ConfigurationError(
            "LIMITER as a pair has one for threads and one for asyncio, got "
            f"{len(sources)} and {len(async_sources)}"
        )
    source = sources[0] if sources else None
    async_source = async_sources[0] if async_sources else None
    if async_source is None and isinstance(source, Limiter):
        async_source = AsyncLimiter.beside(source)
    return source, async_source


def _made(each: Any) -> Any:
    try:
        found = named(each)
    except LostPath as error:
        # Nothing of the text: it is where people put addresses, with their passwords.
        why = f"leads nowhere ({type(error.__cause__).__name__})" if error.__cause__ else "is none"
        raise LostPath(f"LIMITER: as text it is a dotted path; this {why}") from error.__cause__
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(
                f"LIMITER: {name_of(found)} raised {type(error).__name__}"
            ) from error
    if _is_for(found, is_async=False) or _is_for(found, is_async=True):
        return found
    if hasattr(found, "__await__") and hasattr(found, "close"):
        found.close()  # else it would complain that nobody awaited it
    # Not the value: it may hold a password.
    raise ConfigurationError(
        "LIMITER must be a Limiter, an Engine or a Client for threads, or an AsyncLimiter, an "
        f"AsyncEngine or an AsyncClient for asyncio, got {type(found).__name__}"
    )


def _is_for(source: object, *, is_async: bool) -> bool:
    try:
        kind_of(source, is_async=is_async)
    except ConfigurationError:
        return False
    return True


def _closable(source: Any) -> Any:
    """Return what has connections: of an engine, its limiter."""
    return getattr(source, "limiter", source)


def _run(close: Callable[[], Awaitable[None]]) -> None:
    """Carry out a coroutine function from wherever this is; on a loop, as soon as it goes on."""

    async def run() -> None:
        await close()

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(run())
    else:
        _closing.add(task := loop.create_task(run()))
        task.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()


def _one_sided(how: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"this request comes by {how}, and LIMEN['LIMITER'] has nobody to ask there; "
        f"give it a pair, of which one is for {how}, such as a {wanted}"
    )
