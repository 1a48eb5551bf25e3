"""`limen kill-switch`: what a user types. The work is in `fleet`."""

from typing import Annotated

import typer

from limen.cli.misplaced import refuse_address
from limen.cli.options import FOLDER, Folder, Namespace, Store

app: typer.Typer = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback(invoke_without_command=True)
def kill_switch(context: typer.Context) -> None:
    """Let all rules, or some, refuse nobody: at once, and whatever else is broken.

    They go on counting and reporting, as shadows. The switch is a file in
    the data folder, which every process of the host looks at. With --store
    it reaches every host.

        limen kill-switch on
        limen kill-switch on search-per-user --store redis://localhost:6379
        limen kill-switch off --store redis://localhost:6379
        limen kill-switch show

    Without this command: `touch .limen/kill-switch`, or SIGUSR1 to one of
    the processes.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("on")
def turn_on(
    rules: Annotated[
        list[str] | None,
        typer.Argument(metavar="RULE", show_default="all", help="Only these rules."),
    ] = None,
    folder: Folder = FOLDER,
    store: Store = None,
    namespace: Namespace = "limen",
) -> None:
    """Put all rules, or some, into shadow."""
    from limen.cli import fleet

    for rule in rules or ():
        refuse_address(rule, "a rule")
    raise typer.Exit(fleet.turn(folder, store, namespace, fleet.on(rules or ())))


@app.command("off")
def turn_off(folder: Folder = FOLDER, store: Store = None, namespace: Namespace = "limen") -> None:
    """Enforce all rules again, as they say."""
    from limen.cli import fleet

    raise typer.Exit(fleet.turn(folder, store, namespace, fleet.off()))


@app.command("show")
def show(folder: Folder = FOLDER) -> None:
    """Say how the switch of this host stands, since when, and by whom."""
    from limen.cli import fleet

    fleet.show_switch(folder)
