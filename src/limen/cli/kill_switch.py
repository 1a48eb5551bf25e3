"""Stop all rules, or some, from refusing requests: at once, in an emergency.

They go on counting and reporting, as shadows. The switch is a file in
the data directory, which every process of the host reads. A shared store
transmits it to every host, and has the confirmations of the processes.

    limen kill-switch on
    limen kill-switch on search-per-user --store redis://localhost:6379
    limen kill-switch off --store redis://localhost:6379
    limen kill-switch show

Store, namespace and data directory are those of `limen serve`, unless
options say otherwise. The exit code of `on` and `off` is 1 unless every
process that shares the store has confirmed it, and if a setting was
ignored because it is wrong.

Without this command: `touch .limen/kill-switch`, or SIGUSR1 to one of
the processes.
"""

# The audit and the names of the rules need the database. The kill switch does not: if the database
# does not answer in time, a line on stderr says so.

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from limen.cli import instances, options, output
from limen.cli.rules_source import is_file, read_file, with_store
from limen.errors import InvalidInput, LimenError

if TYPE_CHECKING:
    from limen.cli.instances import Confirmation
    from limen.rules.sync import Instance, RuleCache, Switch
    from limen.server.settings import Settings

_DATABASE_PATIENCE_S = 2.0
_CLOCK_S = 0.0005
"""The time of a file is a little coarser than that of a switch."""

app: typer.Typer = options.command_group(__doc__)


@app.command("on")
@options.with_settings("data_dir", "store", "namespace", "rules")
def turn_on(
    context: typer.Context,
    rule_names: Annotated[
        list[str] | None,
        typer.Argument(metavar="RULE", show_default="all", help="Only these rules."),
    ] = None,
    comment: options.Comment = "",
) -> None:
    """Put all rules, or some, into shadow.

    A name that no rule has is an error. If the rules cannot be read, names
    are not verified. The audit gets a row; if its database does not answer,
    a line on stderr says so, and the switch is turned all the same.
    """
    names = rule_names or []
    for name in names:
        options.refuse_address(name, "a rule")
    _turn(context, names, comment, on=True)


@app.command("off")
@options.with_settings("data_dir", "store", "namespace", "rules")
def turn_off(context: typer.Context, comment: options.Comment = "") -> None:
    """Enforce all rules again, as they say. The audit gets a row."""
    _turn(context, (), comment, on=False)


@app.command("show")
@options.with_settings("data_dir", "store", "namespace")
def show(context: typer.Context) -> None:
    """Print the state of the switch, its time and author, and the processes that follow it."""
    settings, ignored = options.valid_settings_of(context)
    raise typer.Exit(max(_show(settings), ignored))


def _turn(context: typer.Context, names: Sequence[str], comment: str, *, on: bool) -> None:
    """Check the names, turn the switch and write the audit row; exit with the code of the command.

    The time of the switch is taken after the check, which may wait for the database.
    """
    from limen.rules.sync.switch import turned_off, turned_on

    settings, ignored = options.valid_settings_of(context)
    _check(names, comment, settings)
    by = f"{options.login_name() or 'somebody'} at {socket.gethostname()}"
    switch = turned_on(names, by) if on else turned_off(by)
    exit_code = max(_write_file(settings, switch), _reach_hosts(settings, switch))
    _write_audit(switch, comment, settings)
    raise typer.Exit(max(exit_code, ignored))


def _show(settings: Settings) -> int:
    """Print the switch, and the processes that follow it; return the exit code."""
    from limen.rules.sync import SwitchFile
    from limen.rules.sync.switch import decode

    switch = SwitchFile(settings.data_dir).read()
    if settings.shared_store is None:
        _print_switch(switch)
        return 0

    async def compare(cache: RuleCache) -> tuple[Switch, Confirmation]:
        shared = decode((await cache.look()).switch)
        newest = shared if shared is not None and shared.at > switch.at else switch
        return newest, await instances.read_confirmation(cache, lambda one: _follows(one, newest))

    try:
        newest, confirmation = instances.with_cache(settings, compare)
    except LimenError as error:
        _print_switch(switch)
        output.print_error(f"limen: other hosts were not reached: {error}")
        return 1
    _print_switch(newest)
    none_visible = instances.none_visible(settings)
    output.print_line(str(confirmation) if confirmation.instances else none_visible)
    return 0


