"""Create, list and revoke the tokens of callers.

Callers of the service authenticate with a token. Its role defines what
they may do:

    check     decisions: for programs
    viewer    a look at rules, usage and the audit
    editor    the same, and changes to rules
    admin     everything, tokens too

Tokens are kept in the database of the rules, as digests: a secret is
printed once. If the rules are in a file, the database is rules.db in the
data directory.

    limen token create --role check --name checkout
    limen token list
    limen token revoke 3f2a91c0
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, cast

import typer

from limen.cli import options, output
from limen.cli.rules_source import with_store
from limen.errors import InvalidInput, shown
from limen.model import grammar

if TYPE_CHECKING:
    from limen.rules.stores.sql import SqlStore
    from limen.rules.stores.tokens import Role, Token

app: typer.Typer = options.command_group(__doc__)


@app.command("create")
@options.with_settings("rules")
def create_token(
    context: typer.Context,
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="The role: check, viewer, editor or admin.")
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="The purpose of the token.")],
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            show_default="never",
            help="How long it is valid, such as 30d, or until when, such as 2099-01-01.",
        ),
    ] = None,
    author: options.Author = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a token, and print its secret: this once, on stdout.

    Only a digest is kept, so the secret cannot be printed again. If it is
    lost, revoke the token and create another.

        limen token create --role check --name checkout
        limen token create --role editor --name ann --expires 30d
        TOKEN=$(limen token create --role viewer --name grafana)
    """
    from limen.rules.stores.records import valid_author
    from limen.rules.stores.tokens import grant

    database = options.database_of(context)
    # All arguments are checked first: a mistake must not create a database.
    options.refuse_address(name, "a name")
    expires_at = None if expires is None else _expiry(expires)
    granted = grant(cast("Role", role), name, expires_at)
    created_by = valid_author(options.author_name(author))

    async def create(store: SqlStore) -> tuple[Token, str]:
        await store.prepare()
        return await store.create_token(granted.role, granted.name, created_by, granted.expires_at)

    token, secret = with_store(database, create)
    if as_json:
        output.print_json({"secret": secret, **token.as_data(datetime.now(UTC))})
    else:
        print(secret)
    until = (
        "" if token.expires_at is None else f", until {output.format_time(token.expires_at)} UTC"
    )
    output.print_error(f"{token} is for {token.name}{until}; its secret is not shown again")


@app.command("list")
@options.with_settings("rules")
def list_tokens(context: typer.Context, as_json: options.AsJson = False) -> None:
    """List the tokens, newest first, without their secrets.

    Also those that expired or were revoked. The id is part of the secret:
    limen_3f2a91c0_... is token 3f2a91c0.

        limen token list
        limen token list --json
    """
    tokens = with_store(options.database_of(context), lambda store: store.tokens())
    if as_json:
        output.print_json([token.as_data(datetime.now(UTC)) for token in tokens])
        return
    if not tokens:
        output.print_line(
            "there are no tokens yet; run `limen token create --role check --name NAME`"
        )
    headings = ("ID", "ROLE", "NAME", "STATE", "CREATED (UTC)", "BY", "EXPIRES (UTC)")
    output.print_table(headings, [_row(token) for token in tokens])


@app.command("revoke")
@options.with_settings("rules")
def revoke_token(
    context: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of the token, or its secret.")],
    author: options.Author = None,
) -> None:
    """Revoke a token: from now on it is refused.

    Running services notice within seconds. Revoking it twice changes
    nothing.

        limen token list
        limen token revoke 3f2a91c0
    """
    from limen.rules.stores.tokens import id_of

    database = options.database_of(context)
    options.refuse_address(id, "the id of a token")
    token_id, revoked_by = id_of(id), options.author_name(author)
    now = datetime.now(UTC)
    token = with_store(database, lambda store: store.revoke_token(token_id, revoked_by))
    if token.revoked_at is not None and token.revoked_at < now:
        at = output.format_time(token.revoked_at)
        output.print_line(f"{token} was revoked already, {at} UTC by {token.revoked_by}")
    else:
        output.print_line(f"{token} for {token.name} is revoked now", "green")


def _expiry(text: str) -> datetime:
    """Return the time that `30d` or `2099-01-01` stands for."""
    options.refuse_address(text, "a time")
    try:
        if re.match(r"\d{4}-", text):
            expires_at = options.read_time(text)
        else:
            duration = timedelta(microseconds=grammar.read_duration(text))
            expires_at = datetime.now(UTC) + duration
    except (ValueError, OverflowError):
        raise InvalidInput(
            "--expires takes a duration such as 30d or 12h, or a date such as 2099-01-01, "
            f"got {shown(text)}"
        ) from None
    if expires_at <= datetime.now(UTC):
        raise InvalidInput(f"--expires must be in the future, got {shown(text)}")
    return expires_at


def _row(token: Token) -> list[output.Cell]:
    created = output.format_time(token.created_at)
    expires = "never" if token.expires_at is None else output.format_time(token.expires_at)
    state = token.state(datetime.now(UTC))
    return [token.id, token.role, token.name, state, created, token.created_by, expires]
