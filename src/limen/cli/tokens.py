"""`limen token`: what a user types. The work is in `granting`."""

from typing import Annotated

import typer

from limen.cli import serving
from limen.cli.options import AsJson, Author, Rules
from limen.cli.serving import Config

app: typer.Typer = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback(invoke_without_command=True)
def token(context: typer.Context) -> None:
    """Let callers in: create tokens for them, list and revoke them.

    Who asks the service for something shows a token. Its role says what
    that may be:

        check     decisions: for programs
        viewer    a look at rules, usage and the audit
        editor    the same, and changes to rules
        admin     everything, tokens too

    Tokens are kept in the database of the rules, as digests: a secret is told
    once. If the rules are in a file, it is rules.db in the data directory.

        limen token create --role check --name checkout
        limen token list
        limen token revoke 3f2a91c0
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("create")
def create_token(
    context: typer.Context,
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="What it may do: check, viewer, editor or admin.")
    ],
    name: Annotated[str, typer.Option(metavar="NAME", help="What it is for.")],
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            show_default="never",
            help="How long it holds, such as 30d, or until when, such as 2099-01-01.",
        ),
    ] = None,
    rules: Rules = None,
    config: Config = None,
    author: Author = None,
    as_json: AsJson = False,
) -> None:
    """Create a token, and print its secret: this once, on stdout.

    What is kept is a digest, so nobody can tell it again. Whoever loses it
    revokes the token, and creates another.

        limen token create --role check --name checkout
        limen token create --role editor --name ann --expires 30d
        TOKEN=$(limen token create --role viewer --name grafana)
    """
    from limen.cli import granting

    asked = granting.Asked(role, name, expires)
    granting.create(asked, serving.settings_of(context).database.reveal(), author, as_json)


@app.command("list")
def list_tokens(
    context: typer.Context, rules: Rules = None, config: Config = None, as_json: AsJson = False
) -> None:
    """List the tokens, newest first, without their secrets.

    Also those that expired or were revoked. The id stands in the secret
    too: limen_3f2a91c0_... is token 3f2a91c0.

        limen token list
        limen token list --json
    """
    from limen.cli import granting

    granting.show(serving.settings_of(context).database.reveal(), as_json)


@app.command("revoke")
def revoke_token(
    context: typer.Context,
    id: Annotated[str, typer.Argument(metavar="ID", help="Which one; or its secret.")],
    rules: Rules = None,
    config: Config = None,
    author: Author = None,
) -> None:
    """End a token: from now on it lets nobody in.

    Running services notice within seconds. To revoke it twice changes
    nothing.

        limen token list
        limen token revoke 3f2a91c0
    """
    from limen.cli import granting

    granting.revoke(id, serving.settings_of(context).database.reveal(), author)
