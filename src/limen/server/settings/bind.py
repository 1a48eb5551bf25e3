"""Where the service listens: a host and a port. Looks up no name."""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address

from msgspec import Struct

from limen.errors import ConfigurationError, shown
from limen.masking import masked

_PORT = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_MAX_PORT = 65_535
_ALL_ADDRESSES = ("", "0.0.0.0", "::")


class Bind(Struct, frozen=True):
    """Where the service listens."""

    host: str
    """An address or a name, IPv6 without brackets: `"127.0.0.1"`, `"::1"`; empty is all addresses.
    """
    port: int
    """From 1 to 65535: `8080`; 0 is any that is free."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can connect. A name is believed if it is `localhost`."""
        try:
            found = ip_address(self.host)
            # Whether an IPv4 address in the clothes of IPv6 is one, each Python says otherwise.
            return (getattr(found, "ipv4_mapped", None) or found).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def url(self, *, tls: bool) -> str:
        """Return the URL for a client on this host: `http://localhost:8080` for all addresses."""
        host = "localhost" if self.host in _ALL_ADDRESSES else self.host
        return f"{'https' if tls else 'http'}://{Bind(host, self.port)}"

    def overlaps(self, other: Bind) -> bool:
        """Return whether only one of two listeners can open its socket.

        True for the same port on the same host, or if one of them listens on all addresses. Names
        other than `localhost` are not resolved. Port 0 never overlaps.
        """
        if not self.port or self.port != other.port:
            return False
        hosts = {"127.0.0.1" if bind.host == "localhost" else bind.host for bind in (self, other)}
        return len(hosts) == 1 or not hosts.isdisjoint(_ALL_ADDRESSES)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bind(value: object) -> Bind:
    """Read `host:port`, `[::1]:8080` or `:8080`, or raise `ConfigurationError`."""
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not _PORT.fullmatch(port) or int(port) > _MAX_PORT or not _is_host(host):
        raise ConfigurationError(
            "expected host:port, [::1]:8080, or :8080 for all addresses, "
            f"got {masked(shown(value))}"
        )
    return Bind(host.strip("[]"), int(port))


def _is_host(text: str) -> bool:
    if not text.startswith("["):
        return not text or _NAME.fullmatch(text) is not None
    try:
        return text.endswith("]") and bool(IPv6Address(text[1:-1]).version)
    except ValueError:
        return False
