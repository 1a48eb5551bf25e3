"""The address of a webhook: read with distrust, and where a message may go at all. No I/O.

No path and no query is ever in a text for people, because chat services keep their secret there.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from msgspec import Struct

from limen.errors import ConfigurationError

_PORTS = {"http": 80, "https": 443}
_MAX_URL = 2_048
_REST = r"[A-Za-z0-9._~!$&'()*+,;=:@%/-]"
_TARGET = re.compile(rf"(?:/{_REST}*)?(?:\?(?:{_REST}|\?)*)?")
_LABEL = r"[a-z0-9_][a-z0-9_-]{0,62}"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_NUMERIC = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")

_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_PRIVATE = tuple(
    ip_network(text)
    for text in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "100.64.0.0/10"),
        *("::1/128", "fc00::/7"),
    )
)
"""What the setting for private networks opens. Link-local addresses are not among them: there, a
cloud tells a host its own credentials."""
_NEVER = tuple(
    ip_network(text)
    for text in (
        # Where clouds tell the same, outside of link-local addresses.
        *("168.63.129.16/32", "100.100.100.200/32", "fd00:ec2::254/128", "fd20:ce::254/128"),
        # For protocols and tunnels, not for hosts; `is_global` of some Pythons lets them pass.
        *("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20"),
    )
)


class WebhookAddress(Struct, frozen=True):
    """The address of a webhook, in its parts. Shown without its path."""

    host: str
    """A name in lower case or an address, IPv6 without brackets: `hooks.example.com`."""
    port: int
    is_tls: bool
    target: str
    """The path and the query, as they are sent. A secret."""

    @property
    def authority(self) -> str:
        """The host, and the port when it is not the usual one, as the `Host` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = _PORTS["https" if self.is_tls else "http"]
        return host if self.port == usual else f"{host}:{self.port}"

    def __repr__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}/***"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show no more to those who print in colour."""
        return [("host", self.host)]


def valid_webhook(value: object, *, private: bool = True) -> WebhookAddress:
    """Read the address of a webhook, or raise `ConfigurationError` with one line.

    Without `private`, a host that can be told to be none of the internet's is an error at once.
    Names are looked up only when something is sent. The line never repeats the address.
    """
    if not isinstance(value, str):
        raise _unfit(f"got a {type(value).__name__}")
    if len(value) > _MAX_URL:
        raise _unfit(f"got more than {_MAX_URL} characters")
    if not re.fullmatch(r"[!-~]*", value):
        raise _unfit("got spaces, control characters or letters beyond ASCII in it")
    scheme, _, rest = value.partition("://")
    scheme = scheme.lower()
    if scheme not in _PORTS:
        raise _unfit("got another beginning")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        raise _unfit("got a login in it; messages are signed with the secret instead")
    target = rest[len(authority) :]
    if "#" in target:
        raise _unfit("got a part after '#', which is never sent")
    if not _TARGET.fullmatch(target):
        raise _unfit("got characters in its path or query that must be written as %XX")
    host, port = _split(authority, _PORTS[scheme])
    if not private and _is_surely_private(host):
        raise _unfit(f"got {host}, which is no public address; private networks must be allowed")
    return WebhookAddress(
        host, port, scheme == "https", target if target.startswith("/") else f"/{target}"
    )


def _unfit(got: str) -> ConfigurationError:
    return ConfigurationError(
        f"expected the address of a webhook, such as https://host/path, {got}"
    )


def _split(authority: str, usual: int) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?", authority)
    if found is None:
        raise _unfit("got a host or a port that cannot be understood")
    port = usual if found[2] is None else int(found[2])
    if not 1 <= port <= 65_535:
        raise _unfit("got a port that is not from 1 to 65535")
    host = found[1].lower()
    try:
        if host.startswith("["):
            return str(IPv6Address(host[1:-1])), port
        if _NUMERIC.fullmatch(host):
            # 127.1, 0x7f000001 and 2130706433 are addresses to some programs. Not here.
            return str(IPv4Address(host)), port
    except ValueError:
        raise _unfit("got an address of numbers that is neither 203.0.113.7 nor [IPv6]") from None
    if not _NAME.fullmatch(host):
        raise _unfit("got a host that is neither a name nor an address")
    return host, port


def _is_surely_private(host: str) -> bool:
    try:
        return not is_permitted(host, private=False)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_permitted(address: str, *, private: bool) -> bool:
    """Return whether a message may go to an address. Raises `ValueError` for what is none."""
    found = _unwrapped(ip_address(address))
    if any(found in network for network in _NEVER):
        return False
    if private and any(found in network for network in _PRIVATE):
        return True
    if isinstance(found, IPv6Address):
        return found in _UNICAST and found.is_global
    return found.is_global and not found.is_multicast and not found.is_reserved


def _unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address leads to, if it is of those that do."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    # Translators of whole networks: a host without IPv4 sees all of the internet there.
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in _NAT64 else address
