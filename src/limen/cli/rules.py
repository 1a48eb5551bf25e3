"""Write, check, apply and undo rules.

Rules are YAML. This is a whole file:

    rules:
      - name: search-per-user
        match: {path: /search/*}
        key: user
        limits: 100/minute

Every version is kept in a database:

    limen rules validate rules.yaml    all errors, by line
    limen rules apply rules.yaml       print the changes, and activate them
    limen rules history                versions, authors and comments
    limen rules rollback 3             version 3 again, as a new version
    limen explain user=42 path=/search/a

It is SQLite in ./.limen, unless --rules or LIMEN_RULES say otherwise.
"""

# The commands import their work when they run: it needs packages that are not always installed, and
# takes a while to import.

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from limen.cli import options, output
from limen.cli.options import rules_location_of, settings_of
from limen.errors import StoreError

if TYPE_CHECKING:
    from limen.rules.stores.sql import AuditRow, SqlStore, StoredRuleSet

VersionOrFile = Annotated[
    str | None,
    typer.Argument(metavar="VERSION|FILE", show_default=False, help="A version, or a file."),
]

app: typer.Typer = options.command_group(__doc__)


@app.command("validate")
def validate_files(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="YAML or JSON; - is standard input.")
    ],
    as_json: options.AsJson = False,
) -> None:
    """Print all errors in files of rules.

    One error a line, as FILE:LINE: PATH: MESSAGE. The exit code is 0 when
    all files are valid and 1 when one is not. Probable mistakes in valid
    rules are warnings on stderr.

        limen rules validate rules.yaml
        limen rules validate rules/*.yaml
        limen rules export | limen rules validate -
    """
    from limen.cli import inspect

    raise typer.Exit(inspect.validate(files, as_json))


@app.command("apply")
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
    from limen.cli import apply

    settings = settings_of(context)
    code = apply.apply(
        file, settings, author, comment, base=base, draft=draft, dry_run=dry_run, ask=not yes
    )
    raise typer.Exit(code)


