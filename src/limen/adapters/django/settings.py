"""The one setting, `LIMEN`: what may stand in it, and all that is wrong with it. Opens nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from django.utils.module_loading import import_string
from msgspec import Struct

from limen.adapters.keys import Key, KeyFunction, key_of
from limen.adapters.limit import AnyLimit, RateLimit, listed, rate_limits
from limen.adapters.manner import Options, manner_of
from limen.errors import ConfigurationError, LimenError, did_you_mean, shown
from limen.http import AddressSettings, ClientAddresses
from limen.limiter.settings import LimiterSettings
from limen.model import Concurrency, Limit, OnError

Plain = str | Limit | Concurrency
"""A limit without a key of its own."""


class Trouble(NamedTuple):
    """One thing that is wrong with the setting."""

    id: str
    """What a system check calls it: `"limen.E004"`."""
    message: str
    hint: str


class LostPath(ConfigurationError):
    """A dotted path that leads nowhere."""


class Settings(Struct, frozen=True, kw_only=True):
    """What `LIMEN` says, read and validated."""

    enabled: bool = True
    """`ENABLED`: False switches everything off, decorators and throttles too."""
    limits: tuple[AnyLimit, ...] | None = None
    """`LIMITS`: what holds for every request, `["100/minute"]`. None says nothing: then rules
    hold, if there are any."""
    key: Key | str | tuple[Key | str, ...] | KeyFunction = "ip"
    """`KEY`: whom `LIMITS` and `SCOPES` count apart, `"user_or_ip"`."""
    scopes: Mapping[str, tuple[Plain, ...]] = {}
    """`SCOPES`: limits of throttles by name, `{"uploads": "20/day"}`."""
    options: Options = {}
    """`HEADERS`, `EXPOSE`, `STATUS`, and those on addresses."""
    store: str = "memory://"
    """`STORE`: where to count, `"redis://localhost:6379"`."""
    namespace: str = "limen"
    """`NAMESPACE`: what keys in the store begin with."""
    on_error: OnError = "local"
    """`ON_ERROR`: who decides while the store is away."""
    instances: int = 1
    """`INSTANCES`: among how many processes the limits are shared then."""
    deadline: float | None = None
    """`DEADLINE`: seconds in which a decision comes, whatever the store does."""
    rules: str | Path | None = None
    """`RULES`: a file of rules, `"rules.yaml"`."""
    service: str | None = None
    """`SERVICE`: the limen to ask instead of a store, `"http://limen:8080"`."""
    token: str | None = None
    """`TOKEN`: what that service expects."""
    limiter: Any = None
    """`LIMITER`: a limiter, engine or client of one's own, or what makes one; or a pair."""
    exempt_when: Callable[[Any], Any] | None = None
    """`EXEMPT_WHEN`: whether a request is under no limit at all, wherever that stands."""
    view: Callable[..., Any] | None = None
    """`VIEW`: what answers who is refused, called with the request and a `Refused`."""


def read(raw: object) -> tuple[Settings, list[Trouble]]:
    """Return what the setting says, and what is wrong with it. What is wrong is left out."""
    if not isinstance(raw, Mapping):
        message = f"LIMEN must be a dict, got {type(raw).__name__}"
        return Settings(), [Trouble("limen.E001", message, 'LIMEN = {"LIMITS": ["100/minute"]}')]
    troubles = [_unknown(name) for name in raw if name not in _READERS]
    found: dict[str, Any] = {}
    for name, (reader, id, hint) in _READERS.items():
        if name not in raw:
            continue
        try:
            found[name] = reader(raw[name])
        except LostPath as error:
            troubles.append(Trouble("limen.E007", f"LIMEN[{name!r}]: {error}", PATH_HINT))
        except LimenError as error:
            troubles.append(Trouble(id, f"LIMEN[{name!r}]: {error}", hint))
    troubles += _at_odds(found)
    options, more = _options(found)
    values = {
        name.lower(): value for name, value in found.items() if name not in (*_TOLD, *_ADDRESSES)
    }
    return Settings(**values, options=options), troubles + more


