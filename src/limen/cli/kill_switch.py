"""`limen kill-switch`: what a user types. The work is in `fleet`."""

from typing import Annotated

import typer

from limen.cli import serving
from limen.cli.misplaced import refuse_address
from limen.cli.options import Config, DataDir, Namespace, Store

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
    process that shares the store has confirmed it.

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
    data_dir: DataDir = None,
    store: Store = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Put all rules, or some, into shadow."""
    from limen.cli import fleet

    for rule in rule_names or ():
        refuse_address(rule, "a rule")
    settings = serving.valid_settings_of(context)
    raise typer.Exit(fleet.turn(settings, fleet.on(rule_names or ())))


@app.command("off")
def turn_off(
    context: typer.Context,
    data_dir: DataDir = None,
    store: Store = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Enforce all rules again, as they say."""
    from limen.cli import fleet

    raise typer.Exit(fleet.turn(serving.valid_settings_of(context), fleet.off()))


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

    raise typer.Exit(fleet.show_switch(serving.valid_settings_of(context)))
