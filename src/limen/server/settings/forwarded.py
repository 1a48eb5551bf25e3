"""Which header of a forwarded request becomes which attribute: `user=X-User-Id`."""

from __future__ import annotations

import re

from msgspec import Struct

from limen.errors import ConfigurationError, shown

OWN = ("method", "path", "host", "ip", "address")
"""The attributes that every forwarded request has, and that no header may replace."""
_RESERVED = ("x-limen-token", "sec-fetch-site")
HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}"
_FORM = re.compile(rf"([A-Za-z_][A-Za-z0-9_.-]{{0,63}})=({HEADER_NAME})(?::(.+))?")


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


def parse_forwarded(text: object) -> Forwarded:
    """Read `user=X-User-Id` or `plan=X-Jwt-Payload:plan`, or raise `ConfigurationError`."""
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigurationError(
            "expected attribute=Header, such as 'user=X-User-Id', or attribute=Header:claim, "
            f"got {shown(text)}"
        )
    attribute, header, claim = match.groups()
    if header.lower() in _RESERVED:
        raise ConfigurationError(f"{header} is for limen itself, and no attribute of a client")
    if attribute in OWN:
        raise ConfigurationError(f"{attribute!r} is told by the request itself, and by no header")
    return Forwarded(attribute, header.lower().encode(), claim)
