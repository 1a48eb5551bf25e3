"""The answer of `limen explain`, told to people and to machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from limen.cli import draw
from limen.cli.account import Answer
from limen.cli.listing import percent
from limen.engine import Part, Verdict
from limen.model import Concurrency
from limen.rules.explain import Account, moment_text

_INDENT = "    "


def show(answer: Answer, *, show_all: bool) -> None:
    """Print the rules that apply, what is left of each limit, and the verdict at the end."""
    found, verdict = answer.explanation, answer.verdict
    for note in answer.notes:
        draw.complain(f"note: {note}")
    total = len(found.accounts)
    draw.line(f"rules  {answer.rules}: {len(found.applying)} of {total} apply{_when(answer)}")
    draw.line(f"store  {answer.store}: {_state(answer)}")
    for exemption in found.exempt:
        whole = "all rules" if exemption.rules is None else ", ".join(sorted(exemption.rules))
        draw.line(f"exempt {exemption.name}: from {whole}")
    for account in found.applying:
        draw.line()
        _show_rule(account, answer)
    if found.others:
        draw.line()
        _show_others(found.others, "other rule" if found.applying else "rule", show_all)
    draw.line()
    draw.line(_verdict(answer), "bold green" if verdict.allowed else "bold red")


def _when(answer: Answer) -> str:
    return "" if answer.is_now else f" at {moment_text(answer.at)}"


def _state(answer: Answer) -> str:
    if not answer.is_stored:
        return "no counters here, so this is what a first request meets (see --store)"
    return "counters as they are now; nothing was consumed"


def _show_rule(account: Account, answer: Answer) -> None:
    parts = [part for part in answer.verdict.parts if part.rule == account.rule.name]
    draw.line(f"{account.rule.name}  {_how(account, parts, answer)}", "bold")
    for test in account.tests:
        draw.line(f"{_INDENT}{test}")
    if parts and parts[0].key is not None:
        # A slot is one, whatever a request costs.
        counts = [part.cost for part in parts if not isinstance(part.limit, Concurrency)]
        cost = f", cost {counts[0]}" if counts else ""
        key = parts[0].key if account.rule.key else "everybody together"
        draw.line(f"{_INDENT}counted by {key}{cost}")
    for part in parts:
        draw.line(f"{_INDENT}{_limit(part, account, answer)}", "" if part.allowed else "red")
    if not parts:
        draw.line(f"{_INDENT}{_unasked(account, answer.verdict)}")


def _how(account: Account, parts: Sequence[Part], answer: Answer) -> str:
    """Write how a rule applies: `enforced, tier pro`, `shadow for this key (enforced for 25 %)`."""
    rule = account.rule
    words: list[str] = ["enforced" if rule.mode == "enforce" else rule.mode]
    if rule.enforced is not None and rule.mode != "shadow" and parts:
        here = "shadow for this key" if parts[0].mode == "shadow" else f"{words[0]} for this key"
        words = [f"{here} ({percent(rule):g} % of keys are enforced)"]
    if not parts or parts[0].reason:
        return ", ".join(words)
    part, by = parts[0], rule.allowances.by
    if part.is_override:
        words.append("override for this key")
    elif part.tier is not None:
        words.append(f"tier {part.tier}")
    elif by is not None:
        value = answer.facts.get(by)
        words.append(f"no {by}, so no tier" if value is None else f"{by}={value} is no tier")
    if part.variant is not None:
        words.append(f"variant {part.variant}")
    return ", ".join(words)


def _limit(part: Part, account: Account, answer: Answer) -> str:
    is_shadow = part.mode == "shadow"
    if part.reason is not None:
        return f"{'would refuse' if is_shadow else 'refuses'}: {_reason(part, account, answer)}"
    if part.limit is None:
        return "unlimited"
    whole = part.limit.slots if isinstance(part.limit, Concurrency) else part.limit.capacity
    words = [f"{part.limit}: {part.remaining} of {whole} left"]
    if not part.allowed:
        refused = "would be refused" if is_shadow else "refused"
        words.append(f"{refused}, {_retry(part.retry_after)}")
    if part.reset_after:
        words.append(f"reset in {draw.seconds(part.reset_after)}")
    return ", ".join(words)


def _reason(part: Part, account: Account, answer: Answer) -> str:
    """Write why a rule refuses without counting."""
    rule = account.rule
    if part.reason == "blocked":
        until = "" if rule.span.ends is None else f" until {moment_text(rule.span.ends)}"
        return f"it blocks whoever matches{until}"
    absent = [name for name in rule.key if name not in answer.facts]
    if not absent:
        return f"its cost is the attribute {rule.cost}, which is absent (missing: deny)"
    return f"it is counted by {', '.join(rule.key)}; {absent[0]} is absent (missing: deny)"


def _retry(seconds: float | None) -> str:
    return "and no wait helps" if seconds is None else f"retry in {draw.seconds(seconds)}"


def _unasked(account: Account, verdict: Verdict) -> str:
    if account.rule.name in verdict.not_applicable:
        return "not applied: a request is held to 100 limits at most"
    return f"not asked: {verdict.rule} refuses already"


def _show_others(others: Sequence[Account], noun: str, show_all: bool) -> None:
    do = "does" if len(others) == 1 else "do"
    hint = "" if show_all else " (--all tells why)"
    draw.line(f"{draw.counted(len(others), noun)} {do} not apply{hint}")
    if show_all:
        for account in others:
            draw.line(f"{_INDENT}{account.rule.name}  {account.obstacle}")


def _verdict(answer: Answer) -> str:
    verdict = answer.verdict
    limit = f"{verdict.rule} ({verdict.limit})"
    if not verdict.allowed and verdict.limit is not None:
        return f"refused by {limit}, {_retry(verdict.retry_after)}"
    if not verdict.allowed:
        [account] = [of for of in answer.explanation.applying if of.rule.name == verdict.rule]
        [part] = [of for of in verdict.parts if of.rule == verdict.rule]
        return f"refused by {verdict.rule}: {_reason(part, account, answer)}"
    if verdict.limit is not None:
        delay = f" after a delay of {draw.seconds(verdict.delay)}" if verdict.delay else ""
        return f"allowed{delay}; nearest is {limit}, {verdict.remaining} left"
    if any(exemption.rules is None for exemption in answer.explanation.exempt):
        return f"allowed: exempt by {', '.join(verdict.exempt)}"
    return "allowed: no limit is enforced" if verdict.applied else "allowed: no rule applies"


def show_json(answer: Answer) -> None:
    """Print all of it as JSON. Seconds are numbers; null is never."""
    found, verdict = answer.explanation, answer.verdict
    draw.json(
        {
            "rules": answer.rules,
            "store": answer.store,
            "has_state": answer.is_stored,
            "at": moment_text(answer.at),
            "attributes": answer.facts,
            "notes": answer.notes,
            "allowed": verdict.allowed,
            "rule": verdict.rule,
            "limit": None if verdict.limit is None else str(verdict.limit),
            "remaining": verdict.remaining,
            "retry_after": verdict.retry_after,
            "reset_after": verdict.reset_after,
            "delay": verdict.delay,
            "version": verdict.version,
            "exempt": verdict.exempt,
            "not_applicable": verdict.not_applicable,
            "parts": [_part(part) for part in verdict.parts],
            "applying": [_account(account) for account in found.applying],
            "others": [
                {"rule": account.rule.name, "because": account.obstacle} for account in found.others
            ],
        }
    )


def _part(part: Part) -> dict[str, Any]:
    limit = None if part.limit is None else str(part.limit)
    fields = {name: getattr(part, name) for name in Part.__struct_fields__}
    return {**fields, "limit": limit}


def _account(account: Account) -> dict[str, Any]:
    return {"rule": account.rule.name, "because": account.tests}
