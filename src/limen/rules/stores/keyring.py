"""The tokens of a store, inside one transaction: what is there, and how one comes and goes.

Knows tables and records; opens no connection, ends no transaction, and keeps no secret.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import Row, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from limen.errors import InvalidInput, StoreError
from limen.rules.stores.ledger import Act, Ledger
from limen.rules.stores.records import stamp
from limen.rules.stores.tables import STATE, TOKENS
from limen.rules.stores.tokens import (
    MAX_TOKENS,
    Grant,
    Token,
    digest_of,
    fingerprint,
    id_of,
    new_secret,
)


async def all_tokens(connection: AsyncConnection) -> list[Token]:
    """Return the tokens, newest first."""
    query = select(TOKENS).order_by(TOKENS.c.created_at.desc(), TOKENS.c.id)
    return [_token(row) for row in await connection.execute(query)]


async def add(ledger: Ledger, granted: Grant, what: Act) -> tuple[Token, str]:
    """Create a token; return it with its secret."""
    connection = ledger.connection
    await _make_room(connection, what.at)
    secret = new_secret()
    token = Token(
        id=id_of(secret),
        role=granted.role,
        name=granted.name,
        digest=digest_of(secret),
        created_at=what.at,
        created_by=what.author,
        expires_at=granted.expires_at,
    )
    expires_at = None if token.expires_at is None else stamp(token.expires_at)
    times = {"created_at": stamp(token.created_at), "expires_at": expires_at}
    await connection.execute(insert(TOKENS).values({**structs.asdict(token), **times}))
    await _count_change(connection)
    await ledger.record("token-create", what, subject=str(token), digest=fingerprint(token))
    return token, secret


async def revoke(ledger: Ledger, id: str, what: Act) -> Token:
    """Revoke a token, unless it was revoked before. Raises `InvalidInput` for an unknown id."""
    connection = ledger.connection
    row = (await connection.execute(select(TOKENS).where(TOKENS.c.id == id))).one_or_none()
    if row is None:
        raise InvalidInput(f"there is no token {id}; look at `limen token list`")
    token = _token(row)
    if token.revoked_at is not None:
        return token
    await connection.execute(
        update(TOKENS)
        .where(TOKENS.c.id == id)
        .values(revoked_at=stamp(what.at), revoked_by=what.author)
    )
    await _count_change(connection)
    named = structs.replace(what, comment=token.name)
    await ledger.record("token-revoke", named, subject=str(token), digest=fingerprint(token))
    return structs.replace(token, revoked_at=what.at, revoked_by=what.author)


async def _make_room(connection: AsyncConnection, now: datetime) -> None:
    """Remove the oldest that ended, when the store is full. The audit still tells of them."""
    count = await connection.scalar(select(func.count()).select_from(TOKENS)) or 0
    missing = count - MAX_TOKENS + 1
    if missing <= 0:
        return
    has_ended = or_(TOKENS.c.revoked_at.is_not(None), TOKENS.c.expires_at <= stamp(now))
    query = select(TOKENS.c.id).where(has_ended).order_by(TOKENS.c.created_at).limit(missing)
    ended = (await connection.scalars(query)).all()
    if len(ended) < missing:
        raise InvalidInput(
            f"there are {MAX_TOKENS:,} tokens already; revoke those that nobody needs, "
            "or give new ones an expiry: see `limen token list`"
        )
    await connection.execute(delete(TOKENS).where(TOKENS.c.id.in_(ended)))


async def _count_change(connection: AsyncConnection) -> None:
    await connection.execute(update(STATE).values(tokens=STATE.c.tokens + 1))


def _token(row: Row[Any]) -> Token:
    try:
        return msgspec.convert(row, Token, from_attributes=True)
    except msgspec.ValidationError:
        raise StoreError(f"token {row.id} is not what was created: restore a backup") from None
