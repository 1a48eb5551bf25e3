"""The cookie of a session: written, read, and not taken from pages of other sites. Pure.

It holds the digest of a token and an end, signed by the service's secret, so that every worker and
host with the same secret knows it and nothing has to be remembered. Whether the token still holds,
`Access` knows.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

from msgspec import Struct

from limen.server.http.exchange import Rejected, Scope, header

NAME = "limen_session"
PATH = "/session"
GONE = (b"set-cookie", f"{NAME}=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict".encode())
"""What has a browser forget the cookie."""
MARK = b"x-limen-request"
"""The header of every request that changes something: a form cannot send it, and a page of another
site would have to ask first, which is not granted."""
_ADMIN = "/admin/"
_READS = ("GET", "HEAD")
_OWN_SITE = (b"same-origin", b"none")  # none: somebody typed the address
_DIGEST, _END, _MAC = 32, 8, 32
# Together a multiple of three: each cookie has one spelling.
_VALUE = re.compile(rb"[A-Za-z0-9_-]{96}")


class Session(Struct, frozen=True):
    """What a cookie says."""

    digest: str
    """That of the token, as `digest_of` gives it."""
    ends: int
    """In seconds since 1970."""


class Cookies:
    """Writes and reads the cookies of a service."""

    def __init__(self, secret: str) -> None:
        # A key of its own: nothing else that the secret signs is ever a cookie.
        self._key = hashlib.sha256(b"limen sessions\0" + secret.encode()).digest()

    def write(self, session: Session) -> str:
        """Return the value of a cookie."""
        said = bytes.fromhex(session.digest) + session.ends.to_bytes(_END, "big")
        return base64.urlsafe_b64encode(said + self._mac(said)).decode()

    def read(self, scope: Scope) -> Session | None:
        """Return what the cookie of a request says; None without one that was written here.

        Several are as none: somebody else has a hand in it.
        """
        found = _values(scope)
        if len(found) != 1 or not _VALUE.fullmatch(found[0]):
            return None
        raw = base64.urlsafe_b64decode(found[0])
        said, mac = raw[:-_MAC], raw[-_MAC:]
        if not hmac.compare_digest(mac, self._mac(said)):
            return None
        return Session(said[:_DIGEST].hex(), int.from_bytes(said[_DIGEST:], "big"))

    def _mac(self, said: bytes) -> bytes:
        return hashlib.blake2b(said, digest_size=_MAC, key=self._key).digest()


def counts_for(path: str) -> bool:
    """Return whether a cookie says anything at a path. Decisions are asked for with a token."""
    return path == PATH or path.startswith(_ADMIN)


def set_cookie(value: str, seconds: int, *, secure: bool) -> tuple[bytes, bytes]:
    """Return the header that gives a browser the cookie: for this site alone, and for no script."""
    line = f"{NAME}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict"
    return b"set-cookie", (f"{line}; Secure" if secure else line).encode()


def is_encrypted(scope: Scope) -> bool:
    """Return whether a browser came by TLS: to this service, or to a proxy in front of it."""
    origin = header(scope["headers"], b"origin") or b""
    return scope["scheme"] == "https" or origin.startswith(b"https://")


def refuse_other_sites(scope: Scope) -> None:
    """Raise `Rejected` for what a page of another site may have sent with somebody's cookie."""
    if not _is_own(scope):
        raise Rejected(403, "pages of other sites may not use this session")
    if scope["method"] not in _READS and header(scope["headers"], MARK) != b"1":
        raise Rejected(403, "with a session, changes need the header 'X-Limen-Request: 1'")


def _is_own(scope: Scope) -> bool:
    # What a browser says itself of where a request comes from holds also behind a proxy that
    # changes the host; it says so only where it trusts the connection.
    site = header(scope["headers"], b"sec-fetch-site")
    if site is not None:
        return site in _OWN_SITE
    origin = header(scope["headers"], b"origin")
    if origin is None:
        return True
    # Not the scheme: TLS may end at a proxy.
    _, found, host = origin.partition(b"://")
    return bool(found) and host.lower() == (header(scope["headers"], b"host") or b"").lower()


def _values(scope: Scope) -> list[bytes]:
    pairs = [
        pair.strip().partition(b"=")
        for key, value in scope["headers"]
        if key == b"cookie"
        for pair in value.split(b";")
    ]
    return [value for name, _, value in pairs if name == NAME.encode()]
