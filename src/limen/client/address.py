"""Where a service is: its address, read and validated. Connects to nothing."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from limen.errors import ConfigurationError, shown
from limen.masking import masked

_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}(?:%[\w.-]+)?", re.ASCII)
_PATH = re.compile(r"(?:/[A-Za-z0-9._~%!$&'()*+,;=:@-]*)*")


class Address(Struct, frozen=True):
    """The address of a service, in its parts."""

    host: str
    port: int
    is_tls: bool
    path: str = ""
    """What stands before `/v1`, when the service is behind a path of something else: `/limits`."""

    @property
    def authority(self) -> str:
        """The host and the port, as the `Host` header has them."""
        host = f"[{self.host.partition('%')[0]}]" if ":" in self.host else self.host
        usual = _PORTS["https" if self.is_tls else "http"]
        return host if self.port == usual else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.path}"


def parse(url: str) -> Address:
    """Read an address such as `http://localhost:8080`, or raise `ConfigurationError`."""
    if not isinstance(url, str):
        raise ConfigurationError(
            f"the address of the service must be text, got a {type(url).__name__}"
        )
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:
        raise _wrong(url) from None
    if split.username is not None or split.password is not None:
        raise ConfigurationError(
            "the address of the service must not hold a login; give token=... instead"
        )
    host = split.hostname or ""
    is_whole = split.scheme in _PORTS and _HOST.fullmatch(host) and _PATH.fullmatch(split.path)
    if not is_whole or _has_more(split) or port == 0:
        raise _wrong(url)
    return Address(
        host, port or _PORTS[split.scheme], split.scheme == "https", split.path.rstrip("/")
    )


def _has_more(split: SplitResult) -> bool:
    return bool(split.query or split.fragment)


def _wrong(url: str) -> ConfigurationError:
    return ConfigurationError(
        "the address of the service must be like http://localhost:8080 or https://host/path, "
        f"got {shown(masked(url))}"
    )
