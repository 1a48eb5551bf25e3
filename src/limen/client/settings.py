"""What a client is made with, validated."""

from __future__ import annotations

import re
import ssl
from typing import get_args

from msgspec import Struct

from limen._internal.connection_pool import AllInUse
from limen.client.address import Address, parse
from limen.client.desk import Desk
from limen.client.http1 import Garbled
from limen.client.tickets import Away, late
from limen.errors import ConfigurationError, shown
from limen.limiter.settings import valid_instances
from limen.model import OnError

_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_CONNECT_S = 1.0


class Settings(Struct, frozen=True):
    """What a client was made with."""

    address: Address
    desk: Desk
    timeout: float
    context: ssl.SSLContext | None
    """None for plain HTTP."""

    @property
    def patience_s(self) -> float:
        """How long opening a connection may take, while callers come and go."""
        return max(self.timeout, _CONNECT_S)


def validate(
    url: str,
    token: str | None,
    timeout: float,
    on_error: OnError,
    instances: int,
    ssl_context: ssl.SSLContext | None,
) -> Settings:
    """Return the settings, or raise `ConfigurationError` with what was expected."""
    address = parse(url)
    if token is not None and (not isinstance(token, str) or not _TOKEN.fullmatch(token)):
        # Not the token itself.
        raise ConfigurationError("token must be text of printable ASCII without spaces, or None")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 3600:
        raise ConfigurationError(
            f"timeout must be seconds above 0 and below 3600, got {shown(timeout)}"
        )
    if on_error not in get_args(OnError):
        raise ConfigurationError(f"on_error must be local, open or closed, got {shown(on_error)}")
    valid_instances(instances)
    if ssl_context is not None and not isinstance(ssl_context, ssl.SSLContext):
        raise ConfigurationError(
            f"ssl_context must be an ssl.SSLContext, got {type(ssl_context).__name__}"
        )
    if ssl_context is not None and not address.is_tls:
        raise ConfigurationError("ssl_context is for https://, and the address is http://")
    context = (ssl_context or ssl.create_default_context()) if address.is_tls else None
    return Settings(
        address, Desk(address, token, timeout, on_error, instances), float(timeout), context
    )


def away_of(error: Exception, had_s: float, timeout: float) -> Away:
    """Return why a call failed that had so many seconds of a timeout."""
    if isinstance(error, AllInUse):
        return late()
    if isinstance(error, TimeoutError):
        # One that began late in its caller's time tells nothing about the service.
        return Away("timeout", "no answer in time", proves=had_s > timeout / 2)
    if isinstance(error, Garbled):
        return Away("garbage", str(error))
    if isinstance(error, ssl.SSLCertVerificationError):
        return Away("tls", f"its certificate is not accepted: {error.verify_message}")
    if isinstance(error, OSError) and error.strerror:
        return Away("connection", error.strerror.lower())
    return Away("connection", str(error) or type(error).__name__)