def _unknown(name: object) -> Trouble:
    message = f"LIMEN has no key {shown(name)}{did_you_mean(name, _READERS)}"
    return Trouble("limen.E002", message, f"there are: {', '.join(_READERS)}")


def _at_odds(found: Mapping[str, Any]) -> list[Trouble]:
    """Return where one key makes others meaningless: they would be ignored without a word."""
    troubles: list[Trouble] = []
    for name, others in _INSTEAD.items():
        too = [other for other in others if other in found]
        if name in found and too:
            message = f"LIMEN[{name!r}] stands instead of {', '.join(too)}, which would be ignored"
            hint = f"remove {name}, or {' and '.join(too)}"
            troubles.append(Trouble("limen.E008", message, hint))
    if "TOKEN" in found and "SERVICE" not in found:
        message = "LIMEN['TOKEN'] is for a SERVICE, and there is none"
        troubles.append(Trouble("limen.E008", message, "name the SERVICE, or remove TOKEN"))
    return troubles


def _options(found: Mapping[str, Any]) -> tuple[Options, list[Trouble]]:
    """Return how clients are told, from several keys together."""
    options: Any = {name.lower(): found[name] for name in _TOLD if name in found}
    given = {name: field for name, field in _ADDRESSES.items() if name in found}
    if given:
        addresses = AddressSettings(**{field: found[name] for name, field in given.items()})
        try:
            ClientAddresses(addresses)
        except ConfigurationError as error:
            return options, [Trouble("limen.E006", f"LIMEN[{', '.join(given)}]: {error}", _HINT_6)]
        options["addresses"] = addresses
    return options, []


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigurationError(f"expected True or False, got {shown(value)}")


def _text(value: object) -> str:
    """Return a text, which is not shown if it is none: it may be a secret."""
    if isinstance(value, str) and value:
        return value
    raise ConfigurationError(f"expected text, got {type(value).__name__}")


def _path(value: object) -> str | Path:
    return value if isinstance(value, Path) else _text(value)


def named(value: object) -> Any:
    """Return what a dotted path names, or the value itself. Raises `LostPath`.

    A text that is no dotted path is not shown: it may be the address of a store, with its password.
    """
    if not isinstance(value, str):
        return value
    parts = value.split(".")
    if len(parts) < 2 or not all(map(str.isidentifier, parts)):
        raise LostPath("expected a dotted path, and this text is none")
    try:
        return import_string(value)
    except ImportError as error:
        raise LostPath(str(error)) from error
    except Exception as error:
        raise LostPath(f"its module raised {type(error).__name__}") from error


def _function(value: object) -> Any:
    found = named(value)
    if callable(found):
        return found
    raise ConfigurationError(
        f"expected a function, or the dotted path of one, got {type(found).__name__}"
    )


def _key(value: object) -> Any:
    """Return a key; a dotted path is a function, for of names only a header's has a dot in it."""
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, str) and "." in value and not value.startswith("header:"):
        value = named(value)
    key_of(value)
    return value


def _limits(value: object) -> tuple[AnyLimit, ...]:
    limits = listed(value)
    rate_limits(limits)
    return limits


def _scopes(value: object) -> dict[str, tuple[Plain, ...]]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"expected a dict of limits by name, got {type(value).__name__}")
    scopes: dict[str, tuple[Plain, ...]] = {}
    for name, limits in value.items():
        try:
            scopes[name] = RateLimit(*listed(limits), scope=name).limits
        except LimenError as error:
            raise ConfigurationError(f"{name!r}: {error}") from None
    return scopes


def _proxies(value: object) -> tuple[Any, ...]:
    if isinstance(value, list | tuple):
        return tuple(value)
    raise ConfigurationError(f"expected a list of networks, got {type(value).__name__}")


