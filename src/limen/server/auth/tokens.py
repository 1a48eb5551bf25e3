"""Who may do what: tokens and roles. Knows digests of tokens only, and shows none.

Somebody is known by a token that is sent along; or, in the administration, by the cookie of a
session, which stands for one. Who brings both goes by the token.

The tokens of the database are held in memory and looked at again every second, so that deciding
who somebody is asks nobody. When the database is away, those known last hold on; they are kept in a
file of the data folder for a start without it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct, structs

from limen.errors import StoreError
from limen.rules.stores.tokens import Role, Token, digest_of
from limen.rules.sync.files import replace
from limen.server.auth.cookies import GONE, Cookies, counts_for, refuse_other_sites
from limen.server.http.exchange import Rejected, Scope, single_header

ROLES: tuple[Role, ...] = get_args(Role)
_ASKERS: tuple[Role, ...] = ("check", "admin")
_FILE = "tokens.last-good.json"
_logger = logging.getLogger("limen.server")


class Caller(Struct, frozen=True, rename={"token": "digest"}):
    """Who asks. The file of tokens last known holds these, too."""

    role: Role
    name: str
    """What the audit calls them."""
    expires: float | None = None
    """In seconds since 1970; None is never."""
    token: str = ""
    """The digest of the token, by which requests of one token are counted together."""


class Access:
    """Tells who somebody is by the token they bring.

    `fixed` are tokens from the settings, by role: they hold whatever the database says.
    """

    def __init__(
        self, fixed: Mapping[Role, str], folder: Path, cookies: Cookies | None = None
    ) -> None:
        self._fixed = {
            digest_of(secret): Caller(
                role, f"the {role} token of this host", token=digest_of(secret)
            )
            for role, secret in fixed.items()
            if secret
        }
        self._known: dict[str, Caller] = {}
        self._cookies = cookies
        self._path = folder / _FILE
        self._is_away = False
        self._version: int | None = None
        self._is_unsaved = False
        self._looks = self._last_look = 0

    @property
    def is_stale(self) -> bool:
        """Whether the last look at the database failed."""
        return self._is_away

    def caller(self, scope: Scope) -> Caller | None:
        """Return the caller of a request to the control plane; None without a token.

        Raises `Rejected` for an invalid token, and for several. A session cookie counts as well,
        but only for pages of this service.
        """
        sent = single_header(scope["headers"], b"authorization")
        return self._visitor(scope) if sent is None else self.bearer(sent.decode("latin-1"))

    def bearer(self, authorization: str) -> Caller:
        """Return whose token follows `Bearer`. Raises `Rejected` for one that is no good."""
        return self.holder(token_of(authorization))

    def holder(self, secret: str) -> Caller:
        """Return whose token this is. Raises `Rejected` for one that is no good."""
        found = self.known(digest_of(secret.strip()))
        if found is None:
            raise unknown("this token is unknown, revoked or expired")
        return found

    def take(self, version: int, tokens: Iterable[Token]) -> None:
        """Let the tokens of the database hold, and keep them for a start without it."""
        callers = [
            Caller(token.role, token.name, _seconds(token.expires_at), token.digest)
            for token in tokens
            if token.revoked_at is None
        ]
        self._hold(callers)
        self._version = version
        try:
            replace(self._path, msgspec.json.encode(callers))
            self._is_unsaved = False
        except StoreError as error:
            # The next look writes them again. An old file would bring a revoked token back.
            self._version = None
            if not self._is_unsaved:
                _logger.warning("tokens are not kept for a start without the database: %s", error)
            self._is_unsaved = True

    def recall(self) -> None:
        """Let those tokens hold that were known last; for a start without the database."""
        try:
            callers = msgspec.json.decode(self._path.read_bytes(), type=list[Caller])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            _logger.warning("the tokens in %s cannot be read: %s", self._path, error)
            return
        self._hold(callers)

    async def refresh(self, store: Any) -> None:
        """Look whether the tokens of the database have changed. Never raises."""
        self._looks += 1
        look = self._looks
        try:
            version = await store.tokens_version()
            if version == self._version:
                self._is_away = False
                return
            tokens = await store.tokens()
            # One that began later knows more: a slow look must not bring a revoked token back.
            if look > self._last_look:
                self._last_look = look
                self.take(version, tokens)
            self._is_away = False
        except Exception as error:  # of a database that is damaged, too: those known last hold on
            if not self._is_away:
                _logger.warning("tokens cannot be looked at, those known last hold: %s", error)
            self._is_away = True

    def known(self, digest: str) -> Caller | None:
        """Return whose token has a digest; None for one that is no good."""
        found = self._fixed.get(digest) or self._known.get(digest)
        is_over = found is not None and found.expires is not None and found.expires <= time.time()
        return None if is_over else found

    def _visitor(self, scope: Scope) -> Caller | None:
        """Return who has signed in; None for nobody. It ends with the token."""
        if self._cookies is None or not counts_for(scope["path"]):
            return None
        session = self._cookies.read(scope)
        if session is None:
            return None
        refuse_other_sites(scope)
        found = self.known(session.digest) if session.ends > time.time() else None
        if found is None:
            over = unknown("your session is over; sign in again")
            over.headers.append(GONE)
            raise over
        return structs.replace(found, expires=float(session.ends))

    def _hold(self, callers: Iterable[Caller]) -> None:
        self._known = {caller.token: caller for caller in callers}


def token_of(authorization: str) -> str:
    """Return the token that follows `Bearer`; nothing where it does not."""
    scheme, _, secret = authorization.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def admit(caller: Caller | None, how: str) -> None:
    """Let pass who may ask for decisions, or raise `Rejected`; `how` says where a token goes."""
    if caller is None:
        raise unknown(f"a token is needed: send it as {how}")
    if caller.role not in _ASKERS:
        raise Rejected(403, f"this needs the role check or admin, and yours is {caller.role}")


def unknown(detail: str) -> Rejected:
    """Return what is said to who has no good token."""
    return Rejected(401, detail, [(b"www-authenticate", b'Bearer realm="limen"')])


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
