"""The commands of `limen rules` that change what holds, and the books about it."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct, structs

from limen.cli import draw, fleet, place
from limen.errors import ConfigurationError, StoreError
from limen.rules.diff import Change, changes, lines, summary

if TYPE_CHECKING:
    from limen.rules.stores.sql import AuditRow, SqlStore, StoredRuleSet


class Act(Struct, frozen=True):
    """Who makes a change, and why."""

    author: str | None
    comment: str
    store: str | None = None
    """The Redis by which running processes hear of it."""
    namespace: str = "limen"

    @property
    def who(self) -> str:
        """The author: who was named, or who is logged in."""
        if self.author is not None:
            return self.author
        try:
            return getpass.getuser()
        except (ImportError, KeyError, OSError):
            raise ConfigurationError("this user has no login name; add --author NAME") from None


class Mode(Struct, frozen=True):
    """How far `apply` goes."""

    draft: bool
    dry_run: bool
    ask: bool


class _Books(Struct, frozen=True):
    """What was there when the difference was shown."""

    latest: StoredRuleSet | None
    active: StoredRuleSet | None


def apply(file: str, where: str, act: Act, *, base: int | None, mode: Mode) -> int:
    """Save the rules in a file, and let them hold; return the exit code."""
    document = dict(place.read_file(file).document)
    books = place.use(where, lambda store: _look(store, prepare=not mode.dry_run))
    against = books.latest if mode.draft else books.active
    found = changes(against.document if against else None, document)
    if against is not None and not found:
        state = "is active" if against.active else "is a draft"
        draw.line(f"{place.name_of(file)}: no change, version {against.version} {state} already")
        return 0
    _show_changes(file, against, found)
    _mention_draft(books.latest, against, document)
    if mode.dry_run:
        draw.line("dry run: nothing was saved")
        return 0
    author = act.who
    if mode.ask and sys.stdin.isatty() and not _agreed(mode):
        draw.complain("limen: nothing was changed")
        return 1
    if base is None:
        base = books.latest.version if books.latest else 0
    stored = place.use(
        where,
        lambda store: store.save(
            document, author=author, comment=act.comment, base=base, activate=not mode.draft
        ),
    )
    state = "is active now" if stored.active else "is saved as a draft"
    draw.line(f"version {stored.version} {state}", "green")
    fleet.tell(stored, act.store, act.namespace)
    return 0


async def _look(store: SqlStore, *, prepare: bool) -> _Books:
    from limen.rules.stores.faults import NotPrepared

    try:
        if prepare:
            await store.prepare()
        # The newest first: a version that is saved in between is then a conflict, and not lost.
        latest = await store.latest()
        return _Books(latest, await store.active())
    except NotPrepared:
        if prepare:
            raise
        return _Books(None, None)


def _show_changes(file: str, against: StoredRuleSet | None, found: Sequence[Change]) -> None:
    before = "no rules"
    if against is not None:
        before = f"version {against.version}{' (active)' if against.active else ''}"
    draw.line(f"{before} -> {place.name_of(file)}: {summary(found)}", "bold")
    draw.changes(lines(found))


def _mention_draft(
    latest: StoredRuleSet | None, against: StoredRuleSet | None, document: dict[str, Any]
) -> None:
    """Say when the newest version is somebody's draft, which this file would leave behind."""
    if latest is None or latest.active or latest is against:
        return
    if changes(latest.document, document):
        draw.line(
            f"version {latest.version} by {latest.author} is a draft that is not in this; "
            f"see `limen rules diff {latest.version}`"
        )


def _agreed(mode: Mode) -> bool:
    question = "Save this as a draft?" if mode.draft else "Let this hold from now on?"
    return typer.confirm(question, err=True)


def activate(version: int, where: str, act: Act) -> None:
    """Make a version the one that holds."""

    async def work(store: SqlStore) -> tuple[StoredRuleSet | None, StoredRuleSet]:
        before = await store.active()
        return before, await store.activate(version, author=act.who, comment=act.comment)

    before, stored = place.use(where, work)
    if before is not None and before.version == stored.version:
        draw.line(f"version {version} is active already")
        return
    was = f"; before, version {before.version} was" if before else ""
    draw.line(f"version {version} is active now{was}", "green")
    fleet.tell(stored, act.store, act.namespace)


def rollback(version: int, where: str, act: Act) -> None:
    """Save an old version as the newest, and let it hold."""
    stored = place.use(
        where, lambda store: store.rollback(version, author=act.who, comment=act.comment)
    )
    draw.line(
        f"version {stored.version} is active now, with the rules of version {version}", "green"
    )
    draw.changes(lines(stored.changes))
    fleet.tell(stored, act.store, act.namespace)


def history(where: str, limit: int, as_json: bool) -> None:
    """List versions."""
    found = place.use(where, lambda store: store.history(limit))
    if as_json:
        draw.json([_version(stored) for stored in found])
        return
    if not found:
        raise StoreError(place.NO_RULES)
    headings = ("VERSION", "", "TIME (UTC)", "AUTHOR", "CHANGES", "COMMENT")
    draw.table(headings, [_version_row(stored) for stored in found])
    oldest = found[-1].version
    if oldest > 1:
        draw.line(f"and {draw.counted(oldest - 1, 'older version')}; add --limit to see more")


def _version_row(stored: StoredRuleSet) -> list[draw.Cell]:
    mark = "active" if stored.active else ""
    when = draw.time(stored.created_at)
    changed = summary(stored.changes)
    return [str(stored.version), mark, when, stored.author, changed, stored.comment]


def _version(stored: StoredRuleSet) -> dict[str, Any]:
    told = structs.asdict(stored)
    del told["document"]
    return told


def audit(where: str, limit: int, as_json: bool) -> None:
    """List acts, and say whether the chain of their hashes holds."""

    async def work(store: SqlStore) -> tuple[list[AuditRow], StoreError | None]:
        rows = await store.audit(limit)
        try:
            await store.verify_audit()
        except StoreError as error:
            return rows, error
        return rows, None

    rows, broken = place.use(where, work)
    if as_json:
        problem = None if broken is None else str(broken)
        draw.json({"holds": broken is None, "problem": problem, "rows": rows})
    else:
        headings = ("ROW", "TIME (UTC)", "WHO", "DID", "VERSION", "BEFORE", "COMMENT")
        draw.table(headings, [_audit_row(row) for row in rows])
    if broken is not None:
        raise broken
    if not as_json:
        last = rows[0].id if rows else 0
        draw.line(f"{draw.counted(last, 'row')} in all, and the chain of their hashes holds")


def _audit_row(row: AuditRow) -> list[draw.Cell]:
    before = str(row.before) if row.before else "-"
    when = draw.time(row.at)
    return [str(row.id), when, row.actor, row.action, str(row.version), before, row.comment]
