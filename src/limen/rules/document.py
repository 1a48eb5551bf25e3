"""A document of rules, checked: the one door from plain data to a `RuleSet`."""

from __future__ import annotations

from typing import Any

from limen.errors import InvalidRules, Problem


def check(document: Any) -> None:
    """Raise `InvalidRules` with everything that is wrong with a document."""
    if not isinstance(document, dict):
        raise InvalidRules([Problem("", "expected a mapping with 'rules'")])
