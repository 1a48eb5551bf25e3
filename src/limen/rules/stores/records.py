"""What a store of rules remembers: rule sets and acts, and the digests that hold them. Pure."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from limen.errors import InvalidInput, InvalidRules, Problem, shown
from limen.rules.diff import Change, summary

Action = Literal[
    "save", "activate", "rollback", "token-create", "token-revoke", "kill-switch", "reset"
]
RecordedAction = Literal["kill-switch", "reset"]
"""What is done elsewhere, and told to the books."""

MAX_VERSION = 2**31 - 1
"""The largest number of a version, which is what an INTEGER of PostgreSQL holds."""
MAX_SUBJECT = 2_000
"""How much the audit keeps of what an act was about."""
Time = Annotated[datetime, Meta(tz=True)]
"""A time in UTC."""
MAX_COMMENT = 2_000
_MAX_AUTHOR = 200


class Version(Struct, frozen=True, kw_only=True):
    """One version of the rules, without the rules."""

    version: int
    """From 1, without gaps."""
    parent: int
    """The version it was made from; 0 for the first."""
    digest: str
    """The SHA-256 of the document, whatever the order of its keys."""
    author: str
    comment: str
    created_at: Time
    active: bool
    """Whether these are the active rules."""


class StoredRuleSet(Version, frozen=True, kw_only=True):
    """One version of the rules, as it was saved. It never changes; whether it is active does."""

    document: dict[str, Any] | None
    """The rules as the author wrote them; None in a history, which tells about them only."""
    changes: list[Change]
    """The differences from the parent."""

    @property
    def summary(self) -> str:
        """The number of additions, changes and removals: `+1 ~2 -0`."""
        return summary(self.changes)


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One action: its author, its time and its subject."""

    id: int
    """From 1, without gaps."""
    at: Time
    actor: str
    action: Action
    """A save that activates is two rows, `save` and `activate`; a rollback is one."""
    version: int | None
    """The version that was saved or activated; null for other actions."""
    before: int
    """The version that was active before; 0 when there was none, and for other actions."""
    comment: str
    hash: str
    """The hash of this row and all rows before it."""
    subject: str = ""
    """Another subject than a version: `token 3f2a91c0 (check)`, `rule search-per-user, user=42`."""


class AuditRow(AuditEntry, frozen=True, kw_only=True):
    """A row of the audit. Its hash covers the rows before it: see `chained`."""

    digest: str
    """The digest of the version or token, so that the hash covers it too; else empty."""


def copied(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of our own, which nobody changes while it is being saved.

    Raises `InvalidRules` for what would not come back as it was: dates, tuples, numbers as keys.
    """
    copy: dict[str, Any] | None = None
    with suppress(TypeError, ValueError, RecursionError):
        text = dumped(document)
        text.encode()
        copy = json.loads(text)
    if copy is None or copy != document:
        message = (
            "rules are plain JSON data: mappings with text keys, lists, text, finite numbers, "
            "true, false and null; write dates in quotes"
        )
        raise InvalidRules([Problem("", message)])
    return copy


def chained(previous: str, row: AuditRow) -> str:
    """Return the hash of a row, which covers its content and the hash of the row before it."""
    content: list[Any] = [previous, row.id, stamp(row.at), row.actor, row.action]
    content += [row.version, row.before, row.comment, row.digest]
    if row.subject:
        # Not when it is empty: the rows of an older limen, which had none, hash as they did.
        content.append(row.subject)
    return hashlib.sha256(dumped(content).encode()).hexdigest()


def stamp(at: datetime) -> str:
    """Return a time as it is kept: text in UTC that sorts, alike in every database."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def valid_author(author: str) -> str:
    """Return the author, or raise `InvalidInput`."""
    return valid_text("author", author, _MAX_AUTHOR, meaning="who made the change")


def valid_comment(comment: str) -> str:
    """Return the comment, or raise `InvalidInput`."""
    return valid_text("comment", comment, MAX_COMMENT)


def valid_subject(subject: str) -> str:
    """Return what an act is about, or raise `InvalidInput`."""
    return valid_text("subject", subject, MAX_SUBJECT, meaning="what the act is about")


def valid_action(action: RecordedAction) -> RecordedAction:
    """Return an action that is told to the books, or raise `InvalidInput`."""
    if action not in get_args(RecordedAction):
        expected = " or ".join(get_args(RecordedAction))
        raise InvalidInput(f"action must be {expected}, got {shown(action)}")
    return action


def valid_version(name: str, value: int, lowest: int = 1) -> int:
    """Return the number of a version, or raise `InvalidInput`."""
    if type(value) is not int or value < lowest:
        raise InvalidInput(f"{name} must be a whole number from {lowest}, got {shown(value)}")
    return value


def valid_text(name: str, value: str, longest: int, meaning: str | None = None) -> str:
    """Return a text that every database keeps as it is, or raise `InvalidInput`.

    `meaning` says what a text that is required must say; None is a text that may be empty.
    """
    if meaning is not None and (not isinstance(value, str) or not value.strip()):
        raise InvalidInput(f"{name} must say {meaning}, got {shown(value)}")
    if not isinstance(value, str) or len(value) > longest:
        raise InvalidInput(f"{name} must be text of at most {longest} characters")
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise InvalidInput(f"{name} has characters that no database keeps, got {shown(value)}")
    return value


def dumped(value: Any) -> str:
    """Return plain data as the one text that is kept, and that digests are made of."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
