"""`limen kill-switch`: what a user types. The work is in `fleet`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from limen.cli import serving
from limen.cli.misplaced import refuse_address
from limen.cli.options import Comment, DataDir, Namespace, Rules, Store
from limen.cli.serving import Config

if TYPE_CHECKING:
    from limen.rules.sync import Switch

app: typer.Typer = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback(invoke_without_command=True)
def kill_switch(context: typer.Context) -> None:
    """Let all rules, or some, refuse nobody: at once, and whatever else is broken.

    They go on counting and reporting, as shadows. The switch is a file in
    the data directory, which every process of the host reads. A shared store
    takes it to every host, and tells which processes have confirmed it.

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
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("on")
def turn_on(
    context: typer.Context,
    rule_names: Annotated[
        list[str] | None,
        typer.Argument(metavar="RULE", show_default="all", help="Only these rules."),
    ] = None,
    comment: Comment = "",
    data_dir: DataDir = None,
    store: Store = None,
    namespace: Namespace = None,
    rules: Rules = None,
    config: Config = None,
) -> None:
    """Put all rules, or some, into shadow.

    A name that no rule has is an error. If the rules cannot be read, names
    are not verified. The audit gets a row; if its database does not answer,
    a line on stderr says so, and the switch is turned all the same.
    """
    from limen.cli import fleet

    names = rule_names or []
    for name in names:
        refuse_address(name, "a rule")
    _turn(context, lambda: fleet.on(names), names, comment)


@app.command("off")
def turn_off(
    context: typer.Context,
    comment: Comment = "",
    data_dir: DataDir = None,
    store: Store = None,
    namespace: Namespace = None,
    rules: Rules = None,
    config: Config = None,
) -> None:
    """Enforce all rules again, as they say. The audit gets a row."""
    from limen.cli import fleet

    _turn(context, fleet.off, (), comment)


@app.command("show")
def show(
    context: typer.Context,
    data_dir: DataDir = None,
    store: Store = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Say how the switch stands, since when, by whom, and which processes follow it."""
    from limen.cli import fleet

    settings, ignored = serving.valid_settings_of(context)
    raise typer.Exit(max(fleet.show_switch(settings), ignored))


def _turn(
    context: typer.Context, turned: "Callable[[], Switch]", names: Sequence[str], comment: str
) -> None:
    """Check the names, turn the switch and write the audit row; exit with the code of the command.

    The time of the switch is taken after the check, which may wait for the database.
    """
    from limen.cli import fleet, switch_database

    settings, ignored = serving.valid_settings_of(context)
    switch_database.check(names, comment, settings)
    switch = turned()
    exit_code = fleet.turn(settings, switch)
    switch_database.record(switch, comment, settings)
    raise typer.Exit(max(exit_code, ignored))
