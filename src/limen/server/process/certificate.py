"""The dates of a certificate: warns before clients refuse it. Pure, but for reading the file.

The module `ssl` shows the dates only of authorities and of peers, so they are read from the DER
encoding (RFC 5280, section 4.1).
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SOON_DAYS = 14
_DAY_S = 86_400
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


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
