"""`Installed`: what the setting stands for. Made when the server starts, and when it changes.

Requests come by threads (WSGI) and by asyncio (ASGI), in one process both: there is a door for
each, and behind them one count. On Redis and in a service that is so anyhow; in memory, the two
limiters are given the same store.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from limen import fork
from limen._internal.functions import call_sync, name_of
from limen.adapters.deciders import AsyncSource, Kind, Source, kind_of
from limen.adapters.django.settings import LostPath, Settings, named, read
from limen.adapters.door import AsyncDoor, Door
from limen.adapters.limit import RateLimit, rate_limits
from limen.adapters.manner import Manner, manner_of
from limen.client import AsyncClient, Client
from limen.errors import ConfigurationError
from limen.limiter import AsyncLimiter, Limiter

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

    @cached_property
    def door(self) -> Door:
        """Where requests come through in threads."""
        source = self._source
        if source is None:
            raise _one_sided("threads", "Limiter")
        limits = _limits(self.settings, kind_of(source, is_async=False))
        return Door(source, *limits, **self.settings.options)

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
            _close(self._async_source)


class _Current:
    """The runtime of the current settings: one for each process."""

    def __init__(self) -> None:
        self._runtime: Installed | None = None
        self.after_fork()
        fork.watch(self)

    def after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        self._lock = threading.Lock()

    def get(self) -> Installed:
        """Return the runtime, or raise a `LimenError` with everything that is wrong in `LIMEN`.

        The first caller creates it. Later calls take no lock.
        """
        runtime = self._runtime
        if runtime is None:
            with self._lock:
                runtime = self._runtime = self._runtime or _from_settings()
        return runtime

    def changed(self, setting: str, **_: object) -> None:
        """Close the runtime if the setting was changed, as tests do."""
        if setting == "LIMEN":
            with self._lock:
                runtime, self._runtime = self._runtime, None
            if runtime is not None:
                runtime.close()


def _from_settings() -> Installed:
    settings, troubles = read(getattr(django_settings, "LIMEN", {}))
    if troubles:
        raise ConfigurationError("; ".join([trouble.message for trouble in troubles]))
    return Installed(settings)


_current = _Current()
installed: Callable[[], Installed] = _current.get
"""Return the runtime of the current settings, or raise a `LimenError`."""
setting_changed.connect(_current.changed, dispatch_uid="limen")


def _limits(settings: Settings, kind: Kind) -> list[RateLimit]:
    """Return what holds for every request."""
    found = list(rate_limits(settings.limits or (), key=settings.key))
    # Who names rules wants them. A service may also be there for limits of one's own alone.
    by_rules = kind == "engine" or (kind == "client" and settings.limits is None)
    if by_rules and all(limit.limits for limit in found):
        found.append(RateLimit())
    return found


def on_view(
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
    sources: list[Any] = []
    async_sources: list[Any] = []
    for each in given:
        made = _made(each)
        (async_sources if _is_async(made) else sources).append(made)
    if not given or len(sources) > 1 or len(async_sources) > 1:
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
        source = named(each)
    except LostPath as error:
        # Nothing of the text: it is where people put addresses, with their passwords.
        why = f"leads nowhere ({type(error.__cause__).__name__})" if error.__cause__ else "is none"
        raise LostPath(f"LIMITER: as text it is a dotted path; this {why}") from error.__cause__
    if not callable(source):
        return source
    try:
        return call_sync(source)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"LIMITER: {name_of(source)} raised {type(error).__name__}"
        ) from error


def _is_async(source: object) -> bool:
    """Return whether a source is for asyncio; raise `ConfigurationError` for anything else."""
    for is_async in (False, True):
        with suppress(ConfigurationError):
            kind_of(source, is_async=is_async)
            return is_async
    # Not the value: it may hold a password.
    raise ConfigurationError(
        "LIMITER must be a Limiter, an Engine or a Client for threads, or an AsyncLimiter, an "
        f"AsyncEngine or an AsyncClient for asyncio, got {type(source).__name__}"
    )


def _closable(source: Any) -> Any:
    """Return what has connections: of an engine, its limiter."""
    return getattr(source, "limiter", source)


def _close(source: AsyncSource) -> None:
    """Close a source from anywhere; on a loop, as soon as it goes on."""
    closing = _closable(source).aclose()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(closing)
    else:
        _closing.add(task := asyncio.ensure_future(closing))
        task.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()


def _one_sided(how: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"this request comes by {how}, and LIMEN['LIMITER'] has nobody to ask there; "
        f"give it a pair, of which one is for {how}, such as a {wanted}"
    )
