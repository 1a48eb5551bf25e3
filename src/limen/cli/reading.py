"""The commands of `limen rules` that read: validate, diff, show, export, schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import structs

from limen.cli import draw, listing, place, source
from limen.cli.misplaced import refuse_address
from limen.cli.place import Held
from limen.errors import (
    ConfigurationError,
    InvalidInput,
    InvalidRules,
    Problem,
    StoreError,
    did_you_mean,
)
from limen.rules import diff as difference
from limen.rules import spec, text


def validate(files: list[str], as_json: bool) -> int:
    """Report on each file; return the exit code."""
    reports = [_report(file) for file in files]
    if as_json:
        draw.json(reports)
    else:
        for report in reports:
            _show_report(report)
    return max(2 if report["unreadable"] else int(not report["valid"]) for report in reports)


def _report(file: str) -> dict[str, Any]:
    counts, problems, warnings, unreadable = {}, [], [], False
    try:
        found = source.read(file)
        rules, warnings = found.rules, found.advice
        counts = {"rules": len(rules.rules), "exemptions": len(rules.exemptions)}
    except InvalidRules as error:
        problems = list(error.problems)
    except ConfigurationError as error:
        problems, unreadable = [Problem("", str(error))], True
    return {
        "file": source.name_of(file),
        "valid": not problems,
        **counts,
        "problems": [problem._asdict() for problem in problems],
        "warnings": [warning._asdict() for warning in warnings],
        "unreadable": unreadable,
    }


def _show_report(report: dict[str, Any]) -> None:
    problems = [Problem(**problem) for problem in report["problems"]]
    if report["unreadable"]:
        draw.complain(f"limen: {problems[0].message}")
        return
    for problem in problems:
        draw.line(source.problem_line(report["file"], problem))
    warn(report["file"], [Problem(**warning) for warning in report["warnings"]])
    if not problems:
        draw.line(f"{report['file']}: {_counts(report['rules'], report['exemptions'])}, valid")


def warn(name: str, warnings: Iterable[Problem]) -> None:
    """Say what is valid and hardly meant."""
    for warning in warnings:
        draw.complain(source.problem_line(name, warning, "warning: "))


def diff(a: str | None, b: str | None, where: str, as_json: bool) -> None:
    """Show what changes from one rule set to another."""
    if b is not None:
        before, after = _side(str(a), where), _side(b, where)
    else:
        before, after = place.held(where), _newest(where) if a is None else _side(a, where)
    found = difference.changes(before.document, after.document)
    if as_json:
        changes = [structs.asdict(change) for change in found]
        draw.json({"from": before.label, "to": after.label, "changes": changes})
        return
    if a is None and after.active:
        draw.line(f"{after.label} is active and the newest: there is no draft to compare it with")
        return
    draw.line(f"{_titled(before)} -> {_titled(after)}: {difference.summary(found)}", "bold")
    draw.changes(difference.lines(found))


def _newest(where: str) -> Held:
    """Return the newest version: a draft, or the active one when there is none."""
    if place.is_file(where):
        raise ConfigurationError("a file has no drafts; name another file to compare it with")
    latest = place.use(where, lambda store: store.latest())
    if latest is None:
        raise StoreError(place.NO_RULES)
    return place.of_stored(latest, where)


def _side(name: str, where: str) -> Held:
    if name.isascii() and name.isdigit():
        return place.held(where, int(name))
    return place.of_file(name)


def _titled(found: Held) -> str:
    return f"{found.label} (active)" if found.active else found.label


def show(rule: str | None, where: str, version: int | None, as_json: bool) -> None:
    """Show a rule set as a table, or one rule of it as it was written."""
    if rule is not None:
        refuse_address(rule, "a rule")
    found = place.held(where, version)
    if rule is not None:
        _show_one(rule, found, as_json)
    elif as_json:
        draw.json({"version": found.version, "active": found.active, **found.document})
    else:
        rules = place.rules_of(found)
        counts = _counts(len(rules.rules), len(rules.exemptions))
        at = "" if found.version is None else f"{found.where}, "
        draw.line(f"{at}{_titled(found)}: {counts}", "bold")
        listing.show(rules)


def _show_one(name: str, found: Held, as_json: bool) -> None:
    items = [*found.document.get("rules", []), *found.document.get("exemptions", [])]
    by_name = {str(item.get("name")): item for item in items if isinstance(item, dict)}
    if name not in by_name:
        there_are = did_you_mean(name, by_name) or f"; there are: {', '.join(by_name) or 'none'}"
        raise InvalidInput(f"there is no rule {name!r} in {found.label}{there_are}")
    if as_json:
        draw.json(by_name[name])
    else:
        draw.document(text.write(by_name[name]))


def export(
    where: str, version: int | None, output: str | None, *, as_json: bool, overwrite: bool
) -> None:
    """Write a rule set as a document, to a file or to stdout."""
    if output is not None:
        refuse_address(output)
    found = place.held(where, version)
    if as_json:
        as_text = msgspec.json.format(msgspec.json.encode(found.document)).decode() + "\n"
    else:
        as_text = text.write(found.document)
        if found.version is not None:
            # On one line, whatever a file may be called.
            first = draw.plain(str(source.Origin(found.version, found.where)))
            as_text = f"{first}\n{as_text}"
    if output is None:
        draw.document(as_text)
        return
    source.write(output, as_text, overwrite=overwrite)
    draw.line(f"{output}: {_titled(found)}, {draw.counted(len(found.document['rules']), 'rule')}")


def schema() -> None:
    """Print the JSON Schema of a rule set."""
    draw.json(spec.json_schema())


def _counts(rules: int, exemptions: int) -> str:
    found = draw.counted(rules, "rule")
    return f"{found}, {draw.counted(exemptions, 'exemption')}" if exemptions else found
