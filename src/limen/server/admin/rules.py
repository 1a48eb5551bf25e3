"""`/rules`: what holds, what would be wrong with other rules, and how they come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Path, Query, Request

from limen.errors import InvalidInput, InvalidRules, Problem
from limen.rules import diff, document, text
from limen.rules.advice import advice
from limen.rules.stores.sql import SqlStore, StoredRuleSet
from limen.server.access import Caller
from limen.server.admin import summary
from limen.server.admin.answers import (
    ActiveRules,
    Diff,
    OneRule,
    ProblemAt,
    Saved,
    Validated,
    Versions,
    WholeVersion,
)
from limen.server.admin.desk import Desk, Held
from limen.server.admin.edits import Missing, now, rule_of, rules_of
from limen.server.admin.guard import Door, caller_of
from limen.server.admin.kinds import PageSize, Version, VersionOrNone
from limen.server.admin.questions import ToActivate, ToRollBack, ToSave, ToValidate

Number = Annotated[Version, Path(alias="version", description="The number of a version.")]


class Rules:
    """Answers what is asked of the rules as a whole."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def get_rules(self, request: Request) -> ActiveRules:
        """Return the rules that hold."""
        desk, caller = self._desk, caller_of(request)
        held = await desk.held(caller)
        latest = None if desk.is_file else await desk.latest(caller)
        return await desk.compute(caller, self._told, held, latest)

    def _told(self, held: Held, latest: int | None) -> ActiveRules:
        stored, at = held.stored, now()
        return ActiveRules(
            source="file" if self._desk.is_file else "database",
            version=held.version,
            latest=latest,
            in_force=self._desk.service.engine.rules.version,
            author=stored.author if stored else None,
            comment=stored.comment if stored else None,
            created_at=stored.created_at if stored else None,
            document=dict(held.document),
            rules=[summary.rule_summary(raw, at) for raw in rules_of(held.document)],
        )

    async def get_rule(
        self, request: Request, name: Annotated[str, Path(max_length=64)]
    ) -> OneRule:
        """Return one rule of those that hold."""
        held = await self._desk.held(caller_of(request))
        raw = rule_of(held.document, name)
        return OneRule(**summary.rule(raw, now()), version=held.version, document=raw)

    async def validate_rules(self, request: Request, asked: ToValidate) -> Validated:
        """Say everything that is wrong with rules, and what is hardly meant. Nothing is saved, and
        rules that are not valid are an answer too: 200."""
        sent = asked.model_fields_set
        if ("document" in sent) == ("text" in sent):
            raise InvalidInput("give the rules as document, or as text: one of them")
        return await self._desk.compute(caller_of(request), _validated, asked)

    async def save_rules(self, request: Request, asked: ToSave) -> Saved:
        """Save rules as a new version, and let them hold. Rules that are the newest version already
        are not saved again."""
        caller = caller_of(request)
        stored = await self._desk.change(
            caller,
            lambda books: books.save(
                asked.document,
                author=caller.name,
                comment=asked.comment,
                base=asked.base,
                activate=asked.activate,
            ),
        )
        return await self._desk.compute(caller, summary.saved, stored)

    async def list_versions(
        self,
        request: Request,
        limit: Annotated[PageSize, Query(description="How many.")] = 50,
        before: Annotated[
            VersionOrNone | None, Query(description="Only those before this version, to go on.")
        ] = None,
    ) -> Versions:
        """List the versions of the rules, the newest first."""
        caller = caller_of(request)
        found = await self._desk.history(caller, limit, before)
        return await self._desk.compute(caller, _versions, found)

    async def get_version(self, request: Request, number: Number) -> WholeVersion:
        """Return one version of the rules."""
        caller = caller_of(request)
        stored = await self._desk.version(caller, number)
        return await self._desk.compute(caller, summary.whole, stored)

    async def diff_versions(
        self,
        request: Request,
        number: Number,
        against: Annotated[
            VersionOrNone | None,
            Query(
                description="The version to compare with; 0 is no rules. Without it, its parent."
            ),
        ] = None,
    ) -> Diff:
        """Say what a version changed."""
        caller = caller_of(request)
        after = await self._desk.version(caller, number)
        base = after.parent if against is None else against
        before = (await self._desk.version(caller, base)).document if base else None
        return await self._desk.compute(caller, _compared, base, before, after)

    async def activate_version(
        self, request: Request, number: Number, asked: ToActivate | None = None
    ) -> Saved:
        """Let a version hold, such as a draft."""
        asked, caller = asked or ToActivate(), caller_of(request)
        return await self._changed(
            caller,
            lambda books: books.activate(
                number, author=caller.name, comment=asked.comment, expected=asked.expected
            ),
        )

    async def roll_back(
        self, request: Request, number: Number, asked: ToRollBack | None = None
    ) -> Saved:
        """Save an old version as the newest one, and let it hold."""
        asked, caller = asked or ToRollBack(), caller_of(request)
        return await self._changed(
            caller,
            lambda books: books.rollback(
                number, author=caller.name, comment=asked.comment, base=asked.base
            ),
        )

    async def _changed(
        self, caller: Caller, work: Callable[[SqlStore], Awaitable[StoredRuleSet]]
    ) -> Saved:
        try:
            stored = await self._desk.change(caller, work)
        except InvalidInput as error:
            # Of a version, or of a comment that no database keeps: only the first is not there.
            if str(error).startswith("there is no version"):
                raise Missing(str(error)) from None
            raise
        return await self._desk.compute(caller, summary.saved, stored)


def install(door: Door, desk: Desk) -> None:
    """Add the routes."""
    rules = Rules(desk)
    door.add("viewer", "GET", "/rules", rules.get_rules, also=(503,))
    door.add("editor", "PUT", "/rules", rules.save_rules, also=(409, 503))
    door.add("viewer", "POST", "/rules/validate", rules.validate_rules, also=(503,))
    door.add("viewer", "GET", "/rules/versions", rules.list_versions, also=(503,))
    one = "/rules/versions/{version}"
    door.add("viewer", "GET", one, rules.get_version, also=(404, 503))
    door.add("viewer", "GET", f"{one}/diff", rules.diff_versions, also=(404, 503))
    for word, endpoint in (("activate", rules.activate_version), ("rollback", rules.roll_back)):
        door.add("editor", "POST", f"{one}/{word}", endpoint, also=(404, 409, 503))
    door.add("viewer", "GET", "/rules/{name}", rules.get_rule, also=(404, 503))


def _versions(stored: list[StoredRuleSet]) -> Versions:
    return Versions(versions=[summary.version(each) for each in stored])


def _compared(base: int, before: dict[str, Any] | None, after: StoredRuleSet) -> Diff:
    found = diff.changes(before, after.document or {})
    return Diff(
        before=base,
        after=after.version,
        summary=diff.summary(found),
        lines=diff.lines(found),
        changes=summary.changes(found),
    )


def _validated(asked: ToValidate) -> Validated:
    data, line = asked.document, None
    problems: list[Problem] = []
    remarks: list[Problem] = []
    written = None
    try:
        if asked.text is not None:
            found = text.read(asked.text, is_json=asked.json_)
            data, line = found.data, found.line
        remarks = advice(document.parse(data, lines=line), line)
        written = text.write(data) if asked.want == "text" else None
    except InvalidRules as error:
        problems = list(error.problems)
    return Validated(
        valid=not problems,
        problems=[_at(each) for each in problems],
        advice=[_at(each) for each in remarks],
        document=data if asked.want == "document" else None,
        text=written,
    )


def _at(problem: Problem) -> ProblemAt:
    return ProblemAt(path=problem.path, message=problem.message, line=problem.line)
