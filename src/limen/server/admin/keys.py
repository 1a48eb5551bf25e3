"""`/explain` and `/keys`: what the rules say to a request, where a key stands, and a new start."""

from __future__ import annotations

import time

import msgspec
from fastapi import Request, Response
from msgspec import structs

from limen.engine.asked import ask
from limen.errors import InvalidInput, did_you_mean
from limen.rules import RuleSet, document
from limen.rules.explain import LONGEST, Account, attributes, explain, shortened
from limen.rules.stores.records import MAX_SUBJECT
from limen.server import answers
from limen.server.admin import edits
from limen.server.admin.answers import Condition, Explained, RuleAccount, WasReset
from limen.server.admin.desk import Desk
from limen.server.admin.guard import Door, caller_of
from limen.server.admin.questions import ToExplain, ToInspect, ToReset
from limen.server.faces import faces_of
from limen.server.openapi import content
from limen.wire import Verdict

MAX_RULES = 1_000
"""How many rules `/explain` tells of."""
MAX_CONDITIONS = 2_000
"""How many conditions it tells of, of all rules together."""
MAX_EXEMPTIONS = 1_000
"""How many exemptions it names."""


class Keys:
    """Answers what is asked of a single request or key."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._service = desk.service

    async def explain_request(self, request: Request, asked: ToExplain) -> Explained:
        """Say of every rule whether it applies to a request, and why. Nothing is charged."""
        rules, caller = self._service.engine.rules, caller_of(request)
        if asked.document is not None:
            rules = await self._desk.compute(caller, document.parse, asked.document)
        said = await self._peek(request, asked.attributes, asked.cost, rules)
        return await self._desk.compute(caller, _explained, rules, asked, said)

    async def inspect_key(self, request: Request, asked: ToInspect) -> Response:
        """Say where a key stands under every limit. The answer is that of `/v1/usage`, and nothing
        is charged."""
        said = await self._peek(request, asked.attributes, 1, self._service.engine.rules)
        return Response(msgspec.json.encode(said), media_type="application/json")

    async def reset_key(self, request: Request, asked: ToReset) -> WasReset:
        """Forget what was counted for a request, under every rule that it meets or only one."""
        service, rule = self._service, asked.rule
        names = [each.name for each in service.engine.rules.rules]
        if rule is not None and rule not in names:
            raise InvalidInput(f"rule: there is no rule {rule!r}{did_you_mean(rule, names)}")
        applied = service.engine.ask(asked.attributes, slots=True).found.applied
        met = [each.rule.name for each in applied if each.checks and rule in (None, each.rule.name)]
        if not met:
            return WasReset(rules=[])
        # Written down before it is done, and not before it can be: nobody resets past the audit.
        await service.limiter.ping()
        subject = f"rule {', '.join(met)}; {edits.told(asked.attributes)}"[:MAX_SUBJECT]
        caller = caller_of(request)
        await self._desk.write(
            caller, lambda books: books.record("reset", subject, caller.name, asked.comment)
        )
        return WasReset(rules=list(await service.engine.reset(asked.attributes, rule)))

    async def _peek(
        self, request: Request, facts: dict[str, str], cost: int, rules: RuleSet
    ) -> Verdict:
        asked = await self._desk.compute(
            caller_of(request), lambda: ask(rules, facts, cost, time.time_ns(), slots=True)
        )
        decision = None
        if asked.checks:
            decision = await self._service.limiter.ask(tuple(asked.checks), charge=False)
        verdict = asked.verdict(decision)
        id_ = request.scope.get("limen_id", "")
        faces = faces_of(verdict.applied)
        message, _ = answers.of_verdict(verdict, faces, id_, self._service.receipts)
        return message


def install(door: Door, desk: Desk) -> None:
    """Add the routes."""
    keys = Keys(desk)
    door.add("viewer", "POST", "/explain", keys.explain_request, also=(503,))
    verdict = {"responses": {"200": content("Verdict", "Where the key stands.")}}
    door.add("viewer", "POST", "/keys/inspect", keys.inspect_key, also=(503,), extra=verdict)
    door.add("editor", "POST", "/keys/reset", keys.reset_key, also=(503,))


def _explained(rules: RuleSet, asked: ToExplain, said: Verdict) -> Explained:
    explanation = explain(rules, asked.attributes, time.time())
    accounts = explanation.accounts
    # Sorted by how much the caller wants to know of each, and then back into the order of rules.
    wanted = sorted(
        range(len(accounts)),
        key=lambda n: (accounts[n].rule.name != asked.rule, not accounts[n].applies),
    )[:MAX_RULES]
    shown, room = {}, MAX_CONDITIONS
    for number in wanted:
        shown[number] = _account(accounts[number], room)
        room -= len(shown[number].conditions)
    exempt = [each.name for each in explanation.exempt]
    return Explained(
        version=rules.version,
        exempt=exempt[:MAX_EXEMPTIONS],
        exempt_left_out=len(exempt[MAX_EXEMPTIONS:]),
        unused=sorted(asked.attributes.keys() - attributes(rules)),
        rules=[shown[number] for number in sorted(shown)],
        rules_left_out=len(accounts) - len(shown),
        verdict=msgspec.to_builtins(_shortened(said)),
    )


def _shortened(verdict: Verdict) -> Verdict:
    """Return a verdict of bounded length: every limit repeats the key, and names can be many."""
    return structs.replace(
        verdict,
        parts=tuple(
            structs.replace(part, key=part.key and shortened(part.key, LONGEST))
            for part in verdict.parts[:MAX_RULES]
        ),
        exempt=verdict.exempt[:MAX_EXEMPTIONS],
        not_applicable=verdict.not_applicable[:MAX_RULES],
    )


def _account(account: Account, room: int) -> RuleAccount:
    tests = account.tests
    if len(tests) > room:
        tests = tuple(sorted(tests, key=lambda test: test.holds)[:room])
    return RuleAccount(
        rule=account.rule.name,
        mode=account.rule.mode,
        applies=account.applies,
        because=account.obstacle,
        conditions=[
            Condition(
                attribute=each.attribute,
                asked=shortened(each.asked, LONGEST),
                got=None if each.got is None else shortened(each.got, LONGEST),
                holds=each.holds,
            )
            for each in tests
        ],
        conditions_left_out=len(account.tests) - len(tests),
    )
