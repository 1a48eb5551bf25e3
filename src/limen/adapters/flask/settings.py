"""What the configuration of an application says: all that begins with `LIMEN_`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from limen.adapters.limit import RateLimit
from limen.errors import ConfigurationError, did_you_mean, shown
from limen.http import AddressSettings
from limen.model import Concurrency, Limit

Given = str | Limit | Concurrency | RateLimit
"""What a limit is given as."""
_PREFIX = "LIMEN_"
ENABLED = f"{_PREFIX}ENABLED"
"""Whether anything is limited. Looked at anew for each request."""
_LIMITER = ("store", "namespace", "on_error", "instances", "deadline")
_OPTIONS = ("headers", "addresses", "expose", "status")
_KNOWN = [f"{_PREFIX}{each.upper()}" for each in (*_LIMITER, "limits", "per_route", *_OPTIONS)]
_KNOWN.append(ENABLED)


class Settings(Struct, frozen=True):
    """What is said. Whatever is not said is left out."""

    limiter: dict[str, Any]
    """The arguments of a `Limiter`."""
    limits: tuple[Given, ...]
    per_route: tuple[Given, ...]
    options: dict[str, Any]
    """The options that all adapters have."""


def settings_of(config: Mapping[str, Any]) -> Settings:
    """Read a configuration, or raise `ConfigurationError`."""
    found = {name: value for name, value in config.items() if name.startswith(_PREFIX)}
    for name in found:
        if name not in _KNOWN:
            known = ", ".join(_KNOWN)
            raise ConfigurationError(
                f"unknown setting {name}{did_you_mean(name, _KNOWN)}; there are: {known}"
            )
    if not isinstance(found.get(ENABLED, True), bool):
        raise ConfigurationError(f"{ENABLED} must be True or False, got {shown(found[ENABLED])}")
    by_name = {name.removeprefix(_PREFIX).lower(): value for name, value in found.items()}
    options = {name: by_name[name] for name in _OPTIONS if name in by_name}
    if isinstance(options.get("addresses"), dict):  # as it is written in the environment
        options["addresses"] = _addresses(options["addresses"])
    return Settings(
        {name: by_name[name] for name in _LIMITER if name in by_name},
        given(by_name.get("limits", ())),
        given(by_name.get("per_route", ())),
        options,
    )


def given(limits: Any) -> tuple[Given, ...]:
    """Return a list of limits, for which one may stand alone."""
    if isinstance(limits, str | Limit | Concurrency | RateLimit):
        return (limits,)
    try:
        return tuple(limits)
    except TypeError:
        raise ConfigurationError(f"expected a list of limits, got {shown(limits)}") from None


def _addresses(settings: dict[str, Any]) -> AddressSettings:
    try:
        return msgspec.convert(settings, AddressSettings)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{_PREFIX}ADDRESSES: {error}") from None
