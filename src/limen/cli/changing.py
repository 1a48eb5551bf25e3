"""The commands of `limen rules` that change what holds: apply, activate, rollback."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limen.cli import draw, place, reading, source
from limen.errors import ConfigurationError, Conflict, InvalidInput
from limen.rules.diff import Change, changes, lines, summary
from limen.rules.stores import address

if TYPE_CHECKING:
    from limen.rules.stores.sql import SqlStore, StoredRuleSet

_QUESTION = "Let this hold from now on?"


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
    is_draft: bool
    """Whether the newest version has never been active."""

    @property
    def newest(self) -> int:
        """The number of the newest version; 0 when there is none."""
        return self.latest.version if self.latest else 0


def apply(file: str, where: str, act: Act, *, base: int | None, mode: Mode) -> int:
    """Save the rules in a file, and let them hold; return the exit code."""
    found = place.read_file(file)
    name = source.name_of(file)
    reading.warn(name, found.advice)
    document = dict(found.rules.document)
    origin = _origin(name, found.origin, where)
    books = place.use(where, lambda store: _look(store, prepare=not mode.dry_run))
    against = books.latest if mode.draft else books.active
    changed = changes(against.document if against else None, document)
    if against is not None and not changed:
        draw.line(f"{name}: no change, version {against.version} {_state(against, books)}")
        if against.version == books.newest and not mode.dry_run:
            _move_on(file, origin, against.version)
        return 0
    if base is None and origin is not None:
        base = origin.version
    _check_base(base, books.newest)
    _show_changes(against, name, changed)
    _mention_newest(books, against, document)
    if mode.dry_run:
        draw.line("dry run: nothing was saved")
        return 0
    author = act.who
    question = "Save this as a draft?" if mode.draft else _QUESTION
    if mode.ask and not draw.agreed(question):
        return 1
    if base is None:
        base = books.newest
    stored = place.use(
        where,
        lambda store: store.save(
            document, author=author, comment=act.comment, base=base, activate=not mode.draft
        ),
    )
    state = "is active now" if stored.active else "is saved as a draft"
    draw.line(f"version {stored.version} {state}", "green")
    _move_on(file, origin, stored.version)
    _tell(stored, act)
    return 0


async def _look(store: SqlStore, *, prepare: bool) -> _Books:
    from limen.rules.stores.faults import NotPrepared

    try:
        if prepare:
            await store.prepare()
        # The newest first: a version that is saved in between is then a conflict, and not lost.
        latest = await store.latest()
        is_draft = latest is not None and not await store.was_active(latest.version)
        return _Books(latest, await store.active(), is_draft)
    except NotPrepared:
        if prepare:
            raise
        return _Books(None, None, False)


def _state(against: StoredRuleSet, books: _Books) -> str:
    if against.active:
        return "is active already"
    return "is a draft already" if books.is_draft else "is the newest already, and not active"


def _origin(name: str, origin: source.Origin | None, where: str) -> source.Origin | None:
    """Return what a file was made from, if it is a version of this database."""
    if origin is None or address.is_same(origin.where, where):
        return origin
    draw.complain(
        f"note: {name} was exported from {origin.where}, so its version {origin.version} is "
        "nothing to start from here"
    )
    return None


def _check_base(base: int | None, newest: int) -> None:
    """Raise what the database would, before anybody is asked."""
    if base is None or base == newest:
        return
    if base > newest:
        there_are = f"the newest is {newest}" if newest else "there are none yet"
        raise InvalidInput(f"there is no version {base} to start from; {there_are}")
    from limen.rules.stores.ledger import stale

    raise Conflict(f"{stale(base, newest)} with --base {newest}")


def _move_on(file: str, origin: source.Origin | None, version: int) -> None:
    try:
        source.move_on(file, origin, version)
    except ConfigurationError as error:
        draw.complain(f"limen: {error}")


def _show_changes(before: StoredRuleSet | None, after: str, found: Sequence[Change]) -> None:
    title = "no rules"
    if before is not None:
        title = f"version {before.version}{' (active)' if before.active else ''}"
    draw.line(f"{title} -> {after}: {summary(found)}", "bold")
    draw.changes(lines(found))


def _mention_newest(books: _Books, against: StoredRuleSet | None, document: dict[str, Any]) -> None:
    """Say when the newest version is not active, and this file would leave it behind."""
    latest = books.latest
    if latest is None or latest.active or latest is against:
        return
    if changes(latest.document, document):
        what = "is a draft that" if books.is_draft else "is not active, and"
        draw.line(
            f"version {latest.version} by {latest.author} {what} is not in this; "
            f"see `limen rules diff {latest.version}`"
        )


def activate(version: int, where: str, act: Act) -> None:
    """Make a version the one that holds."""
    author = act.who
    before, target, _ = place.use(where, lambda store: _compare(store, version))
    if target.active:
        draw.line(f"version {version} is active already")
        return
    _show_changes(before, f"version {version}", _changes(before, target))
    stored = place.use(
        where,
        lambda store: store.activate(
            version,
            author=author,
            comment=act.comment,
            expected=before.version if before else 0,
        ),
    )
    was = f"; before, version {before.version} was" if before else ""
    draw.line(f"version {version} is active now{was}", "green")
    _tell(stored, act)


def rollback(version: int, where: str, act: Act, *, ask: bool) -> int:
    """Save an old version as the newest, and let it hold; return the exit code."""
    author = act.who
    before, target, newest = place.use(where, lambda store: _compare(store, version))
    if target.active:
        draw.line(f"version {version} is active already")
        return 0
    if before is not None and before.digest == target.digest:
        draw.line(
            f"version {before.version} is active already, with the rules of version {version}"
        )
        return 0
    _show_changes(before, f"version {version}", _changes(before, target))
    if ask and not draw.agreed(_QUESTION):
        return 1
    stored = place.use(
        where,
        lambda store: store.rollback(version, author=author, comment=act.comment, base=newest),
    )
    draw.line(
        f"version {stored.version} is active now, with the rules of version {version}", "green"
    )
    _tell(stored, act)
    return 0


async def _compare(
    store: SqlStore, version: int
) -> tuple[StoredRuleSet | None, StoredRuleSet, int]:
    """Return the active version, another one, and the number of the newest."""
    target = await store.get(version)
    latest = await store.latest()
    return await store.active(), target, latest.version if latest else 0


def _changes(before: StoredRuleSet | None, after: StoredRuleSet) -> Sequence[Change]:
    return changes(before.document if before else None, after.document or {})


def _tell(stored: StoredRuleSet, act: Act) -> None:
    if act.store is not None:
        # What speaks to Redis takes a while to import.
        from limen.cli import fleet

        fleet.tell(stored, act.store, act.namespace)
