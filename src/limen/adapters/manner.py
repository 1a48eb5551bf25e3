"""`Options` and `Manner`: how an adapter tells clients, the same for all of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from msgspec import Struct

from limen.errors import ConfigurationError, shown
from limen.http import AddressSettings, ClientAddresses, HeaderStyle, Routes, valid_styles


class Options(TypedDict, total=False):
    """What every adapter can be told, by keyword."""

    headers: Iterable[HeaderStyle]
    """The styles of headers: `["draft-11"]` if nothing is said, `[]` for none but Retry-After."""
    addresses: AddressSettings
    """Whose word on a client's address is taken. By default nobody's: who connects is meant."""
    expose: bool
    """Whether pages of other origins may read the headers, by `Access-Control-Expose-Headers`."""
    status: int
    """The status of refusals, instead of 429, 403 and 503."""
    routes: Iterable[str]
    """Templates such as `"/users/{id}"`, where the framework does not tell the route in time."""


class Manner(Struct, frozen=True):
    """The same, validated."""

    styles: tuple[HeaderStyle, ...]
    addresses: ClientAddresses
    expose: bool
    status: int | None
    routes: Routes | None


def manner_of(options: Options) -> Manner:
    """Validate, or raise `ConfigurationError`."""
    for name in options:
        if name not in Options.__annotations__:
            known = ", ".join(Options.__annotations__)
            raise ConfigurationError(
                f"unknown option {name!r}; there are: {known}; what is about one limit, such as a "
                "key, is said by RateLimit(...)"
            )
    settings = options.get("addresses")
    if settings is not None and not isinstance(settings, AddressSettings):
        raise ConfigurationError(f"addresses must be AddressSettings, got {shown(settings)}")
    status = options.get("status")
    if status is not None and (type(status) is not int or not 400 <= status <= 599):
        raise ConfigurationError(f"status must be from 400 to 599, got {shown(status)}")
    expose = options.get("expose", False)
    if not isinstance(expose, bool):
        raise ConfigurationError(f"expose must be True or False, got {shown(expose)}")
    routes = options.get("routes")
    return Manner(
        valid_styles(options.get("headers", ("draft-11",))),
        ClientAddresses(settings),
        expose,
        status,
        None if routes is None else Routes(routes),
    )