def _print_switch(switch: Switch) -> None:
    text = f"the kill switch is {switch}"
    if switch.at:
        by = f" by {switch.by}" if switch.by else ""
        text = f"{text}, since {output.format_time(switch.at)} UTC{by}"
    output.print_line(text)


def _write_file(settings: Settings, switch: Switch) -> int:
    """Turn the switch of this host; return the exit code."""
    from limen.rules.sync import SwitchFile

    file = SwitchFile(settings.data_dir)
    try:
        file.write(switch)
    except LimenError as error:
        output.print_error(f"limen: {error}")
        return 1
    output.print_line(f"the kill switch is {switch}, in {file.path}", "green")
    return 0


def _reach_hosts(settings: Settings, switch: Switch) -> int:
    """Turn the switch of every host that shares the store; return the exit code.

    It is 0 if every process has confirmed the switch. Without a shared store no process can confirm
    it, and it is 0, too.
    """
    if settings.shared_store is None:
        output.print_line(
            "on this host only, and unconfirmed: processes with this data directory follow within "
            "a second; add --store to reach every host"
        )
        return 0

    async def turn(cache: RuleCache) -> Confirmation:
        turned = await cache.turn_switch(switch)
        return await instances.wait_for(cache, lambda one: _follows(one, turned))

    try:
        confirmation = instances.with_cache(settings, turn)
    except LimenError as error:
        output.print_error(f"limen: other hosts were not reached: {error}")
        return 1
    if not confirmation.instances:
        output.print_error(
            f"limen: nobody confirmed it: {instances.none_visible(settings)}. If processes run, "
            "they have another store or namespace; `limen config show` prints what this command "
            "uses"
        )
        return 1
    output.print_line(str(confirmation), "" if confirmation.missing else "green")
    return 1 if confirmation.missing else 0


def _follows(instance: Instance, switch: Switch) -> bool:
    return instance.switch_at >= switch.at - _CLOCK_S


def _check(names: Sequence[str], comment: str, settings: Settings) -> None:
    """Raise `InvalidInput` for a name that no rule has, or an invalid comment.

    Names that cannot be verified are accepted, with a line on stderr.
    """
    from limen.rules.stores.records import valid_comment
    from limen.rules.sync.switch import find_wrong_name

    valid_comment(comment)
    wrong = find_wrong_name(names, _known_names(settings) if names else ())
    if wrong is not None:
        raise InvalidInput(wrong[1])


def _known_names(settings: Settings) -> list[str] | None:
    """Return the names of the active rules; None if they cannot be read.

    They are read from the source of the rules; if it does not answer, from the rules that the
    processes share over the store.
    """
    where = settings.rules_place.get_secret_value()
    try:
        if is_file(where):
            return [rule.name for rule in read_file(where).rule_set().rules]
        active = with_store(where, lambda database: database.active(), _DATABASE_PATIENCE_S)
        return _names(active.document) if active is not None else []
    except (LimenError, ImportError) as error:
        reason = error
    if settings.shared_store is not None and not is_file(where):
        with contextlib.suppress(LimenError):
            return _names(instances.with_cache(settings, _shared_document))
    output.print_error(f"limen: the names of the rules were not verified: {reason}")
    return None


async def _shared_document(cache: RuleCache) -> dict[str, Any]:
    entry, _ = await cache.read()
    return entry.document


def _names(document: dict[str, Any] | None) -> list[str]:
    return [str(rule["name"]) for rule in document["rules"]] if document else []


def _write_audit(switch: Switch, comment: str, settings: Settings) -> None:
    """Write the audit row; print a line on stderr if that fails."""
    from limen.rules.stores.records import MAX_SUBJECT

    subject, at = str(switch)[:MAX_SUBJECT], datetime.fromtimestamp(switch.at, UTC)
    try:
        with_store(
            settings.database.get_secret_value(),
            lambda store: store.record("kill-switch", subject, switch.by, comment, at=at),
            _DATABASE_PATIENCE_S,
        )
    except (LimenError, ImportError) as error:
        output.print_error(f"limen: this is not in the audit: {error}")
