"""Tokens that are read by several tasks at once, or cannot be saved."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from limen.rules.stores.tokens import Token, digest_of
from limen.server.auth.tokens import Access
from limen.server.http.exchange import Rejected


class Slow:
    """A store as it was at some moment, which takes its time to tell."""

    def __init__(self, version: int, token: Token) -> None:
        self.version, self.token = version, token
        self.go_on = asyncio.Event()

    async def tokens_version(self) -> int:
        return self.version

    async def tokens(self) -> list[Token]:
        await self.go_on.wait()
        return [self.token]


async def admitted(folder: Path) -> bool:
    now = datetime.now(UTC)
    token = Token(
        id="3f2a91c0",
        role="admin",
        name="ann",
        digest=digest_of("secret"),
        created_at=now,
        created_by="tests",
    )
    before = Slow(1, token)
    after = Slow(2, structs.replace(token, revoked_at=now, revoked_by="tests"))
    after.go_on.set()
    access = Access({}, folder)
    slow = asyncio.create_task(access.refresh(before))
    await asyncio.sleep(0)
    await access.refresh(after)
    before.go_on.set()
    await slow
    try:
        return access.caller({"headers": [(b"authorization", b"Bearer secret")]}) is not None
    except Rejected:
        return False


def test_a_slow_look_does_not_bring_a_revoked_token_back(tmp_path: Path) -> None:
    assert not asyncio.run(admitted(tmp_path))


def test_tokens_that_could_not_be_saved_are_saved_by_a_later_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a revoked token would be valid again after a start without the database."""
    now = datetime.now(UTC)
    token = Token(
        id="3f2a91c0",
        role="admin",
        name="ann",
        digest=digest_of("secret"),
        created_at=now,
        created_by="tests",
    )
    store = Slow(1, structs.replace(token, revoked_at=now, revoked_by="tests"))
    store.go_on.set()
    access, in_the_way = Access({}, tmp_path), tmp_path / "tokens.last-good.json"
    in_the_way.mkdir()
    for _ in range(3):
        asyncio.run(access.refresh(store))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    in_the_way.rmdir()
    asyncio.run(access.refresh(store))
    assert in_the_way.read_bytes() == b"[]"
