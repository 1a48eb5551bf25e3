"""The commands of `limen token`: create, list, revoke. Prints a secret once, and keeps none."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, structs

from limen.cli import draw, place
from limen.cli.changing import Act
from limen.cli.misplaced import refuse_address
from limen.errors import InvalidInput, shown
from limen.model import grammar
from limen.rules.stores.records import valid_author
from limen.rules.stores.tokens import Grant, Role, Token, grant, id_of

if TYPE_CHECKING:
    from limen.rules.stores.sql import SqlStore

_DATE = re.compile(r"\d{4}-")


class Asked(Struct, frozen=True):
    """What somebody typed."""

    role: str
    name: str
    expires: str | None


def create(asked: Asked, where: str, author: str | None, as_json: bool) -> None:
    """Create a token, and print its secret."""
    # All that was typed is looked at first: nothing makes a database out of a mistake.
    granted = _granted(asked)
    who = valid_author(Act(author, "").who)

    async def work(store: SqlStore) -> tuple[Token, str]:
        await store.prepare()
        return await store.create_token(granted.role, granted.name, who, granted.expires_at)

    token, secret = place.use(where, work)
    if as_json:
        draw.json({"secret": secret, **_told(token)})
    else:
        print(secret)
    until = "" if token.expires_at is None else f", until {draw.time(token.expires_at)} UTC"
    draw.complain(f"{token} is for {token.name}{until}; its secret is not shown again")


def show(where: str, as_json: bool) -> None:
    """List the tokens."""
    found = place.use(where, lambda store: store.tokens())
    if as_json:
        draw.json([_told(token) for token in found])
        return
    if not found:
        draw.line("there are no tokens yet; run `limen token create --role check --name NAME`")
    headings = ("ID", "ROLE", "NAME", "STATE", "CREATED (UTC)", "BY", "EXPIRES (UTC)")
    draw.table(headings, [_row(token) for token in found])


def revoke(typed: str, where: str, author: str | None) -> None:
    """End a token."""
    refuse_address(typed, "the id of a token")
    id = id_of(typed)
    who = Act(author, "").who

    began = datetime.now(UTC)
    token = place.use(where, lambda store: store.revoke_token(id, who))
    if token.revoked_at is not None and token.revoked_at < began:
        at = draw.time(token.revoked_at)
        draw.line(f"{token} was revoked already, {at} UTC by {token.revoked_by}")
    else:
        draw.line(f"{token} for {token.name} is revoked now", "green")


def _granted(asked: Asked) -> Grant:
    refuse_address(asked.name, "a name")
    expires_at = None if asked.expires is None else _moment(asked.expires)
    # Whether it is a role is for `grant` to say.
    return grant(cast(Role, asked.role), asked.name, expires_at)


def _moment(text: str) -> datetime:
    """Read `30d` or `2099-01-01`; without an offset it is UTC, and a date is its first moment."""
    refuse_address(text, "a time")
    try:
        found = _date(text) if _DATE.match(text) else _after(text)
    except (ValueError, OverflowError):
        raise InvalidInput(
            "--expires takes a duration such as 30d or 12h, or a date such as 2099-01-01, "
            f"got {shown(text)}"
        ) from None
    if found <= datetime.now(UTC):
        raise InvalidInput(f"--expires must be in the future, got {shown(text)}")
    return found


def _date(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _after(duration: str) -> datetime:
    return datetime.now(UTC) + timedelta(microseconds=grammar.read_duration(duration))


def _row(token: Token) -> list[draw.Cell]:
    created = draw.time(token.created_at)
    expires = "never" if token.expires_at is None else draw.time(token.expires_at)
    state = token.state(datetime.now(UTC))
    return [token.id, token.role, token.name, state, created, token.created_by, expires]


def _told(token: Token) -> dict[str, Any]:
    told = structs.asdict(token)
    del told["digest"]
    return {**told, "state": token.state(datetime.now(UTC))}
