"""`/session`: exchange a token for a cookie, and back. Failed sign-ins are limited by address.

There is no table of sessions: the cookie holds all of it. To sign out deletes the cookie in the
browser; to end a session elsewhere, revoke its token.
"""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from limen.http import ClientAddresses
from limen.limiter import AsyncLimiter
from limen.model import Limit
from limen.rules.stores.tokens import digest_of
from limen.server.auth.cookies import (
    GONE,
    Cookies,
    Session,
    is_encrypted,
    refuse_other_sites,
    set_cookie,
)
from limen.server.auth.tokens import Access, Caller
from limen.server.http.exchange import Rejected, Scope, decoded, read_body

LASTS_S = 12 * 3_600
"""How long a session lasts at most; not longer than its token."""
FAILURES = Limit.parse("10/minute")
"""Failed sign-ins of one client address, in each worker. An invalid token above it gets 429."""
_MAX_ADDRESSES = 10_000
_MAX_BODY = 4_096


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

    def __init__(self, access: Access, cookies: Cookies, addresses: ClientAddresses) -> None:
        self._access = access
        self._cookies = cookies
        self._addresses = addresses
        self._failures = AsyncLimiter(f"memory://?max_keys={_MAX_ADDRESSES}")
        self._read = msgspec.json.Decoder(_SigningIn)

    async def answer(self, request: Request) -> Response:
        """Tell who is signed in; sign in; sign out."""
        scope = request.scope
        if request.method in ("GET", "HEAD"):
            return _response(self._access.caller(scope))
        refuse_other_sites(scope)
        if request.method == "DELETE":
            return _response(None, GONE)
        body = await read_body(request, _MAX_BODY)
        token = decoded(self._read, body).token.strip()
        try:
            # Before the failures are counted: a valid token works whatever others behind the same
            # address send. It is found by its digest, so this costs a hash and a lookup.
            caller = self._access.holder(token)
        except Rejected:
            await self._count_failure(scope)
            raise
        if caller.role == "check":
            raise Rejected(403, "this token may ask for decisions alone; sign in with another one")
        now = time.time()
        ends = math.floor(min(now + LASTS_S, caller.expires or math.inf))
        value = self._cookies.write(Session(digest_of(token), ends))
        cookie = set_cookie(value, max(1, math.ceil(ends - now)), secure=is_encrypted(scope))
        return _response(msgspec.structs.replace(caller, expires=float(ends)), cookie)

    async def _count_failure(self, scope: Scope) -> None:
        """Count a failed sign-in. Raises `Rejected` with 429 above the limit."""
        addresses = self._addresses
        peer = scope["client"][0] if scope["client"] else None

        def read(name: str) -> list[str]:
            wanted = name.encode()
            return [value.decode("latin-1") for key, value in scope["headers"] if key == wanted]

        addresses.warn_of_ignored(peer, read, "gateway.trusted_proxies")
        client = addresses.of(peer, read(addresses.header or ""))
        decision = await self._failures.check("unknown" if client is None else client.key, FAILURES)
        if not decision.allowed:
            wait = math.ceil(decision.retry_after or 1.0)
            raise Rejected(
                429,
                "this token is unknown, revoked or expired, and there were too many failed "
                f"sign-ins from your address; try again in {wait} s",
                [(b"retry-after", b"%d" % wait)],
            )


def _response(caller: Caller | None, *headers: tuple[bytes, bytes]) -> Response:
    """Return the response that tells who is signed in: null for nobody."""
    signed_in = None
    if caller is not None:
        ends = None if caller.expires is None else datetime.fromtimestamp(caller.expires, UTC)
        signed_in = SignedIn(caller.name, caller.role, ends)
    response = Response(msgspec.json.encode(signed_in), media_type="application/json")
    response.raw_headers += headers
    return response
