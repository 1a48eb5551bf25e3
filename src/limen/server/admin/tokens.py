"""`/tokens`: create, list and revoke tokens. A secret is only in the response that creates it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from limen.errors import InvalidInput
from limen.server.admin.authorization import AdminRoute
from limen.server.admin.edits import NotFound, now
from limen.server.admin.requests import CreateTokenRequest, TokenId
from limen.server.admin.responses import NewToken, Tokens, TokenView
from limen.server.admin.rule_service import ForCaller


async def list_tokens(rules: ForCaller) -> Tokens:
    """List the tokens, the newest first, without their secrets. Also those that ended."""
    tokens = await rules.ask(lambda books: books.tokens())
    return Tokens([TokenView(**token.as_data(now())) for token in tokens])


async def create_token(rules: ForCaller, asked: CreateTokenRequest) -> NewToken:
    """Create a token. The response has its secret, which is shown only once."""
    author = rules.caller.name
    token, secret = await rules.write(
        lambda books: books.create_token(asked.role, asked.name, author, asked.expires_at)
    )
    await rules.service.access.refresh(rules.service.books)
    return NewToken(**token.as_data(now()), secret=secret)


async def revoke_token(
    rules: ForCaller, id: Annotated[TokenId, Path(description="As `/tokens` shows it.")]
) -> TokenView:
    """Revoke a token. To do so twice changes nothing."""
    try:
        token = await rules.write(lambda books: books.revoke_token(id, rules.caller.name))
    except InvalidInput:
        raise NotFound(f"there is no token {id}") from None
    await rules.service.access.refresh(rules.service.books)
    return TokenView(**token.as_data(now()))


ROUTES = (
    AdminRoute("admin", "GET", "/tokens", list_tokens, also=(503,)),
    AdminRoute("admin", "POST", "/tokens", create_token, also=(503,), status=201),
    AdminRoute("admin", "DELETE", "/tokens/{id}", revoke_token, also=(404, 503)),
)
