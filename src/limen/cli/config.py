"""`limen config`: what a user types. The work is in `limen.server.settings`."""

import typer

from limen.cli import serving
from limen.cli.options import AsJson

app: typer.Typer = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback(invoke_without_command=True)
def config(context: typer.Context) -> None:
    """Show the settings of `limen serve`, and write a file of them.

    A setting is said by a file, stronger by the environment, and strongest
    by a flag:

        limen config example > limen.toml
        LIMEN_STORE__URL=redis://localhost:6379 limen config show
        limen config show --workers 4 --store redis://localhost:6379
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("show")
def show(  # noqa: PLR0913  # a parameter for each option; they are taken from the context
    context: typer.Context,
    config: serving.Config = None,
    bind: serving.Bind = None,
    grpc_bind: serving.GrpcBind = None,
    store: serving.Store = None,
    rules: serving.Rules = None,
    workers: serving.Workers = None,
    data_dir: serving.DataDir = None,
    namespace: serving.Namespace = None,
    tls_certificate: serving.TlsCertificate = None,
    tls_key: serving.TlsKey = None,
    checks: serving.Checks = None,
    log_level: serving.LogLevel = None,
    log_format: serving.LogFormat = None,
    as_json: AsJson = False,
) -> None:
    """Print the settings that would hold, and where each comes from.

    Takes the flags of `limen serve`. Opens nothing, and shows no secret.
    """
    from limen.cli import draw
    from limen.server import settings

    loaded = settings.read(serving.flags_of(context.params))
    if as_json:
        draw.json(settings.as_data(loaded))
    else:
        draw.document(settings.as_toml(loaded))


@app.command("example")
def show_example() -> None:
    """Print a limen.toml with every setting, its default, and what it means."""
    from limen.cli import draw
    from limen.server import settings

    draw.document(settings.example())
