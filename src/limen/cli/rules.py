"""`limen rules`: what a user types and what the help says. The work is in the modules beside it.

Those need packages that not every installation has, so each command imports them when it runs.
"""

from typing import Annotated

import typer

from limen.cli import serving
from limen.cli.options import (
    AsJson,
    Author,
    Comment,
    Database,
    Force,
    Namespace,
    Rows,
    Rules,
    Store,
    Version,
    Yes,
)
from limen.cli.serving import Config

app: typer.Typer = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})


@app.callback(invoke_without_command=True)
def rules(context: typer.Context) -> None:
    """Write, check, apply and undo rules.

    Rules are YAML. This is a whole file:

        rules:
          - name: search-per-user
            match: {path: /search/*}
            key: user
            limits: 100/minute

    They live in a database, every version of them:

        limen rules validate rules.yaml    all that is wrong with it, by line
        limen rules apply rules.yaml       show what changes, and let it hold
        limen rules history                who changed what
        limen rules rollback 3             version 3 again, as a new version
        limen explain user=42 path=/search/a

    It is SQLite in ./.limen, unless --rules or LIMEN_RULES say otherwise.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("validate")
def validate_files(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="YAML or JSON; - is standard input.")
    ],
    as_json: AsJson = False,
) -> None:
    """Say everything that is wrong with files of rules.

    One error a line, as FILE:LINE: PATH: MESSAGE. The exit code is 0 when
    all files are valid and 1 when one is not. What is valid and hardly
    meant is a warning on stderr.

        limen rules validate rules.yaml
        limen rules validate rules/*.yaml
        limen rules export | limen rules validate -
    """
    from limen.cli import reading

    raise typer.Exit(reading.validate(files, as_json))


@app.command("apply")
def apply_file(  # noqa: PLR0913  # each is something a user may type
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML or JSON; - is stdin.")],
    rules: Database = None,
    comment: Comment = "",
    author: Author = None,
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
    yes: Yes = False,
    store: Store = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Make the rules in a file those that hold.

    Validates, shows what changes, asks if there is a terminal, then saves
    a new version and activates it in one step. If somebody else saved one
    meanwhile, nothing is written: since the version that the first line of
    an exported file names, or else since the difference was shown. With
    --store, running processes hear of it at once, and else find it within
    seconds.

        limen rules apply rules.yaml --comment "search is slower now"
        limen rules apply rules.yaml --dry-run
        limen rules apply rules.yaml --draft
        limen rules apply rules.yaml --base 7 --yes
    """
    from limen.cli import changing

    settings = serving.settings_of(context)
    act = changing.Act(author, comment, settings.shared_store, settings.namespace)
    mode = changing.Mode(draft=draft, dry_run=dry_run, ask=not yes)
    raise typer.Exit(changing.apply(file, settings.rules_place.reveal(), act, base=base, mode=mode))


@app.command("diff")
def show_difference(
    context: typer.Context,
    a: Annotated[
        str | None, typer.Argument(metavar="A", show_default=False, help="A version or a file.")
    ] = None,
    b: Annotated[
        str | None, typer.Argument(metavar="B", show_default=False, help="A version or a file.")
    ] = None,
    rules: Rules = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show what changes from A to B.

    With A alone, what would change if A were active. With neither, what
    would if the newest draft were. The exit code is 0 either way.

        limen rules diff 3 5
        limen rules diff rules.yaml
        limen rules diff old.yaml new.yaml
        limen rules diff
    """
    from limen.cli import reading

    rules_place = serving.settings_of(context).rules_place.reveal()
    reading.diff(a, b, rules_place, as_json)


@app.command("show")
def show_rules(
    context: typer.Context,
    rule: Annotated[
        str | None, typer.Argument(metavar="RULE", show_default=False, help="One rule, in full.")
    ] = None,
    rules: Rules = None,
    version: Version = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show the rules that hold, or one of them in full.

    limen rules show
    limen rules show search-per-user
    limen rules show --version 3
    limen rules show --rules rules.yaml
    """
    from limen.cli import reading

    rules_place = serving.settings_of(context).rules_place.reveal()
    reading.show(rule, rules_place, version, as_json)


@app.command("history")
def show_history(
    context: typer.Context,
    rules: Database = None,
    limit: Rows = 20,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the versions, newest first: who changed how much, and why.

    The changes read +1 ~2 -0: one value added, two changed, none removed.

        limen rules history
        limen rules diff 3 4
    """
    from limen.cli import books

    books.history(serving.settings_of(context).rules_place.reveal(), limit, as_json)


@app.command("audit")
def show_audit(
    context: typer.Context,
    rules: Database = None,
    limit: Rows = 20,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List who did what, and say whether anybody changed the books.

    Each row holds a hash of the row before it and of the rules. The exit
    code is 1 when the chain does not hold.
    """
    from limen.cli import books

    books.audit(serving.settings_of(context).database.reveal(), limit, as_json)


@app.command("activate")
def activate_version(
    context: typer.Context,
    version: Annotated[int, typer.Argument(min=1, metavar="VERSION", help="Which one.")],
    rules: Database = None,
    comment: Comment = "",
    author: Author = None,
    store: Store = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Make a version the one that holds: a draft, or an old one.

    Shows what changes by it, and does not ask: look before by `diff`.

        limen rules diff 5
        limen rules activate 5
    """
    from limen.cli import changing

    settings = serving.settings_of(context)
    act = changing.Act(author, comment, settings.shared_store, settings.namespace)
    changing.activate(version, settings.rules_place.reveal(), act)


@app.command("rollback")
def roll_back(  # noqa: PLR0913  # each is something a user may type
    context: typer.Context,
    version: Annotated[int, typer.Argument(min=1, metavar="VERSION", help="Which one.")],
    rules: Database = None,
    comment: Comment = "",
    author: Author = None,
    yes: Yes = False,
    store: Store = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Save an old version as the newest one, and activate it.

    So the history tells that it came back, and later edits start from it.
    Shows what changes, and asks if there is a terminal.

        limen rules rollback 3 --comment "5 was too strict"
        limen rules rollback 3 --yes
    """
    from limen.cli import changing

    settings = serving.settings_of(context)
    act = changing.Act(author, comment, settings.shared_store, settings.namespace)
    rules_place = settings.rules_place.reveal()
    raise typer.Exit(changing.rollback(version, rules_place, act, ask=not yes))


@app.command("export")
def export_rules(
    context: typer.Context,
    rules: Rules = None,
    version: Version = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", show_default="stdout", help="Where to."),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Write the rules as a file that can be edited and applied again.

    The first line names the version, so that `apply` notices when somebody
    else has changed the rules meanwhile. JSON has no room for such a line.

        limen rules export > rules.yaml
        limen rules export --version 3 --output old.yaml
        limen rules export --json
    """
    from limen.cli import reading

    rules_place = serving.settings_of(context).rules_place.reveal()
    reading.export(rules_place, version, output, as_json=as_json, overwrite=force)


@app.command("import-envoy")
def import_envoy(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Folders of YAML files, or files; - is stdin."),
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", show_default="stdout", help="Where to."),
    ] = None,
    force: Force = False,
    algorithm: Annotated[
        str, typer.Option(metavar="NAME", help="Counts all the limits.")
    ] = "fixed_window",
) -> None:
    """Make rules of the configuration of envoyproxy/ratelimit.

    The rules decide as that service does. What is not the same here is
    listed on stderr, by file and line, with what to do about it. The exit
    code is 1, and nothing is written, when a file is not valid.

        limen rules import-envoy config/ --output rules.yaml
        limen rules import-envoy config/ --algorithm sliding_counter
        limen rules import-envoy edge.yaml mongo.yaml | limen rules apply -
    """
    from limen.cli import importing

    raise typer.Exit(importing.envoy(paths, output, algorithm, overwrite=force))


@app.command("instances")
def list_instances(
    context: typer.Context,
    store: Store = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List the running processes, and the version of the rules each has.

    limen rules instances --store redis://localhost:6379
    """
    from limen.cli import fleet

    fleet.instances(serving.settings_of(context), as_json)


@app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of rules, for editors.

    limen rules schema > rules.schema.json
    """
    from limen.cli import reading

    reading.schema()
