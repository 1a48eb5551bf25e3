"""What both engines do before the limiter is asked. Pure.

What one is put together from is checked at once: a mistake there would fail every request.
"""

from __future__ import annotations

from typing import TypeVar

from limen.errors import ConfigurationError, shown
from limen.model import Check
from limen.rules.ruleset import Resolution, RuleSet

T = TypeVar("T")


def rule_set(rules: object) -> RuleSet:
    """Return a rule set, or raise `ConfigurationError` that says how to get one."""
    if isinstance(rules, RuleSet):
        return rules
    how = "; read a file by limen.rules.load(path)" if isinstance(rules, str) else ""
    raise ConfigurationError(f"an engine needs a RuleSet, got {shown(rules)}{how}")


def limiter_of(kind: type[T], limiter: object) -> T:
    """Return a limiter of the right kind, or raise `ConfigurationError`."""
    if isinstance(limiter, kind):
        return limiter
    # Only its type: the address of a store may hold a password.
    raise ConfigurationError(f"this engine is for {kind.__name__}, got {type(limiter).__name__}")


def counted(found: Resolution, rule: str | None) -> tuple[tuple[str, ...], tuple[Check, ...]]:
    """Return the rules that count a request, or only one of them, and what they check."""
    names: dict[str, None] = {}
    checks: list[Check] = []
    first = 0
    for applied in found.applied:
        name = applied.rule.name
        if applied.checks and rule in (None, name):
            names[name] = None
            checks += found.checks[first : first + applied.checks]
        first += applied.checks
    return tuple(names), tuple(checks)
