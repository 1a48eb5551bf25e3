"""What an engine is put together from, checked at once: a mistake here would fail every request."""

from __future__ import annotations

from typing import TypeVar

from limen.errors import ConfigurationError, shown
from limen.rules.ruleset import RuleSet

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
