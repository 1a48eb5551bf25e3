"""`/session`: a token for a cookie, and back. Who guesses tokens is slowed down.

Remembers nobody: the cookie says it all. To sign out has the browser forget it; who must be shut
out at once has their token revoked.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from limen.http import ClientAddresses
from limen.limiter import AsyncLimiter
from limen.model import Check, Decision, Limit
from limen.rules.stores.tokens import digest_of
from limen.server.access import Access, Caller
from limen.server.dashboard.cookie import (
    GONE,
    PATH,
    Cookies,
    Session,
    is_encrypted,
    refuse_other_sites,
    set_cookie,
)
from limen.server.exchange import (
    Headers,
    Receive,
    Rejected,
    Reply,
    Scope,
    decoded,
    read_body,
    wrong_method,
)

LASTS_S = 12 * 3_600
"""How long a session lasts at most; not longer than its token."""
A_PEER, ALL = Limit.parse("10/minute"), Limit.parse("200/minute")
"""How often somebody may be wrong, by address; and everybody together. In each worker."""
_MAX_BODY = 4_096
_NOBODY = b"null"


class _SigningIn(Struct, frozen=True, forbid_unknown_fields=True):
    token: str


class SignedIn(Struct, frozen=True):
    """Who is signed in."""

    name: str
    role: str
    expires: datetime | None
    """When the session is over; for who asks by a token that never ends, None."""


class Sessions:
    """Answers `/session`."""

    def __init__(self, access: Access, cookies: Cookies) -> None:
        self._access = access
        self._cookies = cookies
        self._limiter = AsyncLimiter()
        self._addresses = ClientAddresses()
        self._read = msgspec.json.Decoder(_SigningIn)

    async def answer(self, scope: Scope, receive: Receive) -> Reply:
        """Tell who is signed in; sign in; sign out."""
        method = scope["method"]
        if method in ("GET", "HEAD"):
            caller = self._access.caller(scope)
            return Reply(_NOBODY if caller is None else _told(caller), [])
        if method == "POST":
            refuse_other_sites(scope)
            return await self._sign_in(scope, await read_body(scope, receive, _MAX_BODY))
        if method == "DELETE":
            refuse_other_sites(scope)
            return Reply(_NOBODY, [GONE])
        raise wrong_method(scope, "GET", "HEAD", "POST", "DELETE")

    async def _sign_in(self, scope: Scope, body: bytes) -> Reply:
        token = decoded(self._read, body).token.strip()
        tried = await self._count(scope)
        caller = self._access.holder(token)
        if caller.role == "check":
            raise Rejected(403, "this token may ask for decisions alone; sign in with another one")
        # Who is right has not guessed.
        await self._limiter.refund(tried)
        now = time.time()
        ends = math.floor(min(now + LASTS_S, caller.expires or math.inf))
        value = self._cookies.write(Session(digest_of(token), ends))
        lasts = max(1, math.ceil(ends - now))
        given: Headers = [set_cookie(value, lasts, secure=is_encrypted(scope))]
        return Reply(_told(msgspec.structs.replace(caller, expires=float(ends))), given)

    async def _count(self, scope: Scope) -> Decision:
        # By who connects: what a header says of it, anybody could make up.
        peer = self._addresses.of(scope["client"][0] if scope["client"] else None)
        key = "unknown" if peer is None else peer.key
        decision = await self._limiter.decide(Check(A_PEER, key), Check(ALL, "everybody"))
        if not decision.allowed:
            wait = math.ceil(decision.retry_after or 1.0)
            raise Rejected(
                429,
                f"there were too many tries to sign in; try again in {wait} s",
                [(b"retry-after", b"%d" % wait)],
            )
        return decision


def _told(caller: Caller) -> bytes:
    ends = None if caller.expires is None else datetime.fromtimestamp(caller.expires, UTC)
    return msgspec.json.encode(SignedIn(caller.name, caller.role, ends))


__all__ = ["PATH", "Sessions"]
