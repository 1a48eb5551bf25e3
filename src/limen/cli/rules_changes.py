"""The commands of `limen rules` that change the active rules: apply, activate, rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct

from limen.cli import instances, options, output, rules_source
from limen.cli.options import settings_of
from limen.cli.rules_source import LoadedRules, with_store
from limen.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from limen.rules.diff import Change
    from limen.rules.stores.sql import SqlStore, StoredRuleSet

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


@options.with_settings("rules", "store", "namespace")
def apply_file(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML or JSON; - is stdin.")],
    comment: options.Comment = "",
    author: options.Author = None,
    base: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            show_default="what the file says",
            help="The version the file was made from. Another newest one is a conflict.",
        ),
    ] = None,
    draft: Annotated[bool, typer.Option("--draft", help="Save it, and activate nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change.")] = False,
    yes: options.Yes = False,
) -> None:
    """Save the rules in a file as a new version, and activate it.

    Validates, prints the changes, asks if there is a terminal, then saves
    and activates in one step. Nothing is written if somebody else saved a
    version meanwhile: after the version in the first line of an exported
    file, or after the changes were printed. With --store, running processes
    are notified at once; otherwise they find it within seconds.

        limen rules apply rules.yaml --comment "search is slower now"
        limen rules apply rules.yaml --dry-run
        limen rules apply rules.yaml --draft
        limen rules apply rules.yaml --base 7 --yes
    """
    settings = settings_of(context)
    where = settings.rules_place.get_secret_value()
    loaded = rules_source.load_file(file)
    rules_source.print_warnings(loaded.label, loaded.warnings)
    origin = _origin_in(where, loaded)
    versions = with_store(where, lambda store: _stored_versions(store, prepare=not dry_run))
    against = versions.latest if draft else versions.active
    if against is not None and not _changes(against, loaded.document):
        state = _state(against, versions)
        output.print_line(f"{loaded.label}: no change, version {against.version} {state}")
        if against.version == versions.newest and not dry_run:
            rules_source.update_origin(file, origin, against.version)
        return
    if base is None:
        base = versions.newest if origin is None else origin.version
    _check_base(base, versions.newest)
    _print_changes(against, loaded.label, loaded.document)
    _mention_newest(versions, against, loaded.document)
    if dry_run:
        output.print_line("dry run: nothing was saved")
        return
    name = options.author_name(author)
    if not yes:
        output.confirm("Save this as a draft?" if draft else _QUESTION)
    stored = with_store(
        where,
        lambda store: store.save(
            loaded.document, author=name, comment=comment, base=base, activate=not draft
        ),
    )
    state = "is active now" if stored.active else "is saved as a draft"
    output.print_line(f"version {stored.version} {state}", "green")
    rules_source.update_origin(file, origin, stored.version)
    instances.announce(stored, settings)


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


def _origin_in(where: str, loaded: LoadedRules) -> rules_source.ExportedFrom | None:
    """Return the origin of a file, if it is a version of this database."""
    from limen.rules.stores import address

    origin = loaded.origin
    if origin is None or address.is_same(origin.where, where):
        return origin
    output.print_error(
        f"note: {loaded.label} was exported from {origin.where}, so its version {origin.version} "
        "is nothing to start from here"
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
    output.print_changes(title, after, _changes(before, document))


def _mention_newest(
    versions: StoredVersions, against: StoredRuleSet | None, document: dict[str, Any]
) -> None:
    """Print a line if the newest version is not active, and its changes are not in this file."""
    latest = versions.latest
    if latest is None or latest.active or latest is against:
        return
    if _changes(latest, document):
        what = "is a draft that" if versions.is_draft else "is not active, and"
        output.print_line(
            f"version {latest.version} by {latest.author} {what} is not in this; "
            f"see `limen rules diff {latest.version}`"
        )


@options.with_settings("rules", "store", "namespace")
def activate_version(
    context: typer.Context,
    version: options.VersionNumber,
    comment: options.Comment = "",
    author: options.Author = None,
) -> None:
    """Activate a version: a draft, or an old one.

    Prints the changes, and does not ask. Use `diff` first.

        limen rules diff 5
        limen rules activate 5
    """
    settings, name = settings_of(context), options.author_name(author)
    where = settings.rules_place.get_secret_value()
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
    instances.announce(stored, settings)


@options.with_settings("rules", "store", "namespace")
def roll_back(
    context: typer.Context,
    version: options.VersionNumber,
    comment: options.Comment = "",
    author: options.Author = None,
    yes: options.Yes = False,
) -> None:
    """Save an old version as the newest one, and activate it.

    So it is part of the history, and later edits start from it. Prints the
    changes, and asks if there is a terminal.

        limen rules rollback 3 --comment "5 was too strict"
        limen rules rollback 3 --yes
    """
    settings, name = settings_of(context), options.author_name(author)
    where = settings.rules_place.get_secret_value()
    before, target, newest = with_store(where, lambda store: _compare(store, version))
    if target.active:
        output.print_line(f"version {version} is active already")
        return
    if before is not None and before.digest == target.digest:
        output.print_line(
            f"version {before.version} is active already, with the rules of version {version}"
        )
        return
    _print_changes(before, f"version {version}", target.document or {})
    if not yes:
        output.confirm(_QUESTION)
    stored = with_store(
        where,
        lambda store: store.rollback(version, author=name, comment=comment, base=newest),
    )
    output.print_line(
        f"version {stored.version} is active now, with the rules of version {version}", "green"
    )
    instances.announce(stored, settings)


async def _compare(
    store: SqlStore, version: int
) -> tuple[StoredRuleSet | None, StoredRuleSet, int]:
    """Return the active version, another one, and the number of the newest."""
    target = await store.get(version)
    latest = await store.latest()
    return await store.active(), target, latest.version if latest else 0


def _changes(before: StoredRuleSet | None, document: dict[str, Any]) -> list[Change]:
    from limen.rules.diff import changes

    return changes(before.document if before else None, document)
