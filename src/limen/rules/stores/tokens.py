"""Tokens: what a caller shows to be let in, and what a store remembers of it. Pure.

A secret is told once, to whoever created the token; what is kept is its digest. Knows the names of
the roles, and not what each of them may do.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from msgspec import Struct, structs

from limen.errors import InvalidInput, shown
from limen.rules.stores.records import Time, dumped, stamp, valid_text

Role = Literal["check", "viewer", "editor", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
TokenState = Literal["active", "expired", "revoked"]

MAX_TOKENS = 10_000
"""How many tokens a store keeps; those that ended make room for new ones."""
_MAX_NAME = 100
_ID = re.compile(r"[0-9a-f]{8}")
_SECRET = re.compile(r"limen_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
_ID_BYTES, _SECRET_BYTES = 4, 32


class Grant(Struct, frozen=True):
    """What a token is created with."""

    role: Role
    name: str
    expires_at: datetime | None


class TokenInfo(Struct, frozen=True, kw_only=True):
    """A token without anything secret."""

    id: str
    """Eight hexadecimal digits, which are part of the secret too: `3f2a91c0`."""
    role: Role
    name: str
    """Its purpose: `checkout service`."""
    created_at: Time
    created_by: str
    expires_at: Time | None = None
    """The end of its validity; null for never."""
    revoked_at: Time | None = None
    """The time of its revocation; null if it is not revoked."""
    revoked_by: str | None = None


class Token(TokenInfo, frozen=True, kw_only=True):
    """A token as a store keeps it. Not its secret."""

    digest: str
    """The SHA-256 of the secret: see `digest_of`."""

    def state(self, now: datetime) -> TokenState:
        """Return whether it holds at a moment. At the very moment of its expiry it does not."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= now:
            return "expired"
        return "active"

    def as_data(self, now: datetime) -> dict[str, Any]:
        """Return the fields without the digest, and the state at a time."""
        fields = structs.asdict(self)
        del fields["digest"]
        return {**fields, "state": self.state(now)}

    def __repr__(self) -> str:
        return f"<Token {self.id} ({self.role}) {self.name!r}>"

    def __str__(self) -> str:
        return f"token {self.id} ({self.role})"


def new_secret() -> str:
    """Return a secret that nobody can guess, with an id in it: `limen_3f2a91c0_...`."""
    return f"limen_{secrets.token_hex(_ID_BYTES)}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def digest_of(secret: str) -> str:
    """Return what is kept of a secret, and found by it. Never fails, whatever somebody sends.

    One round without salt: nobody guesses 256 random bits, and a slow hash would be paid by every
    request.
    """
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def id_of(text: str) -> str:
    """Return the id in a secret, or in itself. Raises `InvalidInput`, which repeats nothing."""
    secret = _SECRET.fullmatch(text) if isinstance(text, str) else None
    if secret is not None:
        return secret[1]
    if not isinstance(text, str) or not _ID.fullmatch(text):
        # Not the text itself: it may be a secret with a slip in it.
        raise InvalidInput(
            "that is no id of a token: it has eight digits from 0 to f, such as 3f2a91c0; "
            "look at `limen token list`"
        )
    return text


def grant(role: Role, name: str, expires_at: datetime | None = None) -> Grant:
    """Return what a token is created with, or raise `InvalidInput`."""
    if role not in ROLES:
        known = f"{', '.join(ROLES[:-1])} or {ROLES[-1]}"
        raise InvalidInput(f"role must be {known}, got {shown(role)}")
    return Grant(role, _valid_name(name), _valid_expiry(expires_at))


def fingerprint(token: Token) -> str:
    """Return the digest of all that never changes of a token: its row in the audit holds it."""
    expires_at = None if token.expires_at is None else stamp(token.expires_at)
    content: list[str | None] = [token.id, token.role, token.name, token.digest]
    content += [stamp(token.created_at), token.created_by, expires_at]
    return hashlib.sha256(dumped(content).encode()).hexdigest()


def _valid_name(name: str) -> str:
    if isinstance(name, str) and _SECRET.search(name):
        raise InvalidInput("name must say what the token is for, got the secret of a token")
    valid = valid_text("name", name, _MAX_NAME, meaning="what the token is for")
    if not valid.isprintable():
        raise InvalidInput(f"name must be on one line, without control characters: {shown(name)}")
    return valid


def _valid_expiry(at: datetime | None) -> datetime | None:
    if at is None:
        return None
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise InvalidInput(f"expires_at must be a time with a time zone, got {shown(at)}")
    try:
        in_utc = at.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"expires_at is out of reach, got {shown(at)}") from None
    if in_utc <= datetime.now(UTC):
        raise InvalidInput(f"expires_at must be in the future, got {stamp(in_utc)}")
    return in_utc
