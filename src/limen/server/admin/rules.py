"""`/rules`: read, validate, save and activate rules, and compare their versions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query
from msgspec import structs

from limen.errors import InvalidInput, InvalidRules, Problem
from limen.rules import diff, document, text
from limen.rules.advice import advice
from limen.rules.stores.sql import SqlStore, StoredRuleSet
from limen.server.admin.authorization import AdminRoute
from limen.server.admin.edits import NotFound, now, rule_of, rules_of, state_of
from limen.server.admin.requests import (
    ActivateRequest,
    Before,
    PageSize,
    RollbackRequest,
    SaveRequest,
    ValidateRequest,
    Version,
    VersionOrNone,
)
from limen.server.admin.responses import (
    ActiveRules,
    Diff,
    ProblemAt,
    RuleDetails,
    RuleSummary,
    SavedVersion,
    ValidationResult,
    VersionDetails,
    Versions,
    VersionSummary,
)
from limen.server.admin.rule_service import ActiveDocument, ForCaller, RuleService, view

_VERSION = "/rules/versions/{version}"
Number = Annotated[Version, Path(alias="version", description="The number of a version.")]


async def get_rules(rules: ForCaller) -> ActiveRules:
    """Return the active rules."""
    active = await rules.active()
    latest = None if rules.is_file else await rules.latest()
    return await rules.compute(_active_rules, active, latest, rules.service.engine.rules.version)


async def get_rule(rules: ForCaller, name: Annotated[str, Path(max_length=64)]) -> RuleDetails:
    """Return one of the active rules."""
    active = await rules.active()
    raw = rule_of(active.document, name)
    summary = structs.asdict(_summary(raw, now()))
    return RuleDetails(**summary, version=active.version, document=raw)


async def validate_rules(rules: ForCaller, asked: ValidateRequest) -> ValidationResult:
    """Return all problems of rules, and advice. Nothing is saved, and rules that are not valid
    also have the status 200."""
    sent = asked.model_fields_set
    if ("document" in sent) == ("text" in sent):
        raise InvalidInput("give the rules as document, or as text: one of them")
    return await rules.compute(_validated, asked)


async def save_rules(rules: ForCaller, asked: SaveRequest) -> SavedVersion:
    """Save rules as a new version, and activate it. Rules that are the newest version already
    are not saved again."""
    return await rules.change(
        lambda books: books.save(
            asked.document,
            author=rules.caller.name,
            comment=asked.comment,
            base=asked.base,
            activate=asked.activate,
        ),
    )


async def list_versions(rules: ForCaller, limit: PageSize = 50, before: Before = None) -> Versions:
    """List the versions of the rules, the newest first."""
    history = await rules.history(limit, before)
    return Versions(await rules.compute(view, history, list[VersionSummary]))


async def get_version(rules: ForCaller, number: Number) -> VersionDetails:
    """Return one version of the rules."""
    return await rules.compute(view, await rules.version(number), VersionDetails)


async def diff_versions(
    rules: ForCaller,
    number: Number,
    against: Annotated[
        VersionOrNone | None,
        Query(description="The version to compare with; 0 is no rules. Without it, its parent."),
    ] = None,
) -> Diff:
    """Return the differences between two versions."""
    after = await rules.version(number)
    base = after.parent if against is None else against
    before = (await rules.version(base)).document if base else None
    return await rules.compute(_diff, base, before, after)


async def activate_version(
    rules: ForCaller, number: Number, asked: ActivateRequest | None = None
) -> SavedVersion:
    """Activate a version, such as a draft."""
    asked, author = asked or ActivateRequest(), rules.caller.name
    return await _change_version(
        rules,
        lambda books: books.activate(
            number, author=author, comment=asked.comment, expected=asked.expected
        ),
    )


async def roll_back(
    rules: ForCaller, number: Number, asked: RollbackRequest | None = None
) -> SavedVersion:
    """Save an old version as the newest one, and activate it."""
    asked, author = asked or RollbackRequest(), rules.caller.name
    return await _change_version(
        rules,
        lambda books: books.rollback(number, author=author, comment=asked.comment, base=asked.base),
    )


async def _change_version(
    rules: RuleService, work: Callable[[SqlStore], Coroutine[Any, Any, StoredRuleSet]]
) -> SavedVersion:
    try:
        return await rules.change(work)
    except InvalidInput as error:
        # Of a version, or of a comment that no database keeps: only the first is not there.
        if str(error).startswith("there is no version"):
            raise NotFound(str(error)) from None
        raise


def _summary(raw: Mapping[str, Any], now: datetime) -> RuleSummary:
    """Return a summary of a rule."""
    key = raw.get("key") or []
    return RuleSummary(
        name=str(raw["name"]),
        description=raw.get("description") or "",
        mode=raw.get("mode") or "enforce",
        enforce_percent=float(raw.get("enforce_percent", 100)),
        match=raw.get("match") or {},
        key=[key] if isinstance(key, str) else key,
        limits=_limits(raw),
        overrides=len(raw.get("overrides") or []),
        state=state_of(raw, now),
    )


def _limits(raw: Mapping[str, Any]) -> list[str]:
    """Return all that a rule allows: `100/minute`, `pro: 600/minute`, `2 variants`."""
    words = _texts(raw.get("limits"))
    concurrency = raw.get("concurrency")
    if concurrency is not None:
        words.append(f"{concurrency['slots']} at once, lease {concurrency['lease']}")
    tiers = raw.get("tiers") or {}
    for tier, limits in (tiers.get("limits") or {}).items():
        words.append(f"{tier}: {', '.join(_texts(limits))}")
    if tiers.get("default") is not None:
        words.append(f"other: {', '.join(_texts(tiers['default']))}")
    variants = len(raw.get("variants") or [])
    if variants:
        words.append(f"{variants} variant{'' if variants == 1 else 's'}")
    return words


def _texts(limits: Any) -> list[str]:
    if limits is None:
        return []
    return [str(each) for each in limits] if isinstance(limits, list) else [str(limits)]


def _active_rules(active: ActiveDocument, latest: int | None, in_force: str) -> ActiveRules:
    stored, at = active.stored, now()
    return ActiveRules(
        source="file" if active.version is None else "database",
        version=active.version,
        latest=latest,
        in_force=in_force,
        author=stored.author if stored else None,
        comment=stored.comment if stored else None,
        created_at=stored.created_at if stored else None,
        document=dict(active.document),
        rules=[_summary(raw, at) for raw in rules_of(active.document)],
    )


def _diff(base: int, before: dict[str, Any] | None, after: StoredRuleSet) -> Diff:
    changes = diff.changes(before, after.document or {})
    return Diff(
        before=base,
        after=after.version,
        summary=diff.summary(changes),
        lines=diff.lines(changes),
        changes=changes,
    )


def _validated(asked: ValidateRequest) -> ValidationResult:
    data, line = asked.document, None
    problems: tuple[Problem, ...] = ()
    remarks: list[Problem] = []
    written = None
    try:
        if asked.text is not None:
            parsed = text.read(asked.text, is_json=asked.json_)
            data, line = parsed.data, parsed.line
        remarks = advice(document.parse(data, lines=line), line)
        written = text.write(data) if asked.want == "text" else None
    except InvalidRules as error:
        problems = error.problems
    return ValidationResult(
        valid=not problems,
        problems=[ProblemAt(*problem) for problem in problems],
        advice=[ProblemAt(*remark) for remark in remarks],
        document=data if asked.want == "document" else None,
        text=written,
    )


ROUTES = (
    AdminRoute("viewer", "GET", "/rules", get_rules, also=(503,)),
    AdminRoute("editor", "PUT", "/rules", save_rules, also=(409, 503)),
    AdminRoute("viewer", "POST", "/rules/validate", validate_rules, also=(503,)),
    AdminRoute("viewer", "GET", "/rules/versions", list_versions, also=(503,)),
    AdminRoute("viewer", "GET", _VERSION, get_version, also=(404, 503)),
    AdminRoute("viewer", "GET", f"{_VERSION}/diff", diff_versions, also=(404, 503)),
    AdminRoute("editor", "POST", f"{_VERSION}/activate", activate_version, also=(404, 409, 503)),
    AdminRoute("editor", "POST", f"{_VERSION}/rollback", roll_back, also=(404, 409, 503)),
    AdminRoute("viewer", "GET", "/rules/{name}", get_rule, also=(404, 503)),
)