def _accepted_by(check: Callable[[Any], object], name: str) -> Callable[[object], object]:
    """Return what reads a value that `check` validates, given as a dict with this name."""

    def reader(value: object) -> object:
        check({name: value})
        return value

    return reader


def _valid_for_limiter(values: dict[str, Any]) -> None:
    """Raise `ConfigurationError` for settings that a limiter does not take."""
    known: dict[str, Any] = {
        "namespace": "limen",
        "on_error": "local",
        "instances": 1,
        "deadline": 1.0,
    }
    LimiterSettings("memory://", **{**known, **values}, observers=(), clock=None)


def _as_it_is(value: object) -> object:
    return value


PATH_HINT = "check the dotted path, and that the module can be imported without errors"
_HINT_3 = "see docs/adapters/django.md for what each key takes"
_HINT_4 = 'limits are text such as "100/minute" or "10/second; 1000/hour", a Limit or a RateLimit'
_HINT_5 = "draft-11 is for new clients; several styles may stand side by side"
_HINT_6 = (
    "name the proxies by TRUSTED_PROXIES (or their number by TRUSTED_HOPS) and the one header that "
    "they write by ADDRESS_HEADER"
)

_READERS: dict[str, tuple[Callable[[object], Any], str, str]] = {
    "ENABLED": (_bool, "limen.E003", _HINT_3),
    "STORE": (_text, "limen.E003", 'an address such as "redis://localhost:6379"'),
    "LIMITS": (_limits, "limen.E004", _HINT_4),
    "KEY": (_key, "limen.E003", _HINT_3),
    "SCOPES": (_scopes, "limen.E004", _HINT_4),
    "HEADERS": (_accepted_by(manner_of, "headers"), "limen.E005", _HINT_5),
    "EXPOSE": (_accepted_by(manner_of, "expose"), "limen.E003", _HINT_3),
    "STATUS": (_accepted_by(manner_of, "status"), "limen.E003", _HINT_3),
    "TRUSTED_PROXIES": (_proxies, "limen.E006", _HINT_6),
    "TRUSTED_HOPS": (_as_it_is, "limen.E006", _HINT_6),
    "ADDRESS_HEADER": (_as_it_is, "limen.E006", _HINT_6),
    "IPV6_PREFIX": (_as_it_is, "limen.E006", _HINT_6),
    "NAMESPACE": (_accepted_by(_valid_for_limiter, "namespace"), "limen.E003", _HINT_3),
    "ON_ERROR": (_accepted_by(_valid_for_limiter, "on_error"), "limen.E003", _HINT_3),
    "INSTANCES": (_accepted_by(_valid_for_limiter, "instances"), "limen.E003", _HINT_3),
    "DEADLINE": (_accepted_by(_valid_for_limiter, "deadline"), "limen.E003", _HINT_3),
    "RULES": (_path, "limen.E003", "the path of a file of rules"),
    "SERVICE": (_text, "limen.E003", 'an address such as "http://limen:8080"'),
    "TOKEN": (_text, "limen.E003", _HINT_3),
    "LIMITER": (_as_it_is, "limen.E003", _HINT_3),
    "EXEMPT_WHEN": (_function, "limen.E003", _HINT_3),
    "VIEW": (_function, "limen.E003", _HINT_3),
}
"""What reads each key, and what a check says when it cannot."""

_ADDRESSES = {
    "TRUSTED_PROXIES": "trusted_proxies",
    "TRUSTED_HOPS": "trusted_hops",
    "ADDRESS_HEADER": "header",
    "IPV6_PREFIX": "ipv6_prefix",
}
_TOLD = ("HEADERS", "EXPOSE", "STATUS")
_OF_A_LIMITER = ("STORE", "NAMESPACE")
_INSTEAD = {
    "LIMITER": (*_OF_A_LIMITER, "ON_ERROR", "INSTANCES", "DEADLINE", "RULES", "SERVICE", "TOKEN"),
    "SERVICE": (*_OF_A_LIMITER, "RULES"),
}
