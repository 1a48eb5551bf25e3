"""`/tokens`: who else is let in. Tells the secret of a token once, to whoever created it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request
from msgspec import structs

from limen.errors import InvalidInput
from limen.rules.stores.tokens import Token
from limen.server.admin.answers import NewToken, TokenOf, Tokens
from limen.server.admin.desk import Desk
from limen.server.admin.edits import Missing, now
from limen.server.admin.guard import Door, caller_of
from limen.server.admin.kinds import TokenId
from limen.server.admin.questions import ToGrant


class Granting:
    """Creates, lists and revokes tokens."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._service = desk.service

    async def list_tokens(self, request: Request) -> Tokens:
        """List the tokens, the newest first, without their secrets. Also those that ended."""
        found = await self._desk.ask(caller_of(request), lambda books: books.tokens())
        return Tokens(tokens=[TokenOf(**_told(token)) for token in found])

    async def create_token(self, request: Request, asked: ToGrant) -> NewToken:
        """Create a token. The answer has its secret, which is told this once."""
        service, caller = self._service, caller_of(request)
        token, secret = await self._desk.write(
            caller,
            lambda books: books.create_token(asked.role, asked.name, caller.name, asked.expires_at),
        )
        await service.access.refresh(service.books)
        return NewToken(**_told(token), secret=secret)

    async def revoke_token(
        self, request: Request, id: Annotated[TokenId, Path(description="As `/tokens` tells it.")]
    ) -> TokenOf:
        """End a token: from now on it lets nobody in. To do so twice changes nothing."""
        service, caller = self._service, caller_of(request)
        try:
            token = await self._desk.write(
                caller, lambda books: books.revoke_token(id, caller.name)
            )
        except InvalidInput:
            raise Missing(f"there is no token {id}") from None
        await service.access.refresh(service.books)
        return TokenOf(**_told(token))


def install(door: Door, desk: Desk) -> None:
    """Add the routes."""
    granting = Granting(desk)
    door.add("admin", "GET", "/tokens", granting.list_tokens, also=(503,))
    door.add("admin", "POST", "/tokens", granting.create_token, also=(503,), status=201)
    door.add("admin", "DELETE", "/tokens/{id}", granting.revoke_token, also=(404, 503))


def _told(token: Token) -> dict[str, Any]:
    told = structs.asdict(token)
    del told["digest"]
    return {**told, "state": token.state(now())}
