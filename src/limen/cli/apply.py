"""The commands of `limen rules` that change the active rules: apply, activate, rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from limen.cli import inspect, output, rules_file
from limen.cli.arguments import author_name
from limen.cli.rules_location import read_file, with_store
from limen.errors import Conflict, InvalidInput
from limen.rules.diff import Change, changes, lines, summary
from limen.rules.stores import address

if TYPE_CHECKING:
    from limen.rules.stores.sql import SqlStore, StoredRuleSet
    from limen.server.settings import Settings

_QUESTION = "Let this hold from now on?"


class StoredVersions(Struct, frozen=True):
    """The versions in the database when the difference was shown."""

    latest: StoredRuleSet | None
    active: StoredRuleSet | None
    is_draft: bool
    """Whether the newest version has never been active."""

    @property
    def newest(self) -> int:
        """The number of the newest version; 0 when there is none."""
        return self.latest.version if self.latest else 0


def apply(
    file: str,
    settings: Settings,
    author: str | None,
    comment: str,
    *,
    base: int | None,
    draft: bool,
    dry_run: bool,
    ask: bool,
) -> int:
    """Save the rules in a file, and activate them; return the exit code."""
    where = settings.rules_place.get_secret_value()
    contents = read_file(file)
    file_name = rules_file.name_of(file)
    inspect.print_warnings(file_name, contents.advice)
    document = dict(contents.rules.document)
    origin = _origin(file_name, contents.origin, where)
    versions = with_store(where, lambda store: _stored_versions(store, prepare=not dry_run))
    against = versions.latest if draft else versions.active
    if against is not None and not _changes(against, document):
        state = _state(against, versions)
        output.print_line(f"{file_name}: no change, version {against.version} {state}")
        if against.version == versions.newest and not dry_run:
            rules_file.update_origin(file, origin, against.version)
        return 0
    if base is None:
        base = versions.newest if origin is None else origin.version
    _check_base(base, versions.newest)
    _print_changes(against, file_name, document)
    _mention_newest(versions, against, document)
    if dry_run:
        output.print_line("dry run: nothing was saved")
        return 0
    name = author_name(author)
    if ask and not output.confirm("Save this as a draft?" if draft else _QUESTION):
        return 1
    stored = with_store(
        where,
        lambda store: store.save(
            document, author=name, comment=comment, base=base, activate=not draft
        ),
    )
    state = "is active now" if stored.active else "is saved as a draft"
    output.print_line(f"version {stored.version} {state}", "green")
    rules_file.update_origin(file, origin, stored.version)
    _announce(stored, settings)
    return 0


async def _stored_versions(store: SqlStore, *, prepare: bool) -> StoredVersions:
    from limen.rules.stores.faults import NotPrepared

    try:
        if prepare:
            await store.prepare()
        # The newest first: a version that is saved in between is then a conflict, and not lost.
        latest = await store.latest()
        is_draft = latest is not None and not await store.was_active(latest.version)
        return StoredVersions(latest, await store.active(), is_draft)
    except NotPrepared:
        if prepare:
            raise
        return StoredVersions(None, None, False)


def _state(against: StoredRuleSet, versions: StoredVersions) -> str:
    if against.active:
        return "is active already"
    return "is a draft already" if versions.is_draft else "is the newest already, and not active"


def _origin(
    name: str, origin: rules_file.ExportedFrom | None, where: str
) -> rules_file.ExportedFrom | None:
    """Return the origin of a file, if it is a version of this database."""
    if origin is None or address.is_same(origin.where, where):
        return origin
    output.print_error(
        f"note: {name} was exported from {origin.where}, so its version {origin.version} is "
        "nothing to start from here"
    )
    return None


def _check_base(base: int, newest: int) -> None:
    """Raise the error of the database before the question."""
    if base == newest:
        return
    if base > newest:
        there_are = f"the newest is {newest}" if newest else "there are none yet"
        raise InvalidInput(f"there is no version {base} to start from; {there_are}")
    from limen.rules.stores.ledger import stale

    raise Conflict(f"{stale(base, newest)} with --base {newest}")


def _print_changes(before: StoredRuleSet | None, after: str, document: dict[str, Any]) -> None:
    title = "no rules"
    if before is not None:
        title = f"version {before.version}{' (active)' if before.active else ''}"
    changed = _changes(before, document)
    output.print_line(f"{title} -> {after}: {summary(changed)}", "bold")
    output.print_changes(lines(changed))


def _mention_newest(
    versions: StoredVersions, against: StoredRuleSet | None, document: dict[str, Any]
) -> None:
    """Print a line if the newest version is not active, and its changes are not in this file."""
    latest = versions.latest
    if latest is None or latest.active or latest is against:
        return
    if changes(latest.document, document):
        what = "is a draft that" if versions.is_draft else "is not active, and"
        output.print_line(
            f"version {latest.version} by {latest.author} {what} is not in this; "
            f"see `limen rules diff {latest.version}`"
        )


def activate(version: int, settings: Settings, author: str | None, comment: str) -> None:
    """Activate a version."""
    where, name = settings.rules_place.get_secret_value(), author_name(author)
    before, target, _ = with_store(where, lambda store: _compare(store, version))
    if target.active:
        output.print_line(f"version {version} is active already")
        return
    _print_changes(before, f"version {version}", target.document or {})
    stored = with_store(
        where,
        lambda store: store.activate(
            version, author=name, comment=comment, expected=before.version if before else 0
        ),
    )
    previous = f"; before, version {before.version} was" if before else ""
    output.print_line(f"version {version} is active now{previous}", "green")
    _announce(stored, settings)


def rollback(
    version: int, settings: Settings, author: str | None, comment: str, *, ask: bool
) -> int:
    """Save an old version as the newest, and activate it; return the exit code."""
    where, name = settings.rules_place.get_secret_value(), author_name(author)
    before, target, newest = with_store(where, lambda store: _compare(store, version))
    if target.active:
        output.print_line(f"version {version} is active already")
        return 0
    if before is not None and before.digest == target.digest:
        output.print_line(
            f"version {before.version} is active already, with the rules of version {version}"
        )
        return 0
    _print_changes(before, f"version {version}", target.document or {})
    if ask and not output.confirm(_QUESTION):
        return 1
    stored = with_store(
        where,
        lambda store: store.rollback(version, author=name, comment=comment, base=newest),
    )
    output.print_line(
        f"version {stored.version} is active now, with the rules of version {version}", "green"
    )
    _announce(stored, settings)
    return 0


async def _compare(
    store: SqlStore, version: int
) -> tuple[StoredRuleSet | None, StoredRuleSet, int]:
    """Return the active version, another one, and the number of the newest."""
    target = await store.get(version)
    latest = await store.latest()
    return await store.active(), target, latest.version if latest else 0


def _changes(before: StoredRuleSet | None, document: dict[str, Any]) -> list[Change]:
    return changes(before.document if before else None, document)


def _announce(stored: StoredRuleSet, settings: Settings) -> None:
    if stored.active and settings.shared_store is not None:
        # The client of Redis takes a while to import.
        from limen.cli import instances

        where = settings.rules_place.get_secret_value()
        instances.announce(stored, where, settings.shared_store, settings.namespace)
