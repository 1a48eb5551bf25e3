"""`limen explain`: the rules that apply to a request, and the state of their limits.

Nothing is counted. A store that does not answer is an error: counters of this process would be
misleading.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct, structs

from limen.cli import options, output
from limen.clock import SystemClock
from limen.connect import is_shared
from limen.connect import parse as parse_address
from limen.errors import InvalidInput, StoreError, did_you_mean, shown
from limen.limiter import Limiter
from limen.model import Concurrency

if TYPE_CHECKING:
    from limen.engine import Part, Verdict
    from limen.rules import RuleSet
    from limen.rules.explain import Account, Explanation
    from limen.server.settings import Settings

# People wait longer than requests do.
_DEADLINE_S = 3.0
_MAX_LOGS = 1_000
_INDENT = "    "


class ExplainResult(Struct, frozen=True):
    """The explanation of one request."""

    rules: str
    """The location and the version of the rules."""
    store: str
    """The address of the store, without a password."""
    is_stored: bool
    """Whether the store has counters."""
    at: str
    is_now: bool
    attributes: dict[str, str]
    notes: list[str]
    """Possible mistakes in the attributes."""
    explanation: Explanation
    verdict: Verdict


@options.with_settings("rules", "store", "namespace")
def explain_request(
    context: typer.Context,
    attributes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", show_default=False, help="Attributes of the request."),
    ] = None,
    cost: Annotated[int, typer.Option(min=0, help="The cost of the request.")] = 1,
    version: options.Version = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also why each other rule does not apply.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", show_default="now", help="The time of the request."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Explain the rules that apply to a request, and print the state of their limits.

    Nothing is counted. With the store memory:// there are no counters:
    the output is that of the first request of all. The exit code
    is 0 also when the request would be refused.

        limen explain user=42 path=/search/a method=GET
        limen explain user=42 path=/search/a --store redis://localhost:6379
        limen explain ip=203.0.113.7 path=/login --all
        limen explain user=42 --rules rules.yaml --at 2026-12-24T18:00Z
    """
    if _is_bare(context) and any(stream and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        print(context.get_help())
        return
    result = _explain(attributes or [], cost, at, options.settings_of(context), version)
    if as_json:
        _print_json(result)
    else:
        _print_text(result, show_all=show_all)


def _is_bare(context: typer.Context) -> bool:
    """Return whether the command has no arguments and no options."""
    sources = [context.get_parameter_source(name) for name in context.params]
    return not any(source is not None and source.name == "COMMANDLINE" for source in sources)


def _explain(
    texts: Sequence[str], cost: int, at: str | None, settings: Settings, version: int | None
) -> ExplainResult:
    """Ask the rules and the store about a request. Raises `LimenError`."""
    from limen.cli.rules_source import load_rules
    from limen.engine import Engine
    from limen.rules.explain import explain, moment_text

    typed = _parse_attributes(texts)
    attributes = {name: value for name, value in typed.items() if value}
    clock = _FixedClock(at)
    loaded = load_rules(settings.rules_place.get_secret_value(), version)
    rules = loaded.rule_set()
    store = settings.store.url.get_secret_value()
    limiter = Limiter(store, namespace=settings.namespace, deadline=_DEADLINE_S)
    is_stored = is_shared(store)
    shown_store = parse_address(store).shown if is_stored else "memory://"
    with limiter, _collected_logs() as logs:
        limiter.ping()
        verdict = Engine(rules, limiter, clock=clock).peek(attributes, cost)
    if verdict.decision is not None and any(part.degraded for part in verdict.decision.parts):
        reason = logs[0].getMessage() if logs else "the store did not answer"
        raise StoreError(f"{reason}; see `limen doctor {shown_store}`")
    return ExplainResult(
        rules=loaded.where if loaded.version is None else f"{loaded.where}, {loaded.label}",
        store=shown_store,
        is_stored=is_stored,
        at=moment_text(clock.seconds),
        is_now=at is None,
        attributes=attributes,
        notes=_notes(typed, rules),
        explanation=explain(rules, attributes, clock.seconds),
        verdict=verdict,
    )


class _FixedClock(SystemClock):
    """One time for the rules and for their explanation."""

    def __init__(self, text: str | None) -> None:
        options.refuse_address(text or "", "a time")
        try:
            time = datetime.now(UTC) if text is None else options.read_time(text)
        except (ValueError, OverflowError):
            raise InvalidInput(
                f"--at takes a date such as 2026-12-24 or a time such as 2026-12-24T18:00Z, "
                f"got {shown(text)}"
            ) from None
        self.seconds = time.timestamp()

    def time_ns(self) -> int:
        return round(self.seconds * 1e9)


def _parse_attributes(texts: Iterable[str]) -> dict[str, str]:
    """Return the values by name. A value may be empty."""
    attributes: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        options.refuse_address(name, "an attribute")
        if not equals:
            raise InvalidInput(f"{shown(text)} is no attribute; write it as name=value")
        if not name:
            raise InvalidInput(f"{shown(text)} has no name; write it as name=value")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise InvalidInput(f"{shown(text)} is not text in UTF-8")
        if name in attributes:
            raise InvalidInput(f"the attribute {shown(name)} stands twice")
        attributes[name] = value
    return attributes


def _notes(typed: Mapping[str, str], rules: RuleSet) -> list[str]:
    """Return notes about valid attributes that may be mistakes."""
    from limen.model.network import read_address
    from limen.rules.explain import attributes
    from limen.rules.match import ADDRESS

    known = sorted(attributes(rules))
    others = [name for name in known if name not in typed]
    notes = []
    for name, value in typed.items():
        if name not in known:
            hint = did_you_mean(name, others).replace("'", "")
            if not hint and known:
                hint = f"; they use: {', '.join(known)}"
            notes.append(f"no rule uses {name}{hint}")
        elif not value:
            notes.append(f"{name} is empty, which is the same as absent")
        elif name == ADDRESS and read_address(value) is None:
            notes.append(f"{value} is no address, so it is in no network")
    return notes


@contextmanager
def _collected_logs() -> Iterator[list[logging.LogRecord]]:
    """Collect the log records of limen instead of printing them."""
    logger, handler = logging.getLogger("limen"), BufferingHandler(_MAX_LOGS)
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.buffer
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _print_text(result: ExplainResult, *, show_all: bool) -> None:
    """Print the rules that apply, the state of their limits, and the verdict."""
    explanation, verdict = result.explanation, result.verdict
    for note in result.notes:
        output.print_error(f"note: {note}")
    applying, total = len(explanation.applying), len(explanation.accounts)
    at = "" if result.is_now else f" at {result.at}"
    output.print_line(f"rules  {result.rules}: {applying} of {total} apply{at}")
    if result.is_stored:
        state = "counters as they are now; nothing was consumed"
    else:
        state = "no counters here, so this is what a first request meets (see --store)"
    output.print_line(f"store  {result.store}: {state}")
    for exemption in explanation.exempt:
        rules = "all rules" if exemption.rules is None else ", ".join(sorted(exemption.rules))
        output.print_line(f"exempt {exemption.name}: from {rules}")
    for account in explanation.applying:
        output.print_line()
        _print_rule(account, result)
    if explanation.others:
        output.print_line()
        noun = "other rule" if explanation.applying else "rule"
        _print_others(explanation.others, noun, show_all)
    output.print_line()
    output.print_line(_verdict(result), "bold green" if verdict.allowed else "bold red")


def _print_rule(account: Account, result: ExplainResult) -> None:
    parts = [part for part in result.verdict.parts if part.rule == account.rule.name]
    output.print_line(f"{account.rule.name}  {_mode(account, parts, result)}", "bold")
    for test in account.tests:
        output.print_line(f"{_INDENT}{test}")
    if parts and parts[0].key is not None:
        # A slot is one, whatever a request costs.
        costs = [part.cost for part in parts if not isinstance(part.limit, Concurrency)]
        cost = f", cost {costs[0]}" if costs else ""
        key = parts[0].key if account.rule.key else "everybody together"
        output.print_line(f"{_INDENT}counted by {key}{cost}")
    for part in parts:
        style = "" if part.allowed else "red"
        output.print_line(f"{_INDENT}{_limit(part, account, result)}", style)
    if not parts and account.rule.name in result.verdict.not_applicable:
        output.print_line(f"{_INDENT}not applied: a request is held to 100 limits at most")
    elif not parts:
        output.print_line(f"{_INDENT}not asked: {result.verdict.rule} refuses already")


def _mode(account: Account, parts: Sequence[Part], result: ExplainResult) -> str:
    """Return `enforced, tier pro`, or `shadow for this key (25 % of keys are enforced)`."""
    rule = account.rule
    words: list[str] = ["enforced" if rule.mode == "enforce" else rule.mode]
    if rule.enforced is not None and rule.mode != "shadow" and parts:
        here = "shadow for this key" if parts[0].mode == "shadow" else f"{words[0]} for this key"
        words = [f"{here} ({rule.enforced_percent:g} % of keys are enforced)"]
    if not parts or parts[0].reason:
        return ", ".join(words)
    part, by = parts[0], rule.allowances.by
    if part.is_override:
        words.append("override for this key")
    elif part.tier is not None:
        words.append(f"tier {part.tier}")
    elif by is not None:
        value = result.attributes.get(by)
        words.append(f"no {by}, so no tier" if value is None else f"{by}={value} is no tier")
    if part.variant is not None:
        words.append(f"variant {part.variant}")
    return ", ".join(words)


def _limit(part: Part, account: Account, result: ExplainResult) -> str:
    is_shadow = part.mode == "shadow"
    if part.reason is not None:
        return f"{'would refuse' if is_shadow else 'refuses'}: {_reason(part, account, result)}"
    if part.limit is None:
        return "unlimited"
    words = [f"{part.limit}: {part.remaining} of {part.limit.capacity} left"]
    if not part.allowed:
        refused = "would be refused" if is_shadow else "refused"
        words.append(f"{refused}, {_retry(part.retry_after)}")
    if part.reset_after:
        words.append(f"reset in {output.format_duration(part.reset_after)}")
    return ", ".join(words)


def _reason(part: Part, account: Account, result: ExplainResult) -> str:
    """Return the reason of a rule that refuses without counting."""
    from limen.rules.explain import moment_text

    rule = account.rule
    if part.reason == "blocked":
        until = "" if rule.span.ends is None else f" until {moment_text(rule.span.ends)}"
        return f"it blocks whoever matches{until}"
    absent = [name for name in rule.key if name not in result.attributes]
    if not absent:
        return f"its cost is the attribute {rule.cost}, which is absent (missing: deny)"
    return f"it is counted by {', '.join(rule.key)}; {absent[0]} is absent (missing: deny)"


def _retry(seconds: float | None) -> str:
    return "and no wait helps" if seconds is None else f"retry in {output.format_duration(seconds)}"


def _print_others(others: Sequence[Account], noun: str, show_all: bool) -> None:
    do = "does" if len(others) == 1 else "do"
    hint = "" if show_all else " (--all tells why)"
    output.print_line(f"{output.pluralize(len(others), noun)} {do} not apply{hint}")
    if show_all:
        for account in others:
            output.print_line(f"{_INDENT}{account.rule.name}  {account.obstacle}")


def _verdict(result: ExplainResult) -> str:
    verdict = result.verdict
    limit = f"{verdict.rule} ({verdict.limit})"
    if not verdict.allowed and verdict.limit is not None:
        return f"refused by {limit}, {_retry(verdict.retry_after)}"
    if not verdict.allowed:
        [account] = [each for each in result.explanation.applying if each.rule.name == verdict.rule]
        [part] = [part for part in verdict.parts if part.rule == verdict.rule]
        return f"refused by {verdict.rule}: {_reason(part, account, result)}"
    if verdict.limit is not None:
        delay = (
            f" after a delay of {output.format_duration(verdict.delay)}" if verdict.delay else ""
        )
        return f"allowed{delay}; nearest is {limit}, {verdict.remaining} left"
    if any(exemption.rules is None for exemption in result.explanation.exempt):
        return f"allowed: exempt by {', '.join(verdict.exempt)}"
    return "allowed: no limit is enforced" if verdict.applied else "allowed: no rule applies"


def _print_json(result: ExplainResult) -> None:
    """Print the result as JSON. Durations are seconds; null is never."""
    explanation, verdict = result.explanation, result.verdict
    output.print_json(
        {
            "rules": result.rules,
            "store": result.store,
            "has_state": result.is_stored,
            "at": result.at,
            "attributes": result.attributes,
            "notes": result.notes,
            "allowed": verdict.allowed,
            "rule": verdict.rule,
            "limit": verdict.limit and str(verdict.limit),
            "remaining": verdict.remaining,
            "retry_after": verdict.retry_after,
            "reset_after": verdict.reset_after,
            "delay": verdict.delay,
            "version": verdict.version,
            "exempt": verdict.exempt,
            "not_applicable": verdict.not_applicable,
            "parts": [
                {**structs.asdict(part), "limit": part.limit and str(part.limit)}
                for part in verdict.parts
            ],
            "applying": [
                {"rule": account.rule.name, "because": account.tests}
                for account in explanation.applying
            ],
            "others": [
                {"rule": account.rule.name, "because": account.obstacle}
                for account in explanation.others
            ],
        }
    )
