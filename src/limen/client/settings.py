"""The settings of a client, validated: the address of the service, and the rest."""

from __future__ import annotations

import re
import ssl
from typing import get_args

from msgspec import Struct

from limen._internal.http_connections import Server
from limen.errors import ConfigurationError, shown
from limen.limiter.settings import valid_instances
from limen.masking import masked
from limen.model import OnError

_PORTS = {"http": 80, "https": 443}
# A label of a host has at most 63 characters, and a host 253.
_URL = re.compile(
    r"(https?)://(?:\[([0-9a-f:.]{2,45}(?:%[\w.-]+)?)\]"
    r"|(?![a-z0-9._-]{254})((?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?))"
    r"(?::([0-9]{0,5}))?((?:/[a-z0-9._~%!$&'()*+,;=:@-]*)*)\??#?",
    re.ASCII | re.IGNORECASE,
)
_LOGIN = re.compile(r"\w+://[^/?#]*@")
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_CONNECT_S = 1.0


class Address(Struct, frozen=True):
    """The address of a service, in its parts."""

    host: str
    port: int
    is_tls: bool
    path: str = ""
    """What stands before `/v1`, when the service is behind a path of something else: `/limits`."""

    @property
    def authority(self) -> str:
        """The host and the port, as in the `Host` header."""
        host = f"[{self.host.partition('%')[0]}]" if ":" in self.host else self.host
        usual = _PORTS["https" if self.is_tls else "http"]
        return host if self.port == usual else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"


class Settings(Struct, frozen=True):
    """The settings of a client, without its token."""

    address: Address
    timeout: float
    on_error: OnError
    instances: int
    server: Server
    """What to connect to. Opening a connection goes on when its caller has left."""


def parse_address(url: str) -> Address:
    """Read an address such as `http://localhost:8080`, or raise `ConfigurationError`."""
    if not isinstance(url, str):
        raise ConfigurationError(
            f"the address of the service must be text, got a {type(url).__name__}"
        )
    url = url.strip()
    if _LOGIN.match(url):
        raise ConfigurationError(
            "the address of the service must not hold a login; give token=... instead"
        )
    match = _URL.fullmatch(url)
    scheme = match[1].lower() if match is not None else ""
    port = int(match[4] or _PORTS[scheme]) if match is not None else 0
    if match is None or not 0 < port < 65_536:
        raise ConfigurationError(
            "the address of the service must be like http://localhost:8080 or https://host/path, "
            f"got {shown(masked(url))}"
        )
    host = (match[2] or match[3]).lower()
    return Address(host, port, scheme == "https", match[5].rstrip("/"))


def validate(
    url: str,
    token: str | None,
    timeout: float,
    on_error: OnError,
    instances: int,
    ssl_context: ssl.SSLContext | None,
) -> Settings:
    """Return the settings, or raise `ConfigurationError` with what was expected."""
    address = parse_address(url)
    if token is not None and (not isinstance(token, str) or not _TOKEN.fullmatch(token)):
        # Not the token itself.
        raise ConfigurationError("token must be text of printable ASCII without spaces, or None")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 3600:
        raise ConfigurationError(
            f"timeout must be seconds above 0 and below 3600, got {shown(timeout)}"
        )
    if on_error not in get_args(OnError):
        raise ConfigurationError(f"on_error must be local, open or closed, got {shown(on_error)}")
    if ssl_context is not None and not isinstance(ssl_context, ssl.SSLContext):
        raise ConfigurationError(
            f"ssl_context must be an ssl.SSLContext, got {type(ssl_context).__name__}"
        )
    if ssl_context is not None and not address.is_tls:
        raise ConfigurationError("ssl_context is for https://, and the address is http://")
    context = (ssl_context or ssl.create_default_context()) if address.is_tls else None
    server = Server(address.host, address.port, context, max(timeout, _CONNECT_S))
    return Settings(address, float(timeout), on_error, valid_instances(instances), server)