@app.command("diff")
@options.with_settings("rules")
def show_difference(
    context: typer.Context,
    a: VersionOrFile = None,
    b: VersionOrFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the changes from one version or file to another.

    With one argument: the changes from the active version to it. Without:
    those to the newest draft. The exit code is 0 either way.

        limen rules diff 3 5
        limen rules diff rules.yaml
        limen rules diff old.yaml new.yaml
        limen rules diff
    """
    from limen.cli import inspect

    inspect.diff(a, b, rules_location_of(context), as_json)


@app.command("show")
@options.with_settings("rules")
def show_rules(
    context: typer.Context,
    rule: Annotated[
        str | None, typer.Argument(metavar="RULE", show_default=False, help="One rule, in full.")
    ] = None,
    version: options.Version = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the active rules, or one of them in full.

    limen rules show
    limen rules show search-per-user
    limen rules show --version 3
    limen rules show --rules rules.yaml
    """
    from limen.cli import inspect

    inspect.show(rule, rules_location_of(context), version, as_json)


@app.command("history")
@options.with_settings("rules")
def show_history(
    context: typer.Context, limit: options.Rows = 20, as_json: options.AsJson = False
) -> None:
    """List the versions, newest first, with author, changes and comment.

    The changes +1 ~2 -0 are one value added, two changed, none removed.

        limen rules history
        limen rules diff 3 4
    """
    from limen.cli.rules_location import NO_RULES, with_store

    versions = with_store(rules_location_of(context), lambda store: store.history(limit))
    if as_json:
        output.print_json([_without_document(stored) for stored in versions])
        return
    if not versions:
        raise StoreError(NO_RULES)
    headings = ("VERSION", "", "TIME (UTC)", "AUTHOR", "CHANGES", "COMMENT")
    output.print_table(headings, [_version_row(stored) for stored in versions])
    older = versions[-1].version - 1
    if older:
        output.print_line(
            f"and {output.pluralize(older, 'older version')}; add --limit to see more"
        )


def _without_document(stored: StoredRuleSet) -> dict[str, Any]:
    fields = structs.asdict(stored)
    del fields["document"]
    return fields


def _version_row(stored: StoredRuleSet) -> list[output.Cell]:
    mark = "active" if stored.active else ""
    when = output.format_time(stored.created_at)
    return [str(stored.version), mark, when, stored.author, stored.summary, stored.comment]


@app.command("audit")
@options.with_settings("rules")
def show_audit(
    context: typer.Context, limit: options.Rows = 20, as_json: options.AsJson = False
) -> None:
    """List the actions and their authors, and verify the audit.

    Each row has a hash of the row before it and of the rules. The exit code
    is 1 if a row or a version was changed.
    """
    from limen.cli.rules_location import with_store

    async def work(store: SqlStore) -> tuple[list[AuditRow], StoreError | None]:
        rows = await store.audit(limit)
        try:
            await store.verify_audit()
        except StoreError as error:
            return rows, error
        return rows, None

    rows, broken = with_store(options.database_of(context), work)
    if as_json:
        problem = None if broken is None else str(broken)
        output.print_json({"holds": broken is None, "problem": problem, "rows": rows})
    else:
        headings = ("ROW", "TIME (UTC)", "WHO", "DID", "VERSION", "BEFORE", "ABOUT", "COMMENT")
        output.print_table(headings, [_audit_row(row) for row in rows])
    if broken is not None:
        raise broken
    if not as_json:
        count = output.pluralize(rows[0].id if rows else 0, "row")
        output.print_line(f"{count} in all, and the chain of their hashes holds")


def _audit_row(row: AuditRow) -> list[output.Cell]:
    version, before = (str(number) if number else "-" for number in (row.version, row.before))
    who = [output.format_time(row.at), row.actor, row.action]
    return [str(row.id), *who, version, before, row.subject, row.comment]


@app.command("activate")
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
    from limen.cli import apply

    apply.activate(version, settings_of(context), author, comment)


@app.command("rollback")
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
    from limen.cli import apply

    settings = settings_of(context)
    raise typer.Exit(apply.rollback(version, settings, author, comment, ask=not yes))


@app.command("export")
@options.with_settings("rules")
def export_rules(
    context: typer.Context,
    version: options.Version = None,
    output: options.Output = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the rules as a file that can be edited and applied again.

    The first line names the version, so that `apply` can detect changes that
    somebody else made meanwhile. JSON has no such line.

        limen rules export > rules.yaml
        limen rules export --version 3 --output old.yaml
        limen rules export --json
    """
    from limen.cli import inspect

    inspect.export(rules_location_of(context), version, output, as_json=as_json, overwrite=force)


@app.command("import-envoy")
def import_envoy(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Folders of YAML files, or files; - is stdin."),
    ],
    output: options.Output = None,
    force: options.Force = False,
    algorithm: Annotated[
        str, typer.Option(metavar="NAME", help="The algorithm of all limits.")
    ] = "fixed_window",
) -> None:
    """Convert a configuration of envoyproxy/ratelimit to rules.

    The rules decide as that service does. Differences are listed on stderr,
    by file and line, with advice. The exit
    code is 1, and nothing is written, when a file is not valid.

        limen rules import-envoy config/ --output rules.yaml
        limen rules import-envoy config/ --algorithm sliding_counter
        limen rules import-envoy edge.yaml mongo.yaml | limen rules apply -
    """
    from limen.cli.import_envoy import convert

    raise typer.Exit(convert(paths, output, algorithm, overwrite=force))


@app.command("instances")
@options.with_settings("store", "namespace")
def list_instances(context: typer.Context, as_json: options.AsJson = False) -> None:
    """List the running processes and their versions of the rules.

    limen rules instances --store redis://localhost:6379
    """
    from limen.cli.instances import print_instances

    print_instances(settings_of(context), as_json)


@app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of rules, for editors.

    limen rules schema > rules.schema.json
    """
    from limen.rules.spec import json_schema

    output.print_json(json_schema())
