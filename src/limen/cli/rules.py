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

# `limen.rules` is imported when a command runs: its packages are not always installed, and it takes
# a while to import.

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from limen.cli import import_envoy, instances, options, output, rules_changes, rules_source
from limen.cli.options import rules_location_of
from limen.cli.rules_source import LoadedRules, load_rules, with_store
from limen.errors import (
    ConfigurationError,
    InvalidInput,
    InvalidRules,
    Problem,
    StoreError,
    did_you_mean,
)

if TYPE_CHECKING:
    from limen.rules.stores.sql import AuditRow, StoredRuleSet

VersionOrFile = Annotated[
    str | None,
    typer.Argument(metavar="VERSION|FILE", show_default=False, help="A version, or a file."),
]


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
    reports = [_report(file) for file in files]
    if as_json:
        output.print_json(reports)
    else:
        for report in reports:
            _print_report(report)
    codes = [2 if report["unreadable"] else int(not report["valid"]) for report in reports]
    raise typer.Exit(max(codes))


def _report(file: str) -> dict[str, Any]:
    counts, problems, warnings, unreadable = {}, [], [], False
    try:
        loaded = rules_source.read_file(file)
        rules, warnings = loaded.rule_set(), loaded.warnings
        counts = {"rules": len(rules.rules), "exemptions": len(rules.exemptions)}
    except InvalidRules as error:
        problems = list(error.problems)
    except ConfigurationError as error:
        problems, unreadable = [Problem("", str(error))], True
    return {
        "file": rules_source.name_of(file),
        "valid": not problems,
        **counts,
        "problems": [problem._asdict() for problem in problems],
        "warnings": [warning._asdict() for warning in warnings],
        "unreadable": unreadable,
    }


def _print_report(report: dict[str, Any]) -> None:
    name, problems = report["file"], [Problem(**problem) for problem in report["problems"]]
    if report["unreadable"]:
        output.print_error(f"limen: {problems[0].message}")
        return
    for problem in problems:
        output.print_line(rules_source.problem_line(name, problem))
    rules_source.print_warnings(name, [Problem(**warning) for warning in report["warnings"]])
    if not problems:
        output.print_line(f"{name}: {_counts(report['rules'], report['exemptions'])}, valid")


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
    from limen.rules.diff import changes

    where = rules_location_of(context)
    if b is not None:
        before, after = _side(str(a), where), _side(b, where)
    else:
        before = load_rules(where)
        after = _newest(where) if a is None else _side(a, where)
    changed = changes(before.document, after.document)
    if as_json:
        data = [structs.asdict(change) for change in changed]
        output.print_json({"from": before.label, "to": after.label, "changes": data})
    elif a is None and after.active:
        output.print_line(
            f"{after.label} is active and the newest: there is no draft to compare it with"
        )
    else:
        output.print_changes(before.title, after.title, changed)


def _newest(where: str) -> LoadedRules:
    """Return the newest version: a draft, or the active one when there is none."""
    if rules_source.is_file(where):
        raise ConfigurationError("a file has no drafts; name another file to compare it with")
    latest = with_store(where, lambda store: store.latest())
    if latest is None:
        raise StoreError(rules_source.NO_RULES)
    return rules_source.of_stored(latest, where)


def _side(name: str, where: str) -> LoadedRules:
    if name.isascii() and name.isdigit():
        return load_rules(where, int(name))
    return rules_source.load_file(name)


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
    if rule is not None:
        options.refuse_address(rule, "a rule")
    loaded = load_rules(rules_location_of(context), version)
    if rule is not None:
        _print_rule(rule, loaded, as_json)
    elif as_json:
        output.print_json({"version": loaded.version, "active": loaded.active, **loaded.document})
    else:
        from limen.cli.rules_table import print_rules

        rules = loaded.rule_set()
        counts = _counts(len(rules.rules), len(rules.exemptions))
        at = "" if loaded.version is None else f"{loaded.where}, "
        output.print_line(f"{at}{loaded.title}: {counts}", "bold")
        print_rules(rules)


