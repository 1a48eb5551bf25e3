"""The commands of `limen rules` that read: validate, diff, show, export."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from limen.cli import output, rules_file, rules_location, rules_table
from limen.cli.arguments import refuse_address
from limen.cli.rules_location import LoadedRules
from limen.errors import (
    ConfigurationError,
    InvalidInput,
    InvalidRules,
    Problem,
    StoreError,
    did_you_mean,
)
from limen.rules import diff as difference
from limen.rules import text


def validate(files: list[str], as_json: bool) -> int:
    """Print the errors and warnings of each file; return the exit code."""
    reports = [_report(file) for file in files]
    if as_json:
        output.print_json(reports)
    else:
        for report in reports:
            _show_report(report)
    return max(2 if report["unreadable"] else int(not report["valid"]) for report in reports)


def _report(file: str) -> dict[str, Any]:
    counts, problems, warnings, unreadable = {}, [], [], False
    try:
        contents = rules_file.read(file)
        rules, warnings = contents.rules, contents.advice
        counts = {"rules": len(rules.rules), "exemptions": len(rules.exemptions)}
    except InvalidRules as error:
        problems = list(error.problems)
    except ConfigurationError as error:
        problems, unreadable = [Problem("", str(error))], True
    return {
        "file": rules_file.name_of(file),
        "valid": not problems,
        **counts,
        "problems": [problem._asdict() for problem in problems],
        "warnings": [warning._asdict() for warning in warnings],
        "unreadable": unreadable,
    }


def _show_report(report: dict[str, Any]) -> None:
    problems = [Problem(**problem) for problem in report["problems"]]
    if report["unreadable"]:
        output.print_error(f"limen: {problems[0].message}")
        return
    for problem in problems:
        output.print_line(rules_file.problem_line(report["file"], problem))
    print_warnings(report["file"], [Problem(**warning) for warning in report["warnings"]])
    if not problems:
        output.print_line(
            f"{report['file']}: {_counts(report['rules'], report['exemptions'])}, valid"
        )


def print_warnings(name: str, warnings: Iterable[Problem]) -> None:
    """Print warnings about valid rules that are probably mistakes."""
    for warning in warnings:
        output.print_error(rules_file.problem_line(name, warning, "warning: "))


def diff(a: str | None, b: str | None, where: str, as_json: bool) -> None:
    """Show what changes from one rule set to another."""
    if b is not None:
        before, after = _side(str(a), where), _side(b, where)
    else:
        before, after = (
            rules_location.load_rules(where),
            _newest(where) if a is None else _side(a, where),
        )
    changed = difference.changes(before.document, after.document)
    if as_json:
        changes = [structs.asdict(change) for change in changed]
        output.print_json({"from": before.label, "to": after.label, "changes": changes})
        return
    if a is None and after.active:
        output.print_line(
            f"{after.label} is active and the newest: there is no draft to compare it with"
        )
        return
    output.print_line(f"{before.title} -> {after.title}: {difference.summary(changed)}", "bold")
    output.print_changes(difference.lines(changed))


def _newest(where: str) -> LoadedRules:
    """Return the newest version: a draft, or the active one when there is none."""
    if rules_location.is_file(where):
        raise ConfigurationError("a file has no drafts; name another file to compare it with")
    latest = rules_location.with_store(where, lambda store: store.latest())
    if latest is None:
        raise StoreError(rules_location.NO_RULES)
    return rules_location.of_stored(latest, where)


def _side(name: str, where: str) -> LoadedRules:
    if name.isascii() and name.isdigit():
        return rules_location.load_rules(where, int(name))
    return rules_location.of_file(name)


def show(rule: str | None, where: str, version: int | None, as_json: bool) -> None:
    """Show a rule set as a table, or one rule of it as it was written."""
    if rule is not None:
        refuse_address(rule, "a rule")
    loaded = rules_location.load_rules(where, version)
    if rule is not None:
        _show_one(rule, loaded, as_json)
    elif as_json:
        output.print_json({"version": loaded.version, "active": loaded.active, **loaded.document})
    else:
        rules = loaded.rule_set()
        counts = _counts(len(rules.rules), len(rules.exemptions))
        at = "" if loaded.version is None else f"{loaded.where}, "
        output.print_line(f"{at}{loaded.title}: {counts}", "bold")
        rules_table.print_rules(rules)


def _show_one(name: str, loaded: LoadedRules, as_json: bool) -> None:
    items = [*loaded.document.get("rules", []), *loaded.document.get("exemptions", [])]
    by_name = {str(item.get("name")): item for item in items if isinstance(item, dict)}
    if name not in by_name:
        there_are = did_you_mean(name, by_name) or f"; there are: {', '.join(by_name) or 'none'}"
        raise InvalidInput(f"there is no rule {name!r} in {loaded.label}{there_are}")
    if as_json:
        output.print_json(by_name[name])
    else:
        output.print_document(text.write(by_name[name]))


def export(
    where: str, version: int | None, path: str | None, *, as_json: bool, overwrite: bool
) -> None:
    """Write a rule set as a document, to a file or to stdout."""
    if path is not None:
        refuse_address(path)
    loaded = rules_location.load_rules(where, version)
    if as_json:
        as_text = f"{output.format_json(loaded.document)}\n"
    else:
        as_text = text.write(loaded.document)
        if loaded.version is not None:
            # On one line, whatever the name of the file.
            first = output.escape(str(rules_file.ExportedFrom(loaded.version, loaded.where)))
            as_text = f"{first}\n{as_text}"
    if path is None:
        output.print_document(as_text)
        return
    rules_file.write(path, as_text, overwrite=overwrite)
    output.print_line(
        f"{path}: {loaded.title}, {output.pluralize(len(loaded.document['rules']), 'rule')}"
    )


def _counts(rules: int, exemptions: int) -> str:
    counts = output.pluralize(rules, "rule")
    return f"{counts}, {output.pluralize(exemptions, 'exemption')}" if exemptions else counts
