"""Where a server listens, and the certificate that it shows there. Knows nothing of HTTP.

The module `ssl` shows the dates only of authorities and of peers, so those of the certificate are
read from the DER encoding (RFC 5280, section 4.1).
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from limen.errors import ConfigurationError, shown

BACKLOG = 2_048
"""How many clients the kernel lets in that nobody has accepted yet."""
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SOON_DAYS = 14
_DAY_S = 86_400
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; `host` may be an address, a name, or empty for all addresses.

    From now on the kernel lets clients connect; they wait until the app is ready. `::` takes IPv4
    as well. Raises `ConfigurationError`.
    """
    # On all addresses: of both kinds, if this host has both.
    any_address = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    host = host.removeprefix("[").removesuffix("]") or any_address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ConfigurationError(
            f"cannot listen on {shown(host)}: no such host; give an address of this one, "
            "such as 127.0.0.1, or 0.0.0.0 for all"
        ) from None
    # A name such as localhost often means both kinds; more programs try the older one.
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(_reason(error, host, port)) from None
    listener.setblocking(False)
    return listener


def _reason(error: OSError, host: str, port: int) -> str:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        show = f"ss -ltnp 'sport = :{port}'" if sys.platform == "linux" else f"lsof -i :{port}"
        return (
            f"{where} is in use by another program: stop that (`{show}` names it), "
            "or choose another port"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"this user may not listen on {where}: choose a port above 1023, "
            "or grant CAP_NET_BIND_SERVICE"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {where}: {host} is no address of this host"
    return f"cannot listen on {where}: {error.strerror or error}"


class Tls:
    """The certificate of a server, which can be replaced while it serves.

    Connections keep the one that they began with. Raises `ConfigurationError`.
    """

    def __init__(
        self, certificate: str | Path, key: str | Path, protocol: str = "http/1.1"
    ) -> None:
        self._certificate = Path(certificate)
        self._key = Path(key)
        self._protocol = protocol
        self.context: ssl.SSLContext = self._load()

    def reload(self) -> None:
        """Load the files anew. When they are wrong the old certificate stays, and it raises."""
        # Into another one first: half a change would be one that no client accepts.
        self._load()
        self._load(self.context)

    def expiry_warning(self) -> str | None:
        """Return a warning if the certificate has expired or will within 14 days; else None."""
        return expiry_warning(self._certificate, time.time())

    def _load(self, context: ssl.SSLContext | None = None) -> ssl.SSLContext:
        context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([self._protocol])
        for file in (self._certificate, self._key):
            try:
                file.read_bytes()
            except OSError as error:
                raise ConfigurationError(f"TLS: cannot read {file}: {error.strerror}") from None
        try:
            # Asked for a password, it has none; else OpenSSL would ask the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: "")
        except (ssl.SSLError, ValueError):
            raise ConfigurationError(
                f"TLS: {self._certificate} and {self._key} are no certificate and its private "
                "key, both in PEM and the key without a password"
            ) from None
        return context


def expiry_warning(certificate: Path, now: float) -> str | None:
    """Return a warning if clients refuse a certificate at `now`, or will within 14 days.

    `now` is in seconds since 1970. None if the certificate is valid for longer, and if its dates
    cannot be read.
    """
    try:
        not_before, not_after = validity(certificate.read_text("latin-1"))
    except (OSError, ValueError, IndexError):
        return None
    renew = "renew it, and send SIGHUP to limen"
    if now >= not_after.timestamp():
        return f"TLS: the certificate {certificate} expired on {_date(not_after)}: {renew}"
    if now < not_before.timestamp():
        return f"TLS: the certificate {certificate} is not valid before {_date(not_before)}"
    days = (not_after.timestamp() - now) / _DAY_S
    if days < _SOON_DAYS:
        left = f"expires on {_date(not_after)}, in {days:.1f} days"
        return f"TLS: the certificate {certificate} {left}: {renew}"
    return None


def validity(pem: str) -> tuple[datetime, datetime]:
    """Return from when to when the first certificate of a PEM file is valid.

    Raises `ValueError` or `IndexError` for what is no certificate.
    """
    match = _PEM.search(pem)
    if match is None:
        raise ValueError("there is no certificate in the file")
    _, certificate, _ = _element(ssl.PEM_cert_to_DER_cert(match[0]))
    _, signed, _ = _element(certificate)
    tag, _, rest = _element(signed)
    if tag == _VERSION:
        _, _, rest = _element(rest)
    # Behind the serial number: the algorithm of the signature, the issuer, the dates.
    for _ in range(2):
        _, _, rest = _element(rest)
    tag, dates, _ = _element(rest)
    if tag != _SEQUENCE:
        raise ValueError("this is not a certificate of X.509")
    tag, not_before, rest = _element(dates)
    last_tag, not_after, _ = _element(rest)
    return _time(tag, not_before), _time(last_tag, not_after)


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return the tag and the content of the first element, and the bytes behind it."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    return tag, data[start : start + length], data[start + length :]


def _time(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of a year: 50 to 99 are of the last century.
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"expected a time, got the tag {tag}")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
