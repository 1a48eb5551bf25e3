"""Show the settings of `limen serve`, and write a file of them.

Settings are read from a file, the environment and flags. The environment
overrides the file, and flags override both:

    limen config example > limen.toml
    LIMEN_STORE__URL=redis://localhost:6379 limen config show
    limen config show --workers 4 --store redis://localhost:6379
"""

import typer

from limen.cli import options, output

app: typer.Typer = options.command_group(__doc__)


@app.command("show")
@options.with_settings(*options.SETTINGS)
def show(context: typer.Context, as_json: options.AsJson = False) -> None:
    """Print the effective settings and the source of each.

    Takes the flags of `limen serve`. Opens no connection and shows no secret.
    """
    from limen.server import settings

    loaded = settings.read(options.flags_of(context.params))
    if as_json:
        output.print_json(settings.as_data(loaded))
    else:
        output.print_document(settings.as_toml(loaded))


@app.command("example")
def show_example() -> None:
    """Print a limen.toml with every setting, its default and its description."""
    from limen.server import settings

    output.print_document(settings.example())
