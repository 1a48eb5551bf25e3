"""`/explain` and `/keys`: explain a request, inspect the state of a key, and reset its counters."""

from __future__ import annotations

import time

from fastapi import Request
from msgspec import structs

from limen.engine.asked import ask
from limen.errors import InvalidInput, did_you_mean
from limen.rules import RuleSet, document
from limen.rules.explain import LONGEST, Account, attributes, explain, shortened
from limen.rules.stores.records import MAX_SUBJECT
from limen.server.admin.authorization import AdminRoute
from limen.server.admin.edits import format_attributes
from limen.server.admin.requests import ExplainRequest, InspectRequest, ResetRequest
from limen.server.admin.responses import ExplainResult, ResetResult, RuleExplanation
from limen.server.admin.rule_service import ForCaller, RuleService
from limen.server.api.response_templates import template_of
from limen.server.api.verdict_response import verdict_message
from limen.wire import Verdict

MAX_RULES = 1_000
"""How many rules `/explain` tells of."""
MAX_CONDITIONS = 2_000
"""How many conditions it tells of, of all rules together."""
MAX_EXEMPTIONS = 1_000
"""How many exemptions it names."""


async def explain_request(
    rules: ForCaller, request: Request, asked: ExplainRequest
) -> ExplainResult:
    """Explain for every rule whether it applies to a request. Nothing is charged."""
    rule_set = rules.service.engine.rules
    if asked.document is not None:
        rule_set = await rules.compute(document.parse, asked.document)
    verdict = await _peek(rules, request, asked.attributes, asked.cost, rule_set)
    return await rules.compute(_explained, rule_set, asked, verdict)


async def inspect_key(rules: ForCaller, request: Request, asked: InspectRequest) -> Verdict:
    """Return the state of a key under every limit. The response is that of `/v1/usage`, and
    nothing is charged."""
    return await _peek(rules, request, asked.attributes, 1, rules.service.engine.rules)


async def reset_key(rules: ForCaller, asked: ResetRequest) -> ResetResult:
    """Reset the counters of a request, under every rule that matches or only one."""
    service, rule = rules.service, asked.rule
    names = [each.name for each in service.engine.rules.rules]
    if rule is not None and rule not in names:
        raise InvalidInput(f"rule: there is no rule {rule!r}{did_you_mean(rule, names)}")
    applied = service.engine.ask(asked.attributes, slots=True).found.applied
    met = [each.rule.name for each in applied if each.checks and rule in (None, each.rule.name)]
    if not met:
        return ResetResult([])
    # Written down before it is done, and not before it can be: nobody resets past the audit.
    await service.limiter.ping()
    subject = f"rule {', '.join(met)}; {format_attributes(asked.attributes)}"[:MAX_SUBJECT]
    author = rules.caller.name
    await rules.write(lambda books: books.record("reset", subject, author, asked.comment))
    return ResetResult(list(await service.engine.reset(asked.attributes, rule)))


async def _peek(
    rules: RuleService, request: Request, facts: dict[str, str], cost: int, rule_set: RuleSet
) -> Verdict:
    asked = await rules.compute(lambda: ask(rule_set, facts, cost, time.time_ns(), slots=True))
    decision, limiter = None, rules.service.limiter
    if asked.checks:
        decision = await limiter.run(limiter.prepare(tuple(asked.checks), charge=False))
    verdict = asked.verdict(decision)
    template, id_ = template_of(verdict.applied), request.scope["limen_id"]
    return verdict_message(verdict, template, id_, rules.service.receipts)


def _explained(rules: RuleSet, asked: ExplainRequest, verdict: Verdict) -> ExplainResult:
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
    return ExplainResult(
        version=rules.version,
        exempt=exempt[:MAX_EXEMPTIONS],
        exempt_left_out=len(exempt[MAX_EXEMPTIONS:]),
        unused=sorted(asked.attributes.keys() - attributes(rules)),
        rules=[shown[number] for number in sorted(shown)],
        rules_left_out=len(accounts) - len(shown),
        verdict=_shortened(verdict),
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


def _account(account: Account, room: int) -> RuleExplanation:
    tests = account.tests
    if len(tests) > room:
        tests = tuple(sorted(tests, key=lambda test: test.holds)[:room])
    return RuleExplanation(
        rule=account.rule.name,
        mode=account.rule.mode,
        applies=account.applies,
        because=account.obstacle,
        conditions=[
            structs.replace(
                test,
                asked=shortened(test.asked, LONGEST),
                got=None if test.got is None else shortened(test.got, LONGEST),
            )
            for test in tests
        ],
        conditions_left_out=len(account.tests) - len(tests),
    )


ROUTES = (
    AdminRoute("viewer", "POST", "/explain", explain_request, also=(503,)),
    AdminRoute("viewer", "POST", "/keys/inspect", inspect_key, also=(503,)),
    AdminRoute("editor", "POST", "/keys/reset", reset_key, also=(503,)),
)