def _print_rule(name: str, loaded: LoadedRules, as_json: bool) -> None:
    from limen.rules import text

    items = [*loaded.document.get("rules", []), *loaded.document.get("exemptions", [])]
    by_name = {str(item.get("name")): item for item in items if isinstance(item, dict)}
    if name not in by_name:
        there_are = did_you_mean(name, by_name) or f"; there are: {', '.join(by_name) or 'none'}"
        raise InvalidInput(f"there is no rule {name!r} in {loaded.label}{there_are}")
    if as_json:
        output.print_json(by_name[name])
    else:
        output.print_document(text.write(by_name[name]))


def _counts(rules: int, exemptions: int) -> str:
    counts = output.pluralize(rules, "rule")
    return f"{counts}, {output.pluralize(exemptions, 'exemption')}" if exemptions else counts


@options.with_settings("rules")
def show_history(
    context: typer.Context, limit: options.Rows = 20, as_json: options.AsJson = False
) -> None:
    """List the versions, newest first, with author, changes and comment.

    The changes +1 ~2 -0 are one value added, two changed, none removed.

        limen rules history
        limen rules diff 3 4
    """
    versions = with_store(rules_location_of(context), lambda store: store.history(limit))
    if as_json:
        rows = [structs.asdict(stored) for stored in versions]
        for row in rows:
            del row["document"]
        output.print_json(rows)
        return
    if not versions:
        raise StoreError(rules_source.NO_RULES)
    headings = ("VERSION", "", "TIME (UTC)", "AUTHOR", "CHANGES", "COMMENT")
    output.print_table(headings, [_version_row(stored) for stored in versions])
    older = versions[-1].version - 1
    if older:
        output.print_line(
            f"and {output.pluralize(older, 'older version')}; add --limit to see more"
        )


def _version_row(stored: StoredRuleSet) -> list[output.Cell]:
    mark = "active" if stored.active else ""
    when = output.format_time(stored.created_at)
    return [str(stored.version), mark, when, stored.author, stored.summary, stored.comment]


@options.with_settings("rules")
def show_audit(
    context: typer.Context, limit: options.Rows = 20, as_json: options.AsJson = False
) -> None:
    """List the actions and their authors, and verify the audit.

    Each row has a hash of the row before it and of the rules. The exit code
    is 1 if a row or a version was changed.
    """
    database = options.database_of(context)
    broken: StoreError | None = None
    rows = with_store(database, lambda store: store.audit(limit))
    try:
        with_store(database, lambda store: store.verify_audit())
    except StoreError as error:
        broken = error
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


@options.with_settings("rules")
def export_rules(
    context: typer.Context,
    version: options.Version = None,
    path: options.Output = None,
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
    from limen.rules import text

    if path is not None:
        options.refuse_address(path)
    loaded = load_rules(rules_location_of(context), version)
    written = output.format_json(loaded.document) + "\n" if as_json else text.write(loaded.document)
    if loaded.version is not None and not as_json:
        origin = rules_source.ExportedFrom(loaded.version, loaded.where)
        # On one line, whatever the name of the file.
        written = f"{output.escape(str(origin))}\n{written}"
    if path is None:
        output.print_document(written)
        return
    rules_source.write_file(path, written, overwrite=force)
    rules = output.pluralize(len(loaded.document["rules"]), "rule")
    output.print_line(f"{path}: {loaded.title}, {rules}")


def print_schema() -> None:
    """Print the JSON Schema of rules, for editors.

    limen rules schema > rules.schema.json
    """
    from limen.rules.spec import json_schema

    output.print_json(json_schema())


app: typer.Typer = options.command_group(__doc__)
app.command("validate")(validate_files)
app.command("apply")(rules_changes.apply_file)
app.command("diff")(show_difference)
app.command("show")(show_rules)
app.command("history")(show_history)
app.command("audit")(show_audit)
app.command("activate")(rules_changes.activate_version)
app.command("rollback")(rules_changes.roll_back)
app.command("export")(export_rules)
app.command("import-envoy")(import_envoy.import_envoy)
app.command("instances")(instances.list_instances)
app.command("schema")(print_schema)
