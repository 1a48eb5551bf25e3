"""Which header of a forwarded request becomes which attribute: `user=X-User-Id`."""

from __future__ import annotations

import re

from msgspec import Struct

from limen.errors import ConfigurationError, shown

OWN = ("method", "path", "host", "ip", "address")
"""The attributes that every forwarded request has, and that no header may replace."""
_RESERVED = ("x-limen-token", "sec-fetch-site")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_FORM = re.compile(rf"([A-Za-z_][A-Za-z0-9_.-]{{0,63}})=({_NAME.pattern})(?::(.+))?")


class Forwarded(Struct, frozen=True):
    """One header, and what it tells."""

    attribute: str
    """What rules call it: `"user"`."""
    header: bytes
    """In lower case: `b"x-user-id"`."""
    claim: str | None = None
    """The header holds a JWT, or its payload, and this claim of it is meant; None is all of it."""

    def __str__(self) -> str:
        text = f"{self.attribute}={self.header.decode()}"
        return text if self.claim is None else f"{text}:{self.claim}"


def parse_forwarded(value: object) -> tuple[Forwarded, ...]:
    """Read `["user=X-User-Id", "plan=X-Jwt-Payload:plan"]`, or raise `ConfigurationError`."""
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f"expected a list such as ['user=X-User-Id'], got {shown(value)}")
    found = tuple([_parse(text) for text in value])
    names = [each.attribute for each in found]
    for name in names:
        if name in OWN:
            raise ConfigurationError(f"{name!r} is told by the request itself, and by no header")
        if names.count(name) > 1:
            raise ConfigurationError(f"the attribute {name!r} is given twice")
    return found


def parse_header_names(value: object) -> tuple[str, ...]:
    """Read `["User-Agent", "Via"]`, or raise `ConfigurationError`."""
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f"expected a list such as ['User-Agent'], got {shown(value)}")
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"expected the name of a header, such as 'User-Agent', got {shown(name)}"
            )
    return tuple(value)


def _parse(text: object) -> Forwarded:
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigurationError(
            "expected attribute=Header, such as 'user=X-User-Id', or attribute=Header:claim, "
            f"got {shown(text)}"
        )
    attribute, header, claim = found.groups()
    if header.lower() in _RESERVED:
        raise ConfigurationError(f"{header} is for limen itself, and no attribute of a client")
    return Forwarded(attribute, header.lower().encode(), claim)
