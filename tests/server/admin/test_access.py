"""Tokens that are looked at by several at once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from limen.rules.stores.tokens import Token, digest_of
from limen.server.access import Access
from limen.server.exchange import Rejected


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
    token = Token("3f2a91c0", "admin", "ann", digest_of("secret"), now, "tests")
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
