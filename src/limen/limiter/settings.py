"""The settings of a limiter, validated, and the store its address names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, get_args
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from limen.backends import AsyncBackend, Backend
from limen.backends.memory import AsyncMemoryBackend, MemoryBackend
from limen.clock import Clock, SystemClock
from limen.connect import Target, is_shared, parse, target_of
from limen.errors import ConfigurationError, shown
from limen.keys import MAX_NAMESPACE
from limen.model import Decision, OnError

Observer = Callable[[Decision], object]
_NAMESPACE = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_NAMESPACE}}}")
_DEFAULT_MAX_KEYS = 1_000_000
_QUICK = (FunctionType, MethodType, BuiltinFunctionType)


class LimiterSettings(Struct):
    """What a limiter is made with. Raises `ConfigurationError` with what was expected."""

    store: object
    """An address, or a ready redis-py client."""
    namespace: str
    on_error: OnError
    instances: int
    deadline: float
    observers: Iterable[Observer]
    clock: Clock | None
    """The caller's own clock."""

    def __post_init__(self) -> None:
        if not isinstance(self.namespace, str) or not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(
                f"namespace must be 1 to {MAX_NAMESPACE} letters, digits, '.', '_' or '-', "
                f"got {shown(self.namespace)}"
            )
        if self.on_error not in get_args(OnError):
            raise ConfigurationError(
                f"on_error must be local, open or closed, got {shown(self.on_error)}"
            )
        valid_instances(self.instances)
        deadline, clock = self.deadline, self.clock
        if (
            isinstance(deadline, bool)
            or not isinstance(deadline, int | float)
            or not 0 < deadline < 3600
        ):
            raise ConfigurationError(
                f"deadline must be seconds above 0 and below 3600, got {shown(deadline)}"
            )
        if not isinstance(self.observers, Iterable):
            raise ConfigurationError(
                f"observers must be a list of functions, got {shown(self.observers)}"
            )
        self.observers = tuple(self.observers)
        for observer in self.observers:
            if not callable(observer):
                raise ConfigurationError(f"an observer must be callable, got {shown(observer)}")
        for verb in ("time_ns", "monotonic", "sleep", "sleep_async"):
            if clock is not None and not callable(getattr(clock, verb, None)):
                raise ConfigurationError(
                    f"clock must have the methods of limen.clock.Clock, got {shown(clock)} "
                    f"without {verb}"
                )


def quick(observer: Any) -> Observer:
    """Return the method of an object: to call the object itself takes half as long again."""
    called: Observer = observer if isinstance(observer, _QUICK) else observer.__call__
    return called


def valid_instances(instances: int) -> int:
    """Return a number of processes, or raise `ConfigurationError`."""
    if type(instances) is not int or instances < 1:
        raise ConfigurationError(f"instances must be a whole number from 1, got {shown(instances)}")
    return instances


def open_store(settings: LimiterSettings) -> Backend:
    """Return the store for threads that the settings name."""
    if not is_shared(settings.store):
        return _memory(settings)
    target = _target(settings, asynchronous=False)
    from limen.backends.redis.sync import RedisBackend

    return RedisBackend(target, settings.namespace, settings.deadline)


def open_store_async(settings: LimiterSettings) -> AsyncBackend:
    """Return the store for asyncio that the settings name."""
    if not is_shared(settings.store):
        return AsyncMemoryBackend(_memory(settings))
    target = _target(settings, asynchronous=True)
    from limen.backends.redis.aio import AsyncRedisBackend

    return AsyncRedisBackend(target, settings.namespace, settings.deadline)


def _target(settings: LimiterSettings, *, asynchronous: bool) -> Target:
    if settings.clock is not None:
        raise ConfigurationError(
            "a clock of one's own is for 'memory://'; on Redis, time comes from the server"
        )
    return target_of(settings.store, asynchronous=asynchronous)


def _memory(settings: LimiterSettings) -> MemoryBackend:
    """Return the store in this process that `memory://` or `memory://?max_keys=N` names."""
    try:
        address = urlsplit(str(settings.store))
    except ValueError as error:
        raise ConfigurationError(f"the address of the store cannot be read: {error}") from None
    if address.scheme != "memory":
        # `parse` says what there is. It shows only the scheme: the rest may hold a password.
        parse(str(settings.store))
    if address.netloc or address.path.strip("/") or address.fragment:
        raise ConfigurationError(
            "'memory://' takes no host or path; use 'memory://?max_keys=100000'"
        )
    return MemoryBackend(settings.clock or SystemClock(), _max_keys(address.query))


def _max_keys(query: str) -> int:
    options = parse_qs(query, keep_blank_values=True)
    unknown = set(options) - {"max_keys"}
    if unknown:
        raise ConfigurationError(
            f"unknown option {shown(min(unknown))} of 'memory://'; there is: max_keys"
        )
    if not options:
        return _DEFAULT_MAX_KEYS
    text = options["max_keys"][-1]
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) < 1:
        raise ConfigurationError(f"max_keys must be a whole number from 1, got {shown(text)}")
    return int(text)
